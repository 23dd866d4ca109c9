"""The rows of `make gpu-check`, how they are judged and printed. No GPU needed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.markdown import render_table

OK, MISSED, BUSY, SKIPPED = 'ok', 'missed', 'too busy', 'skipped'

EXIT_OK, EXIT_MISSED, EXIT_NO_CUDA, EXIT_BUSY, EXIT_SKIPPED = range(5)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    check: str
    measured: str
    target: str
    verdict: str
    note: str = ''


def skipped(check: str, reason: str) -> Row:
    """A row that could not be measured here, and why."""
    return Row(check, '-', '-', SKIPPED, reason)


def judged(check: str, measured: str, target: str, passed: bool, note: str = '') -> Row:
    """A row with its verdict."""
    return Row(check, measured, target, OK if passed else MISSED, note)


def within(
    check: str,
    ours: float | None,
    truth: float,
    most: float,
    unit: str = '%',
    note: str = '',
) -> Row:
    """A figure of ours beside the truth; one that is unknown is missed."""
    shown = 'unknown' if ours is None else f'{ours:.1f} {unit}'
    passed = ours is not None and abs(ours - truth) <= most
    shown += f' beside {truth:.1f} {unit}'
    return judged(check, shown, f'within {most:.3g} {unit}', passed, note)


def exit_code(rows: Sequence[Row]) -> int:
    """0 all met, 1 a target missed, 3 too busy to judge one, 4 nothing was judged."""
    verdicts = {row.verdict for row in rows}
    codes = ((MISSED, EXIT_MISSED), (BUSY, EXIT_BUSY), (OK, EXIT_OK))
    return next((code for verdict, code in codes if verdict in verdicts), EXIT_SKIPPED)


def render_page(rows: Sequence[Row], machine: Sequence[tuple[str, str]]) -> str:
    """The table, the machine it was measured on, and a line that sums it up."""
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
