"""Many runs as a table in a terminal, as JSON and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

import msgspec

from mmgpu_hooks.judge.verdict_names import VERDICTS
from mmgpu_hooks.schema.figures import format_pct, plural
from mmgpu_hooks.schema.many_runs import ManyRuns, RunRow, RunTotals
from mmgpu_hooks.schema.recorded import PARTS, RecommendedChange
from mmgpu_hooks.show.document import Section, Table, compose
from mmgpu_hooks.show.text import visible

_MOST_CHANGES = 2
"""Changes that are named in a row of text."""
_UNKNOWN = '-'
_PIECE = 500
"""Rows that are made text of at a time."""


def describe_runs(answer: ManyRuns, shown: Sequence[RunRow]) -> list[Section]:
    """The runs for a terminal.

    Args:
        answer: All of them.
        shown: Rows that are printed, the first ones.
    """
    table = tabulate_runs(answer.totals, shown)
    return compose([title_runs(answer.totals)], table, (), _list_notes(answer, shown))


def title_runs(totals: RunTotals) -> str:
    """``214 runs, 3,120 GPU hours, 611 of them lost (20 %)``."""
    title = plural(totals.runs, 'run')
    spent, lost, unit = totals.gpu_hours, totals.saved_gpu_hours, 'GPU hours'
    if not spent:
        spent, lost, unit = totals.training_hours, totals.saved_hours, 'hours'
    if not spent:
        return title
    share = format_pct(100 * max(lost, 0.0) / spent)
    return f'{title}, {_round(spent)} {unit}, {_round(lost)} of them lost ({share})'


def tabulate_runs(totals: RunTotals, rows: Sequence[RunRow]) -> Table:
    """A row a run; hours are GPU hours where any run had a GPU."""
    is_gpu = totals.gpu_hours > 0
    head = ['run', 'owner', 'GPU h' if is_gpu else 'hours', 'wait', 'lost h']
    head += ['verdict', 'do']
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
    said = 'lost h: hours that the changes would have saved, predicted'
    return Table(head, cells, said, texts=2)


def _round(hours: float) -> str:
    return f'{hours:,.0f}' if abs(hours) >= 10 else f'{hours:.2g}'


def _hours(hours: float | None) -> str:
    if hours is None:
        return _UNKNOWN
    return f'{hours:,.2f}' if 0 < abs(hours) < 10 else f'{hours:,.1f}'


def _share(share_pct: float | None) -> str:
    return _UNKNOWN if share_pct is None else format_pct(share_pct)


def name_verdict(verdict: str | None) -> str:
    """How a verdict is called; one of a newer version has its name alone."""
    return _UNKNOWN if verdict is None else VERDICTS.get(verdict, verdict)


def phrase_changes(changes: Sequence[RecommendedChange]) -> str:
    """``num_workers 0 -> 8``; of many, the first ones."""
    words = [
        f'{change.key.rpartition(".")[2]} {change.old} -> {change.new}'
        for change in changes[:_MOST_CHANGES]
    ]
    more = len(changes) - len(words)
    return ', '.join([*words, *([f'{more} more'] if more else [])]) or _UNKNOWN


def list_notes(answer: ManyRuns) -> Iterator[str]:
    """What is missing of the answer, and why: sentences."""
    if answer.totals.runs < answer.found:
        yield f'The filters leave out {answer.found - answer.totals.runs} more.'
    unjudged = [row for row in answer.rows if row.verdict is None]
    without = [row for row in unjudged if row.reason is None]
    failed = [row for row in unjudged if row.reason is not None]
    if without:
        yield (
            f'{plural(len(without), "run")} without a verdict in the evidence: --judge '
            'judges them.'
        )
    if failed:
        yield (
            f'{plural(len(failed), "run")} could not be judged, such as {failed[0].run}'
            f': {failed[0].reason}'
        )
    if answer.unreadable:
        yield (
            f'{plural(answer.unreadable, "place")} could not be read, such as '
            f'{answer.first_unreadable}.'
        )


def _list_notes(answer: ManyRuns, shown: Sequence[RunRow]) -> Iterator[str]:
    more = len(answer.rows) - len(shown)
    if more:
        yield (
            f'{plural(more, "row")} more: --top {len(answer.rows)} prints all, '
            '--page FILE and --format csv have all.'
        )
    yield from list_notes(answer)


def render_runs_json(answer: ManyRuns) -> Iterator[str]:
    """The answer as one JSON object, each run on a line of its own, in pieces.

    What is unknown is ``null``. Pieces and msgspec, since 10,000 runs as one indented
    text take 0.5 s and 30 MiB more.
    """
    head = msgspec.json.encode(msgspec.structs.replace(answer, rows=())).decode()
    yield head.removesuffix(']}')
    comma = ''
    for rows in _split(answer.rows):
        lines = (msgspec.json.encode(row).decode() for row in rows)
        yield comma + '\n' + ',\n'.join(lines)
        comma = ','
    yield '\n]}\n'


def _split(rows: Sequence[RunRow]) -> Iterator[Sequence[RunRow]]:
    for begin in range(0, len(rows), _PIECE):
        yield rows[begin : begin + _PIECE]


def render_runs_csv(rows: Sequence[RunRow]) -> Iterator[str]:
    """A line a run below a line of names, in pieces; what is unknown is empty."""
    shares = [f'{part}_pct' for part in PARTS]
    names = [name for name in RunRow.__struct_fields__ if name != 'ledger_pct']
    yield ','.join([*names, *shares]) + '\n'
    for piece in _split(rows):
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator='\n')
        for row in piece:
            cells = [_to_cell(getattr(row, name)) for name in names]
            writer.writerow([*cells, *(row.ledger_pct.get(part) for part in PARTS)])
        yield stream.getvalue()


def _to_cell(value: object) -> object:
    if isinstance(value, tuple):
        return '; '.join(
            f'{change.key}={msgspec.json.encode(change.new).decode()}'
            for change in value
        )
    # a line break in a name stays in its cell, and a spreadsheet runs no formula
    if isinstance(value, str):
        text = visible(value)
        return f"'{text}" if text[:1] in ('=', '+', '-', '@') else text
    return value
