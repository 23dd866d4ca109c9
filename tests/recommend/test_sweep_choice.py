from __future__ import annotations

import pytest

from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.recommend.sweep_choice import choose_best, exceeds_host
from mmgpu_hooks.schema import SweepSetting


@pytest.mark.parametrize(
    ('rows', 'best'),
    [
        # the fastest, and of two within 2 % the one with fewer workers
        ([row(0, 0.8), row(1, 0.505), row(2, 0.5)], 1),
        ([row(0, 0.8), row(1, 0.52), row(2, 0.5)], 2),
        # 4 workers are faster still, and more than the host carries
        ([row(1, 0.6), row(2, 0.5), row(4, 0.4)], 2),
        ([row(1, 0.6), row(2, 0.5), row(4, 0.4, most_workers=None)], 4),
        ([row(1, 0.6), row(2, 0.5, is_loss_finite=False)], 1),
        # a loss that nobody logs is not held against it
        ([row(1, 0.6), row(2, 0.5, is_loss_finite=None)], 2),
        # measured before it ended, and fast until then
        ([row(1, 0.6), row(2, 0.5, status='timed_out', error='killed')], 1),
        ([row(1, 0.6), row(2, 0.5, status='out_of_memory', error='no room')], 1),
        ([row(1, 0.6), row(2, 0.5, status='failed', error='boom')], 1),
        ([row(0, 0.8), row(1, None)], 0),
        # images are unknown: iterations are compared
        ([row(0, 0.8, images_per_s=None), row(1, 0.5, images_per_s=None)], 1),
    ],
)
def test_the_best_is_the_fastest_that_may_be_recommended(rows, best):
    assert choose_best(rows) == (SweepSetting(best, 4),)


@pytest.mark.parametrize('rows', [[], [row(0, None)], [row(4)]])
def test_nothing_may_be_best(rows):
    assert choose_best(rows) == ()


def test_batch_size_and_precision_are_never_traded_for_speed():
    rows = [
        row(0, 0.2, batch=1),
        row(1, 0.1, batch=1),
        row(0, 0.3, batch=8),
        row(0, 0.2, batch=8, setting={'amp': True}),
    ]
    assert choose_best(rows) == (
        SweepSetting(0, 8, amp=True),
        SweepSetting(0, 8),
        SweepSetting(1, 1),
    )


def test_prefetch_and_pinned_memory_are():
    rows = [
        row(2, 0.3, setting={'prefetch_factor': 2}),
        row(2, 0.2, setting={'prefetch_factor': 4, 'pin_memory': True}),
    ]
    assert choose_best(rows) == (SweepSetting(2, 4, 4, True),)


@pytest.mark.parametrize(
    ('workers', 'most', 'exceeds'), [(2, 2, False), (3, 2, True), (3, None, False)]
)
def test_what_the_host_carries(workers, most, exceeds):
    assert exceeds_host(row(workers, most_workers=most)) is exceeds
