"""How long does `tools/recommend.py` take, and how much memory?

    python -m benchmarks.recommend [--repeats N] [--quick] [--output]

It reads a long run, the ranks of a run, and a short one: the intervals of a short real
training, with figures of a card added, again and again. Nothing is to gain there, so
that no config is loaded. The command is started anew each time; the best of the repeats
is judged, because anything else on the machine can only add to it. About 1 minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from benchmarks.harness import Benchmark, Figure, at_most, find_evidence, say

ROOT = Path(__file__).resolve().parents[1]
LONG, RANKS, OF_RANK, SHORT = 20_000, 8, 2_000, 20
MOST_S, MOST_RANKS_S = 3.0, 4.0
MOST_MB, MOST_RANKS_MB = 300.0, 400.0
MOST_RATIO = 3.0
"""Of a short run over the libraries that it cannot do without."""
LIBRARIES = [sys.executable, '-c', 'import numpy, msgspec']
INTERVAL, TRAINED = 10, 30
"""Iterations of an interval, and intervals that are trained for real."""


def train_lines() -> list[dict[str, Any]]:
    """The records of a short real training: a run, then full intervals.

    It is trained in a process of its own: the peak memory of a command that is started
    here counts what this process has loaded.
    """
    with ProcessPoolExecutor(1, get_context('spawn')) as pool:
        return pool.submit(_train_lines).result()


def _train_lines() -> list[dict[str, Any]]:
    from benchmarks import predict

    warnings.filterwarnings('ignore')
    works = predict.make_works()
    pipeline = predict.Pipeline('nothing to gain', 0.7, 0, 0.1, 4, 20)
    with tempfile.TemporaryDirectory() as name:
        folder, length = Path(name), INTERVAL * (TRAINED + 1) * pipeline.batch
        runner = predict.build_runner(
            folder,
            predict.StampedModel(pipeline, works['sleep']),
            predict.make_dataset(folder, pipeline, works['burn'], length),
            {'batch_size': pipeline.batch, 'num_workers': 2},
            epochs=1,
            interval=INTERVAL,
        )
        runner.train()
        lines = find_evidence(folder).read_text().splitlines()
    records = [json.loads(line) for line in lines]
    kinds = ('run', 'interval')
    # the first interval is not like the others
    return [r for r in records if r['kind'] in kinds and r.get('iteration') != INTERVAL]


def make_lines(
    trained: Sequence[dict[str, Any]], intervals: int, rank: int = 0, ranks: int = 1
) -> Iterator[str]:
    """The evidence of a run as long as one likes, line by line."""
    run, *records = trained
    yield json.dumps({**run, 'rank': rank, 'world_size': ranks}) + '\n'
    dice, elapsed_s = random.Random(intervals), 0.0
    for index in range(intervals):
        record = records[index % len(records)]
        elapsed_s += record['duration_s']
        planted = {
            'iteration': (index + 1) * INTERVAL,
            'elapsed_s': elapsed_s,
            'gpu': {'samples': 12, 'util_pct': dice.uniform(0, 100)},
            'gpu_mem_peak_bytes': dice.randrange(2**35, 2**36),
        }
        yield json.dumps({**record, **planted}) + '\n'


def write_run(
    folder: Path, trained: Sequence[dict[str, Any]], intervals: int, ranks: int = 1
) -> int:
    """Write the evidence of a run.

    Args:
        folder: Where it goes.
        trained: From :func:`train_lines`.
        intervals: Of each rank.
        ranks: Files to write.

    Returns:
        The bytes of one rank's file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(ranks):
        name = f'gpu_efficiency_rank{rank}.jsonl' if rank else 'gpu_efficiency.jsonl'
        with (folder / name).open('w') as file:
            file.writelines(make_lines(trained, intervals, rank, ranks))
    return (folder / 'gpu_efficiency.jsonl').stat().st_size


@dataclass(frozen=True)
class Cost:
    """One run of a command."""

    wall_s: float
    cpu_s: float
    peak_mb: float


def run_command(command: Sequence[str]) -> Cost:
    """Run it as a user does, and see to it that it succeeds."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    wall_s = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f'expected {command} to succeed, found {child.returncode}')
    cpu_s = usage.ru_utime + usage.ru_stime
    return Cost(wall_s, cpu_s, usage.ru_maxrss * 1024 / 1e6)


def recommend(folder: Path) -> list[str]:
    """The command that judges a run and writes nothing."""
    command = [sys.executable, str(ROOT / 'tools/recommend.py'), str(folder)]
    return [*command, '--dry-run', '--format', 'json']


def judge(folder: Path, repeats: int) -> Iterator[Figure]:
    """Measure a long run, one of several ranks and a short one."""
    trained = train_lines()
    size = write_run(folder / 'long', trained, LONG) / LONG
    yield Figure('bytes per interval', size, 'B', note=f'mean of {LONG}')
    write_run(folder / 'ranks', trained, OF_RANK, RANKS)
    write_run(folder / 'short', trained, SHORT)
    for name, title, most_s, most_mb in (
        ('long', f'{LONG} intervals', MOST_S, MOST_MB),
        ('ranks', f'{RANKS} ranks of {OF_RANK}', MOST_RANKS_S, MOST_RANKS_MB),
    ):
        say(title)
        costs = [run_command(recommend(folder / name)) for _ in range(repeats)]
        best = min(costs, key=lambda cost: cost.wall_s)
        note = f'best of {repeats}; CPU {best.cpu_s:.2f} s'
        yield at_most(f'{title}: wall', best.wall_s, most_s, 's', note)
        peak_mb = max(cost.peak_mb for cost in costs)
        yield at_most(f'{title}: memory', peak_mb, most_mb, 'MB')
    # in turns, as a machine has slow moments
    commands = recommend(folder / 'short'), LIBRARIES
    pairs = [[run_command(one).cpu_s for one in commands] for _ in range(2 * repeats)]
    short_s, libraries_s = (min(both) for both in zip(*pairs))
    note = f'{short_s:.3f} s over {libraries_s:.3f} s of CPU, best of {2 * repeats}'
    name = f"{SHORT} intervals over 'import numpy, msgspec'"
    yield at_most(name, short_s / libraries_s, MOST_RATIO, '', note)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--repeats', type=int, default=5)
    benchmark = Benchmark('recommend', __doc__ or '', argv, parser=parser)
    repeats = 1 if benchmark.is_quick else benchmark.options.repeats
    with tempfile.TemporaryDirectory() as folder:
        benchmark.add(*judge(Path(folder), repeats))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
