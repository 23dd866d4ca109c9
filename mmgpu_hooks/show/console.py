"""Layout through rich, back as a string."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mmgpu_hooks.show.figures import bind_figures, unbind_figures

if TYPE_CHECKING:
    # late: JSON needs none of it
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

DEFAULT_WIDTH = 100
"""Columns when the output is no terminal."""


def render(
    *parts: RenderableType, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """Lay the parts out below each other.

    Args:
        parts: Anything rich can print.
        width: Columns to wrap at.
        color: Whether to write colours and bold type for a terminal.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    console = Console(
        file=buffer,
        width=width,
        force_terminal=color,
        color_system='standard' if color else None,
        highlight=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text) and part.no_wrap)
    # padding that fills a table's column is no content
    lines = (line.rstrip() for line in buffer.getvalue().splitlines())
    return unbind_figures('\n'.join(lines))


def styled(text: str, style: str = '', *, no_wrap: bool = False) -> Text:
    """Text in a style of rich's."""
    from rich.text import Text

    return Text(text, style=style, no_wrap=no_wrap)


def bind_units(text: str) -> Text:
    """Text in which no line is broken between a figure and its unit."""
    return styled(bind_figures(text))


def list_answer(sentences: Iterable[str]) -> list[RenderableType]:
    """The answer in bold, then what belongs to it."""
    headline, *more = map(bind_units, sentences)
    headline.stylize('bold')
    return [headline, *more]


def list_section(title: str, sentences: Iterable[str]) -> list[RenderableType]:
    """An empty line, the title and a list; nothing where nothing is said."""
    rows = [('-', bind_units(sentence)) for sentence in sentences]
    return ['', styled(title, 'bold'), grid(rows, indent=2)] if rows else []


def grid(rows: Sequence[tuple[RenderableType, ...]], indent: int = 0) -> Table:
    """Columns side by side; the last one takes the rest and wraps."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(indent and 1):
        table.add_column(width=indent - 2)
    columns = max((len(row) for row in rows), default=1)
    for index in range(columns):
        table.add_column(
            no_wrap=index < columns - 1, ratio=1 if index == columns - 1 else None
        )
    for row in rows:
        table.add_row(*([''] if indent else []), *row)
    return table
