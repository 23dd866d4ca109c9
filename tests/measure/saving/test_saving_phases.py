"""A thread's time by phase, and each phase by what the thread waited for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.save import (
    PhaseClock,
    ThreadClock,
    ThreadTimes,
    fold_phase,
)
from mmgpu_hooks.schema import SavePhase


class HandThread:
    """The clocks of a thread, turned by hand, over a ``/proc`` of its own."""

    def __init__(self, proc: Path, schedstat: str | None = '1000000 0 5\n') -> None:
        self.wall, self.cpu = HandClock(), HandClock(7.0)
        self.file = (
            proc / 'self' / 'task' / str(threading.get_native_id()) / 'schedstat'
        )
        self.file.parent.mkdir(parents=True)
        self.waited_ns = 0
        if schedstat is not None:
            self.file.write_text(schedstat)
        self.clock = ThreadClock(proc, self.wall, self.cpu)

    def spend(self, cpu: float, run_delay: float = 0.0, blocked: float = 0.0) -> None:
        self.wall.turn(cpu + run_delay + blocked)
        self.cpu.turn(cpu)
        self.waited_ns += round(run_delay * 1e9)
        if self.file.exists():
            # kept open: the text must change in place
            self.file.write_text(f'1000000 {self.waited_ns} 5\n')


def test_each_phase_is_split_by_what_the_thread_waited_for(tmp_path: Path):
    thread = HandThread(tmp_path)
    phases = PhaseClock(thread.clock)
    thread.spend(cpu=0.5)
    phases.switch('copy')
    thread.spend(cpu=1.0, run_delay=4.0)
    phases.switch('write')
    thread.spend(cpu=0.25, run_delay=0.5, blocked=8.0)
    phases.switch('copy')
    thread.spend(cpu=1.0)
    total, parts = phases.end()
    assert total == SavePhase(wall_s=15.25, cpu_s=2.75, run_delay_s=4.5, blocked_s=8.0)
    assert parts == {
        'copy': SavePhase(wall_s=6.0, cpu_s=2.0, run_delay_s=4.0, blocked_s=0.0),
        'write': SavePhase(wall_s=8.75, cpu_s=0.25, run_delay_s=0.5, blocked_s=8.0),
        'rest': SavePhase(wall_s=0.5, cpu_s=0.5, run_delay_s=0.0, blocked_s=0.0),
    }
    assert list(parts) == ['copy', 'write', 'rest']


def test_what_ran_before_can_turn_out_to_be_another_phase(tmp_path: Path):
    thread = HandThread(tmp_path)
    phases = PhaseClock(thread.clock)
    thread.spend(cpu=2.0)
    phases.rename('copy')
    phases.switch('rest')
    assert phases.end()[1] == {
        'copy': SavePhase(wall_s=2.0, cpu_s=2.0, run_delay_s=0.0, blocked_s=0.0),
        'rest': SavePhase(wall_s=0.0, cpu_s=0.0, run_delay_s=0.0, blocked_s=0.0),
    }


def test_blocked_is_never_negative():
    begin = ThreadTimes(wall_s=1.0, cpu_s=1.0, run_delay_s=0.0)
    end = ThreadTimes(wall_s=2.0, cpu_s=2.25, run_delay_s=0.0)
    assert fold_phase(begin, end) == SavePhase(
        wall_s=1.0, cpu_s=1.25, run_delay_s=0.0, blocked_s=0.0
    )


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        (None, 'No such file'),
        ('', 'found b'),
        ('garbage\n', 'expected "<cpu ns> <run delay ns> <slices>"'),
        ('0 0 0\n', 'the kernel counts nothing in schedstat'),
    ],
)
def test_without_schedstat_wall_and_cpu_are_told_and_why_no_more(
    tmp_path: Path, text: str | None, reason: str
):
    thread = HandThread(tmp_path, text)
    phases = PhaseClock(thread.clock)
    thread.wall.turn(3.0)
    thread.cpu.turn(1.0)
    assert phases.end()[1] == {
        'rest': SavePhase(wall_s=3.0, cpu_s=1.0, run_delay_s=None, blocked_s=None)
    }
    assert thread.clock.unknown is not None
    assert reason in thread.clock.unknown


def test_a_schedstat_that_vanishes_leaves_the_phase_unknown(tmp_path: Path):
    thread = HandThread(tmp_path)
    phases = PhaseClock(thread.clock)
    thread.clock.close()
    thread.wall.turn(1.0)
    assert phases.end()[1] == {
        'rest': SavePhase(wall_s=1.0, cpu_s=0.0, run_delay_s=None, blocked_s=None)
    }


def test_a_look_that_lost_its_core_is_taken_again(tmp_path: Path):
    thread = HandThread(tmp_path)
    waits = [3.0, 0.0]

    def wait_for_a_core() -> float:
        cpu_s = thread.cpu()
        if waits:
            thread.spend(cpu=0.0, run_delay=waits.pop(0))
        return cpu_s

    clock = ThreadClock(tmp_path, thread.wall, wait_for_a_core)
    assert clock.read() == ThreadTimes(103.0, 7.0, 3.0)


def test_a_real_thread_is_blocked_while_it_sleeps():
    clock = ThreadClock()
    begin = clock.read()
    time.sleep(0.05)
    slept = fold_phase(begin, clock.read())
    clock.close()
    clock.close()
    assert slept.cpu_s is not None
    assert slept.run_delay_s is not None
    assert slept.blocked_s is not None
    assert slept.blocked_s + slept.run_delay_s >= 0.049
    assert slept.cpu_s < 0.02
