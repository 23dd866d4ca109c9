"""Goes through the lines of an evidence file, or of a part of it."""

from __future__ import annotations

import contextlib
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmgpu_hooks.evidence.codec import Line
from mmgpu_hooks.evidence.column import Span
from mmgpu_hooks.evidence.forked import ForkError, can_run_beside, run_beside
from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.lines import WHOLE, decode_text, read_lines
from mmgpu_hooks.evidence.parser import LineError, parse_line, parse_schema
from mmgpu_hooks.evidence.row_decoder import decode_row
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.evidence.tabulation import TableBuilder
from mmgpu_hooks.records import SCHEMA_VERSION, IntervalRecord

LEAST_SPLIT_BYTES = 2**25
"""Half of a smaller file is read faster than a process is started."""


@dataclass
class Scan:
    """What the lines said."""

    lines: int = 0
    offsets: array[int] = field(default_factory=lambda: array('Q'))
    """Where the intervals begin that went into the table, in bytes."""
    records: list[tuple[int, Line]] = field(default_factory=list)
    """Everything else, with the number of its line."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Lines that could not be read, and why."""
    torn: bool = False
    """Whether the last line is half a line."""

    def append(self, later: Scan) -> None:
        """Add what the part behind this one said, whose lines are numbered from 1."""
        before = self.lines
        self.lines += later.lines
        self.offsets += later.offsets
        self.records += [(before + number, record) for number, record in later.records]
        self.bad += [(before + number, error) for number, error in later.bad]
        self.torn = self.torn or later.torn


def scan_file(
    path: Path, newest_bytes: int | None = None, fork: bool = False
) -> tuple[Scan, IntervalTable]:
    """Go through a file; see `read_evidence` for the arguments and what it raises."""
    if fork and newest_bytes is None and can_run_beside():
        # whatever goes wrong beside is met again, and said, in this process
        with contextlib.suppress(ForkError, OSError):
            if path.stat().st_size >= LEAST_SPLIT_BYTES:
                return _scan_halves(path, path.stat().st_size // 2)
    table = TableBuilder()
    return scan_lines(path, table, newest_bytes), table.build()


def _scan_halves(path: Path, middle: int) -> tuple[Scan, IntervalTable]:
    """The second half in a process beside this one, which sends back its columns."""
    table = TableBuilder()
    with run_beside(lambda: _scan_in_pieces(path, (middle, sys.maxsize))) as pieces:
        scan = scan_lines(path, table, part=(0, middle))
        scan.append(next(pieces))
        table.append(pieces)
    return scan, table.build()


def _scan_in_pieces(path: Path, part: Span) -> Iterator[Any]:
    table = TableBuilder()
    yield scan_lines(path, table, part=part)
    yield from table.pieces()


def scan_lines(
    path: Path,
    table: TableBuilder,
    newest_bytes: int | None = None,
    part: Span = WHOLE,
) -> Scan:
    """Go through lines of a file, one after the other.

    Args:
        path: The file.
        table: Takes the intervals.
        newest_bytes: As of `read_lines`.
        part: Likewise.

    Raises:
        EvidenceError: If it cannot be read or was written in a newer schema.
    """
    scan = Scan()
    for number, offset, line in read_lines(path, newest_bytes, part):
        scan.lines = number
        record = decode_row(line)
        if record is None:
            if line.isspace():
                continue
            text = decode_text(line, offset)
            _check_schema(path, text)
            try:
                record = parse_line(text)
            except LineError as error:
                if line.endswith(b'\n'):
                    scan.bad.append((number, str(error)))
                else:
                    scan.torn = True
                continue
            if record is None:
                continue
            if not isinstance(record, IntervalRecord):
                scan.records.append((number, record))
                continue
            # what the fast decoder does not take may yet be a good line
        scan.offsets.append(offset)
        table.add(record)
    return scan


def _check_schema(path: Path, text: str) -> None:
    schema = parse_schema(text) if '"schema"' in text else None
    if schema is not None and schema > SCHEMA_VERSION:
        raise EvidenceError(
            f'{path}: expected evidence of schema {SCHEMA_VERSION} or older, '
            f'found schema {schema}; install a newer mmgpu_hooks to read it.'
        )
