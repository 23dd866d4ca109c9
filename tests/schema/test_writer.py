from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def full_disk_at(size: int) -> Iterator[None]:
    """Files of this process grow no larger; pytest's own output must not meet it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_leaves_no_half_line(tmp_path: Path):
    path = tmp_path / 'gpu_efficiency.jsonl'
    writer = EvidenceWriter(path)
    writer.write(make_run())
    whole = path.read_bytes()
    failed = pytest.raises(OSError, match=r'part of a record|File too large')
    with failed, full_disk_at(len(whole) + 50):
        writer.write(make_interval())
    assert path.read_bytes() == whole
    writer.close()


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(OSError, match=r'exists|directory'):
        EvidenceWriter(tmp_path / 'file' / 'gpu_efficiency.jsonl')
