"""Whether one sample tends to be larger than another, by ranks alone. Pure.

Saves are few and one of them may be ten times as long as the rest: ranks do not mind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def rank_sum_chance(low: Sequence[float], high: Sequence[float]) -> float:
    """Chance of values as high as ``high`` if there were no difference, one-sided.

    The exact rank sum test (Mann and Whitney 1947): of all ways to deal the values out,
    the share in which no fewer pairs are in order. A tie counts as half a pair,
    rounded down.

    Args:
        low: What is thought to be the smaller one.
        high: What is thought to be the larger one.

    Returns:
        From ``1 / C(n + m, n)`` to 1; 1 where one of them is empty.
    """
    in_order = math.floor(sum((a < b) + (a == b) / 2 for a in low for b in high))
    ways = _count_ways(len(low), len(high))
    return sum(ways[in_order:]) / sum(ways)


def _count_ways(n: int, m: int) -> list[int]:
    """Orders of n and m values by the pairs in order, 0 to n m.

    The coefficients of Gauss's binomial: the product of ``(1 - q^(m + i))`` over that
    of ``(1 - q^i)``, i from 1 to n.
    """
    ways = [1, *[0] * (n * m)]
    for i in range(1, n + 1):
        for k in range(n * m, m + i - 1, -1):
            ways[k] -= ways[k - m - i]
        for k in range(i, n * m + 1):
            ways[k] += ways[k - i]
    return ways
