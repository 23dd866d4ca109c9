"""Tests CPU use of host and process between two readings of a fake ``/proc``."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.host import HostFigures, HostMeter, read_busy_s

HOST = 'mmgpu_hooks.measure.host'


class Host:
    """Fake host whose counters tests set: nested control groups, one with a quota."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.clock = folder, HandClock()
        own, self.top = folder / 'proc' / 'self', folder / 'sys' / 'fs' / 'cgroup'
        own.mkdir(parents=True)
        (own / 'cgroup').write_text('0::/pod/job\n')
        (self.top / 'pod' / 'job').mkdir(parents=True)
        (self.top / 'pod' / 'cpu.max').write_text('max 100000\n')
        (self.top / 'pod' / 'job' / 'cpu.max').write_text('50000 100000\n')
        self.throttle(1_000_000)

    def throttle(self, time_us: int) -> None:
        text = f'usage_usec 5\nthrottled_usec {time_us}\n'
        (self.top / 'pod' / 'job' / 'cpu.stat').write_text(text)

    def open(self) -> HostMeter:
        return HostMeter(
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
    host.throttle(1_250_000)
    first = meter.read().host
    assert first.throttled_s == 0.25
    assert first.ram_available_bytes and first.shm_free_bytes
    host.clock.turn(0.9)
    assert meter.read().host is None
    host.clock.turn(4.1)
    assert (meter.read().host.throttled_s, meter.unknown) == (0.0, {})


def test_what_is_gone_costs_its_figure_alone(host: Host):
    meter = host.open()
    (host.top / 'pod' / 'job' / 'cpu.stat').write_text('throttled_usec torn\n')
    host.clock.turn(1.0)
    window = meter.read().host
    assert window.throttled_s is None
    assert window.ram_available_bytes
    assert set(meter.unknown) == {'throttled_s'}
    nothing = HostMeter(proc=host.folder, sys=host.folder, shm=host.folder)
    assert nothing.read().host.throttled_s is None
    assert len(nothing.unknown) == 1


def test_process_and_host_are_read_in_windows(host: Host, monkeypatch):
    cpu, schedstat = HandClock(), host.folder / 'proc' / 'self' / 'schedstat'
    monkeypatch.setattr(f'{HOST}.process_cpu_s', cpu)
    monkeypatch.setattr('psutil.cpu_percent', lambda: 75.0)
    schedstat.write_text('9 500000000 1\n')
    meter = host.open()
    host.clock.turn(2.0)
    cpu.turn(2.5)
    schedstat.write_text('9 2000000000 1\n')
    read = meter.read()
    assert (read.process_cpu_s, read.process_run_delay_s) == (2.5, 1.5)
    assert read.system_cpu_pct == 75.0
    cpu.turn(0.25)
    schedstat.unlink()  # hidden
    assert meter.read() == HostFigures(0.25, None)


class Times(NamedTuple):
    user: float
    system: float = 0.0
    idle: float = 0.0
    iowait: float = 0.0
    guest: float = 0.0
    steal: float = 0.0


@pytest.mark.parametrize(
    ('times', 'busy_s'),
    [
        (Times(1, 1, 7, 5), 2.0),  # waiting for a disk is not busy
        (Times(2, idle=2, guest=2), 2.0),  # guest is inside user
        (Times(2, idle=2, steal=0.5), 2.5),
    ],
)
def test_busy_time_of_the_host_counts_steal_and_guest_once(
    monkeypatch, times: Times, busy_s: float
):
    monkeypatch.setattr('psutil.cpu_times', lambda: times)
    assert read_busy_s() == busy_s
