"""The long loop of part three: our hook, and beside it one that cannot grow.

A machine's speed drifts between the begin and the end of such a loop by more than what
is looked for. So a second loop takes turns with it, interval by interval, whose hook
does a fixed work: what slows the machine slows both.
"""

from __future__ import annotations

import gc
import json
import random
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
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
    stamp_steps,
    train,
)
from benchmarks.overhead_turns import Turns, run_in_turns
from mmgpu_hooks.hooks.scalars import SCALARS
from mmgpu_hooks.telemetry.host.process_memory import read_process_rss_bytes

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
                Path('/proc/thread-self/schedstat').read_text().split()
            json.loads(json.dumps(self._record))


@dataclass
class Growth:
    """What one long loop left."""

    costs_s: Sequence[float]
    """Of each iteration, by the borders; the borders' own part is in it."""
    reference_s: Sequence[float]
    """The same of the reference: borders, and its fixed work at ends of intervals."""
    rss_bytes: list[int] = field(default_factory=list)
    """After each tenth of the loop."""
    hub_values: list[int] = field(default_factory=list)
    """Most values that a scalar of ours kept in the message hub, likewise."""


class _Watched:
    """One of the loops; what is seen of it takes no more memory while it runs."""

    def __init__(self, name: str, hook: Hook, iterations: int, turns: Turns) -> None:
        self._name, self._hook, self._turns = name, hook, turns
        self._iterations = iterations
        self._done = 0
        self._spent_s = array('d', bytes(8 * (iterations + 1)))
        self._account: CostAccount | None = None
        self._hub: Any = None
        self.rss_bytes: list[int] = []
        self.hub_values: list[int] = []

    def train(self) -> None:
        """Train until the turns are over."""
        # at the begin of one more step the last turn is over
        cfg = {'type': BareLoop, 'iterations': self._iterations + 1}
        with tempfile.TemporaryDirectory() as folder:
            runner = build(Path(folder), NoWork(), 8, [self._hook], train_cfg=cfg)
            self._account = CostAccount(runner, self._hook)
            self._hub = runner.message_hub
            for name in _MMENGINE:
                bounded = HistoryBuffer(max_length=1000)
                self._hub.log_scalars[f'train/{name}'] = bounded
            stamp_steps(runner.model, self._begin_step)
            train(runner)

    def costs_s(self) -> list[float]:
        """Of each iteration."""
        return [b - a for a, b in zip(self._spent_s, self._spent_s[1:])]

    def _begin_step(self) -> None:
        assert self._account is not None
        self._account.begin_step()
        # the account's own list would grow
        self._account.rows.clear()
        self._spent_s[self._done] = sum(self._account.borders.read_s())
        done = self._done
        if done and done % (self._iterations // 10) == 0:
            self._look()
        self._done += 1
        if done and done % INTERVAL == 0:
            self._turns.pass_on()
            self._turns.wait(self._name)

    def _look(self) -> None:
        gc.collect()
        self.rss_bytes.append(read_process_rss_bytes() or 0)
        kept = [
            len(history.data[0])
            for name, history in self._hub.log_scalars.items()
            if name.removeprefix('train/') in SCALARS
        ]
        self.hub_values.append(max(kept, default=0))


def run_bare_loop(iterations: int, hook: Hook, seed: int = 0) -> Growth:
    """Train so long without loading and steps; nothing but the hooks is run.

    MMEngine's own histories are bounded, since their growth is not ours; the message
    hub is the real one. Growth hides in memory that the process has had before and let
    go, so this comes first.

    Args:
        iterations: Of each loop.
        hook: To watch.
        seed: Of the lots that say who begins.
    """
    lots, names = random.Random(seed), ('watched', 'reference')
    rounds = iterations // INTERVAL
    order = [name for _ in range(rounds) for name in lots.sample(names, 2)]
    turns = Turns(order)
    watched, reference = (
        _Watched(name, of, iterations, turns)
        for name, of in zip(names, (hook, ReferenceHook()))
    )
    run_in_turns(turns, {'watched': watched.train, 'reference': reference.train})
    return Growth(
        watched.costs_s(), reference.costs_s(), watched.rss_bytes, watched.hub_values
    )
