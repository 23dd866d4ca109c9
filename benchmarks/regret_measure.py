"""Trains every planted job with every setting of the grid, in random order.

    python -m benchmarks.regret_measure --output FILE [--jobs A:B] [--repeat N]

Appends one JSON line per training. ``benchmarks.regret`` judges such a file, so the
policy can be worked on without measuring again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import StrangerLoad
from benchmarks.predict_mmdet import PIPELINES
from benchmarks.predict_training import Work, make_works
from benchmarks.regret_jobs import SEEN, Job, draw_unseen
from benchmarks.regret_judge import WORKERS
from benchmarks.regret_training import train_job
from mmgpu_hooks.schema.reader import read_evidence

OF_RECIPES = (0, 1, 2, 3, 4)
SECONDS, SECONDS_OF_RECIPES = 1.8, 6.0
"""Of a job, about."""

LEAST_ITERATIONS = 40
"""Of a job: fewer make no evidence."""

STALL_S = 1.5
"""No planted wait or step is as long: the machine stood still."""

REPEATS = 0, 1
"""The faster of two trainings counts."""

ATTEMPTS = 2
"""Trainings of one setting, until the machine keeps going in one."""


def list_jobs() -> list[Job]:
    """All jobs, those with MMDetection's own pipelines last."""
    return [*SEEN, *draw_unseen(), *(Job(pipeline, epochs=1) for pipeline in PIPELINES)]


def list_grid(job: Job) -> list[tuple[int, bool]]:
    """``num_workers`` and ``persistent_workers``."""
    counts = OF_RECIPES if job.pipeline.recipe else WORKERS
    grid = [(count, job.persistent_workers) for count in counts]
    if not job.persistent_workers:
        grid += [(count, True) for count in (1, 2, 4)]
    return grid


def measure_job(job: Job, works: dict[str, Work], output: Path, repeat: int) -> None:
    """Train all settings once, and append what came of them."""
    grid = list_grid(job)
    random.Random(repeat).shuffle(grid)
    cores = len(os.sched_getaffinity(0))
    seconds = SECONDS_OF_RECIPES if job.pipeline.recipe else SECONDS
    usual_s = job.pipeline.guess_iter_s(2, cores)
    wanted = max(seconds / usual_s, LEAST_ITERATIONS)
    iterations = max(round(wanted / job.epochs), 4)
    with tempfile.TemporaryDirectory() as name:
        for workers, persistent in grid:
            for _ in range(ATTEMPTS):
                load = StrangerLoad()
                took_s, evidence = train_job(
                    Path(name), job, workers, persistent, works, iterations
                )
                if not stood_still(evidence):
                    break
            line = {
                'job': job.name,
                'repeat': repeat,
                'num_workers': workers,
                'persistent_workers': persistent,
                'job_s': took_s,
                'strangers_pct': load.read_pct(),
                'evidence': evidence.read_text().splitlines(),
            }
            with output.open('a') as file:
                file.write(json.dumps(line) + '\n')
            print(
                f'{job.name}: {workers} workers, persistent {persistent}: '
                f'{took_s:.2f} s, strangers {line["strangers_pct"]:.0f} %',
                file=sys.stderr,
                flush=True,
            )


def stood_still(path: Path) -> bool:
    """Whether waits and steps took longer than any that was planted."""
    longest_s = 0.0
    for interval in read_evidence(path).intervals:
        rest_s = interval.duration_s - interval.iter.total_s
        stats = interval.iter
        # what iterations took beyond the usual one, together
        late_s = stats.total_s - stats.count * stats.p50_s
        longest_s = max(longest_s, late_s, rest_s)
    return longest_s > STALL_S


def measure_all(output: Path, jobs: Sequence[Job], repeats: Sequence[int]) -> None:
    """Repeat job by job: what a setting is compared with is trained beside it."""
    warnings.filterwarnings('ignore')
    works = make_works()
    for job in jobs:
        for repeat in repeats:
            measure_job(job, works, output, repeat)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the jobs that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--jobs', default=':', help='a slice, such as 0:3')
    parser.add_argument('--repeats', type=int, nargs='+', default=REPEATS)
    options = parser.parse_args(argv)
    first, _, last = options.jobs.partition(':')
    jobs = list_jobs()
    chosen = jobs[int(first or 0) : int(last or len(jobs))]
    measure_all(options.output, chosen, options.repeats)


if __name__ == '__main__':
    main()
