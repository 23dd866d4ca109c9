"""The percentile of a whole run, from what its intervals keep of theirs."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from mmgpu_hooks.evidence.interval_table import IntervalTable

MOST_INTERVALS = 2048
"""Intervals that are looked at, drawn from all: more would move a percentile by half a
point. Each n-th would do worse, as what comes once in an epoch comes at each n-th."""

FEW = 20
"""Values of which the 95th percentile is made of the largest two."""

_NARROW_S = 1e-9
"""Pieces narrower than the clock's own grain are taken for one value."""

_Event = tuple[float, float, float]
"""Where it is, what is there at once, and what is added by the second from there on."""


class Quantiles(NamedTuple):
    """What an interval keeps of its durations, in seconds."""

    values: int
    mean_s: float
    p50_s: float
    p95_s: float
    max_s: float


def pool_p95(table: IntervalTable, *field: str, count: str = '') -> float | None:
    """95th percentile of all durations behind some intervals.

    Args:
        table: The intervals; those that lack the figures are passed over.
        field: Path of their ``DurationStats``.
        count: Name of another column with how many there are, instead of theirs.
    """
    there = table.having(*field, 'p95_s')
    if len(there) > MOST_INTERVALS:
        drawn = random.Random(0).sample(range(len(there)), MOST_INTERVALS)
        there = there.take(sorted(drawn))
    counts = there.ints(count) if count else there.ints(*field, 'count')
    columns = [
        there.floats(*field, name).filled()
        for name in ('mean_s', 'p50_s', 'p95_s', 'max_s')
    ]
    return pool_percentile(map(Quantiles, counts.filled(), *columns), 0.95)


def pool_percentile(parts: Iterable[Quantiles], fraction: float) -> float | None:
    """Percentile of all values behind some parts, each known by four figures only.

    A median of the parts' percentiles is none of the whole: it leaves out how many
    values a part has, and that the slow ones may all be in a few parts. So the parts'
    distributions are put together, each weighted by its values, and the sum is
    inverted. That of a part goes in straight lines from its least value over its median
    and 95th percentile to its largest. The least is what gives the part's mean, never
    less than 0 nor more than the median. Parts that are alike give what each of them
    has. Of few values, the ends count half a value each: percentiles that are linear
    between ``n`` values (Hyndman and Fan 1996, type 7) take the ``k``-th for the place
    ``(k - 1) / (n - 1)``, which is at ``(k - 0.5) / n`` of what they were drawn from.

    Args:
        parts: In seconds; those without a value weigh nothing.
        fraction: Of the values that lie below, between 0 and 1.

    Returns:
        Seconds; ``None`` without a value.
    """
    known = [part for part in parts if part.values > 0]
    if not known:
        return None
    wanted = fraction * sum([part.values for part in known])
    return _find(sorted(event for part in known for event in _events(part)), wanted)


def _events(part: Quantiles) -> Iterator[_Event]:
    values, mean_s, p50_s, p95_s, max_s = part
    # evidence that was edited may have them in any order
    p95_s = max(p95_s, p50_s)
    max_s = max(max_s, p95_s)
    ends = 0.5 if values <= FEW else 0.0
    inner = values - 2 * ends
    upper_s = 0.225 * (p50_s + p95_s) + 0.025 * (p95_s + max_s)
    rest_s = values * mean_s - ends * max_s - inner * (0.25 * p50_s + upper_s)
    least_s = min(max(rest_s / (0.25 * inner + ends), 0.0), p50_s)
    yield least_s, ends, 0.0
    yield max_s, ends, 0.0
    for low_s, high_s, share in (
        (least_s, p50_s, 0.5),
        (p50_s, p95_s, 0.45),
        (p95_s, max_s, 0.05),
    ):
        if high_s - low_s < _NARROW_S:
            yield high_s, share * inner, 0.0
        else:
            density = share * inner / (high_s - low_s)
            yield low_s, 0.0, density
            yield high_s, 0.0, -density


def _find(events: Sequence[_Event], wanted: float) -> float:
    """Where so many values lie below, going through the events from the least on."""
    below = density = 0.0
    before_s = events[0][0]
    for at_s, values, change in events:
        if density > 0.0:
            passed = density * (at_s - before_s)
            if below + passed >= wanted:
                return before_s + (wanted - below) / density
            below += passed
        below += values
        if below >= wanted:
            return at_s
        density += change
        before_s = at_s
    return before_s
