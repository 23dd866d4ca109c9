"""Rows of `make gpu-check`'s table, judged and rendered; needs no GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.markdown import render_table

OK, MISSED, BUSY, SKIPPED = 'ok', 'missed', 'too busy', 'skipped'

EXIT_OK, EXIT_MISSED, EXIT_NO_CUDA, EXIT_BUSY, EXIT_SKIPPED = range(5)


@dataclass(frozen=True)
class Row:
    """Row of the table: one figure with its target and verdict."""

    check: str
    measured: str
    target: str
    verdict: str
    note: str = ''


def skipped(check: str, reason: str) -> Row:
    """Makes a row for a figure that could not be measured here, with the reason."""
    return Row(check, '-', '-', SKIPPED, reason)


def judged(check: str, measured: str, target: str, passed: bool, note: str = '') -> Row:
    """Makes a row with a verdict on its figure."""
    return Row(check, measured, target, OK if passed else MISSED, note)


def within(
    check: str,
    ours: float | None,
    truth: float,
    most: float,
    unit: str = '%',
    note: str = '',
) -> Row:
    """Makes a row for our figure beside the true one; an unknown figure is missed."""
    shown = 'unknown' if ours is None else f'{ours:.1f} {unit}'
    passed = ours is not None and abs(ours - truth) <= most
    shown += f' beside {truth:.1f} {unit}'
    return judged(check, shown, f'within {most:.3g} {unit}', passed, note)


def exit_code(rows: Sequence[Row]) -> int:
    """Returns the exit code: 0 all met, 1 one missed, 3 too busy, 4 nothing judged."""
    verdicts = {row.verdict for row in rows}
    codes = ((MISSED, EXIT_MISSED), (BUSY, EXIT_BUSY), (OK, EXIT_OK))
    return next((code for verdict, code in codes if verdict in verdicts), EXIT_SKIPPED)


def render_page(rows: Sequence[Row], machine: Sequence[tuple[str, str]]) -> str:
    """Renders the table, facts on the machine, and a summary line."""
    counts = ', '.join(
        f'{number} {verdict}'
        for verdict in (OK, MISSED, BUSY, SKIPPED)
        if (number := sum(row.verdict == verdict for row in rows))
    )
    wrong = '; '.join(row.check for row in rows if row.verdict in (MISSED, BUSY))
    header = ('check', 'measured', 'target', 'verdict', 'note')
    cells = [[str(getattr(row, name)) for name in header] for row in rows]
    parts = [
        '# make gpu-check',
        '\n'.join(f'- {name}: {value}' for name, value in machine),
        render_table(header, cells),
        f'gpu-check: {counts}' + (f' ({wrong})' if wrong else ''),
    ]
    return '\n\n'.join(parts) + '\n'
