from __future__ import annotations

import itertools

import pytest

from mmgpu_hooks.model.stats import rank_sum_chance


@pytest.mark.parametrize(
    ('low', 'high', 'chance'),
    [
        # one of the 20 ways to deal three and three
        ([1, 2, 3], [4, 5, 6], 1 / 20),
        # one pair the wrong way round: two of them
        ([1, 2, 4], [3, 5, 6], 2 / 20),
        ([4, 5, 6], [1, 2, 3], 1.0),
        ([1], [2], 1 / 2),
        ([1] * 6, [2] * 6, 1 / 924),
        # ties speak for nothing: 8 of 16 pairs
        ([1] * 4, [1] * 4, 39 / 70),
        ([], [1, 2], 1.0),
        ([1, 2], [], 1.0),
    ],
)
def test_the_chance_is_exact(low, high, chance):
    assert rank_sum_chance(low, high) == pytest.approx(chance)


def test_it_is_what_counting_all_ways_gives():
    values = range(7)
    for chosen in itertools.combinations(values, 3):
        high = [value for value in values if value not in chosen]
        pairs = sum(a < b for a in chosen for b in high)
        ways = [
            sum(a < b for a in some for b in values if b not in some)
            for some in itertools.combinations(values, 3)
        ]
        share = sum(way >= pairs for way in ways) / len(ways)
        assert rank_sum_chance(chosen, high) == pytest.approx(share)
