"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.progress import show_progress
from mmgpu_hooks.commands.sweep_arguments import PLOTS_FOLDER, add_arguments
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.commands.trainable import (
    NotTrainableError,
    lengthen,
    read_trainable_config,
)
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.config.write import verify_output
from mmgpu_hooks.experiment.cards import picked_cards
from mmgpu_hooks.experiment.save_experiment import SaveExperimentError, check_room
from mmgpu_hooks.experiment.sweep import SweepError, run_sweep
from mmgpu_hooks.experiment.sweep_identity import read_identity
from mmgpu_hooks.experiment.sweep_ledger import (
    LEDGER_NAME,
    KeptTrials,
    LedgerError,
    open_ledger,
    parse_ledger,
)
from mmgpu_hooks.experiment.sweep_plan import (
    SweepGrid,
    SweepJob,
    TrialLimits,
    plan_pace,
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


class _InputError(Exception):
    """What was given cannot be used; one sentence for the user."""


_REFUSALS = (
    _InputError,
    LedgerError,
    UserError,
    NotTrainableError,
    SaveExperimentError,
    SweepError,
    UserError,
)


def run(arguments: argparse.Namespace) -> int:
    """Plan, train, keep, print."""
    try:
        ranks = _count_ranks(os.environ)
        if ranks > 1 and os.environ.get('RANK') != '0':
            # rank 0 starts the ranks of every trial
            return exit_codes.OK
        job = _read_job(arguments, ranks)
        if arguments.dry_run:
            return _print_plan(job, arguments)
        return _sweep(job, arguments)
    except _REFUSALS as error:
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
        raise _InputError(
            f'expected torchrun to start several ranks, found another launcher '
            f'(WORLD_SIZE={ranks}); start it with torchrun, or once and without.'
        )
    if environ.get('LOCAL_WORLD_SIZE') != ranks:
        raise _InputError(
            f'expected all ranks on one host, found '
            f'{environ.get("LOCAL_WORLD_SIZE")} of {ranks} here; settings are swept on '
            'one host, with --nnodes 1.'
        )
    return int(ranks)


def _read_job(arguments: argparse.Namespace, ranks: int) -> SweepJob:
    if ranks > 1 and arguments.gpus > 1:
        raise _InputError(
            f'expected --gpus or a launcher of ranks, found both: under torchrun '
            f'each trial trains on {ranks} cards, one trial at a time.'
        )
    if (arguments.plots or arguments.plot_format) and not can_draw():
        raise _InputError(
            'expected matplotlib to draw charts, found none; run `pip install '
            "'mmgpu_hooks[plots]'`, or leave --plots and --plot-format out."
        )
    config = read_trainable_config(arguments.config)
    grid = SweepGrid(
        arguments.num_workers,
        arguments.batch_size or (_own_batch_size(config),),
        arguments.prefetch or (None,),
        arguments.pin_memory,
        arguments.amp,
    )
    work_dir = arguments.work_dir or Path(
        str(config.get(('work_dir',)) or Path('work_dirs', arguments.config.stem))
    )
    return SweepJob(
        config=os.path.abspath(arguments.config),
        folder=work_dir.absolute() / _FOLDER,
        settings=grid.list_settings(),
        limits=TrialLimits(arguments.seconds, arguments.time_limit),
        identity=read_identity(
            config, saves=arguments.saves, side_by_side=arguments.gpus, ranks=ranks
        ),
        lengthened=lengthen(config, _ENDLESS),
        saves=arguments.saves,
        seed=arguments.seed,
        ranks=ranks,
    )


def _own_batch_size(config: FlatConfig) -> int | None:
    own = config.get(('train_dataloader', 'batch_size'))
    return own if isinstance(own, int) else None


def _print_plan(job: SweepJob, arguments: argparse.Namespace) -> int:
    path = job.folder / LEDGER_NAME
    kept = KeptTrials()
    if path.is_file() and not arguments.fresh:
        lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
        kept = parse_ledger(lines, job.identity, job.limits, job.settings)
    print(
        render_sweep_plan(
            job.settings,
            kept.rows,
            least={one: plan_pace(one).least_iterations for one in job.settings},
            side_by_side=arguments.gpus,
            measure_s=job.limits.measure_s,
            whole_s=job.limits.whole_s,
            folder=str(job.folder),
            notes=kept.notes,
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


def _sweep(job: SweepJob, arguments: argparse.Namespace) -> int:
    # late, because no other command draws
    from mmgpu_hooks.commands.sweep_files import TABLE_NAME, write_sweep_files

    config = str(arguments.config)
    if job.saves:
        check_room(job.folder, estimate_checkpoint_bytes(arguments.config))
    plots = (arguments.plots or job.folder / PLOTS_FOLDER).absolute()
    # before minutes are spent
    for ending in ('csv', 'json'):
        verify_output(job.folder / f'{TABLE_NAME}.{ending}')
    with (
        _cards(arguments.gpus) as cards,
        _folder(plots),
        open_ledger(job.folder) as ledger,
    ):
        # nothing is forgotten for a sweep that is refused
        if arguments.fresh:
            ledger.clear()
        kept = parse_ledger(ledger.read_lines(), job.identity, job.limits, job.settings)
        with show_progress() as told:
            sweep = run_sweep(replace(job, cards=cards), ledger, kept, told)
        notes = write_sweep_files(
            sweep, config, job.folder, plots, arguments.plot_format or 'svg'
        )
    if arguments.format == 'json':
        print(render_sweep_json(sweep, config, str(job.folder)))
    else:
        print(render_sweep(sweep, **terminal_layout(sys.stdout)))
    for note in notes:
        print(note, file=sys.stderr)
    return exit_codes.INTERRUPTED if sweep.is_interrupted else exit_codes.OK
