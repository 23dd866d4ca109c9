"""Durations to simulate with: the same for every setting, so that settings compare.

A sample of n is not random but stratified: the n quantiles in the middles of n equal
strata, shuffled. Its mean is exact, so a loop that waits for its workers all the time
comes out at S / W without noise.
"""

from __future__ import annotations

import functools
import math
import random
from statistics import NormalDist

_SEED = 20240521
_NORMAL = NormalDist()


@functools.lru_cache(maxsize=8)
def draw_normals(count: int, stream: int) -> tuple[float, ...]:
    """Standard normal deviates in random order.

    Args:
        count: How many.
        stream: Different ones are independent.
    """
    values = [_NORMAL.inv_cdf((index + 0.5) / count) for index in range(count)]
    random.Random(_SEED + stream).shuffle(values)
    return tuple(values)


# settings are compared under the same costs
@functools.lru_cache(maxsize=32)
def draw_factors(normals: tuple[float, ...], variation: float) -> tuple[float, ...]:
    """Log-normal factors of mean 1, such as the costs of images relative to their mean.

    Args:
        normals: From :func:`draw_normals`.
        variation: Standard deviation over mean.
    """
    if variation <= 0.0:
        return (1.0,) * len(normals)
    sigma = math.sqrt(math.log1p(variation * variation))
    factors = [math.exp(sigma * z) for z in normals]
    mean = math.fsum(factors) / len(factors)
    return tuple(factor / mean for factor in factors)
