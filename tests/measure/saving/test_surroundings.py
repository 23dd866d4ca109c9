"""What the host went through during a save, over a scripted ``/proc``."""

from __future__ import annotations

from collections import namedtuple
from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.proc import page_size_bytes
from mmgpu_hooks.measure.save import Surroundings

Times = namedtuple('Times', ['user', 'idle', 'iowait', 'steal', 'guest'])


class Host:
    """A host whose counters are turned by hand."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.clock, self.own_cpu = HandClock(), HandClock()
        self.times: Times | Exception = Times(10.0, 10.0, 10.0, 0.0, 0.0)
        self.rss: int | None = 1000
        (proc / 'pressure').mkdir()
        self.write(cpu=0, io=0, memory=0, swapped=(5, 5), dirty=0, writeback=0)

    def write(
        self,
        cpu: int,
        io: int,
        memory: int,
        swapped: tuple[int, int],
        dirty: int,
        writeback: int,
    ) -> None:
        for kind, total in (('cpu', cpu), ('io', io), ('memory', memory)):
            text = f'some avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n'
            (self.proc / 'pressure' / kind).write_text(text)
        (self.proc / 'vmstat').write_text(
            f'pswpin {swapped[0]}\npswpout {swapped[1]}\n'
        )
        (self.proc / 'meminfo').write_text(
            f'MemFree: 1 kB\nDirty: {dirty} kB\nWriteback: {writeback} kB\n'
        )

    def read_times(self) -> Times:
        if isinstance(self.times, Exception):
            raise self.times
        return self.times

    def open(self) -> Surroundings:
        return Surroundings(
            self.proc, self.clock, self.read_times, self.own_cpu, lambda: self.rss
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_all_figures_are_of_the_time_between(host: Host):
    around = host.open()
    host.rss = 2000
    around.begin()
    host.clock.turn(2.0)
    host.own_cpu.turn(1.0)
    host.times = Times(13.0, 10.5, 10.25, 0.25, 2.0)
    host.write(1_000_000, 500_000, 100_000, swapped=(6, 8), dirty=300, writeback=4)
    host.rss = 7000
    around.look_at_memory()
    host.rss = 2500
    around.look_at_memory()
    figures, unknown = around.end(workers_cpu_s=0.5)
    assert unknown == {}
    assert figures.pop('major_faults') >= 0
    assert figures == {
        'cpu_pressure_pct': 50.0,
        'io_pressure_pct': 25.0,
        'memory_pressure_pct': 5.0,
        'swap_in_bytes': page_size_bytes(),
        'swap_out_bytes': 3 * page_size_bytes(),
        'dirty_bytes': 300 * 1024,
        'writeback_bytes': 4 * 1024,
        'held_bytes': 5000,
        # 3 of user and 0.25 of steal, less 1 of our own and 0.5 of the workers
        'strangers_cpu_s': 1.75,
    }


def test_a_second_save_begins_anew(host: Host):
    around = host.open()
    around.begin()
    host.rss = 9000
    around.look_at_memory()
    host.times = Times(20.0, 10.0, 10.0, 0.0, 0.0)
    host.clock.turn(1.0)
    assert around.end(0.0)[0]['strangers_cpu_s'] == 10.0
    around.begin()
    host.clock.turn(1.0)
    figures, _ = around.end(0.0)
    assert (figures['strangers_cpu_s'], figures['held_bytes']) == (0.0, 0)


def test_strangers_are_unknown_as_long_as_the_workers_are(host: Host):
    around = host.open()
    around.begin()
    figures, unknown = around.end(workers_cpu_s=None)
    assert 'strangers_cpu_s' not in figures
    assert unknown == {'strangers_cpu_s': "the workers' CPU is not known"}


@pytest.mark.parametrize(
    ('error', 'reason'),
    [
        (ImportError('no psutil'), 'psutil is not installed: pip install psutil'),
        (OSError('hidden'), 'the host does not tell its CPU times: hidden'),
    ],
)
def test_cpu_times_that_are_not_told(host: Host, error: Exception, reason: str):
    around = host.open()
    host.times = error
    around.begin()
    figures, unknown = around.end(0.0)
    assert 'strangers_cpu_s' not in figures
    assert unknown == {'strangers_cpu_s': reason}


def test_a_host_without_proc_is_a_reason_per_figure(tmp_path: Path):
    around = Surroundings(tmp_path / 'none', read_rss_bytes=lambda: None)
    around.begin()
    around.look_at_memory()
    figures, unknown = around.end(0.0)
    assert set(figures) <= {'major_faults', 'strangers_cpu_s'}
    assert set(unknown) == {
        'cpu_pressure_pct',
        'io_pressure_pct',
        'memory_pressure_pct',
        'swap_in_bytes, swap_out_bytes',
        'dirty_bytes, writeback_bytes',
    }


def test_a_file_that_turns_to_garbage_takes_its_figure_alone(host: Host):
    around = host.open()
    (host.proc / 'meminfo').write_text('nonsense\n')
    around.begin()
    host.clock.turn(1.0)
    figures, unknown = around.end(0.0)
    assert 'dirty_bytes' not in figures
    assert set(unknown) == {'dirty_bytes, writeback_bytes'}
    assert figures['cpu_pressure_pct'] == 0.0
    around.close()
    around.close()
