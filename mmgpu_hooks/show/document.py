"""The document model: an answer as sections of sentences, figures, tables and charts.

A run, an experiment or a comparison becomes a list of sections; the terminal
(:mod:`mmgpu_hooks.show.terminal`) and the page (:mod:`mmgpu_hooks.show.page`) render
the same list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmgpu_hooks.show.charts import Chart

Fact = tuple[str, str]
"""A label and what stands behind it."""


@dataclass(frozen=True)
class Table:
    """Rows of cells below a heading."""

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    caption: str = ''
    texts: int = 1
    """Columns from the left that hold words; the others hold figures."""
    remarks: bool = False
    """Whether the last column holds words, too."""
    strong: Sequence[int] = ()
    """Rows that stand out."""

    def is_words(self, column: int) -> bool:
        """Whether a column holds words; a last one without a heading does."""
        is_last = column == len(self.head) - 1
        return column < self.texts or (
            is_last and (self.remarks or not self.head[column])
        )


@dataclass(frozen=True)
class Item:
    """One entry of a list: a finding, a change, a note."""

    text: str
    title: str = ''
    basis: str = ''
    """What it rests on, in small print."""
    level: str = ''
    """``problem``, ``notice``, ``ok`` or ``unknown``; empty without a judgement."""
    more: Sequence[str] = ()
    """Paragraphs that open on demand; the page alone shows them."""


@dataclass(frozen=True)
class Section:
    """A part of an answer. Whatever is empty is left out."""

    title: str = ''
    name: str = ''
    """On a page: its anchor, the same for each of several runs."""
    sentences: Sequence[str] = ()
    figures: Sequence[tuple[str, str, str]] = ()
    """Name, value with its unit, what it rests on: in large print."""
    facts: Sequence[Fact] = ()
    table: Table | None = None
    chart: Chart | None = None
    items: Sequence[Item] = ()
    code: str = ''
    """Lines that are never wrapped: a diff, commands."""
    parts: Sequence[Section] = field(default=())
    """Sections inside; the page alone shows them."""


def listing(title: str, sentences: Iterable[str], name: str = '') -> list[Section]:
    """A titled list of sentences; nothing where nothing is said."""
    items = tuple(Item(sentence) for sentence in sentences)
    return [Section(title, name, items=items)] if items else []
