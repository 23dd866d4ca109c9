"""Nothing without a reader: each field that is recorded or answered is read somewhere.

A rule, the model, the summary, a chart or a scalar reads it: an attribute, or a
column's name in quotes. What measures and records does not count.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import mmgpu_hooks

PACKAGE = Path(mmgpu_hooks.__file__).parent
MODULES = ('recorded', 'run', 'judged', 'predicted', 'tried', 'memory')

WRITERS = ('schema', 'measure', 'hooks')
SCALARS = PACKAGE / 'hooks' / 'scalars.py'

ANSWERS = {
    'Change': '`recommend --format json`: `changes`',
    'StaticBytes': '`estimate-memory --format json`: `static`',
    'Prediction': '`predict --format json`: `predictions`',
    'SaveCure': '`recommend --format json`: `save_cures`',
    'ValidationOutlook': '`recommend --format json`: `validation`',
    'RankRow': '`recommend --format json`: `ranks`',
    'RanksSummary': '`recommend --format json`: `ranks`',
    'FigureComparison': '`compare --format json`',
    'Why': '`why --format json`',
    'Proof': '`why --format json`',
    'SaveBenchRow': '`save-bench --format json`',
    'SweepRow': '`sweep --format json`',
}
"""Kinds that are printed whole, and where."""


def list_fields() -> Iterator[tuple[str, str]]:
    """Each kind with each of its fields."""
    for name in MODULES:
        module = importlib.import_module(f'mmgpu_hooks.schema.{name}')
        for kind in vars(module).values():
            if getattr(kind, '__module__', None) != module.__name__:
                continue
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                fields = kind.__struct_fields__
            elif dataclasses.is_dataclass(kind):
                fields = tuple(field.name for field in dataclasses.fields(kind))
            else:
                continue
            yield from ((kind.__name__, field) for field in fields)


def find_reads() -> set[str]:
    """Names of all attributes that are read, and of columns in quotes."""
    reads: set[str] = set()
    for path in PACKAGE.rglob('*.py'):
        room = path.relative_to(PACKAGE).parts[0]
        if room in WRITERS and path != SCALARS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                reads.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                reads.update(node.value.split('.'))
    return reads


FIELDS = sorted(set(list_fields()))
# a line of another version is refused by its `schema`, in `schema/lines.py`
READS = {*find_reads(), 'schema'}


def unread(fields: list[tuple[str, str]]) -> list[str]:
    return [
        f'{kind}.{field}'
        for kind, field in fields
        if kind not in ANSWERS and field not in READS
    ]


def test_every_field_has_a_reader():
    assert unread(FIELDS) == []


def test_a_field_without_one_is_found():
    assert unread([('GpuWindow', 'shiny_pct')]) == ['GpuWindow.shiny_pct']


@pytest.mark.parametrize('kind', ANSWERS)
def test_what_is_printed_whole_is_a_kind(kind: str):
    assert kind in {name for name, _ in FIELDS}
