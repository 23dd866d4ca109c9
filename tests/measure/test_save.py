"""Tests the times of a save by phase and kind of wait, and the checkpoint's content."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mmgpu_hooks.measure.save import (
    PhaseStamp,
    Surroundings,
    ThreadTimes,
    read_thread_times,
    split_phases,
)
from mmgpu_hooks.schema.recorded import SavePhase


def test_phases_are_split_by_what_the_thread_waited_for():
    stamps = [
        PhaseStamp('rest', ThreadTimes(0.0, 0.0, 0.0)),
        PhaseStamp('serialise', ThreadTimes(0.5, 0.5, 0.0)),
        PhaseStamp('write', ThreadTimes(5.5, 1.5, 4.0)),
        # the clocks are read one after the other: blocked is never below zero
        PhaseStamp('serialise', ThreadTimes(14.25, 1.75, 4.5)),
    ]
    split = split_phases(stamps, ThreadTimes(15.25, 3.0, 4.5))
    whole, parts = split.whole, split.phases
    assert parts == {
        'serialise': SavePhase(wall_s=6.0, cpu_s=2.25, run_delay_s=4.0, blocked_s=0.0),
        'write': SavePhase(wall_s=8.75, cpu_s=0.25, run_delay_s=0.5, blocked_s=8.0),
        'rest': SavePhase(wall_s=0.5, cpu_s=0.5, run_delay_s=0.0, blocked_s=0.0),
    }
    assert list(parts) == ['serialise', 'write', 'rest']
    assert whole == SavePhase(wall_s=15.25, cpu_s=3.0, run_delay_s=4.5, blocked_s=8.0)
    unknown = split_phases(stamps[:1], ThreadTimes(3.0, 1.0, None)).whole
    assert unknown == SavePhase(wall_s=3.0, cpu_s=1.0)


def plant_schedstat(proc: Path, text: str) -> Path:
    file = proc / 'self' / 'task' / str(threading.get_native_id()) / 'schedstat'
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize('text', [None, '0 0 0\n'])
def test_without_schedstat_wall_and_cpu_are_known(tmp_path: Path, text):
    if text is not None:
        plant_schedstat(tmp_path, text)
    assert read_thread_times(tmp_path).run_delay_s is None


@pytest.mark.parametrize(
    ('before', 'workers_cpu_s', 'other_cpu_s'),
    [
        # 3.25 of all, less 1 of our own and 0.5 of the workers
        (10.0, 0.5, 1.75),
        (10.0, None, None),
        (None, 0.5, None),
    ],
)
def test_surroundings_are_of_the_time_between(before, workers_cpu_s, other_cpu_s):
    first = Surroundings(0.0, 0.0, 0.0, before, 7)
    found = Surroundings(2.0, 1.0, 0.1, 13.25, 9).since(first, workers_cpu_s)
    assert found.other_cpu_s == other_cpu_s
    assert (found.memory_pressure_pct, found.major_faults) == (5.0, 2)


def test_surroundings_that_this_host_does_not_give_are_unknown(tmp_path: Path):
    before = Surroundings.read(tmp_path)
    assert before.memory_waited_s is None
    assert Surroundings.read().since(before, 0.0).major_faults >= 0
