"""Result table of ``make gpu-check``: its rows, their verdicts, and its rendering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.markdown import render_table

OK, MISSED, BUSY, SKIPPED = 'ok', 'missed', 'too busy', 'skipped'

EXIT_OK, EXIT_MISSED, EXIT_NO_CUDA, EXIT_BUSY, EXIT_SKIPPED = range(5)


@dataclass(frozen=True)
class Row:
    """Row of the result table: a measured figure with target and verdict."""

    check: str
    measured: str
    target: str
    verdict: str
    note: str = ''


def skipped(check: str, reason: str) -> Row:
    """Returns a row without value, which gives the reason why nothing was measured."""
    return Row(check, '-', '-', SKIPPED, reason)


def judged(check: str, measured: str, target: str, passed: bool, note: str = '') -> Row:
    """Returns a row that says if a measured figure meets its target."""
    return Row(check, measured, target, OK if passed else MISSED, note)


def within(
    check: str,
    ours: float | None,
    truth: float,
    most: float,
    unit: str = '%',
    note: str = '',
) -> Row:
    """Returns a row that compares a measured figure with the true one."""
    shown = 'unknown' if ours is None else f'{ours:.1f} {unit}'
    passed = ours is not None and abs(ours - truth) <= most
    shown += f' beside {truth:.1f} {unit}'
    return judged(check, shown, f'within {most:.3g} {unit}', passed, note)


def exit_code(rows: Sequence[Row]) -> int:
    """Returns the exit code: 0 all met, 1 any missed, 3 machine busy, 4 all skipped."""
    verdicts = {row.verdict for row in rows}
    codes = ((MISSED, EXIT_MISSED), (BUSY, EXIT_BUSY), (OK, EXIT_OK))
    return next((code for verdict, code in codes if verdict in verdicts), EXIT_SKIPPED)


def render_page(rows: Sequence[Row], machine: Sequence[tuple[str, str]]) -> str:
    """Renders the page: facts on the machine, table of results, summary line."""
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
