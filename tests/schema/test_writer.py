from __future__ import annotations

import os
from pathlib import Path

import pytest

from fakes.runs import make_interval, make_run
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.writer import EvidenceWriter


def test_records_are_appended_and_readable_at_once(tmp_path: Path):
    path = tmp_path / 'new' / 'gpu_efficiency.jsonl'
    writer = EvidenceWriter(path)
    writer.write(make_run())
    writer.write(make_interval())
    # read before close: a run that is killed now has left both lines
    assert path.read_bytes() == encode_line(make_run()) + encode_line(make_interval())
    writer.close()
    writer.close()
    with pytest.raises(OSError, match='already closed'):
        writer.write(make_interval())


def test_a_file_system_that_takes_nothing_is_an_error(tmp_path: Path, monkeypatch):
    path = tmp_path / 'gpu_efficiency.jsonl'
    writer, write = EvidenceWriter(path), os.write
    taken = iter([20, 0])
    monkeypatch.setattr(os, 'write', lambda fd, data: write(fd, data[: next(taken)]))
    with pytest.raises(OSError, match='takes no more'):
        writer.write(make_run())
    monkeypatch.undo()
    writer.close()
    assert path.read_bytes() == b''


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(OSError, match=r'exists|directory'):
        EvidenceWriter(tmp_path / 'file' / 'gpu_efficiency.jsonl')
