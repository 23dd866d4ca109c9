from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fakes.clock import HandClock
from fakes.open_files import kept_files
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader.processes import MOST_TOLD, MemoryLook, WorkerProcesses


def no_clock(pid: int) -> float | None:
    return None


class FakeProc:
    """A folder of schedstat files."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, pid: int, thread: int, cpu_s: float, run_delay_s: float) -> None:
        folder = self.root / str(pid) / 'task' / str(thread)
        folder.mkdir(parents=True, exist_ok=True)
        text = f'{int(cpu_s * 1e9)} {int(run_delay_s * 1e9)} 1\n'
        (folder / 'schedstat').write_text(text)
        if pid == thread:
            (self.root / str(pid) / 'schedstat').write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path)


def watch(proc: FakeProc, pids: list[int], clock: HandClock, **options):
    options.setdefault('read_cpu_s', no_clock)
    return WorkerProcesses(pids, clock=clock, proc=proc.root, **options)


@pytest.mark.parametrize('most_files', [0, 1, 2, 100])
def test_cpu_run_delay_and_blocked_time_of_all_workers(proc: FakeProc, most_files: int):
    clock = HandClock()
    proc.write(7, 7, 1.0, 0.5)
    proc.write(8, 8, 2.0, 0.0)
    workers = watch(proc, [7, 8], clock, most_files=most_files)
    clock.turn(10.0)
    proc.write(7, 7, 4.0, 1.5)
    proc.write(8, 8, 2.5, 0.25)
    figures = workers.read()
    assert (figures.count, figures.window_s) == (2, 10.0)
    assert figures.worker_cpu_s == (3.0, 0.5)
    assert figures.worker_run_delay_s == (1.0, 0.25)
    assert figures.cpu_s == 3.5
    assert figures.run_delay_s == 1.25
    assert figures.blocked_s == (10.0 - 3.0 - 1.0) + (10.0 - 0.5 - 0.25)
    workers.close()


def test_the_clock_of_the_process_goes_before_the_sum_of_its_threads(proc: FakeProc):
    clock, cpu = HandClock(), {7: 1.0}
    proc.write(7, 7, 1.0, 0.0)
    workers = watch(proc, [7], clock, read_cpu_s=cpu.get)
    proc.write(7, 7, 2.0, 0.0)
    cpu[7] = 5.0  # threads that came and went are in it
    assert workers.read().cpu_s == 4.0
    workers.close()


def test_a_thread_that_starts_later_counts_from_its_start(proc: FakeProc):
    clock = HandClock()
    proc.write(7, 7, 1.0, 0.0)
    workers = watch(proc, [7], clock)
    proc.write(7, 9, 0.5, 0.25)
    proc.write(7, 7, 2.0, 0.0)
    clock.turn(4.0)
    figures = workers.read()
    assert (figures.cpu_s, figures.run_delay_s) == (1.5, 0.25)
    assert figures.blocked_s == 3.0  # of the main thread
    # the next list of threads is half a minute away
    proc.write(7, 11, 0.5, 0.0)
    assert workers.read().cpu_s == 0.0
    clock.turn(30.0)
    assert workers.read().cpu_s == 0.5
    workers.close()


def test_the_past_of_workers_that_ran_before_us_is_not_ours(proc: FakeProc):
    proc.write(7, 7, 1.0, 0.0)
    proc.write(7, 9, 5.0, 5.0)
    workers = watch(proc, [7], HandClock(), is_running=True)
    figures = workers.read()
    assert (figures.cpu_s, figures.run_delay_s) == (0.0, 0.0)
    workers.close()


def test_a_hidden_proc_is_no_worker_and_no_error(tmp_path: Path):
    workers = watch(FakeProc(tmp_path), [7, 8], HandClock())
    assert workers.is_hidden
    figures = workers.read()
    assert (figures.count, figures.worker_cpu_s, figures.blocked_s) == (0, (), None)
    assert figures.affinity_cpus is None
    assert figures.worker_run_delay_s == ()
    assert figures.worker_affinity_cpus == ()
    assert workers.read_pss_bytes() == (None, None)
    workers.close()


def fork_sleeper() -> int:
    child = os.fork()
    if child == 0:
        signal.pause()
    return child


def end(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_worker_that_ended_is_left_out_and_its_files_are_closed():
    ended, living = fork_sleeper(), fork_sleeper()
    workers = WorkerProcesses([ended, living])
    try:
        assert workers.read().count == 2
        end(ended)
        figures = workers.read()
        assert figures.count == 1
        assert figures.worker_cpu_s == figures.worker_run_delay_s == ()
        assert figures.worker_affinity_cpus == ()
        assert not workers.is_hidden
        assert kept_files() == 1
        workers.close()
        workers.close()
        assert kept_files() == 0
    finally:
        end(living)


def test_no_more_files_are_kept_open_than_was_said(proc: FakeProc):
    for pid in range(100, 110):
        for thread in range(pid, pid + 60, 10):
            proc.write(pid, thread, 1.0, 0.0)
    workers = watch(
        proc, list(range(100, 110)), HandClock(), is_running=True, most_files=20
    )
    assert kept_files() == 20
    assert workers.read().count == 10
    workers.close()


def test_a_schedstat_that_is_not_understood_is_a_source_error(proc: FakeProc):
    proc.write(7, 7, 1.0, 0.0)
    workers = watch(proc, [7], HandClock())
    (proc.root / '7' / 'task' / '7' / 'schedstat').write_text('what')
    with pytest.raises(SourceError, match='schedstat'):
        workers.read()
    workers.close()


def test_memory_of_many_workers_is_that_of_some_of_them(proc: FakeProc):
    for pid in range(1, 65):
        proc.write(pid, pid, 1.0, 0.0)
        rollup = proc.root / str(pid) / 'smaps_rollup'
        rollup.write_text('aa-bb ---p [rollup]\nRss: 99 kB\nPss:       10 kB\n')
    few = watch(proc, [1, 2], HandClock())
    many = watch(proc, list(range(1, 65)), HandClock())
    memory = MemoryLook(HandClock())
    memory.look(few)
    assert memory.drain() == 20 * 1024
    memory.look(many)
    assert sum(size is not None for size in many.read_pss_bytes()) == 16
    assert memory.drain() == 640 * 1024
    assert memory.drain() is None
    few.close()
    many.close()


def test_memory_is_read_every_five_minutes_and_no_more_where_it_takes_long(
    proc: FakeProc, monkeypatch: pytest.MonkeyPatch
):
    took_s = 0.001

    def read(*_: object) -> int:
        clock.turn(took_s)
        return 1024

    monkeypatch.setattr('mmgpu_hooks.measure.loader.processes.read_pss_bytes', read)
    clock = HandClock()
    workers = watch(proc, [1, 2, 3], clock)
    memory = MemoryLook(clock)
    assert memory.is_due(workers)
    memory.look(workers)
    assert memory.drain() == 3 * 1024
    clock.turn(299.0)
    assert not memory.is_due(workers)
    clock.turn(1.0)
    assert memory.is_due(workers)
    took_s = 0.046
    memory.look(workers)
    assert memory.drain() == 3 * 1024  # of one worker, taken for all
    clock.turn(1000.0)
    assert not memory.is_due(workers)
    workers.close()


def test_of_very_many_workers_the_sums_are_told(proc: FakeProc):
    pids = list(range(1, MOST_TOLD + 2))
    for pid in pids:
        proc.write(pid, pid, 1.0, 0.0)
    clock = HandClock()
    for number in (MOST_TOLD, MOST_TOLD + 1):
        workers = watch(proc, pids[:number], clock, most_files=0)
        clock.turn(1.0)
        figures = workers.read()
        is_told = number <= MOST_TOLD
        assert figures.blocked_s == number * 1.0
        assert figures.worker_run_delay_s == (0.0,) * number * is_told
        workers.close()


def test_each_worker_has_its_own_affinity():
    free, confined = fork_sleeper(), fork_sleeper()
    cpus = os.sched_getaffinity(0)
    os.sched_setaffinity(confined, {min(cpus)})
    workers = WorkerProcesses([free, confined])
    try:
        figures = workers.read()
        assert figures.worker_affinity_cpus == (len(cpus), 1)
        assert figures.affinity_cpus == 1
    finally:
        workers.close()
        end(free)
        end(confined)


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='platform tells none')
def test_affinity_is_that_of_the_most_confined_worker():
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        os.sched_setaffinity(child, {min(os.sched_getaffinity(0))})
        workers = WorkerProcesses([os.getpid(), child])
        assert workers.read().affinity_cpus == 1
        workers.close()
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


@pytest.mark.skipif(not hasattr(os, 'sched_setaffinity'), reason='platform tells none')
def test_affinity_is_asked_again_now_and_then_and_told_in_between():
    own, clock = os.sched_getaffinity(0), HandClock()
    if len(own) < 2:
        pytest.skip('one CPU cannot be confined')
    children = [fork_sleeper() for _ in range(6)]
    try:
        workers = WorkerProcesses(children, clock=clock)
        os.sched_setaffinity(children[5], {min(own)})
        # the first read asks all, the second the two whose threads are listed last
        assert workers.read().affinity_cpus == 1
        os.sched_setaffinity(children[5], own)
        assert workers.read().affinity_cpus == len(own)
        for child in children[4:]:
            os.sched_setaffinity(child, {min(own)})
        clock.turn(20.0)
        assert workers.read().affinity_cpus == len(own)
        clock.turn(10.0)
        # four are asked at a time
        assert workers.read().affinity_cpus == len(own)
        assert workers.read().affinity_cpus == 1
        while len(children) > 4:
            end(children.pop())
        # nobody can be more confined than those that are left
        assert workers.read().affinity_cpus == len(own)
        workers.close()
    finally:
        for child in children:
            end(child)
