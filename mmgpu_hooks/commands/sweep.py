"""``mmgpu sweep``: which setting is fastest here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, print_sections
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
from mmgpu_hooks.show import experiments as show

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
    and what it needs.
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

    kept = plan.folder / 'sweep.json'
    # before minutes are spent
    verify_output(kept)
    with open_store(plan.folder, identity, fresh=fresh) as store:
        answer = plan.finish(trials.train(plan, store, 'sweep'))
        write_atomic(kept, f'{render_json(answer)}\n'.encode())
    print_answer(answer, form, show.describe_sweep, render_json)
    print(f'Kept as {kept}', file=sys.stderr)
    return exit_codes.INTERRUPTED if answer.is_interrupted else exit_codes.OK


def _print_plan(plan: plans.SweepPlan, store: TrialStore) -> None:
    kept, notes = store.read(plan.keep)
    done = {plans.read_row(trial).setting for trial in kept}
    least = {
        one.name: 'measured already'
        if one in done
        else f'at least {plans.count_least_iterations(one)} iterations'
        for one in plan.settings
    }
    left = sum(one not in done for one in plan.settings)
    said = (
        f'Each is measured for {plan.measure_s:g} s beyond its start and warm-up. '
        f'Results would go to {plan.folder}.'
    )
    print_sections(show.describe_plan(least, left, plan.whole_s, [said, *notes]))


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
