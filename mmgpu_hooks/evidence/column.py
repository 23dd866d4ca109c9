"""One figure over the intervals of a run, eight bytes each."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, Generic, TypeVar

_T = TypeVar('_T')

Span = tuple[int, int]
"""First row and the one after the last."""

_CODES: dict[Any, str] = {float: 'd', int: 'q', bool: 'b'}


class Column(Generic[_T]):
    """Values of one kind, of which some may be unknown.

    Args:
        kind: ``float``, ``int``, ``bool`` or ``str``.
        values: One for each interval; the kind's zero where it is unknown.
        known: 1 or 0 for each; ``None`` when all are known.
    """

    __slots__ = ('_values', 'kind', 'known')

    def __init__(
        self,
        kind: type[_T],
        values: Iterable[_T],
        known: bytes | bytearray | None = None,
    ) -> None:
        self.kind = kind
        self._values = _pack(kind, values)
        self.known = known

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[_T | None]:
        if self.known is None:
            return iter(self._values)
        return (v if known else None for v, known in zip(self._values, self.known))

    def filled(self) -> Sequence[_T]:
        """All of them, with 0 (of words, '') where nothing is known."""
        filled: Sequence[_T] = self._values
        return filled

    def known_values(self) -> Iterable[_T]:
        """Those that are known."""
        return self.of_known(self._values)

    def of_known(self, others: Iterable[Any]) -> Iterable[Any]:
        """Those of other values, one for each interval, where this one is known."""
        return others if self.known is None else compress(others, self.known)

    @property
    def is_known(self) -> bool:
        """Whether any of them is."""
        return len(self) > 0 and (self.known is None or any(self.known))

    @property
    def is_complete(self) -> bool:
        """Whether all of them are, and there are some."""
        return len(self) > 0 and (self.known is None or all(self.known))

    def within(self, spans: Sequence[Span]) -> Column[_T]:
        """The intervals of some spans, joined."""
        values = _pack(self.kind, ())
        for begin, end in spans:
            values.extend(self._values[begin:end])
        if self.known is None:
            return Column(self.kind, values)
        return Column(self.kind, values, b''.join(self.known[a:b] for a, b in spans))

    def take(self, rows: Sequence[int]) -> Column[_T]:
        """The intervals with these numbers, in this order."""
        values = map(self._values.__getitem__, rows)
        if self.known is None:
            return Column(self.kind, values)
        return Column(self.kind, values, bytes(map(self.known.__getitem__, rows)))


class ColumnBuilder(Generic[_T]):
    """Takes the values of a column, many at a time.

    Args:
        kind: As of `Column`.
    """

    def __init__(self, kind: type[_T]) -> None:
        self._kind = kind
        self._values: Any = _pack(kind, ())
        self._known: bytearray | None = None
        self._words: dict[Any, Any] = {}

    def add(self, values: Sequence[_T | None], row: int) -> None:
        """Add values from a row on; those of rows passed over are unknown."""
        self._pad(row)
        try:
            self._extend(values)
        except (TypeError, struct.error):
            self._mark([v is not None for v in values])
            self._extend([self._kind() if v is None else v for v in values])
        else:
            if self._known is not None:
                self._known.extend(b'\1' * len(values))

    def build(self, length: int) -> Column[_T]:
        """The column of so many intervals; the builder has done its work."""
        self._pad(length)
        return Column(self._kind, self._values, self._known)

    def _pad(self, length: int) -> None:
        missing = length - len(self._values)
        if missing > 0:
            self._mark(bytes(missing))
            self._values.extend(_pack(self._kind, [self._kind()]) * missing)

    def _mark(self, known: Iterable[int]) -> None:
        if self._known is None:
            self._known = bytearray(b'\1') * len(self._values)
        self._known.extend(known)

    def _extend(self, values: Sequence[Any]) -> None:
        if self._kind is not str:
            # three times as fast as giving them to the array
            form = f'{len(values)}{_CODES[self._kind]}'
            self._values.frombytes(struct.pack(form, *values))
            return
        if None in values:
            raise TypeError
        # a run has few different words: keep each once
        self._values.extend([self._words.setdefault(word, word) for word in values])


def find_spans(mask: Iterable[Any]) -> list[Span]:
    """Where a mask is true."""
    marks = bytes(map(bool, mask))
    spans = []
    begin = marks.find(1)
    while begin >= 0:
        end = marks.find(0, begin)
        if end < 0:
            end = len(marks)
        spans.append((begin, end))
        begin = marks.find(1, end)
    return spans


def _pack(kind: Any, values: Any) -> Any:
    """Values as a column holds them, the very same ones if they are that already."""
    if kind is str:
        return values if isinstance(values, list) else list(values)
    return values if isinstance(values, array) else array(_CODES[kind], values)
