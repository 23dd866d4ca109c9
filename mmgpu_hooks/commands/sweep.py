"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.options import (
    COUNT,
    SECONDS,
    as_format,
    command,
    config_argument,
    dry_run,
    flag,
    fresh,
    time_limit,
    work_dir,
)
from mmgpu_hooks.commands.output import print_answer, terminal_layout
from mmgpu_hooks.commands.trials import (
    choose_folder,
    lengthen,
    read_trainable_config,
    train,
)
from mmgpu_hooks.config.write import verify_output, write_atomic
from mmgpu_hooks.experiment.cards import picked_cards
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
from mmgpu_hooks.recommend.sweep import LEAST_INTERVALS
from mmgpu_hooks.schema import Sweep
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.charts import can_draw, draw
from mmgpu_hooks.show.sweep import (
    list_sweep_charts,
    render_sweep,
    render_sweep_csv,
    render_sweep_json,
    render_sweep_plan,
)

_TABLES = ('sweep.json', 'sweep.csv')
_ENDLESS = 10**6
"""Epochs or iterations that no trial comes to the end of."""


@command('sweep', '0 measured (after Ctrl-C the same command goes on)')
@config_argument
@options.num_workers('Numbers of loader workers.', default=(0, 1, 2, 4, 8))
@options.batch_size("Images per batch; by default the config's.")
@options.prefetch_factor("Batches in flight per worker; by default the config's.")
@flag('--pin-memory', 'Train each without and with pinned memory.')
@flag('--amp', 'Train each in full and in mixed precision.')
@flag('--saves', 'Write checkpoints meanwhile, and say what one takes.')
@click.option(
    '--gpus',
    type=COUNT,
    default=1,
    help='Train on so many free GPUs side by side, one trial each, which share the '
    'cores.',
)
@click.option(
    '--seconds',
    type=SECONDS,
    default=60.0,
    metavar='SECONDS',
    help=f'To measure each for after its warm-up, and for {LEAST_INTERVALS} intervals '
    'of iterations at least; it ends earlier when its interval is within 3 %.',
)
@time_limit
@work_dir(
    "Results go to DIR/sweep; by default to the config's work_dir, or work_dirs/CONFIG."
)
@fresh
@dry_run
@as_format
def sweep(
    config: Path,
    num_workers: Sequence[int],
    batch_size: Sequence[int],
    prefetch_factor: Sequence[int],
    pin_memory: bool,
    amp: bool,
    saves: bool,
    gpus: int,
    seconds: float,
    time_limit: float,
    work_dir: Path | None,
    fresh: bool,
    dry_run: bool,
    form: str,
) -> int:
    """Train a config for a short while with each combination of settings.

    One after another in random order; says what an iteration takes, what it waits for
    and what it needs, beside what the model of one run had predicted.
    """
    ranks = _count_ranks(os.environ)
    if ranks > 1 and os.environ.get('RANK') != '0':
        # rank 0 starts the ranks of every trial
        return exit_codes.OK
    if ranks > 1 and gpus > 1:
        raise UserError(
            f'expected --gpus or a launcher of ranks, found both: under torchrun '
            f'each trial trains on {ranks} cards, one trial at a time.'
        )
    loaded = read_trainable_config(config)
    own = loaded.get(('train_dataloader', 'batch_size'))
    plan = SweepPlan(
        config=os.path.abspath(config),
        folder=choose_folder(work_dir, loaded, config, 'sweep'),
        settings=list_settings(
            num_workers,
            batch_size or (own if isinstance(own, int) else None,),
            prefetch_factor or (None,),
            pin_memory=pin_memory,
            amp=amp,
        ),
        measure_s=seconds,
        whole_s=time_limit,
        lengthened=lengthen(loaded, _ENDLESS),
        saves=saves,
        ranks=ranks,
    )
    facts = {'saves': saves, 'number of GPUs': gpus, 'number of ranks': ranks}
    identity = read_identity(loaded, **facts)
    if dry_run:
        _print_plan(plan, identity, gpus, fresh=fresh)
        return exit_codes.OK
    return _sweep(plan, identity, gpus, form, config, fresh=fresh)


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


def _print_plan(
    plan: SweepPlan, identity: Mapping[str, Any], gpus: int, *, fresh: bool
) -> None:
    path = Path(os.devnull) if fresh else plan.folder / STORE_NAME
    kept, notes = TrialStore(path, identity).read(plan.keep)
    text = render_sweep_plan(
        plan.settings,
        [read_row(trial) for trial in kept],
        least={one: count_least_iterations(one) for one in plan.settings},
        side_by_side=gpus,
        measure_s=plan.measure_s,
        whole_s=plan.whole_s,
        folder=str(plan.folder),
        notes=notes,
        **terminal_layout(),
    )
    print(text)


def _sweep(
    plan: SweepPlan,
    identity: Mapping[str, Any],
    gpus: int,
    form: str,
    config: Path,
    *,
    fresh: bool,
) -> int:
    def render_json(sweep: Sweep) -> str:
        return render_sweep_json(sweep, str(config), str(plan.folder))

    if plan.saves:
        check_room(plan.folder, estimate_checkpoint_bytes(config))
    # before minutes are spent
    for name in _TABLES:
        verify_output(plan.folder / name)
    # nothing is forgotten for a sweep that is refused
    with (
        _cards(gpus) as cards,
        open_store(plan.folder, identity, fresh=fresh) as store,
    ):
        sweep = plan.finish(train(plan, store, 'sweep', cards=cards))
        tables = render_json(sweep) + '\n', render_sweep_csv(sweep.rows)
        for name, text in zip(_TABLES, tables):
            write_atomic(plan.folder / name, text.encode())
        kept = _write_charts(sweep, plan.folder / 'plots')
    print_answer(sweep, form, render_sweep, render_json)
    print(f'Kept in {plan.folder} ({", ".join(_TABLES)}); {kept}', file=sys.stderr)
    return exit_codes.INTERRUPTED if sweep.is_interrupted else exit_codes.OK


def _cards(
    count: int,
) -> contextlib.AbstractContextManager[Sequence[str]]:
    """So many cards for this sweep alone; none where one trial runs at a time."""
    return contextlib.nullcontext(()) if count == 1 else picked_cards(count)


def _write_charts(sweep: Sweep, folder: Path) -> str:
    """Draw the sweep; says in a clause what was drawn."""
    if not can_draw():
        return 'no charts, because matplotlib is not installed'
    charts = list_sweep_charts(sweep)
    if charts:
        folder.mkdir(exist_ok=True)
    for chart in charts:
        write_atomic(folder / f'{chart.name}.svg', draw(chart, 'svg'))
    return f'{len(charts)} chart(s) in {folder}'
