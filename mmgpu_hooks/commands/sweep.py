"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.progress import show_progress, warner
from mmgpu_hooks.commands.sweep_arguments import PLOTS_FOLDER, add_arguments
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.commands.trainable import lengthen, read_trainable_config
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.config.write import verify_output
from mmgpu_hooks.experiment.cards import picked_cards
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.save_bench import check_room
from mmgpu_hooks.experiment.store import (
    STORE_NAME,
    TrialStore,
    open_store,
    read_identity,
)
from mmgpu_hooks.experiment.sweep import (
    SweepPlan,
    count_least_iterations,
    list_settings,
    read_row,
)
from mmgpu_hooks.memory.estimate import estimate_checkpoint_bytes
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.charts import can_draw
from mmgpu_hooks.show.sweep import render_sweep, render_sweep_json, render_sweep_plan

__all__ = ['DESCRIPTION', 'EPILOG', 'HELP', 'NAME', 'add_arguments', 'run']

NAME = 'sweep'
HELP = 'train a config with several settings and compare them'
DESCRIPTION = """\
Train a config for a short while with each combination of workers, batch sizes and
prefetch factors, one after another in random order, and say what an iteration takes,
what it waits for and what it needs, beside what the model of one run had predicted."""
EPILOG = """\
exit codes: 0 measured, 2 input that cannot be used (one sentence on standard error
says why), 130 Ctrl-C, after a table of what was measured: the same command goes on
from there; nothing is left running"""

_FOLDER = 'sweep'
_ENDLESS = 10**6
"""Epochs or iterations that no trial comes to the end of."""


def run(arguments: argparse.Namespace) -> int:
    """Plan, train, keep, print."""
    try:
        ranks = _count_ranks(os.environ)
        if ranks > 1 and os.environ.get('RANK') != '0':
            # rank 0 starts the ranks of every trial
            return exit_codes.OK
        plan, identity = _read_plan(arguments, ranks)
        if arguments.dry_run:
            return _print_plan(plan, identity, arguments)
        return _sweep(plan, identity, arguments)
    except UserError as error:
        print(f'mmgpu {NAME}: {error}', file=sys.stderr)
    except OSError as error:
        print(
            f'mmgpu {NAME}: expected a folder to write to, found '
            f'{error.strerror or error} ({error.filename or "no file"}); name another '
            'with --work-dir or --plots.',
            file=sys.stderr,
        )
    return exit_codes.BAD_INPUT


def _count_ranks(environ: Mapping[str, str]) -> int:
    """How many processes torchrun has started of us; 1 without it."""
    ranks = environ.get('WORLD_SIZE', '1')
    if ranks == '1':
        return 1
    if 'TORCHELASTIC_RUN_ID' not in environ:
        raise UserError(
            f'expected torchrun to start several ranks, found another launcher '
            f'(WORLD_SIZE={ranks}); start it with torchrun, or once and without.'
        )
    if environ.get('LOCAL_WORLD_SIZE') != ranks:
        raise UserError(
            f'expected all ranks on one host, found '
            f'{environ.get("LOCAL_WORLD_SIZE")} of {ranks} here; settings are swept on '
            'one host, with --nnodes 1.'
        )
    return int(ranks)


def _read_plan(
    arguments: argparse.Namespace, ranks: int
) -> tuple[SweepPlan, dict[str, Any]]:
    if ranks > 1 and arguments.gpus > 1:
        raise UserError(
            f'expected --gpus or a launcher of ranks, found both: under torchrun '
            f'each trial trains on {ranks} cards, one trial at a time.'
        )
    if (arguments.plots or arguments.plot_format) and not can_draw():
        raise UserError(
            'expected matplotlib to draw charts, found none; run `pip install '
            "'mmgpu_hooks[plots]'`, or leave --plots and --plot-format out."
        )
    config = read_trainable_config(arguments.config)
    settings = list_settings(
        arguments.num_workers,
        arguments.batch_size or (_own_batch_size(config),),
        arguments.prefetch or (None,),
        pin_memory=arguments.pin_memory,
        amp=arguments.amp,
    )
    work_dir = arguments.work_dir or Path(
        str(config.get(('work_dir',)) or Path('work_dirs', arguments.config.stem))
    )
    plan = SweepPlan(
        config=os.path.abspath(arguments.config),
        folder=work_dir.absolute() / _FOLDER,
        settings=settings,
        measure_s=arguments.seconds,
        whole_s=arguments.time_limit,
        lengthened=lengthen(config, _ENDLESS),
        saves=arguments.saves,
        seed=arguments.seed,
        ranks=ranks,
    )
    facts = {
        'saves': arguments.saves,
        'number of GPUs': arguments.gpus,
        'number of ranks': ranks,
    }
    return plan, read_identity(config, **facts)


def _own_batch_size(config: FlatConfig) -> int | None:
    own = config.get(('train_dataloader', 'batch_size'))
    return own if isinstance(own, int) else None


def _print_plan(
    plan: SweepPlan, identity: Mapping[str, Any], arguments: argparse.Namespace
) -> int:
    path = plan.folder / STORE_NAME if not arguments.fresh else Path(os.devnull)
    kept, notes = TrialStore(path, identity).read(plan.keep)
    print(
        render_sweep_plan(
            plan.settings,
            [read_row(trial) for trial in kept],
            least={one: count_least_iterations(one) for one in plan.settings},
            side_by_side=arguments.gpus,
            measure_s=plan.measure_s,
            whole_s=plan.whole_s,
            folder=str(plan.folder),
            notes=notes,
            **terminal_layout(sys.stdout),
        )
    )
    return exit_codes.OK


@contextlib.contextmanager
def _cards(count: int) -> Iterator[tuple[str, ...]]:
    """So many cards for this sweep alone; none where one trial runs at a time."""
    if count == 1:
        yield ()
        return
    with picked_cards(count) as cards:
        yield cards


def _sweep(
    plan: SweepPlan, identity: Mapping[str, Any], arguments: argparse.Namespace
) -> int:
    # late, because no other command draws
    from mmgpu_hooks.commands.sweep_files import TABLE_NAME, write_sweep_files

    config = str(arguments.config)
    if plan.saves:
        check_room(plan.folder, estimate_checkpoint_bytes(arguments.config))
    plots = (arguments.plots or plan.folder / PLOTS_FOLDER).absolute()
    # before minutes are spent
    for ending in ('csv', 'json'):
        verify_output(plan.folder / f'{TABLE_NAME}.{ending}')
    # nothing is forgotten for a sweep that is refused
    with (
        _cards(arguments.gpus) as cards,
        _folder(plots),
        open_store(plan.folder, identity, fresh=arguments.fresh) as store,
        show_progress() as told,
    ):
        outcome = run_plan(
            plan,
            store,
            cards=cards,
            on_progress=told,
            on_warning=warner(NAME),
        )
        sweep = plan.finish(outcome)
        notes = write_sweep_files(
            sweep, config, plan.folder, plots, arguments.plot_format or 'svg'
        )
    if arguments.format == 'json':
        print(render_sweep_json(sweep, config, str(plan.folder)))
    else:
        print(render_sweep(sweep, **terminal_layout(sys.stdout)))
    for note in notes:
        print(note, file=sys.stderr)
    return exit_codes.INTERRUPTED if sweep.is_interrupted else exit_codes.OK


@contextlib.contextmanager
def _folder(path: Path) -> Iterator[None]:
    """Make a folder; when it comes to nothing, it goes with the parents it needed."""
    made = [one for one in (path, *path.parents) if not one.exists()]
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for one in made:
            # what has come into it stays
            with contextlib.suppress(OSError):
                one.rmdir()
        raise
