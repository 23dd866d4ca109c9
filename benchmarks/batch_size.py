"""Do predictions of other batch sizes hold? Two batch sizes tell of the others.

    python -m benchmarks.batch_size [--seconds S] [--output]

Planted pipelines whose step is a line over the batch size are trained with four batch
sizes and two numbers of workers: real DataLoader workers under a real MMEngine training
with the hook. From each two trainings with different batch sizes, the settings of the
two other batch sizes are predicted.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from benchmarks.harness import BUSY_LIMIT_PCT, Benchmark, Figure
from benchmarks.machine import StrangerLoad, TrainingsLoad
from benchmarks.predict_judge import median, quantile
from benchmarks.predict_pipelines import Pipeline
from benchmarks.predict_training import Work, count_batches, make_works, train_once
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import pool_runs
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.schema import Prediction
from mmgpu_hooks.schema.reader import read_evidence

MEDIAN_LIMIT, P90_LIMIT, COVERAGE_LIMIT = 5.0, 12.0, 90.0
"""As of predictions from one run."""

BATCHES, WORKERS, PREFETCH = (2, 4, 8, 16), (1, 4), 2
ATTEMPTS = 3


@dataclass(frozen=True)
class Planted:
    """A pipeline, and its step over the batch size."""

    pipeline: Pipeline
    constant_ms: float
    image_ms: float

    def with_batch(self, batch: int) -> Pipeline:
        """The pipeline of one training."""
        step_ms = self.constant_ms + self.image_ms * batch
        return replace(self.pipeline, batch=batch, step_ms=step_ms)


PLANTED = (
    Planted(Pipeline('CPU', 4, 0, 0.3, 1, 1), 6, 2),
    Planted(Pipeline('waiting', 0.5, 6, 0.5, 1, 1), 10, 1.5),
    Planted(Pipeline('mixed, step burns', 2, 2, 0.5, 1, 1, 'burn'), 4, 2),
    Planted(Pipeline('step-bound', 1, 0, 0.1, 1, 1), 20, 4),
    Planted(Pipeline('constant step', 2, 3, 1, 1, 1), 40, 0.2),
)


@dataclass(frozen=True)
class Trial:
    """One training."""

    batch: int
    workers: int
    iter_s: float
    """By the model's own stamps."""
    run: Run
    strangers_pct: float


@dataclass(frozen=True)
class Outcome:
    """One setting, predicted from two trainings."""

    error: float
    """Relative."""
    is_covered: bool
    half_width: float
    is_beyond: bool
    """Whether the batch size is outside of the two."""


def measure(planted: Planted, works: dict[str, Work], seconds: float) -> list[Trial]:
    """Train all settings once."""
    trials = []
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        for batch, workers in itertools.product(BATCHES, WORKERS):
            pipeline = planted.with_batch(batch)
            batches = count_batches(pipeline, workers, PREFETCH, seconds, cores)
            for _ in range(ATTEMPTS):
                load = StrangerLoad()
                iter_s, path = train_once(
                    Path(name), pipeline, workers, PREFETCH, works, batches
                )
                strangers_pct = load.read_pct()
                if strangers_pct <= BUSY_LIMIT_PCT:
                    break
            trials.append(Trial(batch, workers, iter_s, _read_run(path), strangers_pct))
            print(
                f'{planted.pipeline.name}: batch {batch}, {workers} workers: '
                f'{1000 * iter_s:.2f} ms',
                file=sys.stderr,
                flush=True,
            )
    return trials


def _read_run(path: Path) -> Run:
    evidence = read_evidence(path)
    # planted data sets are as long as the training, and no longer
    loader = structs.replace(evidence.run.loader, dataset_length=None)
    evidence = replace(
        evidence,
        run=structs.replace(evidence.run, loader=loader),
        intervals=tuple(evidence.intervals),
    )
    return Run(evidence)


def judge(trials: Sequence[Trial]) -> Iterator[Outcome]:
    """Predict the settings of two batch sizes from each two trainings of the others."""
    for pair in itertools.combinations(trials, 2):
        seen = {trial.batch for trial in pair}
        if len(seen) < 2:
            continue
        workload = pool_runs([trial.run for trial in pair]).workload
        if workload is None:
            continue
        for trial in trials:
            if trial.batch in seen:
                continue
            found = predict_setting(
                workload, trial.workers, PREFETCH, batch_size=trial.batch
            )
            if isinstance(found, Prediction):
                yield Outcome(
                    error=found.iter_time_s / trial.iter_s - 1.0,
                    is_covered=(
                        found.iter_time_low_s <= trial.iter_s <= found.iter_time_high_s
                    ),
                    half_width=(found.iter_time_high_s - found.iter_time_low_s)
                    / (2 * found.iter_time_s),
                    is_beyond=not min(seen) < trial.batch < max(seen),
                )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--seconds', type=float, default=2.0, help='of each training')
    load = TrainingsLoad()
    bench = Benchmark('batch_size', __doc__ or '', argv, parser=parser, load=load)
    warnings.filterwarnings('ignore')
    works = make_works()
    every: list[Outcome] = []
    rows: list[tuple[str, list[Outcome]]] = []
    for planted in PLANTED:
        trials = measure(planted, works, bench.options.seconds)
        load.shares_pct += [trial.strangers_pct for trial in trials]
        found = list(judge(trials))
        every += found
        rows.append((f'pipeline {planted.pipeline.name}', found))
    rows += [
        ('between two batch sizes', [one for one in every if not one.is_beyond]),
        ('beyond them', [one for one in every if one.is_beyond]),
    ]
    _add_targets(bench, every)
    for name, some in rows:
        _add_row(bench, name, some)
    return bench.finish()


def _add_targets(bench: Benchmark, outcomes: Sequence[Outcome]) -> None:
    errors = [100 * abs(one.error) for one in outcomes]
    middle, high = median(errors), quantile(errors, 0.9)
    covered = 100 * sum(one.is_covered for one in outcomes) / len(outcomes)
    width = 100 * median(one.half_width for one in outcomes)
    for name, value, limit, note in (
        ('error, median', middle, MEDIAN_LIMIT, f'{len(errors)} predictions'),
        ('error, 90th percentile', high, P90_LIMIT, f'worst {max(errors):.0f} %'),
    ):
        bench.add(Figure(name, value, '%', f'<= {limit:g}', value <= limit, note))
    bench.add(
        Figure(
            'intervals that hold the truth',
            covered,
            '%',
            f'>= {COVERAGE_LIMIT:g}',
            covered >= COVERAGE_LIMIT,
            f'median half width {width:.0f} %',
        )
    )


def _add_row(bench: Benchmark, name: str, outcomes: Sequence[Outcome]) -> None:
    if not outcomes:
        return
    errors = [100 * abs(one.error) for one in outcomes]
    covered = 100 * sum(one.is_covered for one in outcomes) / len(outcomes)
    bench.add(
        Figure(
            f'{name}: error, median',
            median(errors),
            '%',
            note=f'90th percentile {quantile(errors, 0.9):.1f} %, covered '
            f'{covered:.0f} %; {len(errors)} predictions',
        )
    )


if __name__ == '__main__':
    sys.exit(main())
