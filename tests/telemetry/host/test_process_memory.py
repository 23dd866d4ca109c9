from __future__ import annotations

import sys

import pytest

from mmgpu_hooks.telemetry.host.process_memory import read_process_rss_bytes

psutil = pytest.importorskip('psutil')


def test_memory_that_is_touched_is_seen():
    before = read_process_rss_bytes()
    block = bytearray(b'x') * (64 << 20)
    after = read_process_rss_bytes()
    assert before is not None and after is not None
    assert after - before > 32 << 20
    del block


def test_without_psutil_it_is_unknown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, 'psutil', None)
    assert read_process_rss_bytes() is None


@pytest.mark.parametrize('error', [psutil.AccessDenied(), OSError('hidden')])
def test_what_the_platform_hides_is_unknown(
    monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def refuse(self: object) -> None:
        raise error

    monkeypatch.setattr(psutil.Process, 'memory_info', refuse)
    assert read_process_rss_bytes() is None
