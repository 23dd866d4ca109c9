"""Trains every planted pipeline with every setting of the grid, in random order.

    python -m benchmarks.predict_measure --output FILE [--pipelines A:B]

Appends one JSON line per training: the pipeline, the setting, the measured iteration
and the evidence as the hook wrote it. ``benchmarks.predict`` judges such a file, so the
model can be worked on without measuring again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import BUSY_LIMIT_PCT
from benchmarks.machine import StrangerLoad
from benchmarks.predict_pipelines import SEEN, Pipeline, draw_unseen
from benchmarks.predict_training import (
    Work,
    count_batches,
    hogs,
    make_works,
    train_once,
)

GRID = (
    (0, 2),
    (1, 2),
    (1, 4),
    (2, 2),
    (2, 4),
    (4, 2),
    (4, 4),
    (8, 2),
    (8, 4),
)
"""``num_workers`` and ``prefetch_factor``; the latter says nothing without workers."""

SECONDS = 2.0

PARTS = ('seen', 'unseen', 'mmdet')

ATTEMPTS = 3
"""Trainings of one setting, until strangers keep out of one."""


def measure_pipeline(
    pipeline: Pipeline, works: dict[str, Work], output: Path, seconds: float, seed: int
) -> None:
    """Train all settings once, and append what came of them."""
    grid = list(GRID)
    random.Random(seed).shuffle(grid)
    cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, hogs(pipeline.hogs):
        for workers, prefetch in grid:
            batches = count_batches(pipeline, workers, prefetch, seconds, cores)
            for _ in range(ATTEMPTS):
                load = StrangerLoad()
                iter_s, evidence = train_once(
                    Path(name), pipeline, workers, prefetch, works, batches
                )
                strangers_pct = load.read_pct()
                if strangers_pct <= BUSY_LIMIT_PCT:
                    break
            line = {
                'pipeline': dataclasses.asdict(pipeline),
                'num_workers': workers,
                'prefetch_factor': prefetch,
                'iter_s': iter_s,
                'batches': batches[1],
                'strangers_pct': strangers_pct,
                'evidence': evidence.read_text().splitlines(),
            }
            with output.open('a') as file:
                file.write(json.dumps(line) + '\n')
            print(
                f'{pipeline.name}: {workers} workers, prefetch {prefetch}: '
                f'{1000 * iter_s:.2f} ms',
                file=sys.stderr,
                flush=True,
            )


def measure_all(output: Path, seconds: float) -> None:
    """Measure every part of the benchmark; about 12 minutes."""
    works = make_works()
    for which in PARTS:
        for pipeline in choose_pipelines(which):
            measure_pipeline(pipeline, works, output, seconds, seed=5)


def choose_pipelines(which: str) -> list[Pipeline]:
    """The pipelines of a part of the benchmark."""
    if which == 'mmdet':
        # MMDetection takes seconds to import
        from benchmarks.predict_mmdet import PIPELINES

        return list(PIPELINES)
    return list(SEEN) if which == 'seen' else draw_unseen()


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the pipelines that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--output', type=Path, required=True)
    parser.add_argument('--pipelines', default=':', help='a slice, such as 0:3')
    parser.add_argument('--seconds', type=float, default=SECONDS)
    parser.add_argument('--of', choices=PARTS, default='seen', help='which ones')
    options = parser.parse_args(argv)
    warnings.filterwarnings('ignore')
    first, _, last = options.pipelines.partition(':')
    chosen = choose_pipelines(options.of)
    works = make_works()
    for pipeline in chosen[int(first or 0) : int(last or len(chosen))]:
        measure_pipeline(pipeline, works, options.output, options.seconds, seed=5)


if __name__ == '__main__':
    main()
