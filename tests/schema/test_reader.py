from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_interval,
    make_run,
    render_evidence,
)
from mmgpu_hooks.schema.lines import MOST_LINE_BYTES, encode_line
from mmgpu_hooks.schema.recorded import Line, SourceOffRecord
from mmgpu_hooks.schema.run import (
    read_evidence,
    read_other_ranks,
)
from mmgpu_hooks.schema.run_folder import EvidenceError


def render_line(record: Line) -> str:
    return encode_line(record).decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'gpu_efficiency.jsonl'


def test_a_torn_last_line_is_skipped_counted_and_said(path: Path):
    text = render_line(make_run()) + render_line(make_interval())
    path.write_text(text + render_line(make_interval(1))[:200])
    read = read_evidence(path)
    assert len(read.intervals) == 1
    assert read.end is None
    assert len(read.notes) == 1
    assert '1 torn last line skipped' in read.notes[0]


def test_garbage_lines_are_skipped_counted_and_said(path: Path):
    lines = [render_line(make_run()), 'garbage\n', render_line(make_interval()), '{}\n']
    path.write_text(''.join(lines))
    read = read_evidence(path)
    assert len(read.intervals) == 1
    assert (
        '2 unreadable lines skipped, first line 2: JSON is malformed' in read.notes[0]
    )


def test_a_line_without_an_end_is_not_read_whole(path: Path):
    path.write_text(render_line(make_run()) + render_line(make_interval()))
    with path.open('ab') as file:
        file.truncate(2**28)
    tracemalloc.start()
    read = read_evidence(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(read.intervals), len(read.notes)) == (1, 1)
    assert '1 torn last line skipped' in read.notes[0]
    assert peak < 2**26


def test_a_line_that_is_too_long_costs_no_other(path: Path):
    line = '"' + 'x' * (2 * MOST_LINE_BYTES) + '"\n'
    text = render_line(make_run()) + line + render_line(make_interval())
    path.write_text(text)
    read = read_evidence(path)
    assert len(read.intervals) == 1
    assert '1 unreadable line skipped, first line 2' in read.notes[0]


def test_a_pipe_is_refused_and_not_waited_for(path: Path):
    os.mkfifo(path)
    with pytest.raises(EvidenceError, match='expected a regular file'):
        read_evidence(path)
    ranks, notes = read_other_ranks([path])
    assert (ranks, len(notes)) == ([], 1)


@pytest.mark.parametrize('text', ['', 'garbage\n', render_line(make_interval())])
def test_a_file_without_a_run_is_refused(path: Path, text: str):
    path.write_text(text)
    with pytest.raises(EvidenceError, match='expected a run record'):
        read_evidence(path)


def test_a_newer_schema_is_refused(path: Path):
    body = json.loads(render_line(make_run()))
    path.write_text(json.dumps({**body, 'schema': 99, 'host': 'another form'}) + '\n')
    with pytest.raises(EvidenceError, match=r'found schema 99; install a newer'):
        read_evidence(path)


def test_two_runs_in_one_file_are_refused(path: Path):
    evidence = make_evidence(1)
    second = render_line(make_run(pid=2))
    path.write_text(render_evidence(evidence) + second)
    with pytest.raises(EvidenceError, match=r'found 2 runs .*lines 1, 4'):
        read_evidence(path)


def test_a_byte_order_mark_is_no_damage(path: Path):
    text = render_evidence(make_evidence(1))
    path.write_text(text, encoding='utf-8-sig')
    assert read_evidence(path).notes == ()


def test_all_kinds_of_records_come_back(path: Path):
    off = SourceOffRecord(source='GPU', reason='GPU is lost', iteration=40)
    evidence = make_evidence(2)
    path.write_text(render_evidence(evidence) + render_line(off))
    read = read_evidence(path)
    assert read == replace(evidence, path=str(path), sources_off=(off,))


def test_a_bad_file_of_another_rank_costs_that_rank_only(tmp_path: Path):
    paths = [tmp_path / name for name in ('good', 'bad', 'gone')]
    paths[0].write_text(render_evidence(make_evidence(2)))
    paths[1].write_text('garbage\n')
    ranks, notes = read_other_ranks(paths)
    assert len(ranks) == 1
    assert len(ranks[0].intervals) == 2
    assert [note.split(':')[0] for note in notes] == ['Left out', 'Left out']
