"""What the lines of an evidence file hold, gathered in their order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from mmgpu_hooks.evidence.codec import Line
from mmgpu_hooks.evidence.lines import decode_text
from mmgpu_hooks.evidence.parser import LineError, parse_line, parse_schema
from mmgpu_hooks.evidence.row_decoder import decode_interval, decode_row
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.records import SCHEMA_VERSION, IntervalRecord


@dataclass
class Findings:
    """All of a file."""

    intervals: list[IntervalRecord] = field(default_factory=list)
    records: list[tuple[int, Line]] = field(default_factory=list)
    """All others, with the numbers of their lines."""
    bad: list[tuple[int, str]] = field(default_factory=list)
    """Lines that are none of ours: number, and why."""
    is_torn: bool = False
    """Whether the last line was not written to its end."""


class Gathering:
    """Gathers what lines hold.

    Args:
        path: The file, for what is said of it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.found = Findings()

    def take_all(self, lines: Iterable[tuple[int, int, bytes]]) -> None:
        """Take all lines there are.

        Args:
            lines: Number, offset and bytes each.

        Raises:
            EvidenceError: If they were written in a newer schema.
        """
        for number, offset, line in lines:
            # checked first: the record itself is decoded unchecked
            interval = decode_row(line) and decode_interval(line)
            if interval is None:
                self._take(number, offset, line)
            else:
                self.found.intervals.append(interval)

    def _take(self, number: int, offset: int, line: bytes) -> None:
        """Take a line that is no interval, or one that only the parser understands."""
        if line.isspace():
            return
        text = decode_text(line, offset)
        schema = parse_schema(text) if '"schema"' in text else None
        if schema is not None and schema > SCHEMA_VERSION:
            raise EvidenceError(
                f'{self._path}: expected evidence of schema {SCHEMA_VERSION} or older, '
                f'found schema {schema}; install a newer mmgpu_hooks to read it.'
            )
        try:
            record = parse_line(text)
        except LineError as error:
            if line.endswith(b'\n'):
                self.found.bad.append((number, str(error)))
            else:
                self.found.is_torn = True
            return
        if isinstance(record, IntervalRecord):
            self.found.intervals.append(record)
        elif record is not None:
            self.found.records.append((number, record))
