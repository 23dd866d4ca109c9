"""The long loop of part three: our hook, and beside it one that cannot grow.

A machine's speed drifts between the begin and the end of such a loop by more than what
is looked for. So a second loop takes turns with it, interval by interval, whose hook
does a fixed work: what slows the machine slows both.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer

from benchmarks.accounting import CostAccount, EmptyHook
from benchmarks.overhead_loop import (
    INTERVAL,
    BareLoop,
    NoWork,
    build,
)
from benchmarks.overhead_turns import train_side_by_side
from mmgpu_hooks.hooks.scalars import SCALARS
from mmgpu_hooks.measure.proc import read_process_rss_bytes

_MMENGINE = ('lr', 'loss', 'time', 'data_time')
"""Scalars of MMEngine's own hooks, whose histories do grow."""
_READS, _VALUES = 30, 300


class ReferenceHook(EmptyHook):
    """Nothing per iteration, and per interval a fixed work of the kind that ours does.

    It asks the kernel about this thread, and makes a line of JSON and takes it apart.
    """

    def __init__(self) -> None:
        self._record = {f'figure_{index}': index / 7 for index in range(_VALUES)}

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        """Work at the end of an interval."""
        if (batch_idx + 1) % INTERVAL == 0:
            for _ in range(_READS):
                # no Path: it interns its parts, and the table of interned strings,
                # full at some moment, doubles by megabytes that are none of ours
                with open('/proc/thread-self/schedstat') as file:
                    file.read().split()
            json.loads(json.dumps(self._record))


@dataclass
class Growth:
    """What one long loop left."""

    costs_s: Sequence[float]
    """Of each iteration, by the borders; the borders' own part is in it."""
    reference_s: Sequence[float]
    """The same of the reference: borders, and its fixed work at ends of intervals."""
    rss_bytes: Sequence[int]
    """After each tenth of the loop."""
    blocks: Sequence[int]
    """Of memory that Python's objects have, likewise."""
    hub_values: Sequence[int]
    """Most values that a scalar of ours kept in the message hub, likewise."""


class _Watched:
    """One of the loops; what is seen of it takes no more memory while it runs."""

    def __init__(self, folder: Path, hook: Hook, iterations: int) -> None:
        cfg = {'type': BareLoop, 'iterations': iterations}
        self.runner = build(folder, NoWork(), 8, [hook], train_cfg=cfg)
        for name in _MMENGINE:
            bounded = HistoryBuffer(max_length=1000)
            self.runner.message_hub.log_scalars[f'train/{name}'] = bounded
        self._account = CostAccount(self.runner, hook)
        self._spent_s = array('d', bytes(8 * (iterations + 1)))
        self._done = 0

    def take_interval(self) -> None:
        """Train one."""
        loop, account, spent_s = self.runner.train_loop, self._account, self._spent_s
        if not self._done:
            account.begin_step()
        for _ in range(INTERVAL):
            loop.take()
            self._done += 1
            spent_s[self._done] = sum(account.borders.read_s())

    def costs_s(self) -> list[float]:
        """Of each iteration."""
        return [b - a for a, b in zip(self._spent_s, self._spent_s[1:])]

    def read_most_values(self) -> int:
        """Most values that a scalar of ours keeps in the message hub."""
        kept = [
            len(history.data[0])
            for name, history in self.runner.message_hub.log_scalars.items()
            if name.removeprefix('train/') in SCALARS
        ]
        return max(kept, default=0)


def run_bare_loop(iterations: int, hook: Hook, seed: int = 0) -> Growth:
    """Train so long without loading and steps; nothing but the hooks is run.

    MMEngine's own histories are bounded, since their growth is not ours; the message
    hub is the real one. Growth hides in memory that the process has had before and let
    go, so this comes first.

    Args:
        iterations: Of each loop, a multiple of ten intervals.
        hook: To watch.
        seed: Of the lots that say who begins.
    """
    lots = random.Random(seed)
    rss_bytes, blocks = array('q'), array('q')
    hub_values: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        watched, reference = (
            _Watched(Path(folder) / name, of, iterations)
            for name, of in (('watched', hook), ('reference', ReferenceHook()))
        )

        def drive() -> None:
            for done in range(INTERVAL, iterations + 1, INTERVAL):
                for loop in lots.sample((watched, reference), 2):
                    loop.take_interval()
                if done % (iterations // 10) == 0:
                    gc.collect()
                    rss_bytes.append(read_process_rss_bytes() or 0)
                    blocks.append(sys.getallocatedblocks())
                    hub_values.append(watched.read_most_values())

        train_side_by_side([watched.runner, reference.runner], drive)
    return Growth(watched.costs_s(), reference.costs_s(), rss_bytes, blocks, hub_values)
