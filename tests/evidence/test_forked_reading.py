from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.long_run import make_intervals, make_run
from mmgpu_hooks.evidence import forked, scan
from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.evidence.forked import ForkError, run_beside
from mmgpu_hooks.evidence.reader import read_evidence
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.records import UnknownRecord


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Splits any file, on a machine with one CPU too; the forks made."""
    made: list[int] = []
    fork = os.fork

    def fork_and_note() -> int:
        made.append(fork())
        return made[-1]

    monkeypatch.setattr(scan, 'LEAST_SPLIT_BYTES', 0)
    monkeypatch.setattr(scan, 'can_run_beside', lambda: True)
    monkeypatch.setattr(forked, '_fork', fork_and_note)
    return made


def write_lines(path: Path, odd: list[str], at: int) -> None:
    """A run with some odd lines among its 60 intervals."""
    intervals = [render_line(r) for r in make_intervals(random.Random(at), 60)]
    # a hook and a reason for throttling that half of the run does not know
    late = intervals[30:]
    late = [line.replace('EMAHook', 'LateHook') for line in late]
    lines = [render_line(make_run(path)), *intervals[:30], *late]
    path.write_text(''.join([*lines[:at], *odd, *lines[at:]]) + lines[-1][:99])


@pytest.mark.parametrize('at', [1, 20, 29, 30, 31, 32, 40, 61])
def test_a_file_read_in_two_halves_is_the_same(tmp_path: Path, forks, at: int):
    path = tmp_path / 'evidence.jsonl'
    unknown = render_line(UnknownRecord('gpu', f'because of {at}'))
    write_lines(path, ['\n', unknown, 'garbage\n', '\n'], at)
    whole, halves = read_evidence(path), read_evidence(path, fork=True)
    assert len(forks) == 1
    assert len(halves.intervals) == 60
    assert halves == whole
    assert fold_run(halves) == fold_run(whole)
    assert f'first line {at + 3}: not JSON' in halves.notes[1]


def test_a_run_record_of_the_second_half_is_found_there(tmp_path: Path, forks):
    path = tmp_path / 'evidence.jsonl'
    write_lines(path, ['\n', render_line(make_run(path))], 50)
    with pytest.raises(EvidenceError, match='begin on lines 1, 52'):
        read_evidence(path, fork=True)
    assert len(forks) == 1


def test_an_error_of_the_second_half_is_the_same(tmp_path: Path, forks):
    path = tmp_path / 'evidence.jsonl'
    write_lines(path, ['{"kind":"run","schema":99}\n'], 50)
    with pytest.raises(EvidenceError, match='found schema 99'):
        read_evidence(path, fork=True)


def test_what_a_killed_fork_had_to_read_is_read_here(
    tmp_path: Path, forks, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / 'evidence.jsonl'
    write_lines(path, [], 1)
    whole = read_evidence(path)
    monkeypatch.setattr(scan, '_scan_in_pieces', kill_in_the_middle)
    assert read_evidence(path, fork=True) == whole
    assert len(forks) == 1


def kill_in_the_middle(*_: Any) -> Iterator[Any]:
    yield scan.Scan()
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_training_reads_without_a_fork(tmp_path: Path, forks):
    path = tmp_path / 'evidence.jsonl'
    write_lines(path, [], 1)
    read_evidence(path)
    read_evidence(path, newest_bytes=2**20)
    assert not forks


def test_no_fork_outlives_its_context(forks, capfd: pytest.CaptureFixture[str]):
    def fail() -> Iterator[int]:
        yield 1
        raise ValueError('not for the terminal')

    with run_beside(lambda: iter([1, 2])) as pieces:
        assert list(pieces) == [1, 2]
    with run_beside(lambda: iter(range(10**9))) as pieces:
        assert next(pieces) == 0
    with run_beside(fail) as pieces, pytest.raises(ForkError):
        list(pieces)
    for pid in forks:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert capfd.readouterr().err == ''
