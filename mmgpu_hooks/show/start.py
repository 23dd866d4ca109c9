"""A training's start in words: its parts, and its data sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_pct,
    format_seconds,
    format_sum,
)
from mmgpu_hooks.schema.recorded import START_PARTS, DatasetStart, StartRecord
from mmgpu_hooks.show.document import Section, Table, TableColumn, tabulate

_NAMED = 4
"""Parts in a row of the summary."""

_DATA_SETS: Sequence[TableColumn] = (
    TableColumn('data set', 'kind', str),
    TableColumn('of', 'is_validation', lambda own: 'validation' if own else 'training'),
    TableColumn('annotations', 'file', str),
    TableColumn('size', 'file_bytes', format_bytes),
    TableColumn('in all', 'wall_s', format_seconds),
    TableColumn('reading', 'read_s', format_seconds),
    TableColumn('CPU of it', 'read_cpu_s', format_seconds),
    TableColumn('filtering', 'filter_s', format_seconds),
    TableColumn('serialising', 'serialise_s', format_seconds),
    TableColumn('files', 'files', str),
    TableColumn('samples', 'samples', str),
    TableColumn('in memory', 'bytes', format_bytes),
)


def describe_data_set(start: DatasetStart) -> str:
    """What one data set took, for the log."""
    samples = '' if start.samples is None else f', {start.samples} samples'
    how = 'mapped what is kept of' if start.is_cached else 'loaded'
    named = start.file or start.kind
    return f'{how} {named} in {format_sum(start.wall_s)}{samples}.'


def describe_start(record: StartRecord) -> str:
    """What a start was spent on, for the log."""
    return f'the start took {format_sum(record.wall_s)}: {phrase_parts(record)}.'


def phrase_parts(record: StartRecord, most: int | None = None) -> str:
    """The parts of a start, the largest first.

    Args:
        record: Of the start.
        most: How many are named; ``None`` is all.
    """
    largest = sorted(record.parts_s.items(), key=lambda part: -part[1])[:most]
    parts = (
        f'{START_PARTS.get(name, name)} {format_sum(part_s)}'
        for name, part_s in largest
    )
    return ', '.join(parts)


def phrase_start(run: Run) -> str:
    """A row of the summary; empty where the start is not worth one."""
    record = run.evidence.start
    if record is None or not run.is_start_long:
        return ''
    parts = phrase_parts(record, _NAMED)
    return f'{format_sum(record.wall_s)} to the first iteration: {parts}'


def list_start(run: Run) -> Iterator[Section]:
    """The section on a run's start, where its evidence has it."""
    record = run.evidence.start
    if record is None:
        return
    rows = [
        [
            START_PARTS.get(name, name),
            format_sum(part_s),
            format_pct(100 * part_s / record.wall_s if record.wall_s else 0.0),
        ]
        for name, part_s in record.parts_s.items()
    ]
    whole = (
        f'{format_sum(record.wall_s)} from the start of the process to the end of the '
        'first iteration'
    )
    cpu = record.cpu_s
    if cpu is not None:
        whole += f', with {format_sum(cpu)} of CPU'
    parts = Table(['part', 'time', 'share'], rows)
    yield Section('The start', 'start', [f'{whole}.'], table=parts)
    if record.data_sets:
        table = tabulate(record.data_sets, _DATA_SETS, texts=3)
        yield Section('Data sets at the start', 'start-data', table=table)
