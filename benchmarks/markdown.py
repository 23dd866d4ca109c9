"""Renders Markdown tables with the standard library alone."""

from __future__ import annotations

from collections.abc import Sequence


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Renders a Markdown table with aligned columns, and leaves out empty columns."""
    lines = [[cell.replace('|', '\\|') for cell in row] for row in (header, *rows)]
    columns = [column for column in zip(*lines) if any(column[1:]) or not rows]
    widths = [max(3, *map(len, column)) for column in columns]
    lines = [list(cells) for cells in zip(*columns)]
    lines.insert(1, ['-' * width for width in widths])
    return '\n'.join(
        '| ' + ' | '.join(cell.ljust(width) for cell, width in zip(row, widths)) + ' |'
        for row in lines
    )
