from __future__ import annotations

import numpy as np
import pytest

from mmgpu_hooks.measure.ledger import summarize_durations, summarize_some
from mmgpu_hooks.schema import DurationStats


@pytest.mark.parametrize('count', [1, 2, 3, 10, 101])
def test_durations_are_summarised_as_numpy_does(count: int):
    seconds = np.random.default_rng(count).exponential(size=count).tolist()
    stats = summarize_durations(seconds)
    assert stats.count == count
    assert stats.total_s == pytest.approx(sum(seconds))
    assert stats.mean_s == pytest.approx(np.mean(seconds))
    assert stats.p50_s == pytest.approx(np.percentile(seconds, 50))
    assert stats.p95_s == pytest.approx(np.percentile(seconds, 95))


def test_of_some_that_are_known_the_sum_is_of_all():
    stats = summarize_some([3.0, 1.0], count=10, total_s=25.0)
    assert stats == DurationStats(
        count=10,
        total_s=25.0,
        mean_s=2.5,
        p50_s=2.0,
        p95_s=pytest.approx(2.9),
    )


def test_no_duration_is_an_error():
    with pytest.raises(ValueError, match='found none'):
        summarize_durations([])
