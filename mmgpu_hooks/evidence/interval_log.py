"""The intervals of an evidence file, without holding them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, overload

from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.parser import LineError, parse_line
from mmgpu_hooks.evidence.row_decoder import decode_interval
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.evidence.tabulation import tabulate
from mmgpu_hooks.records import IntervalRecord


class IntervalLog(Sequence[IntervalRecord]):
    """Records that are decoded from the file whenever they are asked for.

    One takes some 20 microseconds, so folding is done on :attr:`table`, which was made
    as the file was read.

    Args:
        path: The file, to which lines may have been appended since.
        offsets: Where the line of each interval begins, in bytes.
        table: The figures of all of them.

    Raises:
        EvidenceError: When records are asked for and the lines are no longer there.
    """

    def __init__(self, path: Path, offsets: array[int], table: IntervalTable) -> None:
        self._path = path
        self._offsets = offsets
        self.table = table

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> IntervalRecord: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[IntervalRecord, ...]: ...

    def __getitem__(
        self, index: int | slice
    ) -> IntervalRecord | tuple[IntervalRecord, ...]:
        if isinstance(index, slice):
            return tuple(self._read(self._offsets[index]))
        return next(self._read([self._offsets[index]]))

    def __iter__(self) -> Iterator[IntervalRecord]:
        return self._read(self._offsets)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == its for mine, its in zip(self, other))

    __hash__ = None  # type: ignore[assignment]

    def _read(self, offsets: Sequence[int]) -> Iterator[IntervalRecord]:
        try:
            with self._path.open('rb') as file:
                for offset in offsets:
                    yield self._decode(file, offset)
        except OSError as error:
            raise self._changed(error.strerror or type(error).__name__) from error

    def _decode(self, file: IO[bytes], offset: int) -> IntervalRecord:
        if file.tell() != offset:
            file.seek(offset)
        line = file.readline()
        found = decode_interval(line)
        if found is None:
            try:
                parsed = parse_line(line.decode('utf-8', 'replace'))
            except LineError as error:
                raise self._changed(str(error)) from error
            if not isinstance(parsed, IntervalRecord):
                raise self._changed('another line')
            found = parsed
        return found

    def _changed(self, found: str) -> EvidenceError:
        return EvidenceError(
            f'{self._path}: expected an interval where one was read before, found '
            f'{found}; the file was changed meanwhile, so run the command again.'
        )


def table_of(intervals: Sequence[IntervalRecord]) -> IntervalTable:
    """The table of a run's intervals, wherever they come from."""
    if isinstance(intervals, IntervalLog):
        return intervals.table
    return tabulate(intervals)
