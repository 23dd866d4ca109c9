"""Reads the first and last records of a run's evidence file, nothing in between.

A verdict is a record, so ``mmgpu runs`` judges nothing: it reads the first line and the
last 64 KiB of each run, more where an hour of intervals lies behind the newest verdict.
"""

from __future__ import annotations

import codecs
import os
from typing import NamedTuple, Optional, Type, TypeVar

from mmgpu_hooks.schema.lines import (
    MOST_LINE_BYTES,
    LineError,
    check_schema,
    decode_line,
)
from mmgpu_hooks.schema.recorded import (
    EndRecord,
    EvidenceLine,
    RunRecord,
    VerdictRecord,
)
from mmgpu_hooks.schema.regular import open_descriptor
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.schema.text import phrase

_HEAD_BYTES = 2**13
_TAILS_BYTES = (2**16, 2**19, 2**22)
"""Numbers of bytes to read from a file's end, in turn until a verdict is found.

A run that is killed has up to an hour of intervals behind its newest verdict: 0.4 MB of
them, as a rule.
"""

RecordT = TypeVar('RecordT', bound=EvidenceLine)

_MARKS: dict[type[EvidenceLine], bytes] = {
    kind: b'{"kind":"%s"' % str(kind.__struct_config__.tag).encode()
    for kind in (EndRecord, VerdictRecord)
}
"""First bytes of a record's line by kind of record, as the hook writes them."""


class FileIdentity(NamedTuple):
    """Device and inode of a file: the same for every path that leads to the file."""

    device: int
    inode: int


class RunEnds(NamedTuple):
    """First and last records of one run's evidence file."""

    identity: FileIdentity
    run: RunRecord
    end: Optional[EndRecord]
    """Record of the training's end; ``None`` while it trains, or if it was killed."""
    verdict: Optional[VerdictRecord]
    """Newest verdict on the run; ``None`` if the file's last 4 MiB have none."""


def read_run_ends(path: str) -> RunEnds:
    """Reads the first and last records of a run's evidence file.

    It takes some 50 us where the file is cached.

    Args:
        path: Evidence of rank 0.

    Raises:
        EvidenceError: If it cannot be read, or does not begin with a run record of this
            schema.
    """
    try:
        descriptor = open_descriptor(path)
    except OSError as error:
        raise EvidenceError(
            path,
            phrase(
                'expected evidence that can be read, found "{strerror}".',
                strerror=error.strerror,
            ),
        ) from error
    try:
        status = os.fstat(descriptor)
        size = status.st_size
        # as a rule all of it
        tail = os.pread(descriptor, _TAILS_BYTES[0], max(size - _TAILS_BYTES[0], 0))
        run = _read_first(path, descriptor, tail if size == len(tail) else b'')
        end, verdict = None, None
        for most_bytes in _TAILS_BYTES:
            if most_bytes > _TAILS_BYTES[0]:
                tail = os.pread(descriptor, most_bytes, max(size - most_bytes, 0))
            verdict = _find_last(tail, VerdictRecord)
            if verdict is not None or most_bytes >= size:
                break
        # it has no more than a verdict behind it
        end = _find_last(tail[-_TAILS_BYTES[0] :], EndRecord)
    except OSError as error:
        raise EvidenceError(
            path,
            phrase(
                'expected evidence that can be read, found "{strerror}".',
                strerror=error.strerror,
            ),
        ) from error
    finally:
        os.close(descriptor)
    return RunEnds(FileIdentity(status.st_dev, status.st_ino), run, end, verdict)


def _read_first(path: str, descriptor: int, whole: bytes) -> RunRecord:
    head = whole or os.pread(descriptor, _HEAD_BYTES, 0)
    if b'\n' not in head:
        head = os.pread(descriptor, MOST_LINE_BYTES, 0)
    line = head[: head.find(b'\n') + 1].removeprefix(codecs.BOM_UTF8)
    try:
        record = decode_line(line)
    except LineError:
        record = None
    if not isinstance(record, RunRecord):
        raise EvidenceError(
            path,
            phrase(
                'expected a run record of GPUEfficiencyHook in its first line, '
                'found none; the file is damaged or not ours.',
            ),
        )
    check_schema(path, record.schema)
    return record


def _find_last(tail: bytes, kind: Type[RecordT]) -> Optional[RecordT]:
    """Finds the last complete record of a kind in an evidence file's last bytes."""
    mark, found = _MARKS[kind], len(tail)
    while (found := tail.rfind(mark, 0, found)) >= 0:
        if found and tail[found - 1 : found] != b'\n':
            continue
        stop = tail.find(b'\n', found)
        try:
            record = decode_line(tail[found : stop if stop >= 0 else len(tail)])
        except LineError:
            continue
        if isinstance(record, kind):
            return record
    return None
