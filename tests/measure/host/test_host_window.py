from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fakes.clock import HandClock
from mmgpu_hooks.measure.host import HostWindowMeter
from mmgpu_hooks.measure.proc import (
    KeptFile,
    OpenFiles,
    page_size_bytes,
    parse_memory_bytes,
    parse_swapped_pages,
)
from mmgpu_hooks.schema import HostWindow

V1_CPU = '33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu'
KB = 1024


class Host:
    """A scripted ``/proc`` and ``/sys`` whose counters are turned by hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.proc = folder / 'proc'
        self.sys = folder / 'sys'
        self.clock = HandClock()
        own = self.proc / 'self'
        (own / 'fd').mkdir(parents=True)
        # the last one stands for the descriptor of the listing itself
        for name in range(6):
            (own / 'fd' / str(name)).touch()
        (own / 'cgroup').write_text('1:cpu:/pod/job\n')
        (own / 'mountinfo').write_text(f'{V1_CPU}\n')
        self.groups = [self.sys / 'fs' / 'cgroup' / 'cpu']
        self.groups += [self.groups[0] / 'pod', self.groups[0] / 'pod' / 'job']
        self.groups[2].mkdir(parents=True)
        (self.proc / 'pressure').mkdir()
        for kind in ('cpu', 'io', 'memory'):
            self.press(kind, 1_000_000)
        self.swap(7, 9)
        self.memory('MemAvailable: 500 kB', 'SwapTotal: 300 kB', 'SwapFree: 100 kB')
        for group in self.groups:
            self.throttle(group, 1_000_000_000)

    def press(self, kind: str, total_us: int) -> None:
        text = f'some avg10=0.00 avg60=0.00 avg300=0.00 total={total_us}\n'
        (self.proc / 'pressure' / kind).write_text(text)

    def swap(self, pages_in: int, pages_out: int) -> None:
        text = f'nr_free_pages 5\npswpin {pages_in}\npswpout {pages_out}\nzswpin 1\n'
        (self.proc / 'vmstat').write_text(text)

    def memory(self, *lines: str) -> None:
        text = '\n'.join(('MemTotal: 900 kB', 'SwapCached: 0 kB', *lines, ''))
        (self.proc / 'meminfo').write_text(text)

    def throttle(self, group: Path, time_ns: int) -> None:
        text = f'nr_periods 0\nnr_throttled 0\nthrottled_time {time_ns}\n'
        (group / 'cpu.stat').write_text(text)

    def open(self) -> HostWindowMeter:
        return HostWindowMeter(
            proc=self.proc, sys=self.sys, shm=self.folder, clock=self.clock
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_windows_follow_each_other(host: Host):
    meter = host.open()
    host.clock.turn(10.0)
    host.press('cpu', 3_500_000)
    host.press('io', 2_000_000)
    host.swap(8, 12)
    host.throttle(host.groups[2], 1_200_000_000)
    host.throttle(host.groups[1], 1_700_000_000)
    window = meter.read()
    page = page_size_bytes()
    free = window.shm_free_bytes
    assert window == HostWindow(
        cpu_pressure_pct=25.0,
        io_pressure_pct=10.0,
        memory_pressure_pct=0.0,
        throttled_s=pytest.approx(0.7),  # the ancestor with the tighter quota
        swap_in_bytes=page,
        swap_out_bytes=3 * page,
        ram_available_bytes=500 * KB,
        shm_free_bytes=free,
        open_files=5,
    )
    assert free is not None and free > 0
    assert meter.unknown == {}
    host.clock.turn(4.0)
    host.press('memory', 3_000_000)
    host.memory('MemAvailable: 400 kB', 'SwapTotal: 300 kB', 'SwapFree: 300 kB')
    second = meter.read()
    assert (second.cpu_pressure_pct, second.memory_pressure_pct) == (0.0, 50.0)
    assert (second.throttled_s, second.swap_in_bytes) == (0.0, 0)
    assert second.ram_available_bytes == 400 * KB
    meter.close()


def test_windows_under_a_second_are_told_what_was_found_last(host: Host):
    meter = host.open()
    host.clock.turn(10.0)
    first = meter.read()
    host.swap(8, 12)
    host.memory('MemAvailable: 400 kB', 'SwapTotal: 300 kB', 'SwapFree: 300 kB')
    host.clock.turn(0.5)
    host.press('io', 1_250_000)
    short = meter.read()
    assert short.io_pressure_pct == 50.0
    assert short.ram_available_bytes == first.ram_available_bytes
    assert short.open_files == first.open_files is not None
    assert (short.swap_in_bytes, short.swap_out_bytes) == (None, None)
    host.clock.turn(0.5)
    later = meter.read()
    assert later.ram_available_bytes == 400 * KB
    # what was swapped meanwhile is counted once
    page = page_size_bytes()
    assert (later.swap_in_bytes, later.swap_out_bytes) == (page, 3 * page)
    meter.close()


def test_a_host_without_swap_space_swaps_nothing_and_is_not_asked(host: Host):
    page = page_size_bytes()
    host.memory('MemAvailable: 500 kB', 'SwapTotal: 0 kB', 'SwapFree: 0 kB')
    meter = host.open()
    vmstat = host.proc / 'vmstat'

    def read() -> tuple[int | None, int | None]:
        host.clock.turn(1.0)
        window = meter.read()
        return window.swap_in_bytes, window.swap_out_bytes

    assert read() == (0, 0)
    text = vmstat.read_text()
    vmstat.write_text('garbage')
    assert read() == (0, 0)
    # swap space is added, and used
    vmstat.write_text(text)
    host.memory('MemAvailable: 500 kB', 'SwapTotal: 300 kB', 'SwapFree: 100 kB')
    host.swap(8, 12)
    assert read() == (page, 3 * page)
    # and taken away again, for which all of it is read back
    host.memory('MemAvailable: 500 kB', 'SwapTotal: 0 kB', 'SwapFree: 0 kB')
    host.swap(10, 12)
    assert read() == (2 * page, 0)
    assert read() == (0, 0)
    assert meter.unknown == {}
    meter.close()


FILES = {
    'cpu_pressure_pct': 'proc/pressure/cpu',
    'io_pressure_pct': 'proc/pressure/io',
    'memory_pressure_pct': 'proc/pressure/memory',
    'swap_in_bytes, swap_out_bytes': 'proc/vmstat',
    'ram_available_bytes': 'proc/meminfo',
    'throttled_s': 'sys/fs/cgroup/cpu/pod/cpu.stat',
}


def figures(window: HostWindow, name: str) -> set[object]:
    return {getattr(window, field) for field in name.split(', ')}


@pytest.mark.parametrize('figure', FILES)
def test_a_missing_file_is_a_reason_and_the_rest_goes_on(host: Host, figure: str):
    (host.folder / FILES[figure]).unlink()
    if figure == 'throttled_s':
        for group in host.groups:
            (group / 'cpu.stat').unlink(missing_ok=True)
    meter = host.open()
    host.clock.turn(1.0)
    window = meter.read()
    assert figures(window, figure) == {None}
    assert set(meter.unknown) == {figure}
    for other in set(FILES) - {figure}:
        assert None not in figures(window, other)
    meter.close()


@pytest.mark.parametrize('figure', FILES)
@pytest.mark.parametrize('text', ['', '\xff\x00garbage', 'some total=x\npswpin\n'])
def test_a_file_that_turns_to_garbage_is_dropped_for_good(
    host: Host, figure: str, text: str
):
    meter = host.open()
    path = host.folder / FILES[figure]
    good = path.read_bytes()
    path.write_text(text, encoding='latin-1')
    host.clock.turn(1.0)
    assert figures(meter.read(), figure) == {None}
    assert figure in meter.unknown
    path.write_bytes(good)
    host.clock.turn(1.0)
    assert figures(meter.read(), figure) == {None}
    meter.close()


@pytest.mark.parametrize('code', [errno.EOPNOTSUPP, errno.ENODEV, errno.EACCES])
def test_a_file_that_opens_and_cannot_be_read_is_a_reason(
    host: Host, code: int, monkeypatch: pytest.MonkeyPatch
):
    def pread(descriptor: int, size: int, offset: int) -> bytes:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, 'pread', pread)
    before = len(os.listdir('/proc/self/fd'))
    meter = host.open()
    host.clock.turn(1.0)
    window = meter.read()
    for figure in FILES:
        assert figures(window, figure) == {None}
    assert set(meter.unknown) == set(FILES)
    assert 'psi=0' in meter.unknown['cpu_pressure_pct']
    # what was given up is not left open
    assert len(os.listdir('/proc/self/fd')) == before


def test_counters_that_fall_are_unknown_for_one_window(host: Host):
    meter = host.open()
    host.press('cpu', 0)
    host.swap(8, 2)
    host.throttle(host.groups[2], 0)
    host.throttle(host.groups[1], 3_000_000_000)
    host.clock.turn(1.0)
    window = meter.read()
    assert window.cpu_pressure_pct is None
    assert window.io_pressure_pct == 0.0
    assert (window.swap_in_bytes, window.swap_out_bytes) == (None, None)
    assert window.throttled_s is None
    assert meter.unknown == {}
    host.press('cpu', 500_000)
    host.clock.turn(1.0)
    window = meter.read()
    assert (window.cpu_pressure_pct, window.swap_in_bytes) == (50.0, 0)
    assert window.throttled_s == 0.0
    meter.close()


def test_a_clock_that_stands_still_gives_no_share(host: Host):
    meter = host.open()
    assert meter.read().cpu_pressure_pct is None
    assert meter.unknown == {}
    meter.close()


def test_nothing_at_all_is_known(tmp_path: Path):
    nowhere = tmp_path / 'nowhere'
    meter = HostWindowMeter(proc=nowhere, sys=nowhere, shm=nowhere)
    assert meter.read() == HostWindow()
    assert set(meter.unknown) == {*FILES, 'open_files', 'shm_free_bytes'}
    assert all(meter.unknown.values())
    meter.close()


def test_closing_leaves_no_file_open_and_may_be_repeated(host: Host):
    before = len(os.listdir('/proc/self/fd'))
    meter = host.open()
    assert len(os.listdir('/proc/self/fd')) > before
    meter.close()
    meter.close()
    assert len(os.listdir('/proc/self/fd')) == before
    host.clock.turn(1.0)
    window = meter.read()
    assert window.cpu_pressure_pct is None and window.throttled_s is None


def test_a_file_longer_than_one_read_is_read_to_its_end(tmp_path: Path):
    path = tmp_path / 'vmstat'
    filler = ''.join(f'nr_{number} 0\n' for number in range(5000))
    path.write_text(f'{filler}pswpin 3\npswpout 4\n')
    file = KeptFile(path)
    assert parse_swapped_pages(file.read()) == (3, 4)
    file.close()


def test_fields_are_found_at_the_start_of_lines_only():
    text = b'xSwapTotal: 1 kB\nSwapTotal:\t8 kB\n'
    assert parse_memory_bytes(text + b'MemAvailable: 4 kB') == (4 * KB, 8 * KB)
    assert parse_swapped_pages(b'pswpin 12\npswpout 345') == (12, 345)
    with pytest.raises(ValueError, match="no line 'MemAvailable'"):
        parse_memory_bytes(text)
    with pytest.raises(ValueError, match="'MemAvailable' has no figure"):
        parse_memory_bytes(b'MemAvailable:\n' + text)


def test_descriptors_are_listed_now_and_then_where_their_size_does_not_tell(
    host: Host,
):
    files = OpenFiles(host.proc, host.clock)
    assert files.count() == 5
    (host.proc / 'self' / 'fd' / '77').touch()
    host.clock.turn(29.0)
    assert files.count() is None
    host.clock.turn(1.0)
    assert files.count() == 6
    assert files.count() is None


@pytest.mark.skipif(not os.path.exists('/proc/self/fd'), reason='needs /proc')
def test_descriptors_of_this_process_are_counted():
    files = OpenFiles(clock=HandClock())
    before = files.count()
    read_end, write_end = os.pipe()
    try:
        after = files.count()
        # older kernels list: not again within 30 seconds
        assert before is not None and after in (before + 2, None)
    finally:
        os.close(read_end)
        os.close(write_end)


@pytest.mark.skipif(not os.path.exists('/proc/vmstat'), reason='needs /proc')
def test_this_host_tells_its_memory():
    meter = HostWindowMeter()
    window = meter.read()
    assert window.ram_available_bytes is not None and window.ram_available_bytes > 0
    assert window.swap_in_bytes == 0 or 'swap' in str(meter.unknown)
    meter.close()
