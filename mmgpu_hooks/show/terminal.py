"""Sections as text for a terminal, laid out by rich."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mmgpu_hooks.show.document import Item, Section, Table
from mmgpu_hooks.show.escaping import visible
from mmgpu_hooks.show.figures import bind_units, unbind_units

if TYPE_CHECKING:
    # late: JSON needs none of it
    from rich.console import RenderableType
    from rich.table import Table as Grid
    from rich.text import Text

DEFAULT_WIDTH = 80
"""Columns when the output is no terminal."""
MOST_WIDTH = 100
"""Longer lines of words are hard to read."""
_UNLIMITED = 1000
_MANY = 8
"""Columns of a table."""

SIGNS = {'problem': '!', 'notice': '-', 'ok': '+', 'unknown': '?', '': '-'}
_STYLES = {'problem': 'red', 'notice': 'yellow', 'ok': 'green', 'unknown': 'dim'}
_DIFF_STYLES = {'+': 'green', '-': 'red', '@': 'cyan'}


def render(
    sections: Sequence[Section], *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The sections below each other, an empty line between them.

    Args:
        sections: What to show; the first one's title is the answer.
        width: Columns to wrap at; code is never wrapped, a figure is never broken.
        color: Whether to write colours and bold type for a terminal.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table as Grid
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=_UNLIMITED,
        force_terminal=color,
        color_system='standard' if color else None,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for number, section in enumerate(sections):
        if number:
            console.print()
        for part in _lay_out(section):
            room = min(width, MOST_WIDTH)
            if isinstance(part, Grid) and part.show_header:
                # a figure is never broken
                room = max(
                    width, Measurement.get(console, console.options, part).minimum
                )
            soft = isinstance(part, Text) and part.no_wrap
            console.print(part, soft_wrap=soft, width=room)
    # padding that fills a table's column is no content
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return unbind_units('\n'.join(lines))


def _lay_out(section: Section) -> Iterator[RenderableType]:
    if section.title:
        yield _text(section.title, 'bold')
    indent = 2 if section.title else 0
    if section.sentences:
        rows = [[_text(sentence)] for sentence in section.sentences]
        yield _grid(rows, indent)
    if section.table is not None and section.table.rows:
        if section.sentences:
            yield ''
        yield _table(section.table, indent)
    facts = [[_text(n), _text(v)] for n, v in section.facts if v is not None]
    if facts:
        if section.title and section.table is not None and section.table.rows:
            yield ''
        yield _grid(facts, indent)
    if section.items:
        yield _grid([_item(item) for item in section.items], indent)
    for line in section.code.splitlines():
        yield _text(line, _DIFF_STYLES.get(line[:1], ''), no_wrap=True)


def _text(text: object, style: str = '', *, no_wrap: bool = False) -> Text:
    from rich.text import Text

    shown = visible(text)
    return Text(shown if no_wrap else bind_units(shown), style=style, no_wrap=no_wrap)


def _item(item: Item) -> list[RenderableType]:
    title = f'{item.title}: ' if item.title else ''
    basis = f' ({item.basis})' if item.basis else ''
    sign = _text(SIGNS[item.level], _STYLES.get(item.level, ''))
    return [sign, _text(f'{title}{item.text}{basis}')]


def _grid(rows: Sequence[Sequence[RenderableType]], indent: int) -> Grid:
    """Columns side by side; the last one takes the rest and wraps."""
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 2, 0, 0), pad_edge=False)
    if indent:
        grid.add_column(width=0)
    columns = max(len(row) for row in rows)
    for index in range(columns):
        last = index == columns - 1
        # a path without a space is folded, never cut
        ratio = 1 if last else None
        grid.add_column(no_wrap=not last, ratio=ratio, overflow='fold')
    for row in rows:
        grid.add_row(*([''] if indent else []), *row)
    return grid


def _table(table: Table, indent: int) -> Grid:
    from rich.table import Table as Grid

    grid = Grid(
        box=None,
        pad_edge=False,
        # many columns stand closer
        padding=(0, 1 if len(table.head) > _MANY else 2, 0, 0),
        header_style='bold',
        collapse_padding=True,
    )
    if indent:
        grid.add_column(width=0)
    for index, title in enumerate(table.head):
        is_words = table.is_words(index)
        grid.add_column(
            _text(title, 'bold'),
            justify='left' if is_words else 'right',
            no_wrap=not is_words,
            overflow='fold',
        )
    for number, row in enumerate(table.rows):
        cells = [_text('' if cell is None else cell) for cell in row]
        style = 'bold' if number in table.strong else ''
        grid.add_row(*([''] if indent else []), *cells, style=style)
    return grid
