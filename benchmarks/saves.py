"""Benchmark: naming the causes of slow checkpoint saves.

    python -m benchmarks.saves [--quick] [--output]

On MMEngine's own Runner, in a folder in memory, each cause holds twelve saves: busy
workers, other programs on the cores, a backend that writes elsewhere, storage that
blocks. ``mmgpu recommend`` must name each of them,
and no healthy save of 200. Then what a save would take without its workers, niced
workers, and a real MMDetection training. About 7 minutes.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.fileio import FileClient, LocalBackend, register_backend
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn

from benchmarks.harness import (
    RESULTS,
    Benchmark,
    Figure,
    at_least,
    at_most,
    busy_programs,
    end_workers,
    exactly,
    find_evidence,
    read_records,
    recommend,
    say,
)
from benchmarks.toy import HOOK, SAVES, Sized, build_runner
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.experiment.engine import Plan, Turn, run_plan
from mmgpu_hooks.experiment.trial import ENDLESS, LOG_NAME
from mmgpu_hooks.schema.tried import TrialSpec

HEALTHY = ((5.0, 0, 0.0), (50.0, 2, 0.001), (100.0, 1, 0.0), (200.0, 0, 0.002))
"""Checkpoint MB, workers, CPU seconds per data item of trainings with normal saves."""
BUSY: dict[str, Any] = {'num_workers': 16, 'cpu_s': 0.25, 'interval': 12}
"""Arguments for a training whose workers stay busy during each save."""


class PlantedCause(NamedTuple):
    """Known cause that makes a training's saves slow on purpose."""

    cause: str
    """Expected cause in the answer of ``mmgpu recommend``."""
    training: dict[str, Any]
    """Arguments of `train_planted` that produce the slow saves."""


PLANTED = {
    'workers': PlantedCause('workers', BUSY),
    'other programs': PlantedCause('other_load', {'megabytes': 300.0}),
    'storage elsewhere': PlantedCause('storage', {'megabytes': 20.0, 'backend': 'far'}),
    'storage': PlantedCause('storage', {'megabytes': 20.0, 'backend': 'slow'}),
}
PUT_S = 1.0
NICE = 10
WARNING = 'GPUEfficiencyHook: Saving'


class PlantedDataset(Sized):
    """Data set whose items each take a known CPU time in a worker process.

    Args:
        cpu_s: CPU seconds per item.
    """

    def __init__(self, cpu_s: float) -> None:
        super().__init__(100_000)
        self.cpu_s = cpu_s

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        return {'inputs': torch.tensor(float(index % 97))}


class PlantedModel(BaseModel):
    """Model with one trained weight and a large buffer, for large checkpoints."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer('ballast', torch.zeros(int(megabytes * 250_000)))

    def forward(self, inputs: Any, mode: str = 'tensor', **_: Any) -> Any:
        return {'loss': (self.weight * torch.stack(inputs) / 97 - 1).pow(2).mean()}


@register_backend('slow', prefixes='slow')
class SlowBackend(LocalBackend):
    """File backend whose ``put`` blocks, as on a busy disk."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        time.sleep(PUT_S)
        super().put(obj, filepath)


@register_backend('far', prefixes='far')
class FarBackend(LocalBackend):
    """File backend that writes no local file, as a remote storage client does."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        time.sleep(PUT_S)


FileClient.register_backend('slow', SlowBackend, prefixes='slow')
FileClient.register_backend('far', FarBackend, prefixes='far')


class Planted(Hook):
    """Hook that records the bits of each loss and sleeps between saves.

    Args:
        pause_s: Of each iteration, in which nothing is done.
    """

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s
        self.losses: list[str] = []

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        self.losses.append(outputs['loss'].item().hex())
        time.sleep(self.pause_s)


@dataclass(frozen=True)
class Trained:
    """Results of one training: saves, warnings of slow saves, losses and duration."""

    saves: list[dict[str, Any]]
    """Checkpoint saves as judged by ``mmgpu recommend``."""
    warnings: int
    """Number of warnings of slow saves that the training logged."""
    losses: list[str]
    duration_s: float = 0.0

    @property
    def wall_s(self) -> float:
        """Median duration of the checkpoint saves in seconds."""
        walls_s: list[float] = [save['wall_s'] for save in self.saves]
        return statistics.median(walls_s)

    @property
    def gap_s(self) -> float:
        """Mean seconds from the end of one save to the start of the next."""
        saves_s: float = sum(save['wall_s'] for save in self.saves)
        return (self.duration_s - saves_s) / len(self.saves)

    @property
    def causes(self) -> list[str]:
        """Cause that was reported for each save."""
        return [
            (save['cause'] or 'slow, no cause') if save['is_slow'] else 'healthy'
            for save in self.saves
        ]

    @property
    def note(self) -> str:
        """Text that counts the saves by reported cause."""
        found = Counter(self.causes).most_common()
        named = ', '.join(f'{count} {name}' for name, count in found)
        return f'{named}; {self.warnings} warning(s) in the run'


def train_planted(
    parent: Path,
    *,
    saves: int,
    megabytes: float = 200.0,
    interval: int = 1,
    num_workers: int = 0,
    cpu_s: float = 0.0,
    worker_nice: int | None = None,
    backend: str | None = None,
    pause_s: float = 0.0,
) -> Trained:
    """Trains until the given number of checkpoint saves was made.

    Args:
        parent: Of the run's folder; in memory, so that no disk has a part in it.
        saves: How many.
        megabytes: Of each.
        interval: Iterations between two saves.
        num_workers: Of the loader.
        cpu_s: CPU that an item takes a worker.
        worker_nice: Argument of our hook.
        backend: ``slow`` or ``far``, each taking :data:`PUT_S`.
        pause_s: In each iteration, so that saves are as far apart as in another run.
    """
    planted = Planted(pause_s)
    checkpoint: dict[str, Any] = {**SAVES, 'interval': interval, 'max_keep_ckpts': 1}
    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        if backend is not None:
            prefix = 'far://' if backend == 'far' else ''
            checkpoint['out_dir'] = f'{prefix}{folder}/out'
            checkpoint['backend_args'] = {'backend': backend}
        runner = build_runner(
            PlantedModel(megabytes),
            PlantedDataset(cpu_s),
            folder / 'run',
            loader={'num_workers': num_workers},
            hooks={
                'checkpoint': checkpoint,
                'gpu_efficiency': {**HOOK, 'worker_nice': worker_nice},
            },
            train_cfg={'by_epoch': False, 'max_iters': saves * interval},
            custom_hooks=[planted],
            log_processor={'by_epoch': False},
            log_level='WARNING',
            randomness={'seed': 3},
        )
        try:
            runner.train()
        finally:
            end_workers(runner.train_loop.dataloader_iterator._iterator)
        evidence = find_evidence(folder / 'run')
        (log,) = (folder / 'run').glob('*/*.log')
        warnings = sum(WARNING in line for line in log.read_text().splitlines())
        (end,) = read_records(evidence, 'end')
        judged = recommend(evidence)['checkpoint_saves']
        return Trained(judged, warnings, planted.losses, end['duration_s'])


CONFIG = """\
_base_ = '{root}/configs/demo/rtmdet-tiny_demo.py'
default_hooks = dict(
    logger=dict(interval=3),
    checkpoint=dict(by_epoch=False, interval=6, max_keep_ckpts=1),
    gpu_efficiency=dict(summary=False, write_config=False))
custom_hooks = []
train_dataloader = dict(
    num_workers={num_workers}, persistent_workers=True,
    # a pass over few images would end before the workers are busy
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(
        data_root='{data_root}/',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomResize', scale=(2560, 1920), ratio_range=(0.8, 1.2),
                 keep_ratio=True),
            dict(type='PhotoMetricDistortion'),
            dict(type='RandomCrop', crop_size=(64, 64)),
            dict(type='Pad', size=(64, 64)),
            dict(type='PackDetInputs')]))
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters=24, val_interval=1000)
log_processor = dict(by_epoch=False)
"""
"""Text of an RTMDet-tiny config with small crops of large, distorted images.

Loading is the work, so that workers never get ahead of the loop and are busy in every
save.
"""


def write_detector(folder: Path, num_workers: int) -> Path:
    """Writes images and config for training RTMDet-tiny.

    Args:
        folder: Of both.
        num_workers: Of the loader.

    Returns:
        The config.
    """
    dataset = write_demo_dataset(folder / 'images', images=40, width=960, height=720)
    config, root = folder / f'detector_{num_workers}.py', RESULTS.parents[1]
    content = {'root': root, 'data_root': dataset.root, 'num_workers': num_workers}
    config.write_text(CONFIG.format(**content))
    return config


def train_detector(folder: Path, num_workers: int) -> Trained:
    """Trains RTMDet-tiny in a child process on two cores.

    Args:
        folder: Of the run and its images.
        num_workers: Of the loader.
    """
    config = write_detector(folder, num_workers)
    work_dir = config.with_suffix('')
    spec = TrialSpec(str(config), str(work_dir), is_whole=True)
    turn = Turn(work_dir.name, spec, blocks=(ENDLESS,))
    os.environ['OMP_NUM_THREADS'] = '1'
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(usable)[:2]))
    try:
        (trial,) = run_plan(Plan([turn])).trials
    finally:
        os.sched_setaffinity(0, usable)
    if trial.error is not None:
        raise RuntimeError(trial.error)
    judged = recommend(find_evidence(work_dir))['checkpoint_saves']
    warnings = re.findall(WARNING, (work_dir / LOG_NAME).read_text())
    return Trained(judged, len(warnings), [])


def judge_cause(planted: str, run: Trained, saves: int) -> Iterator[Figure]:
    """Returns figures on how often saves are attributed to their one true cause."""
    cause = PLANTED[planted].cause
    named, saves = run.causes.count(cause), max(len(run.saves), saves)
    unit = f'of {saves} named {cause}'
    yield exactly(f'planted: {planted}', named, saves, unit, run.note)
    if planted == 'storage':
        blocked = [
            (save['phases']['write']['blocked_s'] or math.inf) / PUT_S
            for save in run.saves
        ]
        off_pct = 100 * abs(statistics.median(blocked) - 1)
        name = 'blocked in the write against the planted wait'
        yield at_most(name, off_pct, 3, '% off', f'median of {len(blocked)}')


def judge_healthy(megabytes: float, run: Trained) -> Figure:
    """Returns a figure on warnings about normal saves; there must be none."""
    blamed = sum(save['cause'] is not None for save in run.saves)
    name = f'healthy: saves of {megabytes:g} MB that were warned of'
    wrong, unit = max(run.warnings, blamed), f'of {len(run.saves)}'
    return exactly(name, wrong, 0, unit, run.note)


def judge_counterfactual(busy: Trained, idle: Trained) -> Figure:
    """Returns a figure on the error of the predicted save time without busy workers."""
    errors = [
        abs((save['uncontended_s'] or math.inf) / idle.wall_s - 1)
        for save in busy.saves
    ]
    name, off_pct = 'uncontended save, predicted', 100 * statistics.median(errors)
    note = f'median of {len(errors)}; {idle.wall_s:.3f} s beside idle workers, '
    note += f'{busy.wall_s:.3f} s beside busy ones'
    return at_most(name, off_pct, 15, '% off', note)


def judge_niced(busy: Trained, niced: Trained) -> Iterator[Figure]:
    """Returns figures on save time and losses if busy workers have a nice value."""
    name = f'save beside busy workers, over that with worker_nice={NICE}'
    note = f'{busy.wall_s:.3f} s and {niced.wall_s:.3f} s, medians'
    yield at_least(name, busy.wall_s / niced.wall_s, 2, 'times', note)
    differ = sum(a != b for a, b in itertools.zip_longest(busy.losses, niced.losses))
    unit = f'of {len(busy.losses)}'
    yield exactly('losses that niced workers changed', differ, 0, unit)


def judge_detector(folder: Path) -> Iterator[Figure]:
    """Returns figures on warnings about frequent saves of RTMDet-tiny on two cores."""
    for num_workers, judge in ((16, at_least), (1, at_most)):
        run = train_detector(folder, num_workers)
        name = f'MMDetection, num_workers={num_workers}: warnings'
        note = f'{run.note}; median save {run.wall_s:.2f} s'
        limit = int(judge is at_least)
        yield judge(name, run.warnings, limit, f'in {len(run.saves)}', note)


def judge_parts(saves: Sequence[dict[str, Any]]) -> Figure:
    """Returns a figure on how closely the parts of saves add up to their durations."""
    errors = []
    for save in saves:
        parts = [save['cpu_s'], save['run_delay_s'], save['blocked_s']]
        known = None not in parts
        errors.append(abs(sum(parts) / save['wall_s'] - 1) if known else 1.0)
    name = 'cpu + run delay + blocked against the wall clock'
    note = f'median of {len(errors)} saves; {100 * max(errors):.2f} % at most'
    return at_most(name, 100 * statistics.median(errors), 3, '% off', note)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains with each known cause and prints the table."""
    benchmark = Benchmark('saves', __doc__ or '', argv)
    torch.set_num_threads(1)
    shm, judged = Path('/dev/shm'), list[dict[str, Any]]()
    count, healthy = (4, 10) if benchmark.is_quick else (12, 50)
    with tempfile.TemporaryDirectory(dir=shm if shm.is_dir() else None) as name:
        folder, runs = Path(name), dict[str, Trained]()

        def train(what: str, saves: int = count, **arguments: Any) -> Trained:
            say(what)
            run = train_planted(folder, saves=saves, **arguments)
            judged.extend(run.saves)
            return run

        for planted, slow in PLANTED.items():
            others = 2 * (os.cpu_count() or 1) if slow.cause == 'other_load' else 0
            with busy_programs(others):
                runs[planted] = train(planted, **slow.training)
            benchmark.add(*judge_cause(planted, runs[planted], count))
        for megabytes, num_workers, cpu_s in HEALTHY:
            loading = {'num_workers': num_workers, 'cpu_s': cpu_s}
            run = train('healthy', healthy, megabytes=megabytes, **loading)
            benchmark.add(judge_healthy(megabytes, run))
        if not benchmark.is_quick:
            busy = runs['workers']
            beside = {'interval': 2, 'num_workers': BUSY['num_workers']}
            idle = train('counterfactual', **beside, pause_s=busy.gap_s / 2)
            benchmark.add(judge_counterfactual(busy, idle))
            niced = train('niced', **BUSY, worker_nice=NICE)
            benchmark.add(*judge_niced(busy, niced))
            benchmark.add(*judge_detector(folder))
        benchmark.add(judge_parts(judged))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
