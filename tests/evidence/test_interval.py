from __future__ import annotations

from typing import Any

import pytest

from mmgpu_hooks.evidence.interval import IntervalFolder
from mmgpu_hooks.evidence.ledger_parts import PARTS, LedgerReading
from mmgpu_hooks.schema import IntervalRecord


def reading(
    cpu: float = 0.0, by_hook: dict[str, float] | None = None, **parts: float
) -> LedgerReading:
    return LedgerReading({**dict.fromkeys(PARTS, 0.0), **parts}, cpu, by_hook or {})


def folder_of(start: LedgerReading, has_workers: bool = True) -> IntervalFolder:
    return IntervalFolder(start, (0.0, 0.0, 0.0), has_workers)


def fold(folder: IntervalFolder, now: LedgerReading, **where: Any) -> IntervalRecord:
    fields = folder.fold(now, **where)
    assert fields is not None
    return IntervalRecord(**fields)


def add(folder: IntervalFolder, waits: str) -> None:
    """Iterations of nothing but a wait each; a star marks the first of an epoch."""
    for wait in waits.split():
        waited = folder._ends[0]
        before = waited[-1] if waited else folder._lap[0]
        total = before + float(wait.strip('*'))
        if wait.endswith('*'):
            folder.note_first()
        folder.add_laps([(total, 0.0, total)])


def test_a_record_is_what_the_ledger_counted_since_the_last():
    folder = folder_of(reading(other=1.0))
    folder.note_first()
    folder.note_first()
    folder.add_laps([(1.0, 2.0, 3.25)])
    folder.add_save()
    folder.add_laps([(1.5, 5.0, 7.25)])
    now = reading(
        0.75,
        {'LoggerHook': 0.5, 'EMAHook': 0.0},
        data_wait=1.5,
        step=5.0,
        hooks=0.75,
        other=1.0,
        validation=9.0,
    )
    record = fold(folder, now, iteration=12, epoch=3, elapsed_s=17.25)
    assert record.data_wait.total_s == 1.5
    assert record.step.total_s == 5.0
    assert record.iter.total_s == 7.25  # validation is no part of an iteration
    assert (record.first_waits, record.first_wait_s) == (1, 1.0)
    assert (record.saves, record.iterations) == (1, 2)
    assert record.data_wait_cpu_s == 0.75
    assert record.duration_s == 16.25  # everything since training began but the start
    assert (record.iteration, record.epoch, record.elapsed_s) == (12, 3, 17.25)
    assert record.hooks_s == {'LoggerHook': 0.5}


def test_intervals_do_not_overlap():
    folder = folder_of(reading())
    folder.note_first()
    folder.add_laps([(0.0, 1.0, 1.0)])
    folder.fold(reading(0, {'A': 1.0}, step=1.0), iteration=1, epoch=1, elapsed_s=1.0)
    folder.add_laps([(0.0, 3.0, 3.0)])
    now = reading(0, {'A': 1.5, 'B': 2.0}, step=3.0)
    record = fold(folder, now, iteration=2, epoch=1, elapsed_s=3.0)
    assert (record.step.total_s, record.duration_s) == (2.0, 2.0)
    assert (record.first_waits, record.saves) == (0, 0)
    assert record.hooks_s == {'A': 0.5, 'B': 2.0}


@pytest.mark.parametrize(('has_workers', 'startup_s'), [(True, 2.0), (False, 0.0)])
def test_before_there_is_a_normal_wait_workers_start_in_the_first(
    has_workers, startup_s
):
    folder = folder_of(reading(), has_workers)
    assert folder.fold_startup() == 0
    add(folder, '2*')
    assert folder.fold_startup() == startup_s


def test_starting_is_what_first_waits_took_beyond_a_normal_one():
    folder = folder_of(reading())
    add(folder, '3* 1 0 0.25*')
    assert folder.fold_startup() == 2.5
    folder.fold(reading(), iteration=4, epoch=2, elapsed_s=4.25)
    # an epoch of one iteration: the normal wait is the one of before
    add(folder, '4.5*')
    assert folder.fold_startup() == 4


def test_a_normal_wait_is_that_of_the_last_interval_with_one():
    folder = folder_of(reading())
    add(folder, '1 0.5 0')
    assert folder.fold_startup() == 0
    folder.fold(reading(), iteration=3, epoch=1, elapsed_s=1.5)
    add(folder, '4.5*')
    assert folder.fold_startup() == 4


def test_an_interval_without_iterations_is_no_record():
    folder = folder_of(reading())
    assert folder.fold(reading(), iteration=0, epoch=1, elapsed_s=0.0) is None


def test_an_epoch_that_ended_before_its_first_iteration_has_no_first_wait():
    folder = folder_of(reading())
    add(folder, '2* 1')
    folder.note_first()
    assert folder.fold_startup() == 1
    record = fold(folder, reading(), iteration=2, epoch=2, elapsed_s=3.0)
    assert (record.first_waits, record.first_wait_s) == (1, 2.0)
