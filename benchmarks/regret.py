"""Benchmark: time lost with recommended settings, compared with rules of thumb.

    python -m benchmarks.regret [--trials FILE] [--quick] [--output]

Planted jobs train with every setting of a grid; epoch starts and saves count. A setting
is recommended from each training with 2 workers, MMDetection's default, and what it
loses over the best of the grid stands beside what fixed numbers of workers lose. Each
setting is trained twice, the faster counts, and a loss within what the best one's
trainings differ by is none. The best of 16 noisy trainings is a lucky one: where a
setting seems to lose, it and the best are trained four more times each, in turns, and
those fresh trainings alone are judged. Some jobs are drawn from a random generator, and
the policy was not tuned to them. Then evidence of loops with nothing to gain is
simulated: any change there is a false alarm. About 25 minutes.

With ``--trials`` the grid is read from a file.
"""

from __future__ import annotations

import math
import os
import random
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.hooks import Hook

from benchmarks.costs import Work, make_works
from benchmarks.harness import (
    Benchmark,
    Figure,
    HoldMemory,
    OtherLoad,
    at_most,
    end_workers,
    find_evidence,
    recommend,
    say,
)
from benchmarks.predict import MMDET, Pipeline, StampedModel
from benchmarks.toy import HOOK, SAVES, build_runner
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.ledger import summarize_durations
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.recorded import (
    HostLimits,
    IntervalRecord,
    LoaderSettings,
    RunRecord,
    WorkersWindow,
)
from mmgpu_hooks.schema.run import RunEvidence

MEDIAN_LIMIT, WORST_LIMIT, ALARM_LIMIT = 1.0, 5.0, 1.0

DEFAULT = 2
"""Number of workers in MMDetection's default configs."""
WORKERS, OF_RECIPES = (0, 1, 2, 3, 4, 5, 6, 8), (0, 1, 2, 3, 4)
RULES = (0, 1, 2, 4, 8)
REPEATS, FRESH = 2, 4
"""Trainings per loader setting: in the grid, and to compare chosen and best setting."""
SECONDS, SECONDS_OF_RECIPES, LEAST_ITERATIONS = 1.8, 6.0, 40
"""Approximate seconds of a synthetic and an MMDetection job; minimum iterations."""

NULLS = 1000
"""Number of simulated runs in which no loader setting gives a gain."""
UNSEEN_SEED, UNSEEN_COUNT = 70_913, 5
MIB, GIB = 2**20, 2**30


class LoaderChoice(NamedTuple):
    """Loader settings of a job that a recommendation can change."""

    num_workers: int
    persistent_workers: bool


@dataclass(frozen=True)
class JobTraining:
    """Result of one training of a job with one loader setting."""

    job: str
    setting: LoaderChoice
    job_s: float
    other_load_pct: float
    evidence: Sequence[str]
    """Lines of the evidence file that the hook wrote."""

    @classmethod
    def read(cls, kept: Mapping[str, Any]) -> JobTraining:
        """Recreates a training from the dict that ``asdict`` made of it."""
        return cls(**{**kept, 'setting': LoaderChoice(*kept['setting'])})


@dataclass(frozen=True)
class PlantedJob:
    """Training job with known loading and step times, as a user would configure it."""

    pipeline: Pipeline
    epochs: int = 2
    persistent_workers: bool = True
    saves_per_epoch: int = 0
    save_mib: int = 0
    """Size in MiB of the model weights that each save writes."""
    worker_mib: int = 0
    """Memory in MiB that each worker process holds."""

    @property
    def name(self) -> str:
        """Name of the pipeline with which the job trains."""
        return self.pipeline.name

    def list_grid(self) -> list[LoaderChoice]:
        """Returns the loader settings to try, with and without persistent workers."""
        counts = OF_RECIPES if self.pipeline.recipe else WORKERS
        grid = [LoaderChoice(count, self.persistent_workers) for count in counts]
        if not self.persistent_workers:
            grid += [LoaderChoice(count, True) for count in (1, 2, 4)]
        return grid


SEEN = (
    PlantedJob(Pipeline('CPU', 6, 0, 0.3, 4, 15)),
    PlantedJob(Pipeline('waiting', 0.5, 5, 0.2, 4, 14)),
    PlantedJob(Pipeline('long waiting', 0.3, 11, 0.3, 4, 14)),
    PlantedJob(Pipeline('storage', 0.5, 30, 0.3, 4, 25)),
    PlantedJob(Pipeline('mixed, step burns', 4, 2, 0.5, 4, 20, 'burn')),
    PlantedJob(Pipeline('nothing to gain', 0.7, 0, 0.1, 4, 20)),
    PlantedJob(Pipeline('nothing to gain, step burns', 0.7, 0, 0.1, 4, 20, 'burn')),
    PlantedJob(Pipeline('short epochs, workers end', 3, 0, 0.3, 4, 15), 12, False),
    PlantedJob(Pipeline('large workers', 3, 1, 0.5, 4, 15), worker_mib=300),
    PlantedJob(Pipeline('saves, step burns', 4, 0, 0.3, 4, 20, 'burn'), 2, True, 2, 48),
    PlantedJob(Pipeline('busy main process', 3, 0, 0.4, 4, 20, 'threads')),
)


def draw_unseen(seed: int = UNSEEN_SEED, count: int = UNSEEN_COUNT) -> list[PlantedJob]:
    """Draws training jobs with random loading times, step times and saves."""
    rng = random.Random(seed)
    drawn = []
    for number in range(count):
        batch = rng.choice([1, 2, 4, 8])
        loading_ms = math.exp(rng.uniform(math.log(4), math.log(40)))
        cpu_share = rng.choice([rng.random(), 1.0])
        pipeline = Pipeline(
            f'drawn {number + 1}',
            cpu_ms=loading_ms * cpu_share / batch,
            wait_ms=loading_ms * (1 - cpu_share) / batch,
            spread=rng.uniform(0, 1),
            batch=batch,
            step_ms=math.exp(rng.uniform(math.log(8), math.log(40))),
            step=rng.choice(['sleep', 'burn', 'threads']),
            side=rng.choice([32, 64, 128]),
            origin='unseen',
        )
        job = PlantedJob(pipeline)
        if rng.random() < 0.4:
            job = PlantedJob(pipeline, 10, persistent_workers=rng.random() < 0.5)
        if rng.random() < 0.3:
            job = replace(job, saves_per_epoch=1, save_mib=32)
        drawn.append(job)
    return drawn


RECIPES = tuple(PlantedJob(pipeline, epochs=1) for pipeline in MMDET)
JOBS = {job.name: job for job in (*SEEN, *draw_unseen(), *RECIPES)}


class Span(Hook):
    """Hook that times a training from the first epoch's start to the last one's end."""

    priority = 0
    began_s = seconds = 0.0

    def before_train(self, runner: Any) -> None:
        self.began_s = time.perf_counter()

    def after_train(self, runner: Any) -> None:
        self.seconds = time.perf_counter() - self.began_s


def train_job(
    job: PlantedJob, setting: LoaderChoice, works: dict[str, Work]
) -> JobTraining:
    """Trains all epochs of a job with one loader setting."""
    pipeline, workers = job.pipeline, setting.num_workers
    seconds = SECONDS_OF_RECIPES if pipeline.recipe else SECONDS
    usual_s = pipeline.guess_iter_s(DEFAULT, len(os.sched_getaffinity(0)))
    wanted = max(seconds / usual_s, LEAST_ITERATIONS)
    iterations = max(round(wanted / job.epochs), 4)
    loader: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
    if workers:
        loader['prefetch_factor'] = 2
        loader['persistent_workers'] = setting.persistent_workers
        loader['worker_init_fn'] = {'type': HoldMemory(job.worker_mib)}
    hooks: dict[str, Any] = {'gpu_efficiency': HOOK}
    if job.saves_per_epoch:
        often = {'interval': iterations // job.saves_per_epoch, 'max_keep_ckpts': 1}
        hooks['checkpoint'] = {**SAVES, **often}
    model = StampedModel(pipeline.make_step(works))
    span, load = Span(), OtherLoad()
    model.register_buffer('ballast', torch.zeros(job.save_mib * MIB // 4))
    with tempfile.TemporaryDirectory() as name:
        folder, length = Path(name), iterations * pipeline.batch
        runner = build_runner(
            model,
            pipeline.make_dataset(folder, works, length),
            folder / 'run',
            loader=loader,
            hooks=hooks,
            train_cfg={'by_epoch': True, 'max_epochs': job.epochs},
            custom_hooks=[span],
        )
        runner.train()
        end_workers(runner.train_loop.dataloader._iterator)
        evidence = find_evidence(folder).read_text().splitlines()
    kept = f'persistent {setting.persistent_workers}'
    say(f'{job.name}: {workers} workers, {kept}: {span.seconds:.2f} s')
    return JobTraining(job.name, setting, span.seconds, load.read_pct(), evidence)


def measure_grid(
    jobs: Sequence[PlantedJob], repeats: int, is_quick: bool
) -> Iterator[JobTraining]:
    """Trains all jobs with all loader settings, in random order within a job."""
    works = make_works()
    for job in jobs:
        grid = [
            setting
            for setting in job.list_grid()
            if not is_quick or setting.num_workers in (0, 2, 4)
        ]
        for repeat in range(repeats):
            for setting in random.Random(repeat).sample(grid, len(grid)):
                yield train_job(job, setting, works)


@dataclass(frozen=True)
class Outcome:
    """Time in per cent that a job loses by chosen loader settings, against the best."""

    job: PlantedJob
    setting: LoaderChoice
    lost_pct: float
    """Extra time over the best setting in per cent; 0 if within repetition noise."""
    grid_pct: float
    """Extra time over the best setting in per cent, by the grid's trainings only."""


Times = dict[LoaderChoice, list[float]]
"""Training times of a job in seconds, by loader setting."""


def gather_times(trials: Sequence[JobTraining]) -> Times:
    """Returns the training times of a job in seconds, by loader setting."""
    times: Times = {}
    for trial in trials:
        times.setdefault(trial.setting, []).append(trial.job_s)
    return times


def find_best(times: Times) -> LoaderChoice:
    """Returns the loader setting with the fastest single training."""
    return min(times, key=lambda setting: min(times[setting]))


def lost_pct(times: Times, setting: LoaderChoice) -> float:
    """Returns the extra time of a loader setting over the best one, in per cent."""
    best, took_s = times[find_best(times)], min(times[setting])
    return 0.0 if took_s <= max(best) else 100 * (took_s / min(best) - 1.0)


Ask = Callable[[Sequence[str]], dict[str, Any]]


def ask_policy(evidence: Sequence[str]) -> dict[str, Any]:
    """Returns the settings recommended from one training, by name (``num_workers``)."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, 'gpu_efficiency.jsonl')
        path.write_text('\n'.join(evidence) + '\n')
        changes = recommend(path)['changes']
    return {change['key'].split('.')[-1]: change['new'] for change in changes}


def choose_settings(
    trials: Sequence[JobTraining], times: Times, ask: Ask = ask_policy
) -> list[LoaderChoice]:
    """Returns the settings recommended from each training with the default loader."""
    # a grid has both kinds of workers only where the job's own end
    persistent = all(trial.setting.persistent_workers for trial in trials)
    chosen = []
    for trial in trials:
        if trial.setting == LoaderChoice(DEFAULT, persistent):
            new = ask(trial.evidence)
            asked = LoaderChoice(
                new.get('num_workers', DEFAULT),
                new.get('persistent_workers', persistent),
            )
            # the nearest: prefetching is not in the grid
            chosen.append(min(times, key=partial(_measure_distance, asked)))
    return chosen


def _measure_distance(
    asked: LoaderChoice, setting: LoaderChoice
) -> tuple[int, bool, LoaderChoice]:
    """Returns a sort key: distance of a grid setting from the given setting."""
    far = abs(setting.num_workers - asked.num_workers)
    return far, setting.persistent_workers != asked.persistent_workers, setting


class FreshLoss(NamedTuple):
    """Extra time in per cent of a chosen over the best setting, in new trainings."""

    lost_pct: float
    trainings: list[JobTraining]


def compare_fresh(
    chosen: LoaderChoice,
    best: LoaderChoice,
    train: Callable[[LoaderChoice], JobTraining],
    count: int = FRESH,
) -> FreshLoss:
    """Compares the chosen with the best loader setting in new trainings.

    Args:
        chosen: The recommended setting.
        best: The fastest of the grid.
        train: Trains with a setting.
        count: Trainings of each of the two.
    """
    fresh: list[JobTraining] = []
    for turn in range(count):
        fresh += [train(setting) for setting in (chosen, best)[:: 1 - 2 * (turn % 2)]]
    return FreshLoss(lost_pct(gather_times(fresh), chosen), fresh)


class JudgedJobs(NamedTuple):
    """Time lost on each job by recommended settings and by rules of thumb."""

    outcomes: list[Outcome]
    rules: dict[int, dict[str, float]]
    """Time lost in per cent, by fixed worker count (a rule of thumb) and by job."""


def judge_jobs(trials: list[JobTraining], count: int) -> JudgedJobs:
    """Computes the time lost on all jobs by recommendations and by rules of thumb.

    Fresh trainings are added to those of the grid.
    """
    judged = []
    rules: dict[int, dict[str, float]] = {workers: {} for workers in RULES}
    works: dict[str, Work] = {}
    for name in dict.fromkeys(trial.job for trial in trials):
        grid = [trial for trial in trials if trial.job == name]
        times, job = gather_times(grid), JOBS[name]
        best, losses = find_best(times), dict[LoaderChoice, float]()
        for setting in choose_settings(grid, times):
            grid_pct = lost_pct(times, setting)
            if grid_pct and setting not in losses:
                works = works or make_works()
                train = partial(train_job, job, works=works)
                fresh = compare_fresh(setting, best, train, count)
                losses[setting] = fresh.lost_pct
                trials += fresh.trainings
            judged.append(Outcome(job, setting, losses.get(setting, 0.0), grid_pct))
        for workers in RULES:
            usual = LoaderChoice(workers, job.persistent_workers)
            if usual in times:
                rules[workers][name] = lost_pct(times, usual)
    return JudgedJobs(judged, rules)


def judge_lost(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Returns the time that recommended settings lose against the best, as figures."""
    parts = {
        'all': outcomes,
        'seen': [outcome for outcome in outcomes if outcome.job in SEEN],
        'unseen': [
            outcome for outcome in outcomes if outcome.job.pipeline.origin == 'unseen'
        ],
        'MMDetection': [outcome for outcome in outcomes if outcome.job.pipeline.recipe],
    }
    for name, some in parts.items():
        if some:
            lost = [outcome.lost_pct for outcome in some]
            median, note = statistics.median(lost), f'{len(some)} recommendations'
            yield at_most(f'{name}: time lost, median', median, MEDIAN_LIMIT, '%', note)
            yield at_most(f'{name}: time lost, worst', max(lost), WORST_LIMIT, '%')


def compare_rules(
    judged: Sequence[Outcome], rules: dict[int, dict[str, float]]
) -> Iterator[Figure]:
    """Returns figures on time lost by recommendations, and by fixed worker counts.

    Over the jobs that were trained with each; MMDetection's were not.
    """
    known = {workers: lost for workers, lost in rules.items() if lost}
    done = set.intersection(*(set(lost) for lost in known.values()))
    least_pct = min(
        statistics.fmean(lost[job] for job in done) for lost in known.values()
    )
    own_pct = statistics.fmean(
        outcome.grid_pct for outcome in judged if outcome.job.name in done
    )
    name = "time lost, mean, beside the best rule's"
    yield at_most(name, own_pct, round(least_pct, 1), '%', 'by the grid')
    for workers, lost in known.items():
        values = list(lost.values())
        note = f'median {statistics.median(values):.1f}, worst {max(values):.0f} %'
        name = f'always {workers}: time lost, mean'
        yield Figure(name, statistics.fmean(values), '%', note=note)


def show_jobs(judged: Sequence[Outcome]) -> Iterator[Figure]:
    """Returns figures on each job's chosen setting, and its time lost in per cent."""
    for job in dict.fromkeys(outcome.job for outcome in judged):
        some = [outcome for outcome in judged if outcome.job == job]
        settings = [outcome.setting for outcome in some]
        chosen = ', '.join(
            f'{setting.num_workers}{" (they end)" * (not setting.persistent_workers)}'
            for setting in settings
        )
        grid_pct = statistics.fmean(outcome.grid_pct for outcome in some)
        note = f'workers: {chosen}; by the grid alone {grid_pct:.1f} %'
        lost_pct = statistics.fmean(outcome.lost_pct for outcome in some)
        yield Figure(f'{job.name}: time lost', lost_pct, '%', note=note)


INTERVAL = 10
NOTHING = 0.015
"""Largest data wait, as a share of an iteration, for a run with nothing to gain."""
FETCH_S = 0.0005


def draw_null(seed: int) -> RunEvidence:
    """Returns the evidence of a simulated run whose loader could gain at most 1.5 %.

    The number of workers, the host, the spread of loading, other load and the length
    are random; steps jitter, some hang, and figures are read with errors.
    """
    rng = random.Random(seed)
    while True:
        step_s = math.exp(rng.uniform(math.log(0.01), math.log(0.5)))
        workers = rng.choice([1, 2, 2, 2, 4, 8])
        cores = rng.choice([2, 4, 8, 16])
        busy_s = rng.uniform(0.02, 0.7) * step_s * min(workers, cores)
        cpu_share = rng.choice([rng.random(), 1.0])
        spread, jitter = rng.uniform(0.0, 0.8), rng.uniform(0.0, 0.2)
        step_cpu_s = step_s * rng.choice([0.1, rng.random(), 1.0])
        others = rng.choice([0.0, 0.0, rng.uniform(0, 1)])
        count = INTERVAL * rng.choice([3, 4, 6, 12, 30])
        sigma = math.sqrt(math.log1p(spread * spread))
        middle_s = busy_s * math.exp(-sigma * sigma / 2)
        batches = [middle_s * math.exp(rng.gauss(0.0, sigma)) for _ in range(count)]
        steps = [step_s * max(rng.gauss(1.0, jitter), 0.2) for _ in range(count)]
        waits = simulate_waits(workers, batches, steps)
        wanted = others + cpu_share * busy_s / step_s + step_cpu_s / step_s
        lost_s = math.fsum(waits) - count * FETCH_S
        if wanted <= cores and lost_s <= NOTHING * math.fsum(steps):
            break
    # some steps hang: a page fault, another program, a garbage collection
    hangs = [step_s * rng.uniform(1, 3) * (rng.random() < 0.01) for _ in steps]
    steps = [step + hang for step, hang in zip(steps, hangs)]
    intervals = []
    for first in range(0, count, INTERVAL):
        some = slice(first, first + INTERVAL)
        whole = [wait + step for wait, step in zip(waits[some], steps[some])]
        seconds, spent_s = math.fsum(whole), [cpu_share * s for s in batches[some]]
        made_s = math.fsum(spent_s)
        burnt_s = made_s + INTERVAL * step_cpu_s + others * seconds
        parts_s = {'data_wait': math.fsum(waits[some]), 'step': math.fsum(steps[some])}
        inside = WorkersWindow(
            count=workers,
            cpu_s=made_s * rng.gauss(1.0, 0.03),
            run_delay_s=0.02 * made_s,
            batch_time=summarize_durations(batches[some]),
            batch_time_std_s=statistics.pstdev(batches[some]),
            batch_cpu=summarize_durations(spent_s),
        )
        interval = IntervalRecord(
            iteration=first + INTERVAL,
            epoch=1,
            iterations=INTERVAL,
            elapsed_s=0.0,
            duration_s=seconds,
            data_wait=summarize_durations(waits[some]),
            step=summarize_durations(steps[some]),
            iter=summarize_durations(whole),
            ledger_s={**parts_s, 'other': 0.0},
            data_wait_cpu_s=INTERVAL * FETCH_S,
            process_cpu_s=INTERVAL * step_cpu_s * rng.gauss(1.0, 0.03),
            system_cpu_pct=100
            * min(rng.gauss(1.0, 0.05) * burnt_s / (cores * seconds), 1.0),
            process_rss_bytes=GIB,
            batch_bytes=4 * MIB,
            batch_tensors=4,
            workers=inside,
        )
        intervals.append(interval)
    loader = LoaderSettings(
        num_workers=workers,
        persistent_workers=True,
        prefetch_factor=2,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=max(count, 200),
    )
    host = HostLimits(
        logical_cpus=cores,
        affinity_cpus=cores,
        usable_cores=float(cores),
        ram_available_bytes=64 * GIB,
        shm_free_bytes=16 * GIB,
        open_files_soft=2**16,
    )
    run = RunRecord(
        started_unix_s=0.0,
        loop='epoch',
        max_epochs=12,
        interval_iterations=INTERVAL,
        device=rng.choice(['cpu', 'cuda']),
        loader=loader,
        host=host,
    )
    return RunEvidence('', run, tuple(intervals))


def simulate_waits(
    workers: int,
    batches_s: Sequence[float],
    steps_s: Sequence[float],
    fetch_s: float = FETCH_S,
    prefetch: int = DEFAULT_PREFETCH,
) -> list[float]:
    """Simulates how long a loop waits for each batch of PyTorch's DataLoader.

    Batch ``i`` is worker ``i % workers``'s, is asked for when batch ``i - prefetch *
    workers`` is taken, and is taken in order.
    """
    ahead = prefetch * workers
    ready_s, taken_s, now_s, waits = list[float](), list[float](), 0.0, list[float]()
    for index, (batch_s, step_s) in enumerate(zip(batches_s, steps_s)):
        free_s = ready_s[index - workers] if index >= workers else 0.0
        asked_s = taken_s[index - ahead] if index >= ahead else 0.0
        ready_s.append(max(free_s, asked_s) + batch_s)
        if not index:
            now_s = ready_s[0]
        taken_s.append(max(now_s, ready_s[index]) + fetch_s)
        waits.append(taken_s[index] - now_s)
        now_s = taken_s[index] + step_s
    return waits


def judge_nulls(count: int) -> Figure:
    """Returns a figure on how often changes are recommended without possible gain."""
    alarms = 0
    for seed in range(count):
        changes = recommend_settings(Run(draw_null(seed))).changes
        if changes:
            alarms += 1
            say(f'false alarm {seed}: {changes}')
    name, note = 'changes where nothing is to gain', f'{count} simulated runs'
    return at_most(name, 100 * alarms / count, ALARM_LIMIT, '%', note)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains or reads recorded trainings, then judges settings."""
    benchmark = Benchmark('regret', __doc__ or '', argv, keeps_trials=True)
    warnings.filterwarnings('ignore')
    is_quick = benchmark.is_quick
    jobs = [SEEN[0], SEEN[7], draw_unseen()[0]] if is_quick else [*JOBS.values()]
    measured = measure_grid(jobs, 1 if is_quick else REPEATS, is_quick)
    kept = benchmark.read_trials(map(asdict, measured))
    trials = [JobTraining.read(training) for training in kept]
    judged = judge_jobs(trials, 1 if is_quick else FRESH)
    benchmark.shares_pct = [trial.other_load_pct for trial in trials]
    benchmark.add(*judge_lost(judged.outcomes))
    benchmark.add(*compare_rules(judged.outcomes, judged.rules))
    benchmark.add(*show_jobs(judged.outcomes))
    say('loops with nothing to gain')
    benchmark.add(judge_nulls(50 if is_quick else NULLS))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
