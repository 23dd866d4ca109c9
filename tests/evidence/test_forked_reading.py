"""Several processes find in a file what one finds."""

from __future__ import annotations

import json
import multiprocessing
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from fakes.holey_runs import write_holey
from fakes.runs import make_run
from mmgpu_hooks.evidence import forked_reading
from mmgpu_hooks.evidence.codec import render_line
from mmgpu_hooks.evidence.interval_log import table_of
from mmgpu_hooks.evidence.reader import read_evidence, read_other_ranks
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.records import RunEvidence, SourceOffRecord, UnknownRecord
from mmgpu_hooks.telemetry.host.limits import fold_usable_cores

COUNT = 300


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The processes that a test starts; short files are shared too."""
    begun: list[object] = []
    context = multiprocessing.get_context('fork')

    class Process(context.Process):
        def start(self) -> None:
            begun.append(self)
            super().start()

    monkeypatch.setattr(context, 'Process', Process)
    monkeypatch.setattr(forked_reading, 'LEAST_BYTES', 10_000)
    return begun


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'gpu_efficiency.jsonl'


def columns_of(evidence: RunEvidence) -> list[tuple[object, ...]]:
    columns = table_of(evidence.intervals).whole_columns()
    return [(path, one.kind, list(one)) for path, one in columns.items()]


def write_everything(path: Path) -> None:
    """All kinds of lines all over the file, good ones and bad ones."""
    lines = write_holey(path, 3, COUNT)
    lines[3] = lines[3].replace('"iteration":150', '"iteration":-150')
    lines[140] = 'garbage\n'
    # names that one stretch alone has
    for number, name in ((10, 'EarlyHook'), (270, 'LateHook')):
        body = json.loads(lines[number])
        lines[number] = json.dumps({**body, 'hooks_s': {name: 0.5}}) + '\n'
    # what the fast decoder leaves to the parser
    lines[200] = lines[200].replace('"iteration":', '"iteration":null,"iteration":')
    lines[290] = lines[290].replace('"iteration":', '"iteration":null,"iteration":')
    late = [SourceOffRecord('nvml', 'gone', 14000), UnknownRecord('gpu', 'no card')]
    lines[280:280] = ['\n', *map(render_line, late), '  \n']
    text = '\ufeff' + ''.join(lines)
    path.write_text(text + render_line(late[0])[:20])


@pytest.mark.parametrize('processes', [2, 3, 4])
def test_together_they_find_what_one_finds(path: Path, started, processes: int):
    write_everything(path)
    alone, together = read_evidence(path), read_evidence(path, processes=processes)
    assert len(started) == processes - 1
    assert len(alone.intervals) == COUNT - 2
    assert together == alone
    assert len(together.notes) == 2
    assert [off.iteration for off in together.sources_off] == [14000]
    assert columns_of(together) == columns_of(alone)
    assert {'EarlyHook', 'LateHook'} <= fold_run(together).hooks.keys()
    assert fold_run(together) == fold_run(alone)


def test_lines_are_numbered_through_the_whole_file(path: Path, started):
    lines = write_holey(path, 3, COUNT)
    lines[250:250] = ['\n', 'garbage\n', 'garbage\n']
    path.write_text(''.join(lines))
    read = read_evidence(path, processes=2)
    assert '2 unreadable line(s) skipped, first line 252: not JSON' in read.notes[0]
    path.write_text(''.join([*lines, render_line(make_run())]))
    with pytest.raises(
        EvidenceError, match=r'found 2 runs \(they begin on lines 1, 305'
    ):
        read_evidence(path, processes=3)


def test_a_newer_schema_is_refused_wherever_it_stands(path: Path, started):
    lines = write_holey(path, 3, COUNT)
    path.write_text(''.join(lines) + '{"kind":"run","schema":999}\n')
    with pytest.raises(EvidenceError, match='found schema 999; install a newer'):
        read_evidence(path, processes=2)
    assert not any(one.is_alive() for one in started)


def test_a_process_that_dies_is_done_without(path: Path, started, monkeypatch):
    write_everything(path)
    send = forked_reading._send_stretch

    class Torn:
        """A pipe into which half of the columns go."""

        def __init__(self, pipe) -> None:
            self._pipe, self._left = pipe, 40

        def send(self, message) -> None:
            self._left -= 1
            if not self._left:
                multiprocessing.current_process().kill()
            self._pipe.send(message)

    monkeypatch.setattr(
        forked_reading,
        '_send_stretch',
        lambda reader, pipe, *rest: send(reader, Torn(pipe), *rest),
    )
    assert read_evidence(path, processes=2) == read_evidence(path)
    assert len(started) == 1


def test_a_process_that_fails_says_nothing(path: Path, started, monkeypatch, capfd):
    write_everything(path)
    alone = read_evidence(path)

    def fail(*_: object) -> None:
        if multiprocessing.parent_process() is not None:
            raise MemoryError
        raise AssertionError('a stretch beyond the first is for a child')

    read = forked_reading.read_stretch
    monkeypatch.setattr(
        forked_reading,
        'read_stretch',
        lambda path, begin, end: fail() if begin else read(path, begin, end),
    )
    found = read_evidence(path, processes=2)
    assert len(started) == 1
    assert columns_of(found) == columns_of(alone)
    assert capfd.readouterr().err == ''


def test_without_its_parent_a_process_ends(path: Path, started):
    write_everything(path)
    with forked_reading._forked(path, 0, None) as pipe:
        pipe.close()
        # as when the parent is killed: nobody takes what it sends
        (process,) = started
        process.join(30)
        assert process.exitcode == 0


def test_other_ranks_are_shared_too(path: Path, started):
    write_holey(path, 3, COUNT)
    ranks, notes = read_other_ranks([path], processes=2)
    assert (len(ranks), notes, len(started)) == (1, [], 1)


def test_a_short_file_is_read_by_one(path: Path, started, monkeypatch):
    monkeypatch.setattr(forked_reading, 'LEAST_BYTES', 2**24)
    write_holey(path, 3, 20)
    read_evidence(path, processes=4)
    assert started == []


def test_beside_other_threads_nothing_is_forked(path: Path, started):
    write_holey(path, 3, COUNT)
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        read = read_evidence(path, processes=2)
    finally:
        done.set()
        thread.join()
    assert (len(read.intervals), started) == (COUNT, [])


def test_training_reads_alone(path: Path, started):
    write_holey(path, 3, COUNT)
    read_evidence(path)
    read_evidence(path, newest_bytes=100_000, processes=2)
    assert started == []


def test_a_file_that_is_missing_is_named(path: Path):
    with pytest.raises(EvidenceError, match='expected a readable evidence file'):
        read_evidence(path, processes=2)


@pytest.mark.parametrize(
    ('affinity', 'quota', 'expected'),
    [(1, None, 1), (3, None, 3), (64, None, 4), (64, 2.5, 2), (64, 0.5, 1)],
)
def test_as_many_processes_as_cores_that_may_be_used(
    monkeypatch: pytest.MonkeyPatch,
    affinity: int,
    quota: float | None,
    expected: int,
):
    cores = fold_usable_cores(
        logical_cpus=64,
        affinity_cpus=affinity,
        cgroup_cpu_cores=quota,
        slurm_cpus=None,
        ranks_on_host=1,
    )
    limits = SimpleNamespace(usable_cores=cores)
    monkeypatch.setattr(forked_reading, 'read_host_limits', lambda **_: limits)
    assert forked_reading.count_processes() == expected
