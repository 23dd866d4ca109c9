"""Phrases how long a training's start took, by part and by data set."""

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
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.document import Section, Table, TableColumn, tabulate

_NAMED = 4
"""Maximum number of parts of a training's start that the summary names."""


def _phrase_use(is_validation: bool) -> Text:
    return phrase('validation') if is_validation else phrase('training')


_DATA_SETS: Sequence[TableColumn] = (
    TableColumn(phrase('data set'), 'kind', str),
    TableColumn(phrase('used for'), 'is_validation', _phrase_use),
    TableColumn(phrase('annotations'), 'file', str),
    TableColumn(phrase('size'), 'file_bytes', format_bytes),
    TableColumn(phrase('in all'), 'wall_s', format_seconds),
    TableColumn(phrase('reading'), 'read_s', format_seconds),
    TableColumn(phrase('CPU of it'), 'read_cpu_s', format_seconds),
    TableColumn(phrase('filtering'), 'filter_s', format_seconds),
    TableColumn(phrase('serialising'), 'serialise_s', format_seconds),
    TableColumn(phrase('files'), 'files', str),
    TableColumn(phrase('samples'), 'samples', str),
    TableColumn(phrase('in memory'), 'bytes', format_bytes),
)


def describe_data_set(start: DatasetStart) -> Text:
    """Phrases for the log the seconds that one data set took to be initialised."""
    took: Text = phrase('{wall_s:sum}', start)
    if start.samples is not None:
        took = phrase('{wall_s:sum}, {samples}', start)
    named = start.file or start.kind
    if start.is_cached:
        return phrase('mapped what is kept of {file} in {took}.', file=named, took=took)
    return phrase('loaded {file} in {took}.', file=named, took=took)


def describe_start(record: StartRecord) -> Text:
    """Phrases for the log the seconds of a training's start, by part."""
    parts = list_parts(record)
    return phrase('the start took {wall_s:sum}: {parts}.', record, parts=parts)


def list_parts(record: StartRecord, most: int | None = None) -> tuple[Text, ...]:
    """Phrases the longest parts of a training's start: ``imports 6.1 s``.

    Args:
        record: Of the start.
        most: How many are named; ``None`` is all.
    """
    largest = sorted(record.parts_s.items(), key=lambda part: -part[1])[:most]
    return tuple(
        phrase('{part} {part_s:sum}', part=START_PARTS.get(name, name), part_s=part_s)
        for name, part_s in largest
    )


def phrase_start(run: Run) -> Text:
    """Phrases the summary's row on a training's start; empty if it was short."""
    record = run.evidence.start
    if record is None or not run.is_start_long:
        return Text('')
    return phrase(
        '{wall_s:sum} to the first iteration: {parts}',
        record,
        parts=list_parts(record, _NAMED),
    )


def list_start(run: Run) -> Iterator[Section]:
    """Yields sections on a run's start, if its evidence file has a record of it."""
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
    whole = phrase(
        '{wall_s:sum} from the start of the process to the end of the first iteration.',
        record,
    )
    if record.cpu_s is not None:
        whole = phrase(
            '{wall_s:sum} from the start of the process to the end of the first '
            'iteration, with {cpu_s:sum} of CPU.',
            record,
        )
    parts = Table([phrase('part'), phrase('time'), phrase('share')], rows)
    yield Section(phrase('The start'), 'start', [whole], table=parts)
    if record.data_sets:
        table = tabulate(record.data_sets, _DATA_SETS, texts=3)
        yield Section(phrase('Data sets at the start'), 'start-data', table=table)
