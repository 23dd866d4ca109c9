"""``mmgpu save-bench``: measures checkpoint saves by number of workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.experiment.save_bench import SaveBenchPlan
from mmgpu_hooks.experiment.store import open_store, read_identity
from mmgpu_hooks.judge.thresholds import BENCH_SAVES
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.schema.tried import SaveBench
from mmgpu_hooks.show import experiments as show
from mmgpu_hooks.show.document import to_json


def _count_cpus(given: Mapping[str, Any]) -> int:
    """Returns the CPUs to request from SLURM: the largest worker count plus one."""
    trials.read_trainable_config(given['config'])
    most: int = max(given['num_workers'])
    return most + 1


@options.command(
    'save-bench',
    '0 measured (after Ctrl-C the same command goes on; no checkpoint is left)',
)
@options.config_argument
@options.num_workers('Numbers of loader workers, such as 0 2 8 16 32.', required=True)
@click.option(
    '--saves',
    type=options.WholeNumber(min=BENCH_SAVES),
    default=6,
    help='To measure beside each number; one more is made before.',
)
@options.time_limit
@options.fresh
@options.slurm(_count_cpus)
@options.work_dir(
    "Where checkpoints go; by default the config's work_dir, or work_dirs/CONFIG."
)
@options.as_format
def save_bench(
    config: Path,
    num_workers: Sequence[int],
    saves: int,
    time_limit: float,
    fresh: bool,
    work_dir: Path | None,
    form: str,
) -> int:
    """Measure what the number of loader workers does to checkpoint saves.

    Trains a config for a while with each number, saving every few iterations. Says from
    which number on saves are slow on this machine, and what the job loses by it.
    Checkpoints go to a temporary folder, which is removed.
    """
    loaded = trials.read_trainable_config(config)
    folder = trials.choose_folder(work_dir, loaded, config, 'save-bench')
    prefetch = loaded.get(('train_dataloader', 'prefetch_factor'))
    plan = SaveBenchPlan(
        config=os.path.abspath(config),
        folder=folder,
        num_workers=num_workers,
        saves=saves,
        prefetch_factor=prefetch if isinstance(prefetch, int) else DEFAULT_PREFETCH,
        settings=trials.lengthen(loaded),
        time_limit_s=time_limit,
    )
    limits = {'number of saves': saves, '--time-limit': time_limit}
    identity = read_identity(loaded, **limits)
    with open_store(folder, identity, fresh=fresh) as store:
        try:
            outcome = trials.train(plan, store)
        finally:
            for left in folder.glob('*/'):
                shutil.rmtree(left, ignore_errors=True)
        bench = plan.finish(outcome)
        if not bench.is_interrupted:
            # what is whole is printed, and not gone on with
            store.clear()

    def render_json(bench: SaveBench) -> str:
        """Returns the measured save times as JSON, with the path of the trained config.

        Keys:
            config (str): The config that was trained.
        """
        return to_json(config=str(config), **vars(bench))

    print_answer(bench, form, show.describe_save_bench, render_json)
    return exit_codes.INTERRUPTED if bench.is_interrupted else exit_codes.OK
