"""Benchmark of the time ledger: recorded seconds of training parts against true ones.

    python -m benchmarks.ledger [--quick] [--output]

Everything in these trainings takes a planted time, and the stamps lie in the planted
objects themselves: in a subclass of the DataLoader, of the Runner, of the validation
loop, in the model and in the hooks. None of them knows the time ledger. Each part must
be within 2 % or 1 ms of the stamps, each call of each hook within 2 % or 0.1 ms of that
hook's own stamp, and the parts must add up to 99 to 101 % of the wall clock.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, FlexibleRunner, Runner, ValLoop
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import (
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from benchmarks.harness import (
    Benchmark,
    Figure,
    at_most,
    exactly,
    find_evidence,
    read_records,
    say,
)
from benchmarks.toy import SAVES, OneWeight, Sized, build_runner
from mmgpu_hooks import GPUEfficiencyHook

if TYPE_CHECKING:
    # what the classes that only add stamps are mixed into
    from mmengine.runner import Runner as RunnerBase
    from torch.utils.data.dataloader import _BaseDataLoaderIter as IteratorBase
else:
    IteratorBase = RunnerBase = object

CLOSES_WITHIN_PCT, OTHER_AT_MOST_PCT = 1.0, 1.0
REL, PART_ABS_MS, CALL_ABS_S = 0.02, 1.0, 0.0001

WORKLOADS: dict[str, dict[str, Any]] = {
    'epoch': {'loop': 'epoch'},
    'epoch, 2 workers': {'loop': 'epoch', 'workers': 2},
    'epoch, 2 persistent workers': {'loop': 'epoch', 'workers': 2, 'persistent': True},
    'iter': {'loop': 'iter'},
    'iter, 2 workers': {'loop': 'iter', 'workers': 2},
    'custom loop without run_iter': {'loop': 'custom'},
    'FlexibleRunner': {'loop': 'epoch', 'flexible': True},
    'iter, resumed': {'loop': 'iter', 'iterations': 60, 'epochs': 3, 'resume': 20},
}
CALLS, QUICK_CALLS, TRAININGS = 320, 80, 5
"""Iterations (full, quick) and number of trainings that time each single hook call."""
QUICK = ('epoch', 'iter, 2 workers')

LOCAL = {'type': 'LocalVisBackend'}
ITEM_S, STEP_S, WORKER_START_S = 0.004, 0.03, 0.25
SAVE_S, VALIDATION_S, EPOCH_HOOK_S = 0.12, 0.2, 0.05
HOOK_S = {'PlantedBefore': 0.003, 'PlantedAfter': 0.006}


class Tape:
    """Record of the true seconds of a training's parts, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.began_s = 0.0
        """Time at which the current hook point began, in ``perf_counter`` seconds."""

    def stamp(self, name: str) -> Stamp:
        """Context whose duration in seconds is recorded under ``name``."""
        return Stamp(self.seconds[name])


class Stamp:
    """Context whose duration in seconds is appended to a list.

    A generator under ``contextmanager`` takes some 20 us of a call after a sleep, which
    would stand between this stamp and the end of the hook's call.

    Args:
        seconds: Gets the time from here to the block's end.
    """

    __slots__ = ('began_s', 'seconds')

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.began_s = time.perf_counter()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        self.seconds.append(time.perf_counter() - self.began_s)


TAPE = Tape()
"""Record of the true seconds of the training that runs now."""


class PlantedDataset(Sized):
    """Data set whose every image takes ``ITEM_S`` seconds to load."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(ITEM_S)
        return {'inputs': torch.ones(3, 8, 8) * index, 'data_samples': index}


def start_worker_slowly(worker_id: int) -> None:
    """Worker init function that sleeps, as if importing many modules took long."""
    time.sleep(WORKER_START_S)


class _Stamped(IteratorBase):
    """DataLoader iterator that records how long the loop waits for batches."""

    _loader: StampedLoader

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            batch = super().__next__()
        except StopIteration:
            self._loader.ended_s = time.perf_counter()
            self._loader.ends.append(self._loader.ended_s - begin)
            raise
        self._loader.waits.append(time.perf_counter() - begin)
        return batch


class _InProcess(_Stamped, _SingleProcessDataLoaderIter):
    pass


class _WithWorkers(_Stamped, _MultiProcessingDataLoaderIter):
    pass


@dataclass(frozen=True)
class Pause:
    """Sleep of MMEngine's train loop between two passes over the DataLoader."""

    index: int
    """Index in ``StampedLoader.waits`` of the first wait after the pause."""
    seconds: float


class StampedLoader(DataLoader[Any]):
    """DataLoader that records how long the loop waits for batches."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.waits: list[float] = []
        self.begins: list[int] = []
        """Index in ``waits`` of each iterator's first wait."""
        self.creations: list[float] = []
        self.ends: list[float] = []
        self.ended_s = 0.0
        """Time at which the last iterator ended, in ``perf_counter`` seconds."""
        self.pauses: list[Pause] = []

    def _get_iterator(self) -> Any:
        iterator = (_WithWorkers if self.num_workers else _InProcess)(self)
        iterator._loader = self
        return iterator

    def __iter__(self) -> Any:
        begin = time.perf_counter()
        if self.ended_s:
            self.pauses.append(Pause(len(self.waits), begin - self.ended_s))
        iterator = super().__iter__()
        self.creations.append(time.perf_counter() - begin)
        self.begins.append(len(self.waits))
        return iterator


class PlantedModel(OneWeight):
    """Model whose train step sleeps for ``STEP_S`` seconds."""

    def forward(self, *args: Any, mode: str = '', **more: Any) -> Any:
        if mode != 'loss':
            return [0.0]
        time.sleep(STEP_S)
        return super().forward()

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        with TAPE.stamp('step'):
            return super().train_step(data, optim_wrapper)


class PlantedMetric(BaseMetric):
    """Metric whose ``compute_metrics`` sleeps for ``VALIDATION_S`` seconds."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(1.0)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        time.sleep(VALIDATION_S)
        return {'score': 1.0}


class PlantedBefore(Hook):
    """Hook that sleeps for a known time before each iteration."""

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        with TAPE.stamp('PlantedBefore'):
            time.sleep(HOOK_S['PlantedBefore'])


class PlantedAfter(Hook):
    """Hook that sleeps after each iteration and epoch and before each save."""

    priority = 'VERY_LOW'

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        with TAPE.stamp('PlantedAfter'):
            time.sleep(HOOK_S['PlantedAfter'])

    def after_train_epoch(self, runner: Any) -> None:
        with TAPE.stamp('PlantedAfter'):
            time.sleep(EPOCH_HOOK_S)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        time.sleep(SAVE_S)


@dataclass
class PlantedRare(Hook):
    """Hook that is slow in few iterations, like a hook that draws an image."""

    seconds: float = 0.06
    every: int = 40
    first: int = 33

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        # to see whether it is time takes some of the call, on cold caches 50 us
        began_s = time.perf_counter()
        if runner.iter % self.every == self.first:
            time.sleep(self.seconds)
            taken_s = time.perf_counter() - began_s
            TAPE.seconds[type(self).__name__].append(taken_s)


class PlantedOften(PlantedRare):
    """Hook that is slow in one of a few iterations, but only for a short time."""


class PlantedBeside(PlantedRare):
    """Hook that takes a short, constant time in each iteration."""


RARE_HOOKS = (PlantedRare(), PlantedOften(0.005, 7, 3), PlantedBeside(0.0003, 1, 0))


class PlantedEdge:
    """First or last hook of a Runner, which times all hooks at each hook point.

    Args:
        point: Name of a hook point of training.
        is_last: Which of the two it is.
    """

    def __init__(self, point: str, is_last: bool) -> None:
        setattr(self, point, self._end if is_last else self._begin)

    def _begin(self, runner: Any, **rest: Any) -> None:
        TAPE.began_s = time.perf_counter()

    def _end(self, runner: Any, **rest: Any) -> None:
        TAPE.seconds['hooks'].append(time.perf_counter() - TAPE.began_s)


class _StampedMethods(RunnerBase):
    """Mixin for Runners that records the duration of hook points and other methods."""

    def call_edges(self) -> None:
        """Adds a first and a last hook that record the duration of each hook point."""
        for when in ('before', 'after'):
            for what in ('train', 'train_epoch', 'train_iter'):
                point = f'{when}_{what}'
                self._hooks.insert(0, PlantedEdge(point, is_last=False))
                self._hooks.append(PlantedEdge(point, is_last=True))

    def build_train_loop(self, loop: Any) -> Any:
        built = super().build_train_loop(loop)
        run = built.run

        def stamped_run() -> Any:
            begun_s = time.perf_counter() - self._built_s
            TAPE.seconds['own start'].append(begun_s - TAPE.seconds['build'][-1])
            try:
                return run()
            finally:
                TAPE.seconds['wall'].append(time.perf_counter() - self._built_s)

        built.run = stamped_run
        return built

    def register_hooks(self, *args: Any, **kwargs: Any) -> None:
        self._built_s = time.perf_counter()
        super().register_hooks(*args, **kwargs)

    @property
    def train_loop(self) -> Any:
        if sys._getframe(1).f_code.co_name == 'train':
            # the loop begins: the hook's own start comes after this
            TAPE.seconds['build'].append(time.perf_counter() - self._built_s)
        return super().train_loop

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with TAPE.stamp('checkpoint_save'):
            super().save_checkpoint(*args, **kwargs)


class StampedRunner(_StampedMethods, Runner):
    """MMEngine's Runner, which also records the durations of its methods."""


class StampedFlexibleRunner(_StampedMethods, FlexibleRunner):
    """MMEngine's FlexibleRunner, which also records the durations of its methods."""


class StampedValLoop(ValLoop):
    """MMEngine's ValLoop, which also records its duration."""

    def run(self) -> Any:
        with TAPE.stamp('validation'):
            return super().run()


class CustomLoop(BaseLoop):
    """Train loop of one epoch that has no ``run_iter`` and calls hook points itself."""

    def __init__(self, runner: Any, dataloader: Any, iterations: int) -> None:
        super().__init__(runner, dataloader)
        self.iterations = iterations
        self.iter = self.epoch = self._epoch = self._iter = 0
        self.max_iters, self.max_epochs = iterations, 1
        self.val_begin, self.val_interval = 0, 1
        self.stop_training = False

    def run(self) -> Any:
        runner = self.runner
        runner.call_hook('before_train')
        runner.call_hook('before_train_epoch')
        for index, batch in enumerate(self.dataloader):
            runner.call_hook('before_train_iter', batch_idx=index, data_batch=batch)
            outputs = runner.model.train_step(batch, optim_wrapper=runner.optim_wrapper)
            runner.call_hook(
                'after_train_iter', batch_idx=index, data_batch=batch, outputs=outputs
            )
            self.iter += 1
        runner.call_hook('after_train_epoch')
        if runner.val_loop is not None:
            runner.val_loop.run()
        runner.call_hook('after_train')
        return runner.model


def build_planted(
    work_dir: Path,
    *,
    loop: str = 'epoch',
    iterations: int = 40,
    epochs: int = 2,
    workers: int = 0,
    persistent: bool = False,
    flexible: bool = False,
    save_interval: int = 15,
    custom_hooks: Sequence[Hook] = (),
    **more: Any,
) -> Any:
    """Returns a Runner in which every part of training takes a known time.

    Args:
        work_dir: Folder of the run.
        loop: ``epoch``, ``iter`` or ``custom``.
        iterations: Of the whole run.
        epochs: Epochs that they make.
        workers: Of the train loader.
        persistent: Whether those live on.
        flexible: Whether to build a FlexibleRunner.
        save_interval: Iterations between saves; they are in the middle of epochs.
        custom_hooks: Further hooks.
        more: Further arguments of the Runner.
    """
    TAPE.seconds.clear()
    dataset = PlantedDataset(iterations // epochs)
    loader = StampedLoader(
        dataset,
        batch_size=1,
        sampler=DefaultSampler(dataset, shuffle=False),
        num_workers=workers,
        persistent_workers=persistent,
        worker_init_fn=start_worker_slowly if workers else None,
        collate_fn=pseudo_collate,
    )
    loops: dict[str, dict[str, Any]] = {
        'epoch': {'by_epoch': True, 'max_epochs': epochs, 'val_interval': 1},
        'iter': {'by_epoch': False, 'max_iters': iterations, 'val_interval': 17},
        'custom': {'type': CustomLoop, 'iterations': iterations // epochs},
    }
    validation = DataLoader(PlantedDataset(2), batch_size=2, collate_fn=pseudo_collate)
    runner = build_runner(
        PlantedModel(),
        dataset,
        work_dir,
        kind=StampedFlexibleRunner if flexible else StampedRunner,
        train_dataloader=loader,
        train_cfg=loops[loop],
        val_dataloader=validation,
        val_cfg={'type': StampedValLoop},
        val_evaluator={'type': PlantedMetric},
        hooks={
            'checkpoint': {**SAVES, 'interval': save_interval},
            # a class: MMEngine would import it while the Runner is being built
            'gpu_efficiency': {'type': GPUEfficiencyHook, 'write_config': False},
        },
        custom_hooks=[PlantedBefore(), PlantedAfter(), *custom_hooks],
        log_processor={'by_epoch': loop == 'epoch'},
        visualizer={'type': 'Visualizer', 'vis_backends': [LOCAL]},
        **more,
    )
    runner.call_edges()
    return runner


class Trained(NamedTuple):
    """Results of a training whose parts took known times, with its evidence file."""

    runner: Any
    evidence: Path


def run_workload(folder: Path, loop: str, resume: int = 0, **arguments: Any) -> Trained:
    """Trains one workload whose parts take known times.

    Args:
        folder: Of the runs.
        loop: As for :func:`build_planted`, and so are the ``arguments``.
        resume: Iterations of a first training, which this one resumes.
    """
    if resume:
        first = build_planted(
            folder / 'first',
            loop=loop,
            iterations=resume,
            epochs=1,
            save_interval=resume,
        )
        first.train()
        checkpoint = folder / 'first' / f'iter_{resume}.pth'
        arguments |= {'resume': True, 'load_from': str(checkpoint)}
    runner = build_planted(folder / 'run', loop=loop, **arguments)
    runner.train()
    return Trained(runner, find_evidence(folder / 'run'))


def near(
    name: str, value: float, truth: float, most_off: float, unit: str, note: str = ''
) -> Figure:
    """Returns a benchmark figure whose target is the true value +- ``most_off``."""
    target, is_met = f'{truth:.4g} +- {most_off:.3g}', abs(value - truth) <= most_off
    return Figure(name, value, unit, target, is_met, note)


def judge_workload(name: str, arguments: dict[str, Any]) -> Iterator[Figure]:
    """Returns figures that compare recorded parts of training time with true ones."""
    with tempfile.TemporaryDirectory() as folder:
        trained = run_workload(Path(folder), **arguments)
        (end,) = read_records(trained.evidence, 'end')
    ledger, stamps = end['ledger_s'], TAPE.seconds
    steps = len(stamps['step'])
    runner, is_iter = trained.runner, arguments['loop'] == 'iter'
    loader, skipped = runner.train_dataloader, arguments.get('resume', 0)
    parts = plan_loading(loader, is_iter, skipped)
    for part in ('step', 'checkpoint_save', 'validation'):
        parts[part] = PlantedPart(len(stamps[part]), math.fsum(stamps[part]))
    # what is nested in the hook points is taken off
    hooks_s = math.fsum(stamps['hooks']) - parts['checkpoint_save'].seconds
    parts['hooks'] = PlantedPart(steps, hooks_s + stamps['own start'][-1])
    history = runner.message_hub.get_scalar('train/data_time').data[0]
    for part, planted in parts.items():
        count, note = planted.count, f'{planted.count} times'
        if part == 'data_wait':
            data_time_ms = 1000 * statistics.fmean(history[-steps:])
            note += f'; data_time of MMEngine: {data_time_ms:.1f} ms'
        if count:
            planted_ms = 1000 * planted.seconds / count
            taken_ms = 1000 * ledger[part] / count
            most_ms = max(REL * planted_ms, PART_ABS_MS)
            yield near(f'{name} | {part}', taken_ms, planted_ms, most_ms, 'ms', note)
    (wall_s,) = stamps['wall']
    closing_pct = 100 * math.fsum(ledger.values()) / wall_s
    label = f'{name} | parts over wall clock'
    yield near(label, closing_pct, 100, CLOSES_WITHIN_PCT, '%')
    other_pct = 100 * ledger['other'] / wall_s
    yield at_most(f'{name} | other', other_pct, OTHER_AT_MOST_PCT, '%')


@dataclass(frozen=True)
class PlantedPart:
    """True duration of one part of the training time, such as validation."""

    count: int
    """Number of occurrences of the part during training."""
    seconds: float
    """Total duration of the part in seconds."""


def plan_loading(
    loader: StampedLoader, is_iter: bool, skipped: int
) -> dict[str, PlantedPart]:
    """Returns the planted counts and seconds of data loading, by ledger part."""
    # the iteration-based loop makes its first iterator before training begins
    creations = loader.creations[1:] if is_iter else loader.creations
    firsts = {*loader.begins} - {*range(skipped)}
    others = [w for i, w in enumerate(loader.waits) if i >= skipped and i not in firsts]
    usual_s = statistics.median(others)
    startup_s = math.fsum(creations) + TAPE.seconds['build'][-1]
    wait_s = math.fsum(others)
    # before the first iteration all is start-up; later the pause is the loop's
    startup_s += math.fsum(
        pause.seconds for pause in loader.pauses if is_iter and pause.index <= skipped
    )
    for index in firsts:
        excess_s = max(loader.waits[index] - (usual_s if index else 0.0), 0.0)
        startup_s += excess_s
        wait_s += loader.waits[index] - excess_s
    return {
        'data_wait': PlantedPart(len(loader.waits) - skipped, wait_s),
        'startup': PlantedPart(len(loader.begins), startup_s),
        'teardown': PlantedPart(len(loader.ends), math.fsum(loader.ends)),
        'resume': PlantedPart(skipped, math.fsum(loader.waits[:skipped])),
    }


def judge_calls(iterations: int) -> Iterator[Figure]:
    """Returns figures on how far recorded seconds of hook calls are off the true ones.

    An interrupt between the hook's stamp and the ledger's is no error of either, and
    comes back at the same call of no other training: each call's median counts, of
    five, since up to 2 % of the calls are hit, and two of three would meet by chance
    at one call of 321 in every third run of this benchmark. The
    garbage collector does come back there, since it counts objects; it takes 0.1 to
    0.4 ms of whatever lies between two stamps, so it rests.
    """
    gc.collect()
    gc.disable()
    try:
        taken = [_compare_calls(iterations) for _ in range(TRAININGS)]
    finally:
        gc.enable()
    for name, calls in taken[0].items():
        by_training = [compared[name] for compared in taken]
        outside = [sum(off > limit for off, limit in pairs) for pairs in by_training]
        beyond = zip(*([off - limit for off, limit in pairs] for pairs in by_training))
        worst_s = max(off for pairs in by_training for off, _ in pairs)
        yield exactly(
            f'{name} | calls more than 2 % and 0.1 ms off',
            sum(statistics.median(same) > 0 for same in beyond),
            0,
            f'of {len(calls)}',
            f'{", ".join(map(str, outside))} in {TRAININGS} trainings; worst '
            f'{1000 * worst_s:.3f} ms off',
        )


def _compare_calls(iterations: int) -> dict[str, list[tuple[float, float]]]:
    """Returns error and tolerance of each hook's call durations, in seconds."""
    # with a record of each iteration, so that each holds one call of each hook
    workload: dict[str, Any] = {
        'iterations': iterations,
        'epochs': 1,
        'save_interval': 160,
        'interval': 1,
        'custom_hooks': RARE_HOOKS,
    }
    with tempfile.TemporaryDirectory() as folder:
        trained = run_workload(Path(folder), 'epoch', **workload)
        intervals = read_records(trained.evidence, 'interval')
        (end,) = read_records(trained.evidence, 'end')
    compared = {}
    for name in (*HOOK_S, *(type(hook).__name__ for hook in RARE_HOOKS)):
        stamps = TAPE.seconds[name]
        spent_s = [record['hooks_s'].get(name, 0.0) for record in intervals]
        # calls in which the hook does nothing are microseconds, or an interrupt
        measured_s = [seconds for seconds in spent_s if seconds > min(stamps) / 2]
        # the record of the last iteration is written before its last hooks are done
        rest_s = end['hooks_s'][name] - math.fsum(spent_s)
        known = stamps[: len(measured_s)]
        pairs = [*zip(measured_s, known), (rest_s, math.fsum(stamps[len(known) :]))]
        compared[name] = [
            (abs(measured - planted), max(REL * planted, CALL_ABS_S))
            for measured, planted in pairs
        ]
        # a call too many was never planted
        compared[name] += [(s, CALL_ABS_S) for s in measured_s[len(known) :]]
    return compared


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains every workload and prints the table."""
    benchmark = Benchmark('ledger', __doc__ or '', argv)
    # torch >= 2.6 refuses to resume MMEngine's checkpoints otherwise
    os.environ['TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD'] = '1'
    warnings.filterwarnings('ignore', message='Environment variable TORCH_FORCE')
    torch.set_num_threads(1)
    for name, arguments in WORKLOADS.items():
        if name in QUICK or not benchmark.is_quick:
            say(name)
            benchmark.add(*judge_workload(name, arguments))
    say('each call of each hook')
    quick = benchmark.is_quick
    benchmark.add(*judge_calls(QUICK_CALLS if quick else CALLS))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
