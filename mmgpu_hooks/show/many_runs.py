"""Renders a list of runs as a terminal table, JSON or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import msgspec

from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.figures import format_pct
from mmgpu_hooks.schema.many_runs import ManyRuns, RunRow, RunTotals
from mmgpu_hooks.schema.recorded import PARTS, RecommendedChange
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted
from mmgpu_hooks.show.document import Section, Table, compose, with_facts
from mmgpu_hooks.show.text import visible

_MOST_CHANGES = 2
"""Maximum number of recommended changes named in a row of the terminal table."""
_UNKNOWN = Text('-')
_PIECE = 500
"""Number of runs that are encoded at once when writing JSON or CSV."""


def describe_runs(answer: ManyRuns, shown: Sequence[RunRow]) -> list[Section]:
    """Makes the sections of ``mmgpu runs`` for a terminal.

    Args:
        answer: All of them.
        shown: Rows that are printed, the first ones.
    """
    table = tabulate_runs(answer.totals, shown)
    return compose([title_runs(answer.totals)], table, (), _list_notes(answer, shown))


def title_runs(totals: RunTotals) -> Text:
    """Phrases run totals: ``214 runs, 3,120 GPU hours, 611 of them lost (20 %)``."""
    spent, lost = totals.gpu_hours, totals.saved_gpu_hours
    if not spent:
        spent, lost = totals.training_hours, totals.saved_hours
    if not spent:
        return phrase('{runs}', totals)
    facts = {
        'runs': totals.runs,
        'spent': round_hours(spent),
        'lost': round_hours(lost),
        'lost_pct': 100 * max(lost, 0.0) / spent,
    }
    if totals.gpu_hours:
        return phrase(
            '{runs}, {spent} GPU hours, {lost} of them lost ({lost_pct:exact})', **facts
        )
    return phrase(
        '{runs}, {spent} hours, {lost} of them lost ({lost_pct:exact})', **facts
    )


def tabulate_runs(totals: RunTotals, rows: Sequence[RunRow]) -> Table:
    """Tabulates runs, a row each; in GPU hours if any run had a GPU, else in hours."""
    is_gpu = totals.gpu_hours > 0
    head = [
        phrase('run'),
        phrase('owner'),
        phrase('GPU h') if is_gpu else phrase('hours'),
        phrase('wait'),
        phrase('lost h'),
        phrase('verdict'),
        phrase('do'),
    ]
    cells = [
        (
            row.run,
            row.owner,
            _hours(row.gpu_hours if is_gpu else row.training_hours),
            _share(row.ledger_pct.get('data_wait')),
            _hours(row.saved_gpu_hours if is_gpu else row.saved_hours),
            name_verdict(row.verdict),
            phrase_changes(row.changes),
        )
        for row in rows
    ]
    said = phrase('lost h: hours that the changes would have saved, predicted')
    return Table(head, cells, said, texts=2)


def round_hours(hours: float) -> str:
    """Formats a number of hours: whole from 10 on, two digits below."""
    return f'{hours:,.0f}' if abs(hours) >= 10 else f'{hours:.2g}'


def _hours(hours: float | None) -> str:
    if hours is None:
        return _UNKNOWN
    return f'{hours:,.2f}' if 0 < abs(hours) < 10 else f'{hours:,.1f}'


def _share(share_pct: float | None) -> str:
    return _UNKNOWN if share_pct is None else format_pct(share_pct)


def name_verdict(verdict: str | None) -> Text:
    """Returns a verdict's title, or its bare name if only newer versions know it."""
    if verdict is None:
        return _UNKNOWN
    return VERDICTS.get(verdict) or quoted(verdict)


def phrase_changes(changes: Sequence[RecommendedChange]) -> Text:
    """Phrases a run's first recommended changes: ``num_workers 0 -> 8``."""
    words: list[str] = [
        f'{change.key.rpartition(".")[2]} {change.old} -> {change.new}'
        for change in changes[:_MOST_CHANGES]
    ]
    more = len(changes) - len(words)
    if more:
        words.append(phrase('{more} more', more=more))
    return listed(words) or _UNKNOWN


def list_notes(answer: ManyRuns) -> Iterator[Text]:
    """Phrases which runs are missing in the answer of ``mmgpu runs``, and why."""
    if answer.totals.runs < answer.found:
        left_out = answer.found - answer.totals.runs
        yield phrase('The filters leave out {left_out} more.', left_out=left_out)
    unjudged = [row for row in answer.rows if row.verdict is None]
    without = [row for row in unjudged if row.reason is None]
    failed = [row for row in unjudged if row.reason is not None]
    if without:
        yield phrase(
            '{runs} without a verdict in the evidence: --judge judges them.',
            runs=len(without),
        )
    if failed:
        yield phrase(
            '{runs} could not be judged, such as {run}: {reason}',
            failed[0],
            runs=len(failed),
        )
    if answer.unreadable:
        yield phrase(
            '{unreadable_places} could not be read, such as {first_unreadable}.',
            answer,
            unreadable_places=answer.unreadable,
        )


def _list_notes(answer: ManyRuns, shown: Sequence[RunRow]) -> Iterator[Text]:
    more = len(answer.rows) - len(shown)
    if more:
        yield phrase(
            '{left_rows} more: --top {rows:d} prints all, --page FILE and --format csv '
            'have all.',
            left_rows=more,
            rows=len(answer.rows),
        )
    yield from list_notes(answer)


def render_runs_json(answer: ManyRuns) -> Iterator[str]:
    """Yields the runs as one JSON object, one line per run.

    What is unknown is ``null``. Pieces and msgspec, since 10,000 runs as one indented
    text take 0.5 s and 30 MiB more.
    """
    head = msgspec.json.encode(msgspec.structs.replace(answer, rows=()), enc_hook=str)
    yield head.decode().removesuffix(']}')
    comma = ''
    for rows in _split(answer.rows):
        yield comma + '\n' + ',\n'.join(map(_encode, rows))
        comma = ','
    yield '\n]}\n'


def _encode(row: RunRow) -> str:
    # few have a sentence, whose facts stand beside it
    body = row if row.reason is None else with_facts(msgspec.structs.asdict(row))
    return msgspec.json.encode(body, enc_hook=str).decode()


def _split(rows: Sequence[RunRow]) -> Iterator[Sequence[RunRow]]:
    for begin in range(0, len(rows), _PIECE):
        yield rows[begin : begin + _PIECE]


def render_runs_csv(rows: Sequence[RunRow]) -> Iterator[str]:
    """Yields the runs as CSV with a header; unknown cells are empty."""
    names = [*RunRow.__struct_fields__]
    place = names.index('ledger_pct')
    del names[place]
    yield ','.join([*names, *(f'{part}_pct' for part in PARTS)]) + '\n'
    for piece in _split(rows):
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator='\n')
        for row in piece:
            cells = [*msgspec.structs.astuple(row)]
            shares = cells.pop(place)
            writer.writerow([*map(_to_cell, cells), *map(shares.get, PARTS)])
        yield stream.getvalue()


def _to_cell(value: object) -> object:
    # a line break in a name stays in its cell, and a spreadsheet runs no formula
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text.startswith(('=', '+', '-', '@')) else text
    if isinstance(value, tuple):
        return '; '.join(
            f'{change.key}={msgspec.json.encode(change.new).decode()}'
            for change in value
        )
    return value
