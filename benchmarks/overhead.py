"""Benchmark: time and memory that GPUEfficiencyHook costs a training.

    python -m benchmarks.overhead [--quick] [--output]

Machines differ, so the cost of an iteration and of an interval are ratios to what
TraceML costs in the same loop within the same run. They are taken at the borders of
everything that the hook puts in: the time in ``Runner.call_hook`` and in the loader's
``next``, less the time in the other hooks' own methods and in the loader's own
``_next_data``, less what the same account of a hook that does nothing gives. Then what
it adds to iterations of 28 ms, against training without it, turn by turn; whether
anything grows over 100,000 iterations; the cost beside workers of 4 GiB, which the
kernel takes long to measure; what its timers add to a batch of validation; and what the
verdict of every hour takes of that hour. About 9 minutes on 2 cores.

The comparison with training without it takes turns of three iterations in one thread,
in an order drawn by lot. At the hook points the mean is plain, so that what the hook
does now and then counts. In the wait for the batch and in the step, where nearly all of
the noise is, it is trimmed. The CPU of the hook's threads is added in full. The
loader's workers have cores of their own. Growth is a ratio to a fixed work in a second
loop, beside which each interval is measured, on Theil and Sen's line through the run.
Memory is the process's, and the blocks that Python's objects have: a small leak hides
in memory that the process has had before.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import json
import math
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NamedTuple
from unittest import mock

import msgspec
import psutil
import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook, LoggerHook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import EpochBasedTrainLoop, Runner, ValLoop
from mmengine.structures import BaseDataElement, InstanceData
from torch import nn
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _MultiProcessingDataLoaderIter,
)

from benchmarks.harness import Benchmark, Figure, HoldMemory, at_most, end_workers, say
from benchmarks.toy import OneWeight, build_runner
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.adviser.process import HourlyAdviser
from mmgpu_hooks.hooks.memory_source import HOLDERS_THREAD
from mmgpu_hooks.hooks.verdict_source import VERDICT_PERIOD_S
from mmgpu_hooks.measure.proc import read_thread_cpu_s
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.run import read_evidence

PEER = 'TraceML'
PEER_SHARE, PEER_INTERVAL = 0.0667, 3.0
"""Limits of the hook's time per iteration and log interval, relative to TraceML's."""
ADDED_PCT, ADDED_HALF_WIDTH_PCT = 0.4, 0.2
GROWN_RATIO, GROWN_MIB, KEPT_BLOCKS = 1.05, 1.0, 0.5
"""Limits of the hook's growth: time ratio, MiB of RSS, memory blocks per interval.

One object kept per interval is a block at least; short-lived ones make tens of blocks
more or less, in any loop.
"""
VALIDATION_PCT = 1.0
"""Largest per cent that the hook may add to a validation batch of a small network."""
WORKER_GIB, LONG_READ_S = 4.0, 0.02
VERDICT_PCT, VERDICT_CPU_PCT = 0.01, 0.5
"""Cost limits of hourly verdicts: per cent of training thread's time, and of a core."""
MAX_MEMORY_THREAD_PCT = 0.1
"""Largest per cent of wall clock time in which reading memory may block a worker."""
VERDICTS = 5
LONG_RUN = Path(__file__).parents[1] / 'tests/golden/late_batches/run'
"""Folder of a recorded run, repeated to a day's length, that is costly to judge."""
LONG_INTERVALS = 24 * 2_571
"""Number of log intervals in a day, at :data:`INTERVAL` iterations of 28 ms each."""

INTERVAL = 50
"""Iterations per log interval of LoggerHook: MMDetection's default."""
BATCH_SIZE, WORKERS = 2, 2
RUN_ITERATIONS = 304
"""Iterations of a training, long enough that the work at its start is negligible."""
STEP_S = 0.024
"""Seconds of the timed train step; an iteration then takes 28 ms in all."""
WARM, KEPT = 1, 2
"""Iterations that a training runs per turn: to warm up caches, and counted ones.

Their sum has no factor in common with :data:`INTERVAL`, so that the iterations that end
an interval are kept as often as the others.
"""
FIRST = INTERVAL + 2
"""Number of iterations of each training's first turn, with all its one-time work."""
PARTS = 4
VALIDATED = 40
"""Number of batches per validation."""
_SIDE, _BOXES, _CHANNELS, _LAYERS = 64, 8, 16, 10


class MakePixels:
    """Transform that creates an image cheaply instead of reading a file."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        pixels = torch.full((3, _SIDE, _SIDE), results['img_id'] % 255)
        results['pixels'] = pixels.to(torch.uint8)
        return results


class PackSample:
    """Transform that packs an image and its boxes, as PackDetInputs does."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        sample = BaseDataElement(
            metainfo={'img_id': results['img_id'], 'img_shape': (_SIDE, _SIDE)}
        )
        sample.gt_instances = InstanceData(
            bboxes=torch.rand(_BOXES, 4), labels=torch.zeros(_BOXES, dtype=torch.long)
        )
        return {'inputs': results['pixels'], 'data_samples': sample}


class Images(BaseDataset):
    """Data set of synthetic images with boxes, loaded through a pipeline."""

    def __init__(self, length: int) -> None:
        self._length = length
        super().__init__(pipeline=[MakePixels(), PackSample()])

    def load_data_list(self) -> list[dict[str, Any]]:
        return [{'img_id': index} for index in range(self._length)]


class Network(BaseModel):
    """Network of ten convolutions with norms; forward and backward take about 10 ms.

    Between two steps the caches are as cold as a real model leaves them.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for channels in (3, *[_CHANNELS] * (_LAYERS - 1)):
            layers.append(nn.Conv2d(channels, _CHANNELS, 3, padding=1))
            layers += [nn.BatchNorm2d(_CHANNELS), nn.ReLU()]
        self.layers = nn.Sequential(*layers)

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        features = self.layers(torch.stack(inputs).float() / 255)
        return {'loss': features.mean()} if mode == 'loss' else features


class ValidatedNetwork(Network):
    """Small convolutional network that sums up the seconds of its forward passes."""

    spent_s = 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        begin_s = time.perf_counter()
        features = super().forward(*args, **kwargs)
        self.spent_s += time.perf_counter() - begin_s
        return features


class Keep(BaseMetric):
    """Metric that stores one constant number for each image."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results += [1.0] * len(data_samples)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        return {'score': 1.0}


class WorkerWaits:
    """Context that sums the seconds for which this process waits for worker batches."""

    spent_s = 0.0

    def __enter__(self) -> WorkerWaits:
        self._plain = plain = _MultiProcessingDataLoaderIter._try_get_data

        def timed(*args: Any, **kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            try:
                return plain(*args, **kwargs)
            finally:
                self.spent_s += time.perf_counter() - begin_s

        _MultiProcessingDataLoaderIter._try_get_data = timed
        return self

    def __exit__(self, *error: object) -> None:
        _MultiProcessingDataLoaderIter._try_get_data = self._plain


WAITS = WorkerWaits()


class StampingValLoop(ValLoop):
    """Val loop that times each batch, with and without forward pass and worker wait."""

    def run(self) -> dict[str, float]:
        self._stamps, self._whole = array('d'), array('d')
        figures: dict[str, float] = super().run()
        return figures

    def run_iter(self, idx: int, data_batch: Any) -> None:
        now_s, spent_s = time.perf_counter(), self.runner.model.spent_s + WAITS.spent_s
        self._whole.append(now_s)
        self._stamps.append(now_s - spent_s)
        super().run_iter(idx, data_batch)

    def read_batch_s(self) -> float:
        """Returns the median seconds per batch, without forward pass and wait."""
        return statistics.median(b - a for a, b in itertools.pairwise(self._stamps))

    def read_whole_s(self) -> float:
        """Returns the median seconds per batch, forward pass and wait included."""
        return statistics.median(b - a for a, b in itertools.pairwise(self._whole))


class FixedWork(OneWeight):
    """Model whose timed train step is a fixed number of matrix products."""

    step_s = 0.0

    def __init__(self, products: int) -> None:
        super().__init__()
        self._products = products

    def forward(self, *args: Any, **more: Any) -> Any:
        multiply(self._products)
        return super().forward()

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        begin_s = time.perf_counter()
        outputs = super().train_step(*args, **kwargs)
        self.step_s = time.perf_counter() - begin_s
        return outputs


class NoWork(FixedWork):
    """Model whose train step does nothing."""

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        return {'loss': self.weight.detach()}


@functools.lru_cache(maxsize=1)
def _matrices() -> tuple[torch.Tensor, torch.Tensor]:
    # one pair for all trainings: where memory lies must not make one of them faster
    return torch.full((384, 384), 1 / 384), torch.empty(384, 384)


@torch.no_grad()
def multiply(products: int) -> None:
    """Computes the given number of matrix products of constant size."""
    square, product = _matrices()
    for _ in range(products):
        torch.mm(square, square, out=product)


def count_products(seconds: float) -> int:
    """Returns the number of matrix products that take the given seconds here."""
    best_s = math.inf
    for _ in range(5):
        begin = time.perf_counter()
        multiply(20)
        best_s = min(best_s, (time.perf_counter() - begin) / 20)
    return max(1, round(seconds / best_s))


class TurnLoop(EpochBasedTrainLoop):
    """Train loop of one epoch whose iterations are triggered by the caller.

    Args:
        is_bare: Whether one batch is trained on again and again. The workers live.
    """

    on_begun: Callable[[], None]
    """Function called at the start of the epoch, which ends when it returns."""

    def __init__(self, runner: Any, dataloader: Any, is_bare: bool = False) -> None:
        super().__init__(runner, dataloader, max_epochs=1)
        self._is_bare = is_bare

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        batches: Any = iter(self.dataloader)
        if self._is_bare:
            batches = itertools.repeat(next(batches))
        self._batches = enumerate(batches)
        self.on_begun()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def take(self) -> float:
        """Trains one iteration, and loads its batch before.

        Returns:
            Seconds that it took once it had the batch.
        """
        index, batch = next(self._batches)
        begin_s = time.perf_counter()
        self.run_iter(index, batch)
        return time.perf_counter() - begin_s

    def take_some(self, count: int) -> list[tuple[float, float]]:
        """Trains iterations; returns each one's seconds in hooks and outside hooks.

        Returns:
            Of each, seconds at the hook points, and in the wait and the step.
        """
        taken = []
        for _ in range(count):
            begin_s = time.perf_counter()
            hooks_s = self.take() - getattr(self.runner.model, 'step_s', 0.0)
            taken.append((hooks_s, time.perf_counter() - begin_s - hooks_s))
        return taken


def build(
    work_dir: Path,
    model: BaseModel,
    iterations: int,
    hooks: Sequence[Any],
    *,
    worker_gib: float = 0.0,
    **more: Any,
) -> Any:
    """Builds a Runner with MMEngine's default hooks, an EMAHook and the given hooks.

    Args:
        work_dir: Folder of the run.
        model: What to train.
        iterations: Of the one epoch.
        hooks: Further hooks.
        worker_gib: Memory that each worker holds.
        more: Arguments of the Runner.
    """
    loader = dict(batch_size=BATCH_SIZE, num_workers=WORKERS, persistent_workers=True)
    return build_runner(
        model,
        Images(iterations * BATCH_SIZE),
        work_dir,
        loader={**loader, 'worker_init_fn': {'type': HoldMemory(1024 * worker_gib)}},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 1e-4, 'momentum': 0.9}},
        custom_hooks=[{'type': 'EMAHook'}, *hooks],
        interval=INTERVAL,
        **more,
    )


def train(runner: Runner) -> None:
    """Trains a Runner, and ends the worker processes of its DataLoader afterwards."""
    try:
        runner.train()
    finally:
        end_workers(runner.train_loop.dataloader._iterator)


class EmptyHook(Hook):
    """Hook that does nothing, with which the overhead of measuring is measured."""

    priority = 55

    def after_train_iter(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing."""


def ours() -> GPUEfficiencyHook:
    """Returns a GPUEfficiencyHook with all features except the summary at the end."""
    return GPUEfficiencyHook(summary=False, write_config=False)


class Account:
    """Account of seconds in wrapped outer functions, minus those in inner functions."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def above(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that its seconds are added to the account."""
        return self._count(function, 1)

    def beneath(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps a function so that its seconds are subtracted from the account."""
        return self._count(function, -1)

    def _count(self, function: Callable[..., Any], sign: int) -> Callable[..., Any]:
        clock = time.perf_counter

        def counted(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            try:
                return function(*args, **kwargs)
            finally:
                self.spent_s += sign * (clock() - begin)

        return counted


@contextmanager
def border_loader(account: Account) -> Iterator[None]:
    """Context that adds up the time of DataLoader's ``next`` without ``_next_data``."""
    base, workers = _BaseDataLoaderIter, _MultiProcessingDataLoaderIter
    with (
        mock.patch.object(workers, '_next_data', account.beneath(workers._next_data)),
        mock.patch.object(base, '__next__', account.above(base.__next__)),
    ):
        yield


def border_hooks(runner: Any, account: Account) -> None:
    """Wraps MMEngine's own hooks to exclude their time from the measured hook overhead.

    LoggerHook has none: what its line takes longer for our scalars counts as ours. Nor
    have hooks that do nothing at a point: those calls count in both arms.
    """
    for hook in runner.hooks:
        if isinstance(hook, (GPUEfficiencyHook, EmptyHook, LoggerHook)):
            continue
        for point in ('before_train_iter', 'after_train_iter'):
            if point in hook.get_triggered_stages():
                setattr(hook, point, account.beneath(getattr(hook, point)))


@dataclass(frozen=True)
class Spent:
    """Measured hook seconds of each iteration of a training, by kind of iteration."""

    ordinary: list[float]
    ends: list[float]
    """Measured hook seconds of iterations that end a log interval, except the first."""


def split_ends(costs_s: Sequence[float], first: int = 0) -> Spent:
    """Splits hook seconds of iterations: ordinary ones, and ends of log intervals.

    Args:
        costs_s: Of each iteration.
        first: Number of the first one, from 0.
    """
    ends = [i for i in range(len(costs_s)) if (i + first + 1) % INTERVAL == 0]
    return Spent(
        [cost for i, cost in enumerate(costs_s) if i not in {*ends}],
        [costs_s[i] for i in ends[1:]],
    )


@dataclass(frozen=True)
class Cost:
    """Seconds that a hook takes, corrected for the overhead of measuring them."""

    iteration_s: float
    """Mean seconds that the hook takes in an iteration that ends no log interval."""
    interval_s: float
    """Median extra seconds of the hook in an iteration that ends a log interval."""
    note: str


def net_cost(with_it: Spent, without: Spent) -> Cost:
    """Returns a hook's cost: measured seconds with the hook minus those without."""
    raw_s, border_s = (statistics.fmean(arm.ordinary) for arm in (with_it, without))
    median_s = statistics.median(with_it.ordinary) - statistics.median(without.ordinary)
    end_s, border_end_s = (
        statistics.median(arm.ends) - statistics.median(arm.ordinary)
        for arm in (with_it, without)
    )
    return Cost(
        raw_s - border_s,
        end_s - border_end_s,
        f'raw {1e6 * raw_s:.0f} less the borders {1e6 * border_s:.0f}; median '
        f'{1e6 * median_s:.0f}; {len(with_it.ordinary)} iterations, '
        f'{len(with_it.ends)} ends of intervals',
    )


def judge_cost(cost: Cost, peer: Cost | str, where: str = '') -> list[Figure]:
    """Returns figures on the time that GPUEfficiencyHook takes in the training thread.

    Args:
        cost: Of the hook.
        peer: Of the peer, or why there is none.
        where: Begins each name.
    """
    over = interval_over = None
    note, ends = str(peer), f"{where}interval, over {PEER}'s iteration"
    if isinstance(peer, Cost):
        over = cost.iteration_s / peer.iteration_s
        interval_over = cost.interval_s / peer.iteration_s
        note = f'{PEER} {1e6 * peer.iteration_s:.0f} us'
    return [
        Figure(f'{where}iteration, mean', 1e6 * cost.iteration_s, 'us', note=cost.note),
        at_most(f"{where}iteration, mean, over {PEER}'s", over, PEER_SHARE, note=note),
        Figure(f'{where}interval, beyond an iteration', 1e3 * cost.interval_s, 'ms'),
        at_most(ends, interval_over, PEER_INTERVAL, note=note),
    ]


def measure_peer(iterations: int) -> Cost | str:
    """Returns the seconds that TraceML takes in the same train loop, or why unknown."""
    program = shutil.which('traceml', path=str(Path(sys.executable).parent))
    if program is None:
        return f'{PEER} is not installed: see requirements/bench.txt'
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        port, session = str(free.getsockname()[1]), 'overhead'
        free.close()
        serve = [program, 'serve', '--mode', 'summary', '--logs-dir', folder]
        serve += ['--session-id', session, '--aggregator-port', port]
        child = [sys.executable, '-W', 'ignore', '-m', 'benchmarks.overhead_peer']
        with _serving(serve, Path(folder)):
            done = subprocess.run(
                [*child, port, session, str(iterations)],
                cwd=Path(__file__).resolve().parent.parent,
                capture_output=True,
                text=True,
                timeout=180,
                env={**os.environ, 'TMPDIR': folder, 'TRACEML_LOGS_DIR': folder},
            )
    if done.returncode:
        return f'{PEER} failed: {(done.stderr.strip() or "?").splitlines()[-1]}'
    with_it, without = (Spent(*arm) for arm in json.loads(done.stdout))
    return net_cost(with_it, without)


@contextmanager
def _serving(command: Sequence[str], folder: Path) -> Iterator[None]:
    """Context in which TraceML's server process runs, as in a user's training."""
    with (folder / 'serve.txt').open('wb') as output:
        process = psutil.Popen(
            command, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        # it also starts processes of its own
        family = [*process.children(recursive=True), process]
        for member in family:
            with contextlib.suppress(psutil.Error):
                member.terminate()
        for member in psutil.wait_procs(family, timeout=20)[1]:
            member.kill()
        process.wait()


def pin_workers(loader: Any, cores: set[int]) -> None:
    """Pins the living workers of a DataLoader, with all their threads, to cores."""
    for worker in loader._iterator._workers:
        for task in Path(f'/proc/{worker.pid}/task').iterdir():
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(int(task.name), cores)


def train_in_turns(
    order: Sequence[int],
    make: Callable[[int, Path], Runner],
    drive: Callable[[dict[int, Runner]], None],
) -> None:
    """Builds several Runners that train alternately in one thread.

    A machine's speed drifts by more than a hook costs within a second: what is
    compared is measured within less, and on the same core. The workers of all have the
    other cores: else a training whose workers happen to sit on this core is slower.

    Args:
        order: Numbers of the trainings. What began first has the older memory and the
            older workers, and where memory lies can make it the slower for good.
        make: Makes one with a :class:`TurnLoop`, given its number and a folder.
        drive: Asks the loops for iterations; when it returns, all trainings end.
    """
    cores = os.sched_getaffinity(0)
    own = {min(cores)}

    def begin(left: Sequence[Runner]) -> None:
        if left:
            left[0].train_loop.on_begun = lambda: begin(left[1:])
            train(left[0])
            return
        for runner in runners.values():
            pin_workers(runner.train_loop.dataloader, cores - own or own)
        os.sched_setaffinity(0, own)
        try:
            drive(runners)
        finally:
            os.sched_setaffinity(0, cores)

    with tempfile.TemporaryDirectory() as folder:
        runners = {index: make(index, Path(folder) / str(index)) for index in order}
        begin([*runners.values()])


def account_in_turns(
    kept: int,
    worker_gib: float = 0.0,
    on_end: Callable[[Any], None] = lambda runner: None,
) -> tuple[Spent, Spent]:
    """Trains in turns with GPUEfficiencyHook and an empty hook; returns hook seconds.

    What the borders alone cost differs from one training to the next by more than the
    hook costs.

    Args:
        kept: Iterations to account, of each.
        worker_gib: Memory that each worker of the hook's training holds.
        on_end: Called with the runner that has the hook, before its workers end.

    Returns:
        What was accounted with the hook, and with the empty one.
    """
    lots, arms = random.Random(0), (Spent([], []), Spent([], []))
    turns = math.ceil(kept / 2 / KEPT)

    def make(index: int, folder: Path) -> Runner:
        runner = build(
            folder,
            Network(),
            FIRST + turns * (WARM + KEPT),
            [(ours, EmptyHook)[index]()],
            worker_gib=0.0 if index else worker_gib,
            train_cfg={'type': TurnLoop},
        )
        border_hooks(runner, account)
        return runner

    def drive(runners: dict[int, Runner]) -> None:
        for runner in runners.values():
            runner.call_hook = account.above(runner.call_hook)
            runner.train_loop.take_some(FIRST)
        for _ in range(turns):
            for index in lots.sample((0, 1), 2):
                loop, arm = runners[index].train_loop, arms[index]
                loop.take_some(WARM)
                for _ in range(KEPT):
                    before_s = account.spent_s
                    loop.take()
                    costs = arm.ordinary if loop.iter % INTERVAL else arm.ends
                    costs.append(account.spent_s - before_s)
        on_end(runners[0])

    for order in ((0, 1), (1, 0)):
        account = Account()
        with border_loader(account):
            train_in_turns(order, make, drive)
    return arms


@dataclass(frozen=True)
class Pairs:
    """Time differences between a training with the hook and one without, by round."""

    hooks_s: list[float]
    """Extra seconds that the hook causes at MMEngine's hook points."""
    rest_s: list[float]
    """Extra seconds that the hook causes in data waits and train steps."""
    base_s: list[float]
    threads: list[float]
    """CPU time of the hook's threads over wall clock time, by pair of trainings."""


@dataclass(frozen=True)
class ValidatedBatches:
    """Seconds of a validation batch, by pair of validations with and without hook."""

    extra_s: list[float]
    """Seconds that the hook adds to a validation batch."""
    plain_s: list[float]
    """Seconds of a batch without the hook, forward pass and worker wait included."""


def validate_pairs(rounds: int, seed: int = 0) -> ValidatedBatches:
    """Validates in turns with and without GPUEfficiencyHook; returns batch seconds.

    Args:
        rounds: In each, both validate once, in an order drawn by lot.
        seed: Of the lots.

    Returns:
        Seconds of a batch of validation, per round.
    """
    lots, batches = random.Random(seed), ValidatedBatches([], [])

    def make(index: int, folder: Path) -> Runner:
        return build(
            folder,
            ValidatedNetwork(),
            FIRST,
            () if index else [ours()],
            train_cfg={'type': TurnLoop},
            val_cfg={'type': StampingValLoop},
            val_dataloader={
                'dataset': Images(VALIDATED * BATCH_SIZE),
                'sampler': {'type': 'DefaultSampler', 'shuffle': False},
                'batch_size': BATCH_SIZE,
                'num_workers': 1,
                'persistent_workers': True,
            },
            val_evaluator={'type': Keep},
        )

    cores = os.sched_getaffinity(0)

    def drive(runners: dict[int, Runner]) -> None:
        own = os.sched_getaffinity(0)
        for runner in runners.values():
            runner.train_loop.take_some(FIRST - 1)
            runner.val_loop.run()
            # begun by a process that is pinned to its core
            pin_workers(runner.val_loop.dataloader, cores - own or own)
        for _ in range(math.ceil(rounds / 2)):
            batch_s = {}
            for index in lots.sample((0, 1), 2):
                runners[index].val_loop.run()
                batch_s[index] = runners[index].val_loop.read_batch_s()
            batches.extra_s.append(batch_s[0] - batch_s[1])
            batches.plain_s.append(runners[1].val_loop.read_whole_s())

    for order in ((0, 1), (1, 0)):
        with WAITS:
            train_in_turns(order, make, drive)
    return batches


def judge_validations(batches: ValidatedBatches) -> list[Figure]:
    """Returns figures on the time that the hook adds to a batch of validation.

    The batch is one of a small network: a detector's takes far longer, and as much is
    added to it.
    """
    from scipy.stats import mstats

    low, high = map(float, mstats.trimmed_mean_ci([*batches.extra_s], alpha=0.1))
    value_s, plain_s = (low + high) / 2, statistics.median(batches.plain_s)
    rounds = len(batches.extra_s)
    return [
        Figure(
            'batch of validation',
            1e6 * value_s,
            'us',
            note=f'90 % CI +-{5e5 * (high - low):.1f} us; {rounds} rounds',
        ),
        at_most(
            f'batch of validation of {1e3 * plain_s:.0f} ms, hook over without',
            100 * value_s / plain_s,
            VALIDATION_PCT,
            '%',
        ),
    ]


def train_pairs(rounds: int, seed: int = 0) -> Pairs:
    """Trains alternately with and without GPUEfficiencyHook; returns extra seconds.

    Args:
        rounds: In each, both have two turns, in an order drawn by lot and then in the
            opposite one.
        seed: Of the lots.
    """
    lots, products = random.Random(seed), count_products(STEP_S)
    pairs, in_part = Pairs([], [], [], []), math.ceil(rounds / PARTS)

    def make(index: int, folder: Path) -> Runner:
        return build(
            folder,
            FixedWork(products),
            FIRST + 2 * in_part * (WARM + KEPT),
            () if index else [ours()],
            train_cfg={'type': TurnLoop},
        )

    def drive(runners: dict[int, Runner]) -> None:
        for runner in runners.values():
            runner.train_loop.take_some(FIRST)
        begin_s, threads_s = time.perf_counter(), read_threads_s()
        for _ in range(in_part):
            order = lots.sample((0, 1), 2)
            taken: tuple[list[Any], list[Any]] = ([], [])
            for index in (*order, *reversed(order)):
                turn = runners[index].train_loop.take_some(WARM + KEPT)
                taken[index].extend(turn[WARM:])
            (hooks_s, rest_s), base_s = (
                [statistics.fmean(part) for part in zip(*arm)] for arm in taken
            )
            pairs.hooks_s.append(hooks_s - base_s[0])
            pairs.rest_s.append(rest_s - base_s[1])
            pairs.base_s.append(sum(base_s))
        spent_s = read_threads_s() - threads_s
        pairs.threads.append(spent_s / (time.perf_counter() - begin_s))

    for _ in range(PARTS):
        train_in_turns(lots.sample((0, 1), 2), make, drive)
    return pairs


def read_threads_s() -> float:
    """Returns the CPU seconds used by the hook's background threads."""
    threads = [
        thread for thread in threading.enumerate() if thread.name.startswith('mmgpu')
    ]
    spent_s = [read_thread_cpu_s(thread) for thread in threads]
    # a platform without their clock shows none of it
    return math.fsum(math.nan if cpu_s is None else cpu_s for cpu_s in spent_s)


class Effect(NamedTuple):
    """Mean of measured differences, with half width of the 90 % confidence interval."""

    value: float
    half_width: float


def mean_effect(observations: Sequence[float]) -> Effect:
    """Returns the mean of independent values with Student's confidence interval."""
    from scipy.stats import ttest_1samp

    low, high = ttest_1samp(observations, 0).confidence_interval(0.9)
    return Effect(statistics.fmean(observations), (high - low) / 2)


def judge_pairs(pairs: Pairs) -> list[Figure]:
    """Returns figures on the time that the hook adds to a training iteration.

    Noise of a machine has a heavy tail. At the hook points the mean is the plain one,
    so that nothing is cut off which the hook does now and then. In the wait and in the
    step, where next to none of it runs, is nearly all of the noise, and what reaches
    them (colder caches, slower workers) shifts all iterations alike: there it is a
    trimmed mean (Yuen 1974). The CPU of the hook's threads is added in full.
    """
    from scipy.stats import mstats

    base_s = statistics.fmean(pairs.base_s)
    percent = 100 / base_s
    hooks = mean_effect([percent * s for s in pairs.hooks_s])
    ends = mstats.trimmed_mean_ci([percent * s for s in pairs.rest_s], alpha=0.1)
    low, high = map(float, ends)
    rest = Effect((low + high) / 2, (high - low) / 2)
    threads = 100 * statistics.fmean(pairs.threads)
    value = hooks.value + rest.value + threads
    half = math.hypot(hooks.half_width, rest.half_width)
    is_wide = half > ADDED_HALF_WIDTH_PCT
    return [
        Figure(
            f'iteration of {1e3 * base_s:.0f} ms with the hook over without',
            value,
            '%',
            f'<= {ADDED_PCT:g}',
            value <= ADDED_PCT and not is_wide,
            f'90 % CI {value - half:+.2f} to {value + half:+.2f}; '
            f'{len(pairs.base_s)} rounds'
            + '; the machine is too noisy to tell'
            * is_wide,
        ),
        *(
            Figure(f'- {where}', e.value, '%', note=f'90 % CI +-{e.half_width:.2f}')
            for where, e in (
                ('at the hook points', hooks),
                ('in the wait and the step', rest),
            )
        ),
        Figure('- in threads of its own', threads, '%'),
    ]


@dataclass
class Costs:
    """Costs in seconds, by log interval, of a long-running and a newly started hook."""

    aged_s: MutableSequence[float]
    """Mean seconds that the long-running hook takes in an ordinary iteration.

    The overhead of measuring is included."""
    young_s: MutableSequence[float]
    """Mean seconds that the newly started hook takes in an ordinary iteration.

    The overhead of measuring is included."""
    border_s: MutableSequence[float]
    """Mean overhead of measuring an ordinary iteration, in seconds."""
    aged_end_s: MutableSequence[float]
    """Extra seconds at the end of a log interval with the long-running hook."""
    young_end_s: MutableSequence[float]
    """Extra seconds at the end of a log interval with the newly started hook."""


def make_costs() -> Costs:
    """Returns empty cost arrays, to which values are appended without new objects."""
    return Costs(*(array('d') for _ in range(5)))


@dataclass
class Growth:
    """Hook time and memory of a long train loop, at its start and at its end."""

    early: Costs
    """Costs in seconds of the two compared hooks at the loop's start, both new."""
    late: Costs
    """Costs in seconds of the two compared hooks at the loop's end, one aged."""
    rss_bytes: MutableSequence[int]
    """Resident memory of the process in bytes, after each tenth of the loop."""
    blocks: MutableSequence[int]
    """Number of Python's memory blocks, after each tenth of the loop."""
    intervals: int
    """Number of log intervals by which one hook aged between ``early`` and ``late``."""


def run_bare_loop(intervals: int, compared: int = 400, seed: int = 0) -> Growth:
    """Runs a long loop that calls hooks only, without loading and train steps.

    A machine's speed drifts by more than is looked for. So a second loop, whose hook
    stays young, takes turns with the old one, interval by interval; where the memory of
    two loops lies makes one of them slower for good, so they also take turns before,
    while both are young. A third one has the borders alone. The histories of MMEngine's
    own scalars are bounded, since their growth is not ours.

    Args:
        intervals: Intervals that the hook gets older by.
        compared: Intervals that are compared, before and after.
        seed: Of the lots that say which loop begins.
    """
    lots = random.Random(seed)
    order = aged, young, border = (0, 1, 2)
    accounts = [Account() for _ in order]
    growth = Growth(make_costs(), make_costs(), array('q'), array('q'), intervals)

    def make(index: int, folder: Path) -> Runner:
        cfg = {'type': TurnLoop, 'is_bare': True}
        hooks = [EmptyHook() if index == border else ours()]
        runner = build(folder, NoWork(0), 8, hooks, train_cfg=cfg)
        for name in ('lr', 'loss', 'time', 'data_time'):
            bounded = HistoryBuffer(max_length=1000)
            runner.message_hub.log_scalars[f'train/{name}'] = bounded
        border_hooks(runner, accounts[index])
        return runner

    def drive(runners: dict[int, Runner]) -> None:
        for index, runner in runners.items():
            runner.call_hook = accounts[index].above(runner.call_hook)

        def take_interval(index: int) -> tuple[float, float]:
            """Returns hook seconds: mean per iteration, extra at the interval's end."""
            costs_s, account = [], accounts[index]
            for _ in range(INTERVAL):
                before_s = account.spent_s
                runners[index].train_loop.take()
                costs_s.append(account.spent_s - before_s)
            mean_s = statistics.fmean(costs_s[:-1])
            return mean_s, costs_s[-1] - mean_s

        def compare(costs: Costs) -> None:
            for _ in range(compared):
                spent = {index: take_interval(index) for index in lots.sample(order, 3)}
                costs.aged_s.append(spent[aged][0])
                costs.young_s.append(spent[young][0])
                costs.border_s.append(spent[border][0])
                costs.aged_end_s.append(spent[aged][1])
                costs.young_end_s.append(spent[young][1])

        for index in order:
            # in the first interval is what is done once
            take_interval(index)
        compare(growth.early)
        process = psutil.Process()
        for done in range(1, intervals + 1):
            take_interval(aged)
            if done % (intervals // 10) == 0:
                gc.collect()
                growth.rss_bytes.append(process.memory_info().rss)
                growth.blocks.append(sys.getallocatedblocks())
        compare(growth.late)

    train_in_turns(order, make, drive)
    return growth


def judge_growth(growth: Growth) -> list[Figure]:
    """Returns figures on how the hook's time and memory grow in a long training."""
    early, late = growth.early, growth.late
    grown_mib = (growth.rss_bytes[-1] - growth.rss_bytes[0]) / 2**20
    # small leaks hide in memory that the process has had and let go, blocks do not
    blocks = (growth.blocks[-1] - growth.blocks[0]) / (0.9 * growth.intervals)
    iterations = _relate_iterations(early), _relate_iterations(late)
    ends = _relate_ends(early), _relate_ends(late)
    return [
        _judge_growth('iteration', *iterations, growth.intervals),
        _judge_growth('interval', *ends, growth.intervals),
        at_most('growth of the process, last nine tenths', grown_mib, GROWN_MIB, 'MiB'),
        at_most("blocks of Python's memory kept, per interval", blocks, KEPT_BLOCKS),
    ]


def _relate_iterations(costs: Costs) -> list[float]:
    """Returns the extra time per iteration of an old over a new hook, as shares."""
    net_s = statistics.median(costs.young_s) - statistics.median(costs.border_s)
    return _relate(costs.aged_s, costs.young_s, net_s)


def _relate_ends(costs: Costs) -> list[float]:
    """Returns the extra time at interval ends of an old over a new hook, as shares."""
    usual_s = statistics.median(costs.young_end_s)
    return _relate(costs.aged_end_s, costs.young_end_s, usual_s)


def _relate(
    aged_s: Sequence[float], young_s: Sequence[float], usual_s: float
) -> list[float]:
    return [(aged - young) / usual_s for aged, young in zip(aged_s, young_s)]


def _judge_growth(
    name: str, early: Sequence[float], late: Sequence[float], intervals: int
) -> Figure:
    """Returns a figure on how the time of a long-running hook grew over the loop.

    The means are trimmed (Yuen 1974): noise of a machine has a heavy tail.
    """
    from scipy.stats import mstats

    (young_low, young_high), (old_low, old_high) = (
        map(float, mstats.trimmed_mean_ci(phase, alpha=0.05)) for phase in (early, late)
    )
    grown = (old_low + old_high - young_low - young_high) / 2
    half = math.hypot(old_high - old_low, young_high - young_low) / 2
    value, low, high = 1 + grown, 1 + grown - half, 1 + grown + half
    # a wide interval says nothing, unless all of it is below the limit
    is_wide = high - low > 0.2 and high > GROWN_RATIO
    return Figure(
        f'growth per {name} with age',
        value,
        '',
        f'<= {GROWN_RATIO:g}, or 1 within its CI',
        not is_wide and (value <= GROWN_RATIO or low <= 1),
        f'95 % CI {low:.3f} to {high:.3f}; after {intervals} intervals, over a hook '
        'that stayed young' + '; the machine is too noisy to tell' * is_wide,
    )


def judge_large_workers(iterations: int, peer: Cost | str) -> list[Figure]:
    """Returns figures on reading the memory of workers with large address spaces.

    Args:
        iterations: To account, with the hook and without.
        peer: What the peer costs.
    """
    free_gib = psutil.virtual_memory().available / 2**30
    gib = min(WORKER_GIB, (free_gib - 2) / (WORKERS + 1))
    opened_by: list[str] = []

    def note_open(event: str, args: tuple[Any, ...]) -> None:
        if event == 'open' and str(args[0]).endswith('smaps_rollup'):
            opened_by.append(threading.current_thread().name)

    # stays to the end of this process, so this part comes last
    sys.addaudithook(note_open)
    read_s, reads, begin_s = [], [], time.perf_counter()

    def read(runner: Any) -> None:
        reads.append(Counter(opened_by))
        for worker in runner.train_loop.dataloader._iterator._workers:
            began_s = time.perf_counter()
            Path(f'/proc/{worker.pid}/smaps_rollup').read_text()
            read_s.append(time.perf_counter() - began_s)

    spent, border = account_in_turns(iterations, gib, read)
    seconds = time.perf_counter() - begin_s
    # the first read that takes long is the last
    allowed = WORKERS * math.ceil(seconds / 300) if max(read_s) < LONG_READ_S else 1
    where = f'workers of {gib:.1f} GiB: '
    # later ones are of this function, too
    by_memory = reads[0].pop(HOLDERS_THREAD, 0)
    return [
        *judge_cost(net_cost(spent, border), peer, where),
        at_most(
            f'{where}reads of smaps_rollup, but for the memory thread',
            sum(reads[0].values()),
            allowed,
            note=f'in {seconds:.0f} s; one takes {1e3 * max(read_s):.0f} ms here',
        ),
        at_most(
            f'{where}reads of smaps_rollup by the memory thread, of the time',
            100 * by_memory * max(read_s) / seconds,
            MAX_MEMORY_THREAD_PCT,
            '%',
            note=f'{by_memory} reads',
        ),
    ]


def write_long_run(path: Path, intervals: int) -> None:
    """Writes the evidence file of a day-long training that is still running."""
    short = read_evidence(LONG_RUN / path.name)
    with path.open('wb') as file:
        file.write(encode_line(short.run))
        for number, record in zip(range(intervals), itertools.cycle(short.intervals)):
            done = record.iterations * (number + 1)
            file.write(encode_line(msgspec.structs.replace(record, iteration=done)))


def judge_hourly_verdicts(count: int, intervals: int) -> list[Figure]:
    """Returns figures on an hourly verdict's cost: time to start a process, CPU time.

    Args:
        count: Verdicts.
        intervals: Of the run that is judged.
    """
    started_s, cpu_s, wall_s = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'gpu_efficiency.jsonl')
        write_long_run(path, intervals)
        for _ in range(count):
            before, began_s = os.times(), time.perf_counter()
            adviser = HourlyAdviser(path)
            started_s.append(time.perf_counter() - began_s)
            while not adviser.is_over:
                time.sleep(0.02)
            wall_s.append(time.perf_counter() - began_s)
            adviser.read()
            after = os.times()
            cpu_s.append(
                after.children_user
                + after.children_system
                - before.children_user
                - before.children_system
            )
        size_mib = path.stat().st_size / 2**20
    start_s, used_s, all_s = map(statistics.median, (started_s, cpu_s, wall_s))
    where = 'the verdict of every hour: '
    return [
        at_most(
            f'{where}training thread, of that hour',
            100 * start_s / VERDICT_PERIOD_S,
            VERDICT_PCT,
            '%',
            note=f'{1e3 * start_s:.1f} ms to start its process; nothing waits for it',
        ),
        at_most(
            f'{where}a core at nice 19, of that hour',
            100 * used_s / VERDICT_PERIOD_S,
            VERDICT_CPU_PCT,
            '%',
            note=f'{used_s:.1f} s of CPU, {all_s:.1f} s in all, for {intervals} '
            f'intervals ({size_mib:.0f} MiB)',
        ),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: measures the hook's time and memory, and prints the table."""
    benchmark = Benchmark('overhead', __doc__ or '', argv)
    warnings.filterwarnings('ignore')
    torch.set_num_threads(1)
    is_quick = benchmark.is_quick
    # first: growth hides in memory that the process has had before and let go
    say('growth')
    growth = run_bare_loop(*((80, 20) if is_quick else (2000, 400)))
    say('cost of the training thread')
    spent, border = account_in_turns(RUN_ITERATIONS * (1 if is_quick else 4))
    peer = measure_peer(RUN_ITERATIONS * (1 if is_quick else 2))
    benchmark.add(*judge_cost(net_cost(spent, border), peer))
    benchmark.add(*judge_growth(growth))
    say('with the hook against without')
    benchmark.add(*judge_pairs(train_pairs(40 if is_quick else 800)))
    say('validations')
    batches = validate_pairs(10 if is_quick else 60)
    benchmark.add(*judge_validations(batches))
    say('verdicts')
    intervals = LONG_INTERVALS // 24 if is_quick else LONG_INTERVALS
    benchmark.add(*judge_hourly_verdicts(VERDICTS, intervals))
    say('large workers')
    large = RUN_ITERATIONS * (1 if is_quick else 6)
    benchmark.add(*judge_large_workers(large, peer))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
