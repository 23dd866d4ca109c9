"""Turns records into columns, a few hundred at a time.

Fields are read and lines turned into columns by functions written in C (astuple,
zip, struct): a run has tens of millions of figures.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Any, Protocol, Union

from msgspec.structs import astuple

from mmgpu_hooks.evidence.column import ColumnBuilder
from mmgpu_hooks.evidence.interval_table import FIGURES, IntervalTable, Path
from mmgpu_hooks.schema import IntervalRecord, SlowSample

_CHUNK = 256
_SLOWEST = 5
_SLOWEST_PATH = 'workers', 'slowest'


class TableBuilder:
    """Takes intervals one by one, and keeps their figures only.

    They are `IntervalRecord` or anything with its attributes.
    """

    def __init__(self) -> None:
        self._columns: dict[Path, ColumnBuilder[Any]] = {}
        self._maps: set[Path] = set()
        self._slowest = _Slowest()
        wanted = _tree((*FIGURES, '.'.join(_SLOWEST_PATH)))
        self._root = self._node(IntervalRecord, wanted, ())
        self._waiting: list[Any] = []
        self._rows = 0

    def add(self, record: Any) -> None:
        """Take one interval."""
        self._waiting.append(record)
        if len(self._waiting) == _CHUNK:
            self._take_waiting()

    def build(self) -> IntervalTable:
        """The table of what was taken."""
        self._take_waiting()
        columns = {
            path: builder.build(self._rows) for path, builder in self._columns.items()
        }
        return IntervalTable(columns, self._maps, self._rows, self._slowest.samples())

    def _take_waiting(self) -> None:
        if self._waiting:
            self._root.add(self._waiting, self._rows)
            self._rows += len(self._waiting)
            self._waiting = []

    def _node(self, hint: Any, wanted: Mapping[str, Any], path: Path) -> _Node:
        """What takes the values of a field; without ``wanted``, all that is in it."""
        arguments = typing.get_args(hint)
        if path == _SLOWEST_PATH:
            return self._slowest
        if typing.get_origin(hint) is Union:
            return self._node(arguments[0], wanted, path)
        if hasattr(hint, '__struct_fields__'):
            hints = typing.get_type_hints(hint)
            return _Group(
                hint,
                self._column(path, bool),
                {
                    name: self._node(hints[name], below, (*path, name))
                    for name, below in (wanted or {each: {} for each in hints}).items()
                },
            )
        if not arguments:
            return self._column(path, hint)
        self._maps.add(path)
        kind = _List if typing.get_origin(hint) is tuple else _Map
        return kind(
            lambda name: self._node(arguments[kind.item], wanted, (*path, name))
        )

    def _column(self, path: Path, kind: type[Any]) -> ColumnBuilder[Any]:
        if path not in self._columns:
            self._columns[path] = ColumnBuilder(kind)
        return self._columns[path]


def tabulate(intervals: Iterable[Any]) -> IntervalTable:
    """The table of some intervals."""
    builder = TableBuilder()
    for record in intervals:
        builder.add(record)
    return builder.build()


def _tree(figures: Iterable[str]) -> dict[str, Any]:
    """``a.b`` and ``a.c`` as ``{a: {b: {}, c: {}}}``."""
    root: dict[str, Any] = {}
    for figure in figures:
        below = root
        for name in figure.split('.'):
            below = below.setdefault(name, {})
    return root


class _Node(Protocol):
    def add(self, values: Sequence[Any], row: int) -> None:
        """Add a value per interval, ``None`` where it is unknown, from a row on."""


class _Group:
    """Records of one class, and whether there is one."""

    def __init__(
        self,
        record: Any,
        presence: ColumnBuilder[bool],
        nodes: Mapping[str, _Node],
    ) -> None:
        self._presence = presence
        names = list(record.__struct_fields__)
        self._nodes = [(names.index(name), node) for name, node in nodes.items()]
        # no record has one field only, of which a getter would give no tuple
        self._get = attrgetter(*names)
        self._unpack_row = astuple
        self._blank = (None,) * len(names)

    def add(self, values: Sequence[Any], row: int) -> None:
        there: list[bool | None] = [True] * len(values)
        try:
            fields = list(map(self._unpack_row, values))
        except TypeError:
            there = [None if value is None else True for value in values]
            if not any(there):
                return
            blank, get = self._blank, self._get
            fields = [blank if value is None else get(value) for value in values]
        self._presence.add(there, row)
        columns = list(zip(*fields))
        for place, node in self._nodes:
            node.add(columns[place], row)


class _Map:
    """Mappings, which usually have the same keys in every interval."""

    item = 1

    def __init__(self, make: Any) -> None:
        self._make = make
        self._nodes: dict[Any, _Node] = {}

    def add(self, values: Sequence[Any], row: int) -> None:
        for name, column in self._alike(values) or self._any(values):
            if name not in self._nodes:
                self._nodes[name] = self._make(name)
            self._nodes[name].add(column, row)

    def _alike(self, values: Sequence[Any]) -> Iterable[tuple[Any, Sequence[Any]]]:
        """Keys and columns if all have the keys of the first; else nothing."""
        try:
            names, *others = map(tuple, values)
        except TypeError:
            return ()
        if others.count(names) < len(others):
            return ()
        return zip(names, zip(*(value.values() for value in values)))

    def _any(self, values: Sequence[Any]) -> Iterable[tuple[Any, Sequence[Any]]]:
        there = [value or {} for value in values]
        for name in dict.fromkeys(chain.from_iterable(there)):
            yield name, [value.get(name) for value in there]


class _List:
    """Lists, by position."""

    item = 0

    def __init__(self, make: Any) -> None:
        self._make = make
        self._nodes: list[_Node] = []

    def add(self, values: Sequence[Any], row: int) -> None:
        for position, column in enumerate(zip_longest(*(v or () for v in values))):
            if position == len(self._nodes):
                self._nodes.append(self._make(position))
            self._nodes[position].add(column, row)


class _Slowest:
    """The slowest samples so far, each index of the data set once."""

    def __init__(self) -> None:
        self._by_index: dict[int, Any] = {}
        self._floor_s = -1.0

    def add(self, values: Sequence[Any], row: int) -> None:
        best = self._by_index
        for sample in chain.from_iterable(filter(None, values)):
            if sample.seconds <= self._floor_s:
                continue
            known = best.get(sample.index)
            if known is None or known.seconds < sample.seconds:
                best[sample.index] = sample
        ordered = self._ordered()
        for sample in ordered[_SLOWEST:]:
            del best[sample.index]
        if len(best) == _SLOWEST:
            self._floor_s = ordered[_SLOWEST - 1].seconds

    def _ordered(self) -> list[Any]:
        return sorted(self._by_index.values(), key=lambda sample: -sample.seconds)

    def samples(self) -> tuple[SlowSample, ...]:
        return tuple(self._ordered())
