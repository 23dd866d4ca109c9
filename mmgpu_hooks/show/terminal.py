"""Renders sections as terminal text, laid out by the library rich."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.document import SIGNS, Item, Section, Table
from mmgpu_hooks.show.text import (
    BOUND,
    BREAK,
    bind_units,
    break_paths,
    break_wide,
    visible,
)
from mmgpu_hooks.show.words import say

if TYPE_CHECKING:
    # late: JSON needs none of it
    from rich.console import RenderableType
    from rich.text import Text

DEFAULT_WIDTH = 80
"""Output width in columns if standard output is no terminal."""
MOST_WIDTH = 100
"""Largest width of prose, in columns, as longer lines are hard to read."""
_UNLIMITED = 1000
_MANY = 8
"""Smallest number of columns of a table whose columns are set closer together."""
_STYLES = {'problem': 'red', 'notice': 'yellow', 'ok': 'green', 'unknown': 'dim'}
_DIFF_STYLES = {'+': 'green', '-': 'red', '@': 'cyan'}


def render(
    sections: Sequence[Section], *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """Renders sections one below the other, separated by empty lines.

    Args:
        sections: What to show; the first one's title is the answer.
        width: Columns to wrap at; code is never wrapped, a figure is never broken.
        color: Whether to write colours and bold type for a terminal.
    """
    from rich.console import Console
    from rich.measure import Measurement
    from rich.padding import Padding
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
        if section.title:
            title = _prose(section.title, 'bold')
            console.print(title, width=min(width, MOST_WIDTH))
        for part in _lay_out(section):
            if isinstance(part, Text) and part.no_wrap:
                console.print(part, soft_wrap=True)
                continue
            indented = Padding(part, (0, 0, 0, 2 if section.title else 0))
            least = Measurement.get(console, console.options, indented).minimum
            has_heads = getattr(part, 'show_header', False)
            room = max(width, least) if has_heads else min(width, MOST_WIDTH)
            console.print(indented, width=room)
    whole = buffer.getvalue().replace(BREAK, '').replace(BOUND, ' ')
    # padding that fills a table's column is no content
    return '\n'.join(line.rstrip() for line in whole.splitlines())


def _lay_out(section: Section) -> Iterator[RenderableType]:
    has_table = section.table is not None and bool(section.table.rows)
    yield from map(_prose, section.sentences)
    if section.table is not None and has_table:
        if section.sentences:
            yield ''
        yield _table(section.table)
    facts = [
        (_text(fact.label), _prose(fact.value))
        for fact in section.facts
        if fact.value is not None
    ]
    if facts:
        if has_table and section.title:
            yield ''
        yield _pairs(facts)
    if section.items:
        yield _pairs([_item(item) for item in section.items])
    if section.code and has_table:
        yield ''
    for line in section.code.splitlines():
        yield _text(line, _DIFF_STYLES.get(line[:1], ''), no_wrap=True)


def _text(text: object, style: str = '', *, no_wrap: bool = False) -> Text:
    from rich.text import Text

    words = visible(say(text))
    shown = words if no_wrap else bind_units(words)
    # what has no place to break at is folded, never cut
    return Text(shown, style=style, no_wrap=no_wrap, overflow='fold')


def _prose(text: object, style: str = '') -> Text:
    prose = _text(text, style)
    prose.plain = break_wide(break_paths(prose.plain))
    return prose


def _item(item: Item) -> tuple[Text, Text]:
    said = item.text
    if item.title:
        said = phrase('{title}: {text}', title=item.title, text=item.text)
    if item.basis:
        said = phrase('{text} ({basis})', text=said, basis=item.basis)
    sign = _text(SIGNS.get(item.level, '-'), _STYLES.get(item.level, ''))
    return sign, _prose(said)


def _pairs(rows: Sequence[tuple[Text, Text]]) -> RenderableType:
    """Makes a two-column grid of labels and texts; the texts wrap."""
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, 2, 0, 0), pad_edge=False)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1, overflow='fold')
    for row in rows:
        grid.add_row(*row)
    return grid


def _table(table: Table) -> RenderableType:
    from rich.table import Table as Grid

    gap = 1 if len(table.head) >= _MANY else 2
    grid = Grid(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style='bold')
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
        grid.add_row(*cells, style='bold' if number in table.strong else '')
    return grid
