"""Benchmark: seconds that writing a recommended config adds to a training's end.

    python -m benchmarks.end [--quick] [--output]

The demo's RTMDet-tiny is trained for one epoch with ``write_config`` on and off, in
pairs of random order. Counted is what passes from the last save to the exit of the
process, which is all that the child process of the end can lengthen. 7 minutes.
"""

from __future__ import annotations

import json
import random
import shutil
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import whole
from benchmarks.harness import Benchmark, Figure, at_most, exactly, say

PAIRS, QUICK_PAIRS = 6, 1
MAX_LONGER_S = 2.0
CHECKPOINT = 'epoch_1.pth'
CONFIG = """\
_base_ = '{base}'
train_cfg = dict(max_epochs=1)
default_hooks = dict(gpu_efficiency=dict(write_config={is_written}))
"""


@dataclass(frozen=True)
class End:
    """Seconds that a training took to end, and if it wrote a recommended config."""

    seconds: float
    """Seconds from the training's last checkpoint save to the exit of its process."""
    is_written: bool
    """True if the training wrote a recommended config into its work_dir."""


@dataclass(frozen=True)
class Pair:
    """Two equal trainings; only the second one writes a recommended config."""

    plain: End
    advised: End


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: trains with and without the config, prints the table."""
    benchmark = Benchmark('end', __doc__ or '', argv)
    folder = Path('work_dirs/bench_end').resolve()
    whole.prepare(folder, [whole.DEMO])
    pairs = train_pairs(folder, QUICK_PAIRS if benchmark.is_quick else PAIRS)
    benchmark.add(*list_figures(pairs))
    return benchmark.finish()


def train_pairs(folder: Path, count: int) -> list[Pair]:
    """Trains alternately without and with writing a recommended config at the end.

    Args:
        folder: Has the configs and the images of the demo.
        count: Number of pairs.
    """
    pairs = []
    chance = random.Random(0)
    for number in range(count):
        say(f'pair {number + 1} of {count}')
        order = chance.choice(((False, True), (True, False)))
        ends = {is_written: train(folder, is_written) for is_written in order}
        pairs.append(Pair(plain=ends[False], advised=ends[True]))
    return pairs


def write_config(folder: Path, is_written: bool) -> Path:
    """Writes the demo's config for one epoch, with ``write_config`` on or off."""
    # a copy of all configs lies there
    base, config = folder / whole.CASES[whole.DEMO].config, folder / 'one_epoch.py'
    config.write_text(CONFIG.format(base=base, is_written=is_written))
    return config


def train(folder: Path, is_written: bool) -> End:
    """Trains the demo for an epoch, and times the end of the training.

    Raises:
        SystemExit: If it fails.
    """
    config, work_dir = write_config(folder, is_written), folder / 'run'
    shutil.rmtree(work_dir, ignore_errors=True)
    words = ['benchmarks.whole_training', str(config), str(work_dir), json.dumps({})]
    whole.run(folder, words)
    ended_s = time.time()
    saved_s = (work_dir / CHECKPOINT).stat().st_mtime
    written = list(work_dir.rglob('*_recommended.py'))
    return End(ended_s - saved_s, bool(written))


def list_figures(pairs: Sequence[Pair]) -> Iterator[Figure]:
    """Returns figures on how long trainings take to end and to write their configs."""
    longer_s = [pair.advised.seconds - pair.plain.seconds for pair in pairs]
    plain_s = statistics.median(pair.plain.seconds for pair in pairs)
    yield Figure('from the last save to the exit, write_config off', plain_s, 's')
    note = f'{min(longer_s):+.2f} to {max(longer_s):+.2f} s; {len(pairs)} pairs'
    name = 'longer with write_config on'
    yield at_most(name, statistics.median(longer_s), MAX_LONGER_S, 's', note)
    right = sum(pair.advised.is_written and not pair.plain.is_written for pair in pairs)
    name = 'the config was written where it was on, and there alone'
    yield exactly(name, right, len(pairs), f'of {len(pairs)}')


if __name__ == '__main__':
    sys.exit(main())
