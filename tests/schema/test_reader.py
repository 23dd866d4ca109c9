from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_interval, make_run, render_evidence
from mmgpu_hooks.schema.lines import MOST_LINE_BYTES, encode_line
from mmgpu_hooks.schema.recorded import EvidenceLine, SourceOffRecord
from mmgpu_hooks.schema.run import read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import EvidenceError


def render_line(record: EvidenceLine) -> str:
    return encode_line(record).decode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'gpu_efficiency.jsonl'


RUN, INTERVAL = render_line(make_run()), render_line(make_interval())
LONG = '"' + 'x' * (2 * MOST_LINE_BYTES) + '"\n'


@pytest.mark.parametrize(
    ('text', 'note'),
    [
        (RUN + INTERVAL + INTERVAL[:200], '1 torn last line skipped'),
        (
            RUN + 'garbage\n' + INTERVAL + '{}\n',
            '2 unreadable lines skipped, first line 2: JSON is malformed',
        ),
        (RUN + LONG + INTERVAL, '1 unreadable line skipped, first line 2'),
        ('\ufeff' + RUN + INTERVAL, ''),
    ],
)
def test_what_is_no_record_is_skipped_counted_and_said(path: Path, text, note):
    path.write_text(text)
    read = read_evidence(path)
    assert (len(read.intervals), read.end) == (1, None)
    assert len(read.notes) == bool(note)
    assert note in ''.join(read.notes)


def test_a_line_without_an_end_is_not_read_whole(path: Path):
    path.write_text(RUN + INTERVAL)
    with path.open('ab') as file:
        file.truncate(2**28)
    tracemalloc.start()
    read = read_evidence(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(read.intervals), len(read.notes)) == (1, 1)
    assert peak < 2**26


def test_a_pipe_is_refused_and_not_waited_for(path: Path):
    os.mkfifo(path)
    with pytest.raises(EvidenceError, match='expected a regular file'):
        read_evidence(path)
    ranks, notes = read_other_ranks([path])
    assert (ranks, len(notes)) == ([], 1)


@pytest.mark.parametrize(
    ('text', 'sentence'),
    [
        ('', 'expected a run record'),
        ('garbage\n', 'expected a run record'),
        (INTERVAL, 'expected a run record'),
        (RUN + INTERVAL + RUN, r'found 2 runs .*lines 1, 3'),
        (
            json.dumps({**json.loads(RUN), 'schema': 99, 'host': 'another form'}),
            r'found schema 99; install a newer',
        ),
        (
            json.dumps({**json.loads(RUN), 'schema': 1, 'gpu': 'of another form'}),
            r'found schema 1 of an older mmgpu_hooks; read it with that version',
        ),
    ],
)
def test_a_file_that_is_not_one_run_is_refused(path: Path, text: str, sentence: str):
    path.write_text(text)
    with pytest.raises(EvidenceError, match=sentence):
        read_evidence(path)


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
