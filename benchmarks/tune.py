"""Benchmark of ``tune=True``: time lost against the best fixed loader setting.

    python -m benchmarks.tune [--only PART] [--quick] [--output]

Simulated jobs train 5,000 iterations, as many from each number of workers: a loader as
PyTorch hands its batches out, on cores that all share evenly. What is decided and
judged is the hook's own, at the iterations at which it would ask. Some have nothing to
gain: any change there is a false alarm.

Real jobs are planted, so the best number of workers is known from how. Each trains 600
iterations from several numbers of workers, tuned and not, beside one training with the
best. Beside them stands Paddle's way: the loader alone is timed before the training,
the number of workers doubles as long as that gains 25 %, and that time counts. About
55 minutes on two cores.
"""

from __future__ import annotations

import argparse
import functools
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

from msgspec import structs

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
from benchmarks.regret import FETCH_S, GIB, MIB, Span, simulate_waits
from benchmarks.toy import HOOK, build_runner
from mmgpu_hooks.hooks.tuner import (
    ASK_AGAIN,
    MOST_CHANGES,
    MOST_WATCHED,
    SHORT_ITERATIONS,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.recommend.tuning import answer_question
from mmgpu_hooks.schema.recorded import (
    HostLimits,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    WorkersWindow,
)
from mmgpu_hooks.schema.run import RunEvidence, read_evidence
from mmgpu_hooks.schema.tuning import TuneAnswer, TuneQuestion

PARTS = ('simulated', 'real')

STARTS, EACH, QUICK_EACH = (0, 1, 2, 4, 8), 200, 6
"""Initial worker counts of simulated jobs, and jobs per count (full and quick)."""
LENGTH, LOGGED = 5_000, 50
"""Iterations of a simulated job, and of its log interval."""
ANSWER_S, CHILD_S, START_S = 0.5, 1.5, 0.1
"""Seconds that a tuner's answer, a child process start and a worker start take."""
NOTHING = 0.02
"""Gain as a share of an iteration below which a change counts as no gain."""
MEDIAN_LIMIT, WORST_LIMIT, ALARM_LIMIT = 1.0, 5.0, 1.0

REAL_STARTS, REAL_LENGTH, EPOCHS = (0, 2, 8), 600, 3
REAL_MEDIAN_LIMIT, REAL_WORST_LIMIT = 6.0, 15.0
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

    def stretch(self, workers: int) -> float:
        """Returns the factor by which CPU work slows down on oversubscribed cores."""
        step_s, batch_s = self.step_s, self.batch_s
        if not workers:
            return max((1.0 + self.others) / self.cores, 1.0)
        iter_s = max(step_s, batch_s / workers)
        used_s = batch_s * self.cpu_share + step_s * self.step_cpu_share
        return max((used_s / iter_s + self.others) / self.cores, 1.0)


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
    return SimulatedJob(
        batch_s=step_s * math.exp(rng.uniform(math.log(0.05), math.log(6.0))),
        cpu_share=rng.choice([rng.random(), 1.0, 1.0]),
        step_s=step_s,
        step_cpu_share=rng.choice([0.1, rng.random(), 1.0]),
        spread=rng.uniform(0.0, 0.8),
        jitter=rng.uniform(0.0, 0.15),
        cores=rng.choice([2, 4, 8, 16]),
        others=rng.choice([0.0, 0.0, rng.uniform(0.0, 1.0)]),
        device=rng.choice(['cpu', 'cuda']),
    )


def iterate(job: SimulatedJob, workers: int, count: int, rng: random.Random) -> Piece:
    """Simulates iterations that begin with a full queue of prefetched batches."""
    stretch = job.stretch(workers)
    sigma = math.sqrt(math.log1p(job.spread**2))
    lead = 4 * workers
    drawn = [rng.lognormvariate(-sigma * sigma / 2, sigma) for _ in range(lead + count)]
    longer = 1.0 + job.cpu_share * (stretch - 1.0)
    batches = [job.batch_s * longer * each for each in drawn]
    step_s = job.step_s * (1.0 + job.step_cpu_share * (stretch - 1.0))
    steps = [step_s * max(rng.gauss(1.0, job.jitter), 0.2) for _ in drawn]
    waits = batches
    if workers:
        waits = simulate_waits(workers, batches, steps)
    cpu = [job.batch_s * job.cpu_share * each for each in drawn]
    return Piece(waits[lead:], steps[lead:], batches[lead:], cpu[lead:])


def make_interval(
    job: SimulatedJob, workers: int, done: int, piece: Piece, rng: random.Random
) -> IntervalRecord:
    """Returns the log interval record of simulated iterations."""
    count, seconds = len(piece.steps_s), piece.seconds
    whole = [wait + step for wait, step in zip(piece.waits_s, piece.steps_s)]
    cpu_s, step_cpu_s = math.fsum(piece.cpu_s), count * job.step_s * job.step_cpu_share
    wait_cpu_s = count * FETCH_S if workers else cpu_s
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
        system_cpu_pct=100
        * min(rng.gauss(1.0, 0.05) * busy_s / (job.cores * seconds), 1.0),
        process_rss_bytes=GIB,
        batch_bytes=4 * MIB,
        batch_tensors=4,
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
        self.changes: list[int] = []
        """Each number of workers that was switched to, switches back included."""
        self.first_at: int | None = None
        """Iteration of the first change of workers."""
        self._since = self._ask_at = 0
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
                batch_size=4,
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
        while self.done < LENGTH and not self._is_over:
            count = SHORT_ITERATIONS if self.done - self._since < 100 else LOGGED
            piece = iterate(self._job, self.workers, count, self._rng)
            record = make_interval(self._job, self.workers, self.done, piece, self._rng)
            intervals = (*self._evidence.intervals, record)
            self._evidence = replace(self._evidence, intervals=intervals)
            self.done += count
            self.seconds += piece.seconds
            self._follow()
        left = LENGTH - self.done
        self.seconds += left * mean_iter_s(self._job, self.workers)

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
        if self.seconds < CHILD_S:
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
        self.seconds += START_S
        if record.action == 'change':
            self.first_at = self.first_at or self.done
        self.changes.append(self.workers)


@functools.lru_cache(maxsize=64)
def mean_iter_s(job: SimulatedJob, workers: int) -> float:
    """Returns the mean seconds of steady simulated iterations."""
    return iterate(job, workers, 600, random.Random(1)).seconds / 600


def list_fixed(job: SimulatedJob) -> list[int]:
    """Returns the worker counts to compare tuning with, up to the number of cores."""
    return [count for count in (0, 1, 2, 3, 4, 6, 8, 12, 16) if count <= job.cores]


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
    """Extra time of the tuned job over the best fixed worker count, in per cent."""
    untuned_pct: float
    paddle_pct: float
    changes: int
    is_null: bool
    is_twice: bool
    """True if the tuner returned to a worker count that it had left before."""


def run_simulated(case: tuple[int, int]) -> Simulated:
    """Simulates one job with and without tuning.

    Args:
        case: Seed, and workers at the start.
    """
    seed, start = case
    job = draw_job(seed)
    fixed = {count: mean_iter_s(job, count) for count in {*list_fixed(job), start}}
    best_s = LENGTH * min(fixed.values())
    training = SimulatedTraining(job, start, seed)
    training.train()
    alone = functools.partial(_alone_s, job)
    chosen = choose_as_paddle(alone)
    timed_s = sum(20 * alone(count) for count in (0, 2, 4, 8) if count <= 2 * chosen)
    counts = [start, *training.changes]
    return Simulated(
        start,
        100 * (training.seconds / best_s - 1),
        100 * (LENGTH * fixed[start] / best_s - 1),
        100 * ((LENGTH * mean_iter_s(job, chosen) + timed_s) / best_s - 1),
        len(training.changes),
        is_null=min(fixed.values()) > (1 - NOTHING) * fixed[start],
        is_twice=len(counts) > 3 and len({*counts}) < len(counts),
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
    evidence: RunEvidence
    other_pct: float


def train_real(
    job: RealJob, workers: int, works: dict[str, Work], *, is_tuned: bool
) -> Trained:
    """Trains a real job from the given number of workers, with or without tuning."""
    span, load, pipeline = Span(), OtherLoad(), job.pipeline
    model = StampedModel(pipeline.make_step(works))
    loader: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
    if workers:
        loader |= {'prefetch_factor': 2, 'persistent_workers': True}
    with tempfile.TemporaryDirectory() as name:
        length = REAL_LENGTH // EPOCHS * pipeline.batch
        runner = build_runner(
            model,
            pipeline.make_dataset(Path(name), works, length),
            Path(name, 'run'),
            loader=loader,
            hooks={'gpu_efficiency': {**HOOK, 'tune': is_tuned}},
            train_cfg={'by_epoch': True, 'max_epochs': EPOCHS},
            custom_hooks=[span],
            interval=50,
        )
        runner.train()
        end_workers(runner.train_loop.dataloader._iterator)
        evidence = read_evidence(find_evidence(Path(name)))
    way = 'tuned' if is_tuned else 'fixed'
    changes = [record.new.num_workers for record in evidence.switches]
    say(f'{pipeline.name}: {way} from {workers}: {span.seconds:.2f} s {changes}')
    return Trained(span.seconds, evidence, load.read_pct())


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


def judge_real(benchmark: Benchmark, jobs: Sequence[RealJob]) -> Iterator[Figure]:
    """Returns figures on time that real tuned jobs lose to the best worker count."""
    works, lost, soon, switches = make_works(), list[float](), list[bool](), []
    starts = REAL_STARTS[:1] if benchmark.is_quick else REAL_STARTS
    for job in jobs:
        best = train_real(job, job.best, works, is_tuned=False)
        for start in starts:
            tuned = train_real(job, start, works, is_tuned=True)
            untuned = train_real(job, start, works, is_tuned=False)
            benchmark.shares_pct += [tuned.other_pct, untuned.other_pct]
            lost.append(100 * (tuned.seconds / best.seconds - 1))
            changes = tuned.evidence.switches
            switches += [1000 * (change.switch_s or 0.0) for change in changes]
            if start == 0:
                soon.append(bool(changes) and changes[0].iteration <= SOON)
            text = ', '.join(
                f'{change.new.num_workers} at {change.iteration} ({change.reason})'
                for change in changes
            )
            gain = 100 * (untuned.seconds / best.seconds - 1)
            name = f'{job.pipeline.name}, from {start} workers: time lost'
            note = (
                f'untuned {gain:.1f} %; best {job.best} workers; given: {text or "-"}'
            )
            yield Figure(name, lost[-1], '%', note=note)
        began_s = time.perf_counter()
        alone = functools.partial(time_alone, job, works)
        chosen = choose_as_paddle(alone)
        timed_s = time.perf_counter() - began_s
        paddle = train_real(job, chosen, works, is_tuned=False)
        share = 100 * ((timed_s + paddle.seconds) / best.seconds - 1)
        name = f"{job.pipeline.name}, Paddle's way: time lost"
        yield Figure(name, share, '%', note=f'{chosen} workers, {timed_s:.1f} s alone')
    note = f'{len(lost)} trainings of {REAL_LENGTH} iterations'
    middle = statistics.median(lost)
    yield at_most('real: time lost, median', middle, REAL_MEDIAN_LIMIT, '%', note)
    yield at_most('real: time lost, worst', max(lost), REAL_WORST_LIMIT, '%', note)
    share = sum(soon) / len(soon)
    yield at_least(
        f'real, from 0 workers: changed within {SOON} iterations', share, 5 / 6
    )
    stall = statistics.median(switches) if switches else None
    most = f'most {max(switches):.0f} ms of {len(switches)}' if switches else ''
    yield Figure('a switch stalls training, median', stall, 'ms', note=most)


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
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
