"""Benchmark of ``tune=True``: time lost against the best fixed loader setting.

    python -m benchmarks.tune [--only PART] [--quick] [--output]

Simulated jobs train 5,000 iterations, as many from each number of workers: a loader as
PyTorch hands its batches out, on cores that all share evenly. What is decided and
judged is the hook's own, at the iterations at which it would ask. Some have nothing to
gain: any change there is a false alarm.

Real jobs are planted, so the best number of workers is known from how. Each trains 600
iterations from several numbers of workers, tuned between two trainings that are not,
beside one training with the best. Block by block of iterations the tuned one is
compared with the two around it. Beside them stands Paddle's way: the loader alone is
timed before the training, the number of workers doubles as long as that gains 25 %, and
that time counts. The demo, RTMDet-tiny, is one more job. About 60 minutes on two cores.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from msgspec import structs
from scipy.optimize import brentq

from benchmarks.costs import Work, make_works
from benchmarks.harness import (
    Benchmark,
    Figure,
    OtherLoad,
    at_least,
    at_most,
    end_workers,
    find_evidence,
    say,
)
from benchmarks.predict import Pipeline, StampedModel
from benchmarks.regret import GIB, MIB, Span, simulate_waits
from benchmarks.toy import HOOK, build_runner
from benchmarks.whole import CASES, DEMO, TUNED, loader, prepare, train
from mmgpu_hooks.hooks.possible_gain import PossibleGain
from mmgpu_hooks.hooks.tuner import (
    ASK_AGAIN,
    EARLY,
    FIRST_ASKED,
    FIRST_ITERATIONS,
    MOST_CHANGES,
    MOST_WATCHED,
    choose_length,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.thresholds import BLOCKED_PROBLEM
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.model.simulation import WAKE_S
from mmgpu_hooks.model.stats import student_t
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.tuning import LEAST_GAIN, answer_question
from mmgpu_hooks.schema.recorded import (
    HostLimits,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    WorkersWindow,
)
from mmgpu_hooks.schema.run import RunEvidence, read_evidence
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

PARTS = ('simulated', 'real', 'demo')

STARTS, EACH, QUICK_EACH = (0, 1, 2, 4, 8), 200, 6
"""Initial worker counts of simulated jobs, and jobs per count (full and quick)."""
FIXED = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Fixed worker counts to compare tuning with, as far as the cores carry them."""
LENGTH, LOGGED = 5_000, 50
"""Iterations of a simulated job, and of its log interval."""
ANSWER_S, CHILD_S, START_S = 0.5, 1.5, 0.1
"""Seconds that a tuner's answer, a child process start and a worker start take."""
TENSORS, FIXED_FETCH_S, TENSOR_FETCH_S = 4, 0.0003, (0.00025, 0.001)
"""Tensors of a batch, and seconds to fetch it: fixed, and range per tensor.

Virtual machines of two makers' processors took that.
"""
IMAGES, COPY_THREADS, IMAGE_TURNS_S, TURNS_SPREAD = 4, 8, 2 * WAKE_S, 0.5
"""Images of a batch, threads that copy one of a MiB, and what their turns take.

In seconds where others take a whole core, as the model assumes it; jobs differ from
that by the last, a relative standard deviation.
"""
STEADY = 600
"""Number of iterations whose mean counts as that of steady training."""
NOTHING = 0.02
"""Gain as a share of an iteration below which a change counts as no gain."""
MEDIAN_LIMIT, WORST_LIMIT, ALARM_LIMIT = 1.0, 5.0, 1.0

REAL_STARTS, REAL_LENGTH, EPOCHS = (0, 2, 8), 600, 3
REAL_MEDIAN_LIMIT, REAL_WORST_LIMIT = 6.0, 15.0
BLOCKS = 12
"""Number of equal parts of a real job whose seconds are compared."""
CONFIDENCE = 0.95
"""Confidence that no comparison of all is beyond its interval by chance."""
DEMO_STARTS = (0, 8)
SOON = 100
"""Iterations within which most jobs started without workers must be tuned."""


@dataclass(frozen=True)
class SimulatedJob:
    """Simulated training with known times of loading a batch and of a train step."""

    batch_s: float
    cpu_share: float
    """Share of the loading time that is CPU time."""
    step_s: float
    step_cpu_share: float
    spread: float
    """Standard deviation of the batch loading time divided by its mean."""
    jitter: float
    """Standard deviation of the train step time divided by its mean."""
    cores: int
    others: float
    """Number of cores that other programs keep busy."""
    device: str
    fetch_s: float
    """Seconds that the training process takes to fetch a ready batch."""
    turns_s: float = 0.0
    """Seconds that a batch takes longer where the training process loads it.

    PyTorch copies an image's tensor on several threads, which wait for one another
    where other programs take a core of theirs."""


@dataclass(frozen=True)
class Piece:
    """Consecutive simulated iterations with a constant number of workers."""

    waits_s: Sequence[float]
    steps_s: Sequence[float]
    batches_s: Sequence[float]
    cpu_s: Sequence[float]
    """CPU seconds of loading each batch."""

    @property
    def seconds(self) -> float:
        """Total seconds of the iterations."""
        return math.fsum(self.waits_s) + math.fsum(self.steps_s)


def draw_job(seed: int) -> SimulatedJob:
    """Draws a simulated training job with random loading and step times."""
    rng = random.Random(seed)
    step_s = math.exp(rng.uniform(math.log(0.02), math.log(0.4)))
    job = SimulatedJob(
        batch_s=step_s * math.exp(rng.uniform(math.log(0.05), math.log(6.0))),
        cpu_share=rng.choice([rng.random(), 1.0, 1.0]),
        step_s=step_s,
        step_cpu_share=rng.choice([0.1, rng.random(), 1.0]),
        spread=rng.uniform(0.0, 0.8),
        jitter=rng.uniform(0.0, 0.15),
        cores=rng.choice([2, 4, 8, 16]),
        others=rng.choice([0.0, 0.0, rng.uniform(0.0, 1.0)]),
        device=rng.choice(['cpu', 'cuda']),
        fetch_s=FIXED_FETCH_S + TENSORS * rng.uniform(*TENSOR_FETCH_S),
    )
    threads = min(COPY_THREADS, job.cores)
    crowd = min(max(threads + job.others - job.cores, 0.0), 1.0)
    turns_s = IMAGES * IMAGE_TURNS_S * max(rng.gauss(1.0, TURNS_SPREAD), 0.0) * crowd
    return replace(job, turns_s=turns_s)


def iterate(
    job: SimulatedJob,
    workers: int,
    count: int,
    rng: random.Random,
    stretch: float | None = None,
    prefetch: int = DEFAULT_PREFETCH,
) -> Piece:
    """Simulates iterations that begin with a full queue of prefetched batches.

    Args:
        stretch: Factor by which CPU work slows down; by default that of all cores.
    """
    if stretch is None:
        stretch = find_stretch(job, workers, prefetch)
    slower = stretch - 1.0
    sigma = math.sqrt(math.log1p(job.spread**2))
    lead = 2 * prefetch * workers
    drawn = [rng.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(lead + count)]
    batch_s = job.batch_s * (1.0 + job.cpu_share * slower)
    batches = [batch_s * each for each in drawn]
    step_s = job.step_s * (1.0 + job.step_cpu_share * slower)
    steps = [step_s * max(rng.gauss(1.0, job.jitter), 0.2) for _ in drawn]
    if workers:
        waits = simulate_waits(workers, batches, steps, job.fetch_s, prefetch)
    else:
        waits = batches = [each + job.turns_s for each in batches]
    cpu = [job.batch_s * job.cpu_share * each for each in drawn]
    return Piece(waits[lead:], steps[lead:], batches[lead:], cpu[lead:])


@functools.lru_cache(maxsize=256)
def find_stretch(
    job: SimulatedJob, workers: int, prefetch: int = DEFAULT_PREFETCH
) -> float:
    """Returns the factor by which CPU work slows down on oversubscribed cores.

    With it the CPU time that the job and other programs get adds up to all cores. A
    slower job asks for less of it, so the factor is found by simulating.
    """
    threads = (workers + 1 if workers else 1) + job.others

    def spare_cores(stretch: float) -> float:
        rng = random.Random(1)
        piece = iterate(job, workers, STEADY, rng, stretch, prefetch)
        cpu_s = math.fsum(piece.cpu_s) + STEADY * job.step_s * job.step_cpu_share
        return job.cores - cpu_s / piece.seconds - job.others / stretch

    if spare_cores(1.0) >= 0.0:
        return 1.0
    most = max(threads / job.cores, 1.0) + 1.0
    return float(brentq(spare_cores, 1.0, most, xtol=1e-3))


def make_interval(
    job: SimulatedJob, workers: int, done: int, piece: Piece, rng: random.Random
) -> IntervalRecord:
    """Returns the log interval record of simulated iterations."""
    count, seconds = len(piece.steps_s), piece.seconds
    whole = [wait + step for wait, step in zip(piece.waits_s, piece.steps_s)]
    cpu_s, step_cpu_s = math.fsum(piece.cpu_s), count * job.step_s * job.step_cpu_share
    # a thread of the worker takes the other half of each tensor's turns
    fetch_cpu_s = FIXED_FETCH_S + (job.fetch_s - FIXED_FETCH_S) / 2
    wait_cpu_s = count * fetch_cpu_s if workers else cpu_s
    busy_s = cpu_s + step_cpu_s + job.others * seconds
    inside = WorkersWindow(
        count=workers,
        cpu_s=cpu_s * rng.gauss(1.0, 0.03) if workers else 0.0,
        run_delay_s=0.02 * cpu_s if workers else 0.0,
        batch_time=summarize_durations(piece.batches_s),
        batch_time_std_s=statistics.pstdev(piece.batches_s),
        batch_cpu=summarize_durations(piece.cpu_s),
    )
    return IntervalRecord(
        iteration=done + count,
        epoch=1,
        iterations=count,
        elapsed_s=0.0,
        duration_s=seconds,
        data_wait=summarize_durations(piece.waits_s),
        step=summarize_durations(piece.steps_s),
        iter=summarize_durations(whole),
        ledger_s={
            'data_wait': math.fsum(piece.waits_s),
            'step': math.fsum(piece.steps_s),
            'other': 0.0,
        },
        data_wait_cpu_s=wait_cpu_s,
        process_cpu_s=(step_cpu_s + wait_cpu_s) * rng.gauss(1.0, 0.03),
        # a thread spins for one of the two turns
        process_run_delay_s=None if workers else count * job.turns_s / 2,
        system_cpu_pct=100
        * min(rng.gauss(1.0, 0.05) * busy_s / (job.cores * seconds), 1.0),
        process_rss_bytes=GIB,
        batch_bytes=IMAGES * MIB,
        batch_tensors=TENSORS,
        workers=inside,
    )


class SimulatedTraining:
    """Simulated training whose loader is tuned as with ``tune=True``.

    Args:
        job: The job.
        workers: At the start.
        seed: Of its noise.
    """

    def __init__(self, job: SimulatedJob, workers: int, seed: int) -> None:
        self._job, self._rng = job, random.Random(seed)
        self.workers, self.done, self.seconds = workers, 0, START_S * bool(workers)
        self.prefetch = DEFAULT_PREFETCH
        self.changes: list[int] = []
        """Each number of workers that was switched to, switches back included."""
        self.first_at: int | None = None
        """Iteration of the first change of workers."""
        self._since, self._ask_at = 0, FIRST_ASKED
        self._child_from_s = None if workers else 0.0
        """Seconds at which the child process is started; ``None`` until then."""
        self._possible = PossibleGain(job.cores)
        self._length = FIRST_ITERATIONS
        self._answer_s = math.inf
        self._evidence = RunEvidence('', self._describe(workers), ())

    def _describe(self, workers: int) -> RunRecord:
        cores = self._job.cores
        return RunRecord(
            started_unix_s=0.0,
            loop='iter',
            max_iters=LENGTH,
            interval_iterations=LOGGED,
            device=self._job.device,
            loader=LoaderSettings(
                num_workers=workers,
                persistent_workers=workers > 0,
                prefetch_factor=2 if workers else None,
                pin_memory=False,
                batch_size=IMAGES,
            ),
            host=HostLimits(
                logical_cpus=cores,
                affinity_cpus=cores,
                usable_cores=float(cores),
                ram_available_bytes=64 * GIB,
                shm_free_bytes=16 * GIB,
                open_files_soft=2**16,
            ),
        )

    def train(self) -> None:
        """Simulates the whole job; iterations after tuning have their mean time."""
        job = self._job
        while self.done < LENGTH and not self._is_over:
            count = self._length if self.done - self._since < EARLY else LOGGED
            piece = iterate(job, self.workers, count, self._rng, prefetch=self.prefetch)
            record = make_interval(job, self.workers, self.done, piece, self._rng)
            intervals = (*self._evidence.intervals, record)
            self._evidence = replace(self._evidence, intervals=intervals)
            self.done += count
            self.seconds += piece.seconds
            self._possible.add(record)
            if self._child_from_s is None and self._possible.why_not is None:
                self._child_from_s = self.seconds
            self._length = choose_length(
                piece.seconds / count, is_first=not self.changes
            )
            self._follow()
        left = LENGTH - self.done
        self.seconds += left * mean_iter_s(job, self.workers, self.prefetch)

    @property
    def _is_over(self) -> bool:
        tuned, watched = self._evidence.tuned, self.done - self._since
        last = tuned[-1].action if tuned else ''
        if last == 'roll_back' or (tuned[-1:] and tuned[-1].reason == 'other_load'):
            return True
        is_open = last == 'change'
        is_spent = len(self.changes) >= MOST_CHANGES
        return not is_open and (is_spent or watched > MOST_WATCHED)

    def _follow(self) -> None:
        """Sends the tuner a question at an interval's end, or applies its answer."""
        began_s = self._child_from_s
        if began_s is None or self.seconds < began_s + CHILD_S:
            return
        if self._answer_s <= self.seconds:
            self._answer_s = math.inf
            self._take(self._ask())
        elif math.isinf(self._answer_s) and self.done >= self._ask_at:
            self._answer_s = self.seconds + ANSWER_S
            is_open = self._evidence.tuned[-1:] and (
                self._evidence.tuned[-1].action == 'change'
            )
            wait = 0 if is_open else (ASK_AGAIN - 1.0) * (self.done - self._since)
            self._ask_at = self.done + int(wait)

    def _ask(self) -> TuneAnswer:
        question = TuneQuestion(
            iterations_left=LENGTH - self.done,
            can_change=len(self.changes) < MOST_CHANGES,
        )
        return answer_question(Run(self._evidence), question)

    def _take(self, answer: TuneAnswer) -> None:
        record = answer.judged or answer.proposed
        if record is None:
            return
        record = structs.replace(record, iteration=self.done)
        tuned = (*self._evidence.tuned, record)
        self._evidence = replace(self._evidence, tuned=tuned)
        if record.action == 'keep':
            return
        self._since = self._ask_at = self.done
        self.workers = record.new.num_workers
        self.prefetch = record.new.prefetch_factor or DEFAULT_PREFETCH
        self.seconds += START_S
        if record.action == 'change':
            self.first_at = self.first_at or self.done
        self.changes.append(self.workers)


@functools.lru_cache(maxsize=64)
def mean_iter_s(
    job: SimulatedJob, workers: int, prefetch: int = DEFAULT_PREFETCH
) -> float:
    """Returns the mean seconds of steady simulated iterations."""
    rng = random.Random(1)
    return iterate(job, workers, STEADY, rng, prefetch=prefetch).seconds / STEADY


def list_fixed(job: SimulatedJob) -> list[int]:
    """Returns the worker counts within a job's host limits.

    No more than there are cores, beyond which PyTorch warns, unless loading waits for
    at least half of its time.
    """
    is_waiting = 1 - job.cpu_share >= BLOCKED_PROBLEM
    return [n for n in list_carried(job) if is_waiting or n <= job.cores]


def list_carried(job: SimulatedJob) -> list[int]:
    """Returns the worker counts whose CPU time a job's cores have.

    Beyond that the simulation's workers would share CPU time that no core has.
    """
    most = job.cores / max(job.cpu_share, 0.01)
    return [count for count in FIXED if count <= most]


def choose_as_paddle(measure_s: Callable[[int], float]) -> int:
    """Returns Paddle's choice of workers: doubled while loading gets 25 % faster.

    Args:
        measure_s: Seconds of a batch with a number of workers.
    """
    best, best_s, workers = 0, measure_s(0), 2
    while workers <= 2 * (os.cpu_count() or 1):
        seconds = measure_s(workers)
        if seconds > 0.75 * best_s:
            break
        best, best_s, workers = workers, seconds, 2 * workers
    return best


@dataclass(frozen=True)
class Simulated:
    """Results of one simulated job, with and without tuning."""

    start: int
    lost_pct: float
    """Extra time of the tuned job over the best fixed setting, in per cent."""
    untuned_pct: float
    paddle_pct: float
    changes: int
    is_null: bool
    is_twice: bool
    """True if the tuner returned to a worker count that it had left before."""
    beyond_pct: float
    """Time that more workers than the host's limits would save, in per cent."""


def run_simulated(case: tuple[int, int]) -> Simulated:
    """Simulates one job with and without tuning.

    Args:
        case: Seed, and workers at the start.
    """
    seed, start = case
    job = draw_job(seed)
    counts = {start, *list_fixed(job)}
    fixed = {count: mean_iter_s(job, count) for count in counts}
    likely = {start, min(fixed, key=fixed.__getitem__)}
    deeper = [
        mean_iter_s(job, count, 2 * DEFAULT_PREFETCH) for count in likely if count
    ]
    best_iter_s = min(*fixed.values(), *deeper)
    fastest = min(mean_iter_s(job, count) for count in {start, *list_carried(job)})
    best_s = LENGTH * best_iter_s
    training = SimulatedTraining(job, start, seed)
    training.train()
    alone = functools.partial(_alone_s, job)
    chosen = choose_as_paddle(alone)
    timed_s = sum(20 * alone(count) for count in (0, 2, 4, 8) if count <= 2 * chosen)
    made = [start, *training.changes]
    return Simulated(
        start,
        100 * (training.seconds / best_s - 1),
        100 * (LENGTH * fixed[start] / best_s - 1),
        100 * ((LENGTH * mean_iter_s(job, chosen) + timed_s) / best_s - 1),
        len(training.changes),
        is_null=min(best_iter_s, fastest) > (1 - NOTHING) * fixed[start],
        is_twice=len(made) > 3 and len({*made}) < len(made),
        beyond_pct=100 * (1 - fastest / best_iter_s),
    )


def _alone_s(job: SimulatedJob, workers: int) -> float:
    """Returns the seconds per batch of a loader that runs without train steps."""
    loading = replace(job, step_s=1e-6, jitter=0.0)
    return mean_iter_s(loading, workers)


def judge_simulated(each: int) -> Iterator[Figure]:
    """Returns figures on time that simulated tuned jobs lose to fixed worker counts."""
    cases = [
        (seed * len(STARTS) + number, start)
        for seed in range(each)
        for number, start in enumerate(STARTS)
    ]
    with multiprocessing.get_context('fork').Pool(os.cpu_count()) as pool:
        found = pool.map(run_simulated, cases, chunksize=5)
    note = f'{len(found)} jobs of {LENGTH} iterations'
    lost = [job.lost_pct for job in found]
    yield at_most(
        'simulated: time lost, median', statistics.median(lost), MEDIAN_LIMIT, '%', note
    )
    yield at_most('simulated: time lost, worst', max(lost), WORST_LIMIT, '%', note)
    nulls = [job for job in found if job.is_null]
    alarms = sum(job.changes > 0 for job in nulls)
    share = 100 * alarms / len(nulls) if nulls else None
    yield at_most(
        'simulated: changes where nothing is to gain',
        share,
        ALARM_LIMIT,
        '%',
        f'{len(nulls)} jobs',
    )
    twice = sum(job.is_twice for job in found)
    yield at_most('simulated: to and fro', float(twice), 0.0, 'jobs', note)
    slower = max(job.lost_pct - job.untuned_pct for job in found)
    yield Figure('simulated: slower than untuned, worst', slower, '%')
    beyond = sum(job.beyond_pct >= 100 * LEAST_GAIN for job in found)
    yield Figure(
        'simulated: faster with more workers than cores',
        beyond,
        'jobs',
        note=f'by {100 * LEAST_GAIN:g} % or more; less than half of loading waits',
    )
    for start in STARTS:
        some = [job for job in found if job.start == start]
        ways = {
            'tuned': [job.lost_pct for job in some],
            'untuned': [job.untuned_pct for job in some],
            "Paddle's way": [job.paddle_pct for job in some],
        }
        text = ', '.join(
            f'{name} {statistics.median(values):.1f} ({max(values):.0f})'
            for name, values in ways.items()
        )
        middle = statistics.median(ways['tuned'])
        name = f'simulated from {start} workers: time lost, median'
        yield Figure(name, middle, '%', note=f'median (worst): {text}')


@dataclass(frozen=True)
class RealJob:
    """Real job with known loading and step times, and its best number of workers."""

    pipeline: Pipeline
    best: int


REAL = (
    RealJob(Pipeline('waits for storage', 0.3, 10, 0.2, 4, 20), 3),
    RealJob(Pipeline('CPU', 5, 0, 0.3, 4, 14), 2),
    RealJob(Pipeline('mixed', 3, 3, 0.5, 4, 15), 2),
    RealJob(Pipeline('step burns, loading waits', 0.5, 7, 0.3, 4, 20, 'burn'), 2),
    RealJob(Pipeline('a little to gain', 1, 1, 0.3, 4, 40), 1),
    RealJob(Pipeline('long loading', 1, 14, 0.4, 4, 30), 3),
)


@dataclass(frozen=True)
class Trained:
    """Duration and results of one real training."""

    seconds: float
    blocks_s: Sequence[float]
    """Seconds of each block of iterations, in order."""
    evidence: RunEvidence
    other_pct: float


class Stamps(Hook):
    """Hook that takes the time at a training's start, and after each iteration."""

    # before any other hook at the start, and after an iteration as well
    priority = 0

    def __init__(self) -> None:
        self.stamps_s: list[float] = []

    def before_train(self, runner: Any) -> None:
        self.stamps_s.append(time.perf_counter())

    def after_train_iter(self, runner: Any, *_: Any, **__: Any) -> None:
        self.stamps_s.append(time.perf_counter())

    def list_blocks_s(self) -> list[float]:
        """Returns the seconds of each block of iterations."""
        ends = self.stamps_s[:: (len(self.stamps_s) - 1) // BLOCKS]
        return [end_s - begin_s for begin_s, end_s in zip(ends, ends[1:])]


def train_real(
    job: RealJob, workers: int, works: dict[str, Work], *, is_tuned: bool
) -> Trained:
    """Trains a real job from the given number of workers, with or without tuning."""
    span, stamps, load, pipeline = Span(), Stamps(), OtherLoad(), job.pipeline
    model = StampedModel(pipeline.make_step(works))
    loading: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
    if workers:
        loading |= {'prefetch_factor': 2, 'persistent_workers': True}
    with tempfile.TemporaryDirectory() as name:
        length = REAL_LENGTH // EPOCHS * pipeline.batch
        runner = build_runner(
            model,
            pipeline.make_dataset(Path(name), works, length),
            Path(name, 'run'),
            loader=loading,
            hooks={'gpu_efficiency': {**HOOK, 'tune': is_tuned}},
            train_cfg={'by_epoch': True, 'max_epochs': EPOCHS},
            custom_hooks=[span, stamps],
            interval=50,
        )
        runner.train()
        end_workers(runner.train_loop.dataloader._iterator)
        evidence = read_evidence(find_evidence(Path(name)))
    way = 'tuned' if is_tuned else 'fixed'
    changes = [record.new.num_workers for record in evidence.switches]
    say(f'{pipeline.name}: {way} from {workers}: {span.seconds:.2f} s {changes}')
    return Trained(span.seconds, stamps.list_blocks_s(), evidence, load.read_pct())


def time_alone(job: RealJob, works: dict[str, Work], workers: int) -> float:
    """Returns seconds per batch of a real loader without training, over 40 batches."""
    from torch.utils.data import DataLoader

    pipeline, batches = job.pipeline, 40
    with tempfile.TemporaryDirectory() as name:
        data = pipeline.make_dataset(Path(name), works, batches * pipeline.batch)
        loader = DataLoader(
            data, pipeline.batch, num_workers=workers, collate_fn=pipeline.collate
        )
        began_s = time.perf_counter()
        for _ in loader:
            pass
        return (time.perf_counter() - began_s) / batches


@dataclass(frozen=True)
class Extra:
    """Time that a tuned training took longer than untuned ones, with its interval."""

    share_pct: float
    """Extra time in per cent of the untuned time; below 0 it was faster."""
    low_pct: float
    high_pct: float

    @property
    def is_slower(self) -> bool:
        """True if the tuned training was slower beyond its interval."""
        return self.low_pct > 0.0

    @property
    def text(self) -> str:
        """Extra time in words."""
        interval = f'{self.low_pct:+.1f} to {self.high_pct:+.1f}'
        return f'against untuned {self.share_pct:+.1f} % ({interval})'


def pair(tuned: Trained, around: Sequence[Trained], comparisons: int) -> Extra:
    """Compares a tuned training with the untuned ones around it, block by block.

    Args:
        tuned: The tuned one.
        around: Those trained before it and after it.
        comparisons: Number of such comparisons, which share the confidence.
    """
    untuned_s = [statistics.fmean(some) for some in zip(*(o.blocks_s for o in around))]
    extra_s = [ours_s - theirs_s for ours_s, theirs_s in zip(tuned.blocks_s, untuned_s)]
    mean_s, whole_s = statistics.fmean(extra_s), statistics.fmean(untuned_s)
    error_s = statistics.stdev(extra_s) / math.sqrt(len(extra_s))
    within = 1 - (1 - CONFIDENCE) / comparisons
    half_s = student_t((1 + within) / 2, len(extra_s) - 1) * error_s
    ends_s = mean_s, mean_s - half_s, mean_s + half_s
    return Extra(*(100 * end_s / whole_s for end_s in ends_s))


class Judge:
    """Compares tuned trainings with untuned ones and with the best fixed setting.

    Args:
        benchmark: Takes the load of other programs.
        comparisons: Number of tuned trainings.
    """

    def __init__(self, benchmark: Benchmark, comparisons: int) -> None:
        self._benchmark, self._comparisons = benchmark, comparisons
        self.lost_pct: list[float] = []
        self.soon: list[bool] = []
        """True for each training begun without workers that was changed soon."""
        self.switches_ms: list[float] = []
        self.slower: list[str] = []
        """Names of trainings that were slower than untuned beyond their interval."""

    def compare(
        self,
        name: str,
        start: int,
        best: Trained,
        best_workers: int,
        train: Callable[[bool], Trained],
    ) -> Figure:
        """Trains untuned, tuned and untuned; returns the tuned one's lost time.

        Args:
            name: Of the job.
            start: Workers at the start.
            best: Training with the best setting.
            best_workers: Workers of that one.
            train: Trains from these workers, tuned or not.
        """
        before, tuned, after = (train(is_tuned) for is_tuned in (False, True, False))
        around = before, after
        self._benchmark.shares_pct += [
            trained.other_pct for trained in (before, tuned, after)
        ]
        lost_pct = 100 * (tuned.seconds / best.seconds - 1)
        self.lost_pct.append(lost_pct)
        changes = tuned.evidence.switches
        self.switches_ms += [1000 * (change.switch_s or 0.0) for change in changes]
        if start == 0:
            self.soon.append(bool(changes) and changes[0].iteration <= SOON)
        given = ', '.join(
            f'{change.new.num_workers} at {change.iteration} ({change.reason})'
            for change in changes
        )
        extra = pair(tuned, around, self._comparisons)
        name = f'{name}, from {start} workers: time lost'
        if extra.is_slower:
            self.slower.append(name)
        untuned_s = statistics.fmean(trained.seconds for trained in around)
        untuned_pct = 100 * (untuned_s / best.seconds - 1)
        note = (
            f'{extra.text}; untuned {untuned_pct:.1f} %; best {best_workers} workers; '
            f'given: {given or "-"}'
        )
        return Figure(name, lost_pct, '%', note=note)

    def report(self, part: str) -> Iterator[Figure]:
        """Yields the figures of all trainings so far, against the targets."""
        note = f'{len(self.lost_pct)} trainings of {REAL_LENGTH} iterations'
        middle, worst = statistics.median(self.lost_pct), max(self.lost_pct)
        if part == 'real':
            yield at_most(
                'real: time lost, median', middle, REAL_MEDIAN_LIMIT, '%', note
            )
            yield at_most('real: time lost, worst', worst, REAL_WORST_LIMIT, '%', note)
            share = sum(self.soon) / len(self.soon)
            yield at_least(
                f'real, from 0 workers: changed within {SOON} iterations', share, 5 / 6
            )
        yield at_most(
            f'{part}: slower than untuned beyond its interval',
            float(len(self.slower)),
            0.0,
            'trainings',
            ', '.join(self.slower) or f'of {len(self.lost_pct)}',
        )
        stall = statistics.median(self.switches_ms) if self.switches_ms else None
        most = ''
        if self.switches_ms:
            most = f'most {max(self.switches_ms):.0f} ms of {len(self.switches_ms)}'
        yield Figure(f'{part}: a switch stalls training', stall, 'ms', note=most)


def judge_real(benchmark: Benchmark, jobs: Sequence[RealJob]) -> Iterator[Figure]:
    """Returns figures on time that real tuned jobs lose to the best worker count."""
    works = make_works()
    starts = REAL_STARTS[:1] if benchmark.is_quick else REAL_STARTS
    judge = Judge(benchmark, len(jobs) * len(starts))
    for job in jobs:
        best = train_real(job, job.best, works, is_tuned=False)
        for start in starts:
            yield judge.compare(
                job.pipeline.name,
                start,
                best,
                job.best,
                lambda is_tuned, job=job, start=start: train_real(  # type: ignore[misc]
                    job, start, works, is_tuned=is_tuned
                ),
            )
        began_s = time.perf_counter()
        alone = functools.partial(time_alone, job, works)
        chosen = choose_as_paddle(alone)
        timed_s = time.perf_counter() - began_s
        paddle = train_real(job, chosen, works, is_tuned=False)
        share = 100 * ((timed_s + paddle.seconds) / best.seconds - 1)
        name = f"{job.pipeline.name}, Paddle's way: time lost"
        yield Figure(name, share, '%', note=f'{chosen} workers, {timed_s:.1f} s alone')
    yield from judge.report('real')


def train_demo(folder: Path, work_dir: str, workers: int, *, is_tuned: bool) -> Trained:
    """Trains the demo, RTMDet-tiny on camera-sized images, in a process of its own."""
    load, settings = OtherLoad(), loader('train', num_workers=workers)
    if workers:
        settings |= loader('train', persistent_workers=True)
    settings |= TUNED if is_tuned else {}
    trained = train(folder, CASES[DEMO].config, work_dir, settings)
    evidence = read_evidence(find_evidence(folder / work_dir))
    return Trained(trained.whole_s, trained.times_s, evidence, load.read_pct())


def judge_demo(benchmark: Benchmark) -> Iterator[Figure]:
    """Returns figures on time that the tuned demo loses to the best worker count."""
    starts = DEMO_STARTS[:1] if benchmark.is_quick else DEMO_STARTS
    judge, turns = Judge(benchmark, len(starts)), itertools.count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, 'bench_tune')
        prepare(folder, [DEMO])
        best_workers = CASES[DEMO].best['train_dataloader.num_workers']
        best = train_demo(folder, 'best', best_workers, is_tuned=False)
        for start in starts:
            yield judge.compare(
                'RTMDet-tiny of the demo',
                start,
                best,
                best_workers,
                lambda is_tuned, start=start: train_demo(  # type: ignore[misc]
                    folder, f'turn_{next(turns)}', start, is_tuned=is_tuned
                ),
            )
    yield from judge.report('demo')


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: simulates and trains jobs, and prints the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--only', choices=PARTS, help='one part alone')
    benchmark = Benchmark('tune', __doc__ or '', argv, parser=parser)
    warnings.filterwarnings('ignore')
    parts = PARTS if benchmark.options.only is None else (benchmark.options.only,)
    if 'simulated' in parts:
        benchmark.add(*judge_simulated(QUICK_EACH if benchmark.is_quick else EACH))
    if 'real' in parts:
        jobs = REAL[:2] if benchmark.is_quick else REAL
        benchmark.add(*judge_real(benchmark, jobs))
    if 'demo' in parts:
        benchmark.add(*judge_demo(benchmark))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
