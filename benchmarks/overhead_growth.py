"""Part three: whether anything of the hook grows over 100,000 iterations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.harness import Figure
from benchmarks.overhead_effect import robust_parts
from benchmarks.overhead_figures import fit_growth
from benchmarks.overhead_growth_loop import Growth
from benchmarks.overhead_loop import INTERVAL

GROWN_RATIO, GROWN_MIB, KEPT_BLOCKS = 1.05, 1.0, 0.5
"""Whoever keeps one object more with each interval keeps a block at least; what lives
for a moment makes some tens of blocks more or less, of any loop."""
_NOISE = 0.1
_TARGET = f'<= {GROWN_RATIO:g}, or 1 within its CI'
_PARTS, _FEWEST_PARTS, _FEWEST = 20, 12, 8
"""Of the run, on a line; so many of them must have so many intervals each."""


@dataclass(frozen=True)
class _Relative:
    """What the intervals of a part cost, in units of what the reference cost beside."""

    iteration: list[float]
    """A mean ordinary iteration without the borders; the unit is what those cost."""
    end: list[float]
    """An interval's end, beyond such an iteration; the unit is the fixed work."""


def judge_growth(growth: Growth) -> list[Figure]:
    """Whether cost rises from first to last, and what was kept in memory."""
    tenth = len(growth.costs_s) // 10
    borders = [len(growth.costs_s) * part // _PARTS for part in range(_PARTS + 1)]
    # in the first interval is what is done once
    borders[0] = INTERVAL
    parts = [_relate(growth, *part) for part in zip(borders, borders[1:])]
    warm, end = growth.rss_bytes[0], growth.rss_bytes[-1]
    grown_mib = (end - warm) / 2**20
    # small leaks hide in memory that the process has had and let go, blocks do not
    blocks = (growth.blocks[-1] - growth.blocks[0]) * INTERVAL / (9 * tenth)
    most = max(growth.hub_values)
    return [
        _judge_line('iteration', [part.iteration for part in parts]),
        _judge_line('interval', [part.end for part in parts]),
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
    ]


def _relate(growth: Growth, begin: int, end: int) -> _Relative:
    relative = _Relative([], [])
    for start in range(begin, end, INTERVAL):
        part = slice(start, start + INTERVAL)
        *ordinary, ours_end = growth.costs_s[part]
        *borders, reference_end = growth.reference_s[part]
        ours, border = statistics.fmean(ordinary), statistics.fmean(borders)
        relative.iteration.append((ours - border) / border)
        relative.end.append((ours_end - ours) / (reference_end - border))
    return relative


def _judge_line(name: str, parts: Sequence[Sequence[float]]) -> Figure:
    name = f'growth per {name}, last tenth over first'
    means = [
        statistics.fmean(robust_parts(part)) if len(part) >= _FEWEST else None
        for part in parts
    ]
    told = sum(mean is not None for mean in means)
    if told < _FEWEST_PARTS:
        note = f'only {told} of {len(parts)} parts are long enough'
        return Figure(name, None, '', _TARGET, False, note)
    ratio = fit_growth(means)
    note = (
        f'95 % CI {ratio.low:.3f} to {ratio.high:.3f}; by a line through {told} parts, '
        'over a fixed work beside each'
    )
    # a wide interval tells nothing, unless all of it is below the limit
    is_wide = ratio.is_wide(_NOISE) and ratio.high > GROWN_RATIO
    if is_wide:
        note += '; the machine is too noisy to tell'
    has_grown = ratio.value > GROWN_RATIO and ratio.low > 1.0
    return Figure(name, ratio.value, '', _TARGET, not has_grown and not is_wide, note)
