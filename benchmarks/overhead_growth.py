"""Part three: whether anything of the hook grows over 100,000 iterations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import Figure
from benchmarks.overhead_effect import robust_parts
from benchmarks.overhead_figures import compare_means
from benchmarks.overhead_growth_loop import Growth
from benchmarks.overhead_loop import INTERVAL

GROWN_RATIO, GROWN_MIB, KEPT_BLOCKS = 1.05, 1.0, 0.5
"""Whoever keeps one object more with each interval keeps a block at least; what lives
for a moment makes some tens of blocks more or less, of any loop."""
_NOISE = 0.1
_TARGET = f'<= {GROWN_RATIO:g}, or 1 within its CI'
_SEARCHED, _FEWEST = INTERVAL // 4, 20
"""Looks of an interval that is part of a search, where others have some 6; intervals
of a tenth without which nothing is judged."""


@dataclass(frozen=True)
class _Relative:
    """What intervals cost, each in units of what the reference cost beside it."""

    iteration: list[float]
    """A mean ordinary iteration without the borders; the unit is what those cost."""
    end: list[float]
    """An interval's end, beyond such an iteration; the unit is the fixed work."""


def judge_growth(growth: Growth) -> list[Figure]:
    """First tenth against last tenth, and what was kept in memory.

    When the machine holds a hook up, ours may look at up to 2,000 iterations in a row
    to find out which hook it was. That is rare and stays about a tenth of a run, but
    one such search is a fifth of a tenth, and which tenth has it is chance. So its
    intervals are not compared, and how many there were is a figure of its own.
    """
    tenth = len(growth.costs_s) // 10
    # in the first interval is what is done once
    first = _relate(growth, INTERVAL, tenth)
    last = _relate(growth, len(growth.costs_s) - tenth, len(growth.costs_s))
    warm, end = growth.rss_bytes[0], growth.rss_bytes[-1]
    grown_mib = (end - warm) / 2**20
    # small leaks hide in memory that the process has had and let go, blocks do not
    blocks = (growth.blocks[-1] - growth.blocks[0]) * INTERVAL / (9 * tenth)
    most = max(growth.hub_values)
    return [
        _compare('iteration', first.iteration, last.iteration),
        _compare('interval', first.end, last.end),
        Figure(
            'growth of the process, last nine tenths',
            grown_mib,
            'MiB',
            f'<= {GROWN_MIB:g}',
            grown_mib <= GROWN_MIB,
            f'{warm / 2**20:.1f} MiB after the first tenth of '
            f'{len(growth.costs_s):,} iterations of a bare loop',
        ),
        Figure(
            "blocks of Python's memory kept, per interval",
            blocks,
            '',
            f'<= {KEPT_BLOCKS:g}',
            blocks <= KEPT_BLOCKS,
            'last nine tenths; an object has a block or two',
        ),
        Figure(
            'values kept in the message hub, per scalar',
            float(most),
            '',
            '<= 1, constant',
            most <= 1 and len(set(growth.hub_values)) == 1,
            "MMEngine's own hub",
        ),
        _judge_searches(growth.looks),
    ]


def _relate(growth: Growth, begin: int, end: int) -> _Relative:
    relative = _Relative([], [])
    for start in range(begin, end, INTERVAL):
        if growth.looks[start // INTERVAL] > _SEARCHED:
            continue
        part = slice(start, start + INTERVAL)
        *ordinary, ours_end = growth.costs_s[part]
        *borders, reference_end = growth.reference_s[part]
        ours, border = statistics.fmean(ordinary), statistics.fmean(borders)
        relative.iteration.append((ours - border) / border)
        relative.end.append((ours_end - ours) / (reference_end - border))
    return relative


def _judge_searches(looks: Sequence[int]) -> Figure:
    """What was left out of the comparison."""
    searched = [some > _SEARCHED for some in looks]
    tenth = len(searched) // 10
    return Figure(
        'intervals in a search for a slow hook',
        100 * statistics.fmean(searched),
        '%',
        note=f'left out above: {sum(searched[:tenth])} of the first tenth, '
        f'{sum(searched[-tenth:])} of the last',
    )


def _compare(name: str, first: Sequence[float], last: Sequence[float]) -> Figure:
    if min(len(first), len(last)) < _FEWEST:
        return Figure(
            f'growth per {name}, last tenth over first',
            None,
            '',
            _TARGET,
            False,
            f'only {len(first)} and {len(last)} intervals are left without searches',
        )
    ratio = compare_means(robust_parts(first), robust_parts(last))
    note = (
        f'95 % CI {ratio.low:.3f} to {ratio.high:.3f}; '
        f'in {len(first)} and {len(last)} intervals, over a fixed work beside each'
    )
    # a wide interval tells nothing, unless all of it is below the limit
    is_wide = ratio.is_wide(_NOISE) and ratio.high > GROWN_RATIO
    if is_wide:
        note += '; the machine is too noisy to tell'
    has_grown = ratio.value > GROWN_RATIO and ratio.low > 1.0
    return Figure(
        f'growth per {name}, last tenth over first',
        ratio.value,
        '',
        _TARGET,
        not has_grown and not is_wide,
        note,
    )
