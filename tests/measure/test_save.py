"""A save's time by phase and by what the thread waited for, and what is in it."""

from __future__ import annotations

import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from mmengine.logging import HistoryBuffer

from fakes.clock import HandClock
from mmgpu_hooks.measure.save import (
    Surroundings,
    ThreadClock,
    ThreadTimes,
    count_history_bytes,
    count_tensor_bytes,
    fold_phase,
    fold_phases,
    read_size_bytes,
)
from mmgpu_hooks.schema import SavePhase

Times = namedtuple('Times', ['user', 'idle', 'iowait', 'steal', 'guest'])


def test_phases_are_split_by_what_the_thread_waited_for():
    stamps = [
        ('rest', ThreadTimes(0.0, 0.0, 0.0)),
        ('copy', ThreadTimes(0.5, 0.5, 0.0)),
        ('write', ThreadTimes(5.5, 1.5, 4.0)),
        ('copy', ThreadTimes(14.25, 1.75, 4.5)),
    ]
    parts = fold_phases(stamps, ThreadTimes(15.25, 2.75, 4.5))
    assert parts == {
        'copy': SavePhase(wall_s=6.0, cpu_s=2.0, run_delay_s=4.0, blocked_s=0.0),
        'write': SavePhase(wall_s=8.75, cpu_s=0.25, run_delay_s=0.5, blocked_s=8.0),
        'rest': SavePhase(wall_s=0.5, cpu_s=0.5, run_delay_s=0.0, blocked_s=0.0),
    }
    assert list(parts) == ['copy', 'write', 'rest']
    unknown = fold_phases(stamps[:1], ThreadTimes(3.0, 1.0, None))
    assert unknown == {'rest': SavePhase(wall_s=3.0, cpu_s=1.0)}


def test_blocked_is_never_negative():
    spent = fold_phase(ThreadTimes(1.0, 1.0, 0.0), ThreadTimes(2.0, 2.25, 0.0))
    assert (spent.cpu_s, spent.blocked_s) == (1.25, 0.0)


def plant_schedstat(proc: Path, text: str) -> Path:
    file = proc / 'self' / 'task' / str(threading.get_native_id()) / 'schedstat'
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('', 'found b'),
        ('garbage\n', 'expected "<cpu ns> <run delay ns> <slices>"'),
        ('0 0 0\n', 'the kernel counts nothing in schedstat'),
    ],
)
def test_without_schedstat_wall_and_cpu_are_known_and_why_no_more(
    tmp_path: Path, text: str, reason: str
):
    plant_schedstat(tmp_path, text)
    clock = ThreadClock(tmp_path, HandClock(), HandClock(7.0))
    assert clock.read()[1:] == (7.0, None)
    assert reason in str(clock.unknown)


def test_a_reading_that_lost_its_core_is_taken_again(tmp_path: Path):
    file = plant_schedstat(tmp_path, '1000000 0 5\n')
    wall, waits = HandClock(), [3.0, 0.0]

    def wait_for_a_core() -> float:
        if waits:
            wall.turn(waits[0])
            file.write_text(f'1000000 {round(3e9)} 5\n' if waits.pop(0) else '1 3 5\n')
        return 7.0

    clock = ThreadClock(tmp_path, wall, wait_for_a_core)
    begin_s = wall()
    assert clock.read() == ThreadTimes(begin_s + 3.0, 7.0, 3e-9)


def test_a_real_thread_is_blocked_while_it_sleeps():
    clock = ThreadClock()
    begin = clock.read()
    time.sleep(0.05)
    slept = fold_phase(begin, clock.read())
    assert slept.cpu_s is not None
    assert slept.run_delay_s is not None and slept.blocked_s is not None
    assert slept.blocked_s + slept.run_delay_s >= 0.049
    assert slept.cpu_s < 0.02


def test_bytes_of_what_is_saved():
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    # two moments of 110 weights, and a step of 4 bytes for each of two tensors
    assert count_tensor_bytes(optimizer.state_dict()) == 2 * 110 * 4 + 2 * 4
    for empty in (None, {}, [], {'a': 1}, [1, 2], {'a': [['b']]}):
        assert count_tensor_bytes(empty) == 0
    history = HistoryBuffer([1.0, 2.0, 3.0], [1, 1, 1])
    size = sum(array.nbytes for array in history.data)
    assert size >= 3 * 16
    scalars = {'log_scalars': {'a': history, 'b': history}}
    assert count_history_bytes(scalars) == 2 * size
    for other in (None, {}, {'log_scalars': None}, 'text'):
        assert count_history_bytes(other) is None


def test_a_file_and_a_folder_have_a_size(tmp_path: Path):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'rank0.pth').write_bytes(b'12345')
    (tmp_path / 'rank1.pth').write_bytes(b'123')
    assert read_size_bytes(str(tmp_path / 'rank1.pth')) == 3
    assert read_size_bytes(str(tmp_path)) == 8
    assert read_size_bytes('s3://bucket/epoch_1.pth') is None


def test_surroundings_are_of_the_time_between(tmp_path: Path):
    (tmp_path / 'pressure').mkdir()
    pressure = tmp_path / 'pressure' / 'memory'
    pressure.write_text('some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n')
    clock, own_cpu = HandClock(), HandClock()
    times = [Times(9.0, 9.0, 9.0, 0.0, 0.0), Times(10.0, 10.0, 10.0, 0.0, 0.0)]
    around = Surroundings(tmp_path, clock, lambda: times[-1], own_cpu)
    assert around.end(0.0) == ({}, {})
    around.begin()
    clock.turn(2.0)
    own_cpu.turn(1.0)
    times.append(Times(13.0, 10.5, 10.25, 0.25, 2.0))
    pressure.write_text('some avg10=0.00 avg60=0.00 avg300=0.00 total=100000\n')
    figures, unknown = around.end(workers_cpu_s=0.5)
    assert figures.pop('major_faults') >= 0
    # 3 of user and 0.25 of steal, less 1 of our own and 0.5 of the workers
    assert figures == {'memory_pressure_pct': 5.0, 'strangers_cpu_s': 1.75}
    assert unknown == {}
    assert around.end(None)[1] == {'strangers_cpu_s': "the workers' CPU is not known"}


def test_a_host_that_hides_its_times_is_a_reason(tmp_path: Path):
    def hide() -> Times:
        raise OSError('hidden')

    around = Surroundings(tmp_path, read_cpu_times=hide)
    around.begin()
    figures, unknown = around.end(0.0)
    assert set(figures) == {'major_faults'}
    assert set(unknown) == {'strangers_cpu_s'}
