"""Turns records into columns, a few hundred at a time.

Attributes are read and lines turned into columns by functions written in C (attrgetter,
itemgetter, zip, array): a run has tens of millions of figures.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, zip_longest
from operator import attrgetter, itemgetter
from types import SimpleNamespace
from typing import Any, Protocol, Union

from mmgpu_hooks.evidence.column import ColumnBuilder
from mmgpu_hooks.evidence.interval_table import FIGURES, IntervalTable, Path
from mmgpu_hooks.records import IntervalRecord, SlowSample

_CHUNK = 256
_SLOWEST = 5


class TableBuilder:
    """Takes intervals one by one, and keeps their figures only.

    They are `IntervalRecord` or anything with its attributes.
    """

    def __init__(self) -> None:
        self._columns: dict[Path, ColumnBuilder[Any]] = {}
        self._maps: set[Path] = set()
        self._root = self._node(IntervalRecord, _tree(FIGURES), ())
        self._slowest = _Slowest()
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
            self._slowest.add(self._waiting)
            self._rows += len(self._waiting)
            self._waiting = []

    def _node(self, hint: Any, wanted: Mapping[str, Any], path: Path) -> _Node:
        """What takes the values of a field; without ``wanted``, all that is in it."""
        arguments = typing.get_args(hint)
        if typing.get_origin(hint) is Union:
            return self._node(arguments[0], wanted, path)
        if dataclasses.is_dataclass(hint):
            hints = typing.get_type_hints(hint)
            self._columns[path] = presence = ColumnBuilder(bool)
            return _Group(
                presence,
                {
                    name: self._node(hints[name], below, (*path, name))
                    for name, below in (wanted or {each: {} for each in hints}).items()
                },
            )
        if not arguments:
            self._columns[path] = column = ColumnBuilder(hint)
            return column
        self._maps.add(path)
        kind = _List if typing.get_origin(hint) is tuple else _Map
        return kind(
            lambda name: self._node(arguments[kind.item], wanted, (*path, name))
        )


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
        self, presence: ColumnBuilder[bool], nodes: Mapping[str, _Node]
    ) -> None:
        self._presence = presence
        self._nodes = tuple(nodes.values())
        self._get = attrgetter(*nodes)
        self._blank = SimpleNamespace(**dict.fromkeys(nodes))

    def add(self, values: Sequence[Any], row: int) -> None:
        try:
            fields = list(map(self._get, values))
        except AttributeError:
            there = [None if value is None else True for value in values]
            if not any(there):
                return
            blank = self._blank
            fields = [self._get(blank if v is None else v) for v in values]
        else:
            there = [True] * len(values)
        self._presence.add(there, row)
        for node, column in zip(self._nodes, _turn(fields, len(self._nodes))):
            node.add(column, row)


class _Map:
    """Mappings, which usually have the same keys in every interval."""

    item = 1

    def __init__(self, make: Any) -> None:
        self._make = make
        self._nodes: dict[Any, _Node] = {}

    def add(self, values: Sequence[Any], row: int) -> None:
        for name, column in self._usual(values) or self._any(values):
            if name not in self._nodes:
                self._nodes[name] = self._make(name)
            self._nodes[name].add(column, row)

    def _usual(self, values: Sequence[Any]) -> Iterable[tuple[Any, Sequence[Any]]]:
        """Keys and columns if all have the keys of the first; else nothing."""
        try:
            names = tuple(values[0])
            if not names or max(map(len, values)) > len(names):
                return ()
            items = list(map(itemgetter(*names), values))
        except (KeyError, TypeError):
            return ()
        return zip(names, _turn(items, len(names)))

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

    def add(self, records: Iterable[Any]) -> None:
        best = self._by_index
        for record in records:
            for sample in record.workers.slowest if record.workers else ():
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
        return tuple(
            SlowSample(sample.seconds, sample.index, sample.image)
            for sample in self._ordered()
        )


def _turn(lines: Sequence[Any], count: int) -> Iterable[Sequence[Any]]:
    """Lines of ``count`` values as columns; a getter of one gives no tuples."""
    return [lines] if count == 1 else zip(*lines)
