"""What the host and the process did between two reads, over a scripted ``/proc``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.cgroup import parse_throttled_s, states_no_quota
from mmgpu_hooks.measure.host import (
    CpuMeter,
    HostWindowMeter,
    compute_busy_pct,
    compute_pressure_pct,
    parse_pressure,
)
from mmgpu_hooks.measure.proc import read_peak_rss_bytes

V2 = '31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw'


class Host:
    """Counters written by hand: a control group with a quota, in one without."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, HandClock()
        own, self.top = folder / 'proc' / 'self', folder / 'sys' / 'fs' / 'cgroup'
        own.mkdir(parents=True)
        (own / 'cgroup').write_text('0::/pod/job\n')
        (own / 'mountinfo').write_text(V2)
        (self.top / 'pod' / 'job').mkdir(parents=True)
        (self.top / 'pod' / 'cpu.max').write_text('max 100000\n')
        (self.top / 'pod' / 'job' / 'cpu.max').write_text('50000 100000\n')
        (self.top / 'cpu.stat').write_text('usage_usec 9\n')
        (folder / 'proc' / 'pressure').mkdir()
        for kind in ('cpu', 'io', 'memory'):
            self.press(kind, 1_000_000)
        self.throttle(1_000_000)

    def press(self, kind: str, total_us: int) -> None:
        text = f'some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\nfull x\n'
        (self.folder / 'proc' / 'pressure' / kind).write_text(text)

    def throttle(self, time_us: int) -> None:
        text = f'usage_usec 5\nthrottled_usec {time_us}\n'
        (self.top / 'pod' / 'job' / 'cpu.stat').write_text(text)

    def open(self) -> HostWindowMeter:
        return HostWindowMeter(
            proc=self.folder / 'proc',
            sys=self.folder / 'sys',
            shm=self.folder,
            clock=self.clock,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_windows_follow_each_other(host: Host):
    meter = host.open()
    host.clock.turn(2.0)
    host.press('cpu', 1_500_000)
    host.press('io', 1_250_000)
    host.throttle(1_250_000)
    first = meter.read()
    assert (first.cpu_pressure_pct, first.io_pressure_pct) == (25.0, 12.5)
    assert (first.memory_pressure_pct, first.throttled_s) == (0.0, 0.25)
    assert first.ram_available_bytes and first.shm_free_bytes
    host.clock.turn(0.9)
    assert meter.read() is None
    host.clock.turn(4.1)
    host.press('memory', 6_000_000)
    second = meter.read()
    assert second is not None
    assert (second.cpu_pressure_pct, second.memory_pressure_pct) == (0.0, 100.0)
    assert (second.throttled_s, meter.unknown) == (0.0, {})


def test_a_counter_that_falls_is_unknown_for_one_window(host: Host):
    meter = host.open()
    host.clock.turn(1.0)
    host.press('cpu', 0)
    host.throttle(0)
    window = meter.read()
    assert (window.cpu_pressure_pct, window.throttled_s) == (None, None)
    host.clock.turn(5.0)
    host.press('cpu', 2_500_000)
    host.throttle(1_000_000)
    window = meter.read()
    assert (window.cpu_pressure_pct, window.throttled_s) == (50.0, 1.0)


def test_what_is_gone_costs_its_figure_alone(host: Host):
    meter = host.open()
    (host.folder / 'proc' / 'pressure' / 'cpu').unlink()
    (host.top / 'pod' / 'job' / 'cpu.stat').write_text('throttled_usec torn\n')
    host.clock.turn(1.0)
    window = meter.read()
    assert (window.cpu_pressure_pct, window.throttled_s) == (None, None)
    assert window.io_pressure_pct == 0.0
    assert 'psi=0' in meter.unknown['cpu_pressure_pct']
    assert set(meter.unknown) == {'cpu_pressure_pct', 'throttled_s'}
    nothing = HostWindowMeter(proc=host.folder, sys=host.folder, shm=host.folder)
    assert nothing.read().throttled_s is None
    assert len(nothing.unknown) == 4


@pytest.mark.parametrize(
    ('version', 'text', 'seconds'),
    [
        (1, b'nr_periods 4\nnr_throttled 2\nthrottled_time 2740115021\n', 2.740115021),
        (2, b'usage_usec 9\nnr_throttled 2\nthrottled_usec 2740115\n', 2.740115),
        (2, b'usage_usec 9\nuser_usec 5\nsystem_usec 4\n', None),  # the root
        (1, b'', None),
    ],
)
def test_each_version_counts_in_its_own_unit(version, text, seconds):
    assert parse_throttled_s(text, version) == seconds


@pytest.mark.parametrize(
    ('version', 'text', 'is_free'),
    [
        (1, '-1\n', True),
        (1, '50000\n', False),
        (2, 'max 100000\n', True),
        (2, '50000 100000\n', False),
        (2, '', False),
    ],
)
def test_only_a_group_that_says_so_has_no_quota(tmp_path, version, text, is_free):
    (tmp_path / ('cpu.max' if version == 2 else 'cpu.cfs_quota_us')).write_text(text)
    assert states_no_quota(tmp_path, version) is is_free


def test_pressure():
    text = b'some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311\nfull total=7\n'
    assert parse_pressure(text) == 329.505311
    for garbage in (b'', b'full total=7\n', b'some total=x\n'):
        with pytest.raises(ValueError, match='expected a line'):
            parse_pressure(garbage)
    # the clocks are read one after the other
    assert compute_pressure_pct(1.0, 3.1, 2.0) == 100.0
    assert compute_pressure_pct(1.0, 1.0, 0.0) is None


class Times(NamedTuple):
    user: float
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    guest: float = 0.0


@pytest.mark.parametrize(
    ('before', 'after', 'pct'),
    [
        (Times(0), Times(1, 1, 1, 1), 50.0),  # waiting for a disk is not busy
        (Times(0), Times(2, idle=2, guest=2), 50.0),  # guest is inside user
        (Times(5, idle=5), Times(5, idle=5), None),  # no time passed
        (Times(5, idle=5), Times(4, idle=4), None),
        (Times(5, idle=5, iowait=9), Times(6, idle=8, iowait=8), 25.0),
    ],
)
def test_busy_share(before: Times, after: Times, pct):
    assert compute_busy_pct(before._asdict(), after._asdict()) == pct


def test_cpu_windows_follow_each_other():
    times = iter([Times(10, idle=10), Times(13, idle=11), Times(13, idle=15)])
    process = iter([1.0, 3.5, 3.75, 4.0])
    delay = iter([0.5, 2.0, None, None])
    clock = HandClock()
    meter = CpuMeter(
        lambda: next(times), lambda: next(process), lambda: next(delay), clock
    )
    clock.turn(2.0)
    assert meter.read() == {
        'process_cpu_s': 2.5,
        'system_cpu_pct': 75.0,
        'process_run_delay_s': 1.5,
    }
    assert meter.read() == {'process_cpu_s': 0.25, 'process_run_delay_s': None}
    clock.turn(5.0)
    assert meter.read()['system_cpu_pct'] == 0.0


def test_the_peak_of_memory_is_the_kernels(tmp_path: Path):
    (tmp_path / 'self').mkdir()
    (tmp_path / 'self' / 'status').write_text('VmPeak:\t9 kB\nVmHWM:\t    7 kB\n')
    assert read_peak_rss_bytes(tmp_path) == 7 * 1024
    assert read_peak_rss_bytes(tmp_path / 'none') is None
