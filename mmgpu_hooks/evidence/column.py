"""One figure over the intervals of a run, eight bytes each."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any, Generic, TypeVar

_T = TypeVar('_T')

_CODES: dict[Any, str] = {float: 'd', int: 'q', bool: 'b'}


class Column(Generic[_T]):
    """Values of one kind, of which some may be unknown.

    Args:
        kind: ``float``, ``int``, ``bool`` or ``str``.
        values: One for each interval; anything where it is unknown.
        known: 1 or 0 for each; ``None`` when all are known.
    """

    __slots__ = ('_words', 'kind', 'known', 'values')

    def __init__(
        self,
        kind: type[_T],
        values: Iterable[_T] = (),
        known: bytearray | None = None,
    ) -> None:
        self.kind = kind
        self.values: Any = _store(kind, values)
        self.known = known
        self._words: dict[Any, Any] = {}

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[_T | None]:
        if self.known is None:
            return iter(self.values)
        return (v if known else None for v, known in zip(self.values, self.known))

    def extend(self, values: Sequence[_T | None]) -> None:
        """Add values at the end."""
        try:
            part = self._pack(values)
        except TypeError:
            # the kind's zero stands where nothing is known
            part = self._pack([self.kind() if v is None else v for v in values])
            self._grow_mask([v is not None for v in values])
        else:
            if self.known is not None:
                self._grow_mask([True] * len(values))
        self.values.extend(part)

    def pad(self, length: int) -> None:
        """Add unknown ones up to a length."""
        missing = length - len(self.values)
        if missing > 0:
            self._grow_mask([False] * missing)
            self.values.extend(_store(self.kind, [self.kind()]) * missing)

    def known_values(self) -> Iterable[_T]:
        """Those that are known."""
        values: Iterable[_T] = self.values
        return values if self.known is None else compress(values, self.known)

    @property
    def is_known(self) -> bool:
        """Whether any of them is."""
        return len(self.values) > 0 if self.known is None else any(self.known)

    @property
    def is_complete(self) -> bool:
        """Whether all of them are, and there are some."""
        return len(self.values) > 0 and (self.known is None or all(self.known))

    def filled(self) -> Sequence[_T]:
        """All of them, with 0 (of words, '') where nothing is known."""
        filled: Sequence[_T] = self.values
        return filled

    def of_known(self, others: Iterable[Any]) -> Iterable[Any]:
        """Those of other values, one for each interval, where this one is known."""
        return others if self.known is None else compress(others, self.known)

    def where(self, mask: Sequence[Any]) -> Column[_T]:
        """The intervals for which a mask is true."""
        known = self.known and bytearray(compress(self.known, mask))
        return Column(self.kind, compress(self.values, mask), known)

    def take(self, rows: Sequence[int]) -> Column[_T]:
        """The intervals with these numbers, in this order."""
        known = self.known and bytearray(map(self.known.__getitem__, rows))
        return Column(self.kind, map(self.values.__getitem__, rows), known)

    def after(self, count: int) -> Column[_T]:
        """All but the first ``count`` intervals."""
        return Column(self.kind, self.values[count:], self.known and self.known[count:])

    def _pack(self, values: Sequence[Any]) -> Any:
        if self.kind is not str:
            return array(_CODES[self.kind], values)
        if None in values:
            raise TypeError
        # a run has few different words: keep each once
        return [self._words.setdefault(word, word) for word in values]

    def _grow_mask(self, more: Iterable[bool]) -> None:
        if self.known is None:
            self.known = bytearray(b'\1') * len(self.values)
        self.known.extend(more)


def _store(kind: Any, values: Iterable[Any]) -> Any:
    return list(values) if kind is str else array(_CODES[kind], values)
