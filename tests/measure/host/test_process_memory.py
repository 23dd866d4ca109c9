from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest

from mmgpu_hooks.measure.proc import (
    page_size_bytes,
    parse_peak_rss_bytes,
    read_peak_rss_bytes,
    read_process_rss_bytes,
)

psutil = pytest.importorskip('psutil')


def test_memory_that_is_touched_is_seen():
    before = read_process_rss_bytes()
    # of the kernel itself: an allocator may give back what the process had before
    with mmap.mmap(-1, 64 << 20) as block:
        block.write(b'x' * (64 << 20))
        after = read_process_rss_bytes()
    assert before is not None and after is not None
    assert after - before > 32 << 20


def test_the_kernel_counts_pages(tmp_path: Path):
    (tmp_path / 'self').mkdir()
    statm = tmp_path / 'self' / 'statm'
    statm.write_text('278060 1500 10823 1029 0 160771 0\n')
    assert read_process_rss_bytes(tmp_path) == 1500 * page_size_bytes()
    told = psutil.Process().memory_info().rss
    for damaged in ('', '278060', '278060 many'):
        statm.write_text(damaged)
        assert read_process_rss_bytes(tmp_path) == pytest.approx(told, rel=0.1)


def test_without_proc_and_psutil_it_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, 'psutil', None)
    assert read_process_rss_bytes(tmp_path) is None


@pytest.mark.parametrize('error', [psutil.AccessDenied(), OSError('hidden')])
def test_what_the_platform_hides_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def refuse(self: object) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, 'memory_info', refuse)
    assert read_process_rss_bytes(tmp_path) is None


def test_the_peak_stays_when_memory_is_given_back():
    block = bytearray(b'x') * (64 << 20)
    high = read_process_rss_bytes()
    del block
    peak = read_peak_rss_bytes()
    assert high is not None and peak is not None
    # the kernel lacks up to 384 KiB a CPU of the peak: it counts pages in batches
    assert peak >= high - (32 << 20)


@pytest.mark.parametrize(
    ('text', 'peak'),
    [
        ('VmPeak:\t 9 kB\nVmHWM:\t    1500 kB\nVmRSS:\t 7 kB\n', 1500 * 1024),
        ('VmHWM:\t many kB\n', None),
        ('VmHWM:\n', None),
        ('', None),
    ],
)
def test_the_peak_is_parsed(text, peak):
    assert parse_peak_rss_bytes(text) == peak


def test_a_platform_without_proc_tells_no_peak(tmp_path: Path):
    assert read_peak_rss_bytes(tmp_path) is None
