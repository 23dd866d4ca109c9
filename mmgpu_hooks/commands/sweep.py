"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, terminal_layout
from mmgpu_hooks.config.write import verify_output, write_atomic
from mmgpu_hooks.experiment import sweep as plans
from mmgpu_hooks.experiment.store import (
    STORE_NAME,
    TrialStore,
    open_store,
    read_identity,
)
from mmgpu_hooks.schema import Sweep
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show import sweep as show
from mmgpu_hooks.show.charts import can_draw, draw

_ENDLESS = 10**6
"""Epochs or iterations that no trial comes to the end of."""


@options.command('sweep', '0 measured (after Ctrl-C the same command goes on)')
@options.config_argument
@options.num_workers('Numbers of loader workers.', default=(0, 1, 2, 4, 8))
@options.batch_size("Images per batch; by default the config's.")
@options.prefetch_factor("Batches in flight per worker; by default the config's.")
@click.option(
    '--seconds',
    type=options.SECONDS,
    default=60.0,
    metavar='SECONDS',
    help='To measure each for after its warm-up; it ends earlier when its interval is '
    'within 3 %.',
)
@options.time_limit
@options.work_dir("Results go to DIR/sweep; by default to the config's work_dir.")
@options.fresh
@options.dry_run
@options.as_format
def sweep(
    config: Path,
    num_workers: Sequence[int],
    batch_size: Sequence[int],
    prefetch_factor: Sequence[int],
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
    ranks = _count_ranks()
    if ranks > 1 and os.environ.get('RANK') != '0':
        # rank 0 starts the ranks of every trial
        return exit_codes.OK
    loaded = trials.read_trainable_config(config)
    own = loaded.get(('train_dataloader', 'batch_size'))
    plan = plans.SweepPlan(
        config=os.path.abspath(config),
        folder=trials.choose_folder(work_dir, loaded, config, 'sweep'),
        settings=plans.list_settings(
            num_workers,
            batch_size or (own if isinstance(own, int) else None,),
            prefetch_factor or (None,),
        ),
        measure_s=seconds,
        whole_s=time_limit,
        lengthened=trials.lengthen(loaded, _ENDLESS),
        ranks=ranks,
    )
    identity = read_identity(loaded, **{'number of ranks': ranks})
    if dry_run:
        path = Path(os.devnull) if fresh else plan.folder / STORE_NAME
        _print_plan(plan, TrialStore(path, identity))
        return exit_codes.OK

    def render_json(answer: Sweep) -> str:
        return show.render_sweep_json(answer, str(config), str(plan.folder))

    table, chart = plan.folder / 'sweep.json', plan.folder / 'sweep.svg'
    # before minutes are spent
    verify_output(table)
    verify_output(chart)
    with open_store(plan.folder, identity, fresh=fresh) as store:
        answer = plan.finish(trials.train(plan, store, 'sweep'))
        write_atomic(table, f'{render_json(answer)}\n'.encode())
        for drawn in show.list_sweep_charts(answer) if can_draw() else []:
            write_atomic(chart, draw(drawn, 'svg'))
    print_answer(answer, form, show.render_sweep, render_json)
    print(f'Kept in {plan.folder}.', file=sys.stderr)
    return exit_codes.INTERRUPTED if answer.is_interrupted else exit_codes.OK


def _print_plan(plan: plans.SweepPlan, store: TrialStore) -> None:
    kept, notes = store.read(plan.keep)
    text = show.render_sweep_plan(
        plan.settings,
        [plans.read_row(trial) for trial in kept],
        least={one: plans.count_least_iterations(one) for one in plan.settings},
        measure_s=plan.measure_s,
        whole_s=plan.whole_s,
        folder=str(plan.folder),
        notes=notes,
        **terminal_layout(),
    )
    print(text)


def _count_ranks() -> int:
    """How many processes torchrun has started of us; 1 without it."""
    ranks, here = (os.environ.get(n) for n in ('WORLD_SIZE', 'LOCAL_WORLD_SIZE'))
    if ranks in (None, '1'):
        return 1
    if 'TORCHELASTIC_RUN_ID' not in os.environ or here != ranks:
        raise UserError(
            f'expected torchrun to start all ranks on this host, found {here or 0} of '
            f'{ranks} here; start it with torchrun --nnodes 1, or without a launcher.'
        )
    return int(ranks or 1)
