"""Tests that each field of evidence files and JSON answers is read by some code.

A rule, the model, the summary, a chart or a scalar reads it: an attribute, or a
column's name in quotes. What measures and records does not count, but for what reads
the host of a run that is recorded.
"""

from __future__ import annotations

import ast
import importlib
import string
from collections.abc import Iterator
from pathlib import Path

import mmgpu_hooks

PACKAGE = Path(mmgpu_hooks.__file__).parent
MODULES = ('recorded', 'run', 'judged', 'tried', 'memory')

WRITERS = ('schema', 'measure', 'hooks')
READERS = (
    PACKAGE / 'hooks' / 'scalars.py',
    PACKAGE / 'measure' / 'now.py',
    PACKAGE / 'measure' / 'flight_recorder.py',
)

ANSWERS = {
    'Change',
    'LogFigures',
    'TrainingEnd',
    'MendedStart',
    'SavedHours',
    'NextJob',
    'HostSaving',
    'HostOverhead',
    'SaveCure',
    'ValidationOutlook',
    'RankRow',
    'RanksSummary',
    'StaticBytes',
    'Prediction',
    'FigureComparison',
    'Why',
    'Proof',
    'SaveBenchRow',
    'SweepRow',
    # a line of the evidence that is an answer, for who reads many runs
    'VerdictRecord',
}
"""Record classes that ``--format json`` prints completely."""


def list_fields() -> Iterator[tuple[str, str]]:
    """Yields the name of each record class with each of its fields."""
    for name in MODULES:
        module = importlib.import_module(f'mmgpu_hooks.schema.{name}')
        for kind in vars(module).values():
            if getattr(kind, '__module__', None) != module.__name__:
                continue
            fields = getattr(kind, '__struct_fields__', ())
            fields = fields or getattr(kind, '__dataclass_fields__', ())
            yield from ((kind.__name__, field) for field in fields)


def makes_text(function: ast.expr) -> bool:
    """True if a called function is ``phrase``, which makes a text of a template."""
    return getattr(function, 'id', '') == 'phrase'


def find_reads() -> set[str]:
    """Returns all attribute names and quoted column names that the code reads."""
    reads: set[str] = set()
    for path in PACKAGE.rglob('*.py'):
        package = path.relative_to(PACKAGE).parts[0]
        if package in WRITERS and path not in READERS:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                reads.add(node.attr)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                reads.update(node.value.split('.'))
            elif isinstance(node, ast.Call) and makes_text(node.func):
                # figures are taken from a record by their names in the template
                parsed = string.Formatter().parse(ast.literal_eval(node.args[0]))
                reads.update(name for _, name, _, _ in parsed if name)
    return reads


FIELDS = sorted(set(list_fields()))
# a line of another version is refused by its `schema`, in `schema/lines.py`
READS = {*find_reads(), 'schema'}


def test_every_field_has_a_reader():
    assert {'num_workers', 'iter_s', 'data_wait_s'} <= {field for _, field in FIELDS}
    assert [
        f'{kind}.{field}'
        for kind, field in FIELDS
        if kind not in ANSWERS and field not in READS
    ] == []
