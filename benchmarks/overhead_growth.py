"""Part three: whether anything of the hook grows over 100,000 iterations."""

from __future__ import annotations

import gc
import tempfile
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer

from benchmarks.accounting import CostAccount
from benchmarks.harness import Figure
from benchmarks.overhead_figures import block_medians, compare_means, split_ends
from benchmarks.overhead_loop import (
    INTERVAL,
    BareLoop,
    NoWork,
    build,
    stamp_steps,
    train,
)
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.hooks.scalars import SCALARS
from mmgpu_hooks.telemetry.host.process_memory import read_process_rss_bytes

GROWN_RATIO, GROWN_MIB = 1.05, 1.0
_NOISE, _BLOCK = 0.1, 10 * INTERVAL
_MMENGINE = ('lr', 'loss', 'time', 'data_time')
"""Scalars of MMEngine's own hooks, whose histories do grow."""


@dataclass
class Growth:
    """What one bare loop left."""

    costs_s: Sequence[float]
    """Of each iteration, by the borders; the borders' own part is in it."""
    rss_bytes: list[int] = field(default_factory=list)
    """After each tenth of the loop."""
    hub_values: list[int] = field(default_factory=list)
    """Most values that a scalar of ours kept in the message hub, likewise."""


class _Watch:
    """Looks at each step, and takes no memory for what it sees."""

    def __init__(self, iterations: int, hook: Hook) -> None:
        self._hook = hook
        self._tenth = iterations // 10
        self._done = 0
        self.spent_s = array('d', bytes(8 * iterations))
        self.growth = Growth(())
        self._account: CostAccount | None = None
        self._hub: Any = None

    def attach(self, runner: Any) -> None:
        self._account = CostAccount(runner, self._hook)
        self._hub = runner.message_hub
        for name in _MMENGINE:
            bounded = HistoryBuffer(max_length=1000)
            self._hub.log_scalars[f'train/{name}'] = bounded

    def begin_step(self) -> None:
        assert self._account is not None
        self._account.begin_step()
        # the account's own list would grow
        self._account.rows.clear()
        self.spent_s[self._done] = sum(self._account.borders.read_s())
        self._done += 1
        if self._done % self._tenth == 0:
            self._look()

    def _look(self) -> None:
        gc.collect()
        self.growth.rss_bytes.append(read_process_rss_bytes() or 0)
        kept = [
            len(history.data[0])
            for name, history in self._hub.log_scalars.items()
            if name.removeprefix('train/') in SCALARS
        ]
        self.growth.hub_values.append(max(kept, default=0))


def run_bare_loop(iterations: int) -> Growth:
    """Train so long without loading and steps; nothing but the hooks is run.

    MMEngine's own histories are bounded, since their growth is not ours; the message
    hub is the real one. Growth hides in memory that the process has had before and let
    go, so this comes first.
    """
    hook = GPUEfficiencyHook(summary=False)
    watch = _Watch(iterations, hook)
    cfg = {'type': BareLoop, 'iterations': iterations}
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), NoWork(), 8, [hook], train_cfg=cfg)
        watch.attach(runner)
        stamp_steps(runner.model, watch.begin_step)
        train(runner)
    spent_s = watch.spent_s
    watch.growth.costs_s = [b - a for a, b in zip(spent_s, spent_s[1:])]
    return watch.growth


def judge_growth(growth: Growth, border_s: float) -> list[Figure]:
    """First tenth against last tenth, and what was kept in memory.

    Args:
        growth: Of a bare loop.
        border_s: What the borders alone cost in each iteration of such a loop.
    """
    net_s = [cost - border_s for cost in growth.costs_s]
    tenth = (len(net_s) + 1) // 10
    first = split_ends(net_s[:tenth], INTERVAL, 1)
    offset = len(net_s) - tenth
    last = split_ends(net_s[offset:], INTERVAL, offset + 1)
    warm, end = growth.rss_bytes[0], growth.rss_bytes[-1]
    grown_mib = (end - warm) / 2**20
    most = max(growth.hub_values)
    return [
        _compare('iteration', first.ordinary, last.ordinary, _BLOCK),
        _compare('interval', first.ends, last.ends, _BLOCK // INTERVAL),
        Figure(
            'growth of the process, last nine tenths',
            grown_mib,
            'MiB',
            f'<= {GROWN_MIB:g}',
            grown_mib <= GROWN_MIB,
            f'{warm / 2**20:.1f} MiB after the first tenth of {len(net_s) + 1:,} '
            'iterations of a bare loop',
        ),
        Figure(
            'values kept in the message hub, per scalar',
            float(most),
            '',
            '<= 1, constant',
            most <= 1 and len(set(growth.hub_values)) == 1,
            "MMEngine's own hub",
        ),
    ]


def _compare(
    name: str, first: Sequence[float], last: Sequence[float], block: int
) -> Figure:
    ratio = compare_means(block_medians(first, block), block_medians(last, block))
    note = f'95 % CI {ratio.low:.3f} to {ratio.high:.3f}'
    # a wide interval tells nothing, unless all of it is below the limit
    is_wide = ratio.is_wide(_NOISE) and ratio.high > GROWN_RATIO
    if is_wide:
        note += '; the machine is too noisy to tell'
    has_grown = ratio.value > GROWN_RATIO and ratio.low > 1.0
    return Figure(
        f'growth per {name}, last tenth over first',
        ratio.value,
        '',
        f'<= {GROWN_RATIO:g}, or 1 within its CI',
        not has_grown and not is_wide,
        note,
    )
