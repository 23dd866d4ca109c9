"""The rows of `make gpu-check`, how they are judged and printed. No GPU needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

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
    sensitive: bool = True
    """Whether other load on the machine can spoil it."""


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
    told = 'unknown' if ours is None else f'{ours:.1f} {unit}'
    passed = ours is not None and abs(ours - truth) <= most
    told += f' beside {truth:.1f} {unit}'
    return judged(check, told, f'within {most:.3g} {unit}', passed, note)


def excuse(rows: Iterable[Row], other_load: str | None) -> list[Row]:
    """Do not judge what other load on the machine may have spoiled.

    Args:
        rows: As measured.
        other_load: What others used of the machine; ``None`` when it was nothing.
    """
    if other_load is None:
        return list(rows)
    return [
        replace(row, verdict=BUSY) if row.verdict == MISSED and row.sensitive else row
        for row in rows
    ]


def exit_code(rows: Sequence[Row]) -> int:
    """0 all met, 1 a target missed, 3 too busy to judge one, 4 nothing was judged."""
    verdicts = {row.verdict for row in rows}
    codes = ((MISSED, EXIT_MISSED), (BUSY, EXIT_BUSY), (OK, EXIT_OK))
    return next((code for verdict, code in codes if verdict in verdicts), EXIT_SKIPPED)


def summarise(rows: Sequence[Row]) -> str:
    """One line: how many of which verdict, and which missed."""
    counts = ', '.join(
        f'{number} {verdict}'
        for verdict in (OK, MISSED, BUSY, SKIPPED)
        if (number := sum(row.verdict == verdict for row in rows))
    )
    wrong = [row.check for row in rows if row.verdict in (MISSED, BUSY)]
    return f'gpu-check: {counts or "nothing measured"}' + (
        f' ({"; ".join(wrong)})' if wrong else ''
    )


def render_text(rows: Sequence[Row]) -> str:
    """The table for a terminal, notes below their rows."""
    cells = [('check', 'measured', 'target', 'verdict')]
    cells += [(row.check, row.measured, row.target, row.verdict) for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    lines = []
    for number, line in enumerate(cells):
        padded = (cell.ljust(width) for cell, width in zip(line, widths))
        lines.append('  '.join(padded).rstrip())
        if number == 0:
            lines.append('  '.join('-' * width for width in widths))
        elif rows[number - 1].note:
            lines.append(f'    {rows[number - 1].note}')
    return '\n'.join(lines)


def render_markdown(rows: Sequence[Row], machine: Sequence[tuple[str, str]]) -> str:
    """The table as a page, with the machine it was measured on."""
    lines = ['# make gpu-check', '']
    lines += [f'- {name}: {value}' for name, value in machine]
    lines += ['', '| check | measured | target | verdict | note |']
    lines += ['| --- | --- | --- | --- | --- |']
    for row in rows:
        cells = (row.check, row.measured, row.target, row.verdict, row.note)
        lines.append('| ' + ' | '.join(c.replace('|', '\\|') for c in cells) + ' |')
    return '\n'.join([*lines, '', summarise(rows), ''])
