from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_inside_workers, make_interval
from fakes.sweeps import make_sweep
from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.experiment.sweep_judge import (
    KNOWN_WITHIN,
    choose_best,
    complete_row,
    estimate_iter,
    is_iter_settled,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.tried import SweepRow, SweepSetting

ENDED = SweepRow(SweepSetting(2, 4), 'completed')
STEADY: dict[str, Any] = {
    'workers': make_inside_workers(0.4),
    'data_wait_s': 0.1,
    'step_s': 0.1,
    'process_cpu_s': 20 * 0.03,
    'largest_batch_pixels': 4 * 128 * 128,
}


def make_trial(slow: int = 2, **fields):
    """Returns a trial training's run: slow log intervals, then eight steady ones."""
    evidence = make_evidence(slow + 8, **{**STEADY, **fields})
    warm_up = [make_interval(n, **{**STEADY, 'step_s': 5.0}) for n in range(slow)]
    return replace(evidence, intervals=(*warm_up, *evidence.intervals[slow:]))


def test_a_row_holds_what_was_recorded_after_the_warm_up():
    found = complete_row(ENDED, Run(make_trial()), 2)
    assert found.iterations == 160
    assert found.iter_s.value == pytest.approx(0.2)
    assert found.iter_s.count == 8
    assert found.data_wait_s == pytest.approx(0.1)
    assert found.images_per_s == pytest.approx(20)
    # 0.03 s of its own and 0.36 s of the workers in 0.2 s
    assert found.cpu_cores == pytest.approx((0.03 + 0.36) / 0.2)
    assert found.memory_peak_bytes is None
    assert (found.most_workers, found.gpu_util_pct) == (8, None)
    assert '8 usable cores' in found.most_workers_reason


@pytest.mark.parametrize(
    'run',
    [None, Run(make_evidence(0)), Run(make_evidence(2))],
    ids=['no run', 'no interval', 'two intervals'],
)
def test_without_figures_the_row_stays_as_it_is(run):
    assert complete_row(ENDED, run, 2) == ENDED


def test_few_intervals_give_a_wide_one_that_is_never_settled():
    steps = (0.1, 0.1, 0.1, 0.1002, 0.1004)
    evidence = make_trial(5)
    intervals = [
        make_interval(n, **{**STEADY, 'step_s': step}) for n, step in enumerate(steps)
    ]
    iter_s = estimate_iter(Run(replace(evidence, intervals=tuple(intervals))), 2)
    assert (iter_s.value, iter_s.count) == (pytest.approx(0.2002), 3)
    # 12.7 is Student's t of one degree of freedom
    error_s = 0.0002 * (2 / 3) ** 0.5
    assert iter_s.half_width == pytest.approx(12.706 * error_s, rel=1e-3)
    assert iter_s.half_width < KNOWN_WITHIN * iter_s.value
    assert not is_iter_settled(iter_s)
    assert is_iter_settled(replace(iter_s, count=6))


@pytest.mark.parametrize(
    ('rows', 'best'),
    [
        # the fastest, and of two within 2 % the one with fewer workers
        ([row(0, 0.8), row(1, 0.505), row(2, 0.5)], 1),
        ([row(0, 0.8), row(1, 0.52), row(2, 0.5)], 2),
        # 4 workers are faster still, and more than the host carries
        ([row(1, 0.6), row(2, 0.5), row(4, 0.4)], 2),
        ([row(1, 0.6), row(2, 0.5), row(4, 0.4, most_workers=None)], 4),
        # measured before it ended, and fast until then
        ([row(1, 0.6), row(2, 0.5, status='timed_out', error='killed')], 1),
        ([row(1, 0.6), row(2, 0.5, status='out_of_memory', error='no room')], 1),
        ([row(1, 0.6), row(2, 0.5, status='failed', error='boom')], 1),
        ([row(0, 0.8), row(1, None)], 0),
        # images are unknown: iterations are compared
        ([row(0, 0.8, images_per_s=None), row(1, 0.5, images_per_s=None)], 1),
    ],
    ids=[
        'within 2 %',
        'beyond 2 %',
        'more than the host carries',
        'an unknown host',
        'timed out',
        'out of memory',
        'failed',
        'nothing measured',
        'images unknown',
    ],
)
def test_the_best_is_the_fastest_that_may_be_recommended(rows, best):
    assert choose_best(rows) == (SweepSetting(best, 4),)


def test_batch_size_is_never_traded_for_speed():
    rows = [row(0, 0.2, batch=1), row(1, 0.1, batch=1), row(0, 0.3, batch=8)]
    assert choose_best(rows) == (SweepSetting(0, 8), SweepSetting(1, 1))


def test_rivals_are_of_the_same_batch_size_and_overlap_the_best():
    best, near, far = row(1, 0.5), row(2, 0.505), row(0, 0.8)
    sweep = make_sweep(best, near, far, row(1, 0.5, batch=8), row(0, None))
    assert sweep.find_rivals(best) == [near]
