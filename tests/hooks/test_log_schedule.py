from __future__ import annotations

from types import SimpleNamespace

import pytest
from mmengine.hooks import LoggerHook

from mmgpu_hooks.hooks.log_schedule import MOST_ITERATIONS, LogSchedule


def schedule_of(
    batches: int, log_interval: int | None, own: int | None, ignore_last: bool
) -> LogSchedule:
    hooks = []
    if log_interval is not None:
        hooks = [LoggerHook(interval=log_interval, ignore_last=ignore_last)]
    runner = SimpleNamespace(hooks=hooks, train_dataloader=range(batches))
    return LogSchedule(runner, own)


@pytest.mark.parametrize('ignore_last', [True, False])
@pytest.mark.parametrize('own', [None, 1, 7, 100])
@pytest.mark.parametrize('log_interval', [None, 1, 4, 50])
@pytest.mark.parametrize('batches', [1, 2, 3, 10, 53, 400])
def test_no_iteration_is_skipped_with_which_something_ends(
    batches, log_interval, own, ignore_last
):
    schedule = schedule_of(batches, log_interval, own, ignore_last)
    # an iteration-based loop counts on over the ends of its loader
    due = iterations = 0
    for index in range(3 * batches + 5):
        iterations += 1
        found = schedule.is_due(index, iterations)
        assert index >= due or not any(found)
        if index >= due:
            iterations = 0 if found[1] else iterations
            due = schedule.find_next(index, iterations)
            assert due > index


@pytest.mark.parametrize(('log_interval', 'own'), [(10**9, None), (50, 10**9)])
def test_an_interval_that_would_never_end_is_cut(log_interval, own):
    schedule = schedule_of(10**9, log_interval, own, ignore_last=True)
    assert not schedule.is_due(MOST_ITERATIONS - 2, MOST_ITERATIONS - 1)[1]
    assert schedule.is_due(MOST_ITERATIONS - 1, MOST_ITERATIONS)[1]
