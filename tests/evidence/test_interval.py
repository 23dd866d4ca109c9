from __future__ import annotations

import numpy as np
import pytest

from mmgpu_hooks.evidence.interval import IntervalFolder, LedgerReading, fold_durations
from mmgpu_hooks.evidence.ledger import PARTS


def reading(cpu: float = 0.0, **parts: float) -> LedgerReading:
    return LedgerReading({**dict.fromkeys(PARTS, 0.0), **parts}, cpu)


@pytest.mark.parametrize('count', [1, 2, 3, 10, 101])
def test_durations_are_summarised_as_numpy_does(count):
    seconds = np.random.default_rng(count).exponential(size=count).tolist()
    stats = fold_durations(seconds)
    assert stats.count == count
    assert stats.total_s == pytest.approx(sum(seconds))
    assert stats.mean_s == pytest.approx(np.mean(seconds))
    assert stats.p50_s == pytest.approx(np.percentile(seconds, 50))
    assert stats.p95_s == pytest.approx(np.percentile(seconds, 95))
    assert stats.max_s == max(seconds)


def test_no_duration_is_an_error():
    with pytest.raises(ValueError, match='found none'):
        fold_durations([])


def test_an_iteration_is_what_the_ledger_counted_since_the_last():
    folder = IntervalFolder(reading(other=1.0))
    folder.add_iteration(
        reading(0.5, data_wait=1.0, step=2.0, hooks=0.25, other=1.0),
        first_of_epoch=True,
        images=4,
    )
    folder.add_save()
    folder.add_iteration(
        reading(0.75, data_wait=1.5, step=5.0, hooks=0.75, other=1.0, validation=9.0),
        first_of_epoch=False,
        images=3,
    )
    record = folder.fold(iteration=12, epoch=3, elapsed_s=17.25)
    assert record is not None
    assert (record.data_wait.total_s, record.data_wait.max_s) == (1.5, 1.0)
    assert (record.step.total_s, record.step.max_s) == (5.0, 3.0)
    assert record.iter.total_s == 7.25  # validation is no part of an iteration
    assert (record.first_waits, record.first_wait_s) == (1, 1.0)
    assert (record.images, record.saves, record.iterations) == (7, 1, 2)
    assert record.data_wait_cpu_s == 0.75
    assert record.duration_s == 16.25  # everything since training began but the start
    assert (record.iteration, record.epoch, record.elapsed_s) == (12, 3, 17.25)


def test_intervals_do_not_overlap():
    folder = IntervalFolder(reading())
    folder.add_iteration(reading(step=1.0), first_of_epoch=True, images=1)
    folder.fold(iteration=1, epoch=1, elapsed_s=1.0)
    folder.add_iteration(reading(step=3.0), first_of_epoch=False, images=2)
    record = folder.fold(iteration=2, epoch=1, elapsed_s=3.0)
    assert record is not None
    assert (record.step.total_s, record.duration_s, record.images) == (2.0, 2.0, 2)
    assert (record.first_waits, record.saves) == (0, 0)


def test_images_are_unknown_when_one_batch_is():
    folder = IntervalFolder(reading())
    folder.add_iteration(reading(step=1.0), first_of_epoch=True, images=4)
    folder.add_iteration(reading(step=2.0), first_of_epoch=False, images=None)
    record = folder.fold(iteration=2, epoch=1, elapsed_s=2.0)
    assert record is not None
    assert record.images is None


def test_an_interval_without_iterations_is_no_record():
    assert IntervalFolder(reading()).fold(iteration=0, epoch=1, elapsed_s=0.0) is None
