from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mmgpu_hooks.experiment.sweep import order_settings
from mmgpu_hooks.experiment.sweep_plan import SweepGrid

GRID = SweepGrid((0, 1, 2), (1, 3), amp=True).list_settings()


def test_the_order_is_random_and_the_same_for_the_same_seed():
    orders = [order_settings(GRID, seed) for seed in range(20)]
    assert orders == [order_settings(GRID, seed) for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 15
    # each is first now and then
    assert len({order[0] for order in orders}) > 6


@given(st.integers(0, 10**6))
def test_every_setting_is_trained_and_the_first_two_share_nothing_they_need_not(seed):
    order = order_settings(GRID, seed)
    assert sorted(map(str, order)) == sorted(map(str, GRID))
    first, second = order[:2]
    assert first.num_workers != second.num_workers
    assert first.batch_size != second.batch_size
    assert first.amp != second.amp


def test_one_setting_or_none_is_in_order_as_it_is():
    assert order_settings([], 0) == []
    assert order_settings(GRID[:1], 0) == [GRID[0]]
