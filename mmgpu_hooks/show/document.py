"""Document model: a command's answer as sections of sentences, tables and charts.

A run, an experiment or a comparison becomes a list of sections; the terminal
(:mod:`mmgpu_hooks.show.terminal`) and the page (:mod:`mmgpu_hooks.show.page`) render
the same list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from mmgpu_hooks.schema.text import Text, facts_of, phrase, quoted
from mmgpu_hooks.show.words import say

if TYPE_CHECKING:
    from mmgpu_hooks.show.charts import Chart


BLANK = Text('')


class Fact(NamedTuple):
    """A label and its value, shown on one row."""

    label: Text
    value: object
    """Value to show beside the label; ``None`` hides the row."""


class KeyFigure(NamedTuple):
    """Measured value in large print at the top of a page."""

    name: Text
    value: str
    """Formatted value with its unit."""
    basis: str
    """Source of the measured value, shown in small print."""


SIGNS = {'problem': '!', 'notice': '-', 'ok': '+', 'unknown': '?'}
"""Sign printed before a finding or note, by its severity."""
_WORDS = ('', 'limited by', '9 times in 10', 'verdict', 'do')
"""Headings of table columns that hold words instead of numbers."""


@dataclass(frozen=True)
class Table:
    """Table of text cells with one heading per column."""

    head: Sequence[Text]
    rows: Sequence[Sequence[object]]
    caption: Text = BLANK
    texts: int = 1
    """Number of leading columns that hold words; other columns hold numbers."""
    strong: Sequence[int] = ()
    """Indices of the table rows that are printed in bold type."""
    is_sortable: bool = False
    """True if clicking a heading sorts the rows, on a page."""

    def is_words(self, column: int) -> bool:
        """True if a table column holds words instead of numbers."""
        return column < self.texts or self.head[column] in _WORDS


@dataclass(frozen=True)
class Item:
    """Entry of a list in a section: a finding, a change or a note."""

    text: str
    title: str = ''
    basis: str = ''
    """Source of the entry, such as a rule's code, shown in small print."""
    level: str = ''
    """Severity, a key of :data:`SIGNS`; empty without a judgement."""


@dataclass(frozen=True)
class Section:
    """Section of a command's answer: title, sentences, a table, chart or list."""

    title: Text = BLANK
    name: str = ''
    """HTML anchor of the section, by which a link reaches it on a page."""
    sentences: Sequence[str] = ()
    figures: Sequence[KeyFigure] = ()
    """Measured values in large print, shown only on an HTML page."""
    facts: Sequence[Fact] = ()
    table: Table | None = None
    chart: Chart | None = None
    """Chart of the section, which only pages show."""
    items: Sequence[Item] = ()
    code: str = ''
    """Lines that are never wrapped, such as a diff or a command."""


def align(lines: Mapping[Text, str | None], width: int = 10) -> str:
    """Joins labels and values to lines in two columns, and leaves out empty values.

    Args:
        lines: By label.
        width: Columns of the labels; a Chinese character takes two.
    """
    # late: JSON needs none of it
    from rich.cells import cell_len

    rows = [(say(label), say(words)) for label, words in lines.items() if words]
    return '\n'.join(
        f'{label}{" " * (width - cell_len(label))}{words}' for label, words in rows
    )


def listing(title: Text, sentences: Iterable[str], name: str = '') -> list[Section]:
    """Makes a titled section of listed sentences, or no section without sentences."""
    items = tuple(map(Item, sentences))
    return [Section(title, name, items=items)] if items else []


def compose(
    sentences: Iterable[Text],
    table: Table,
    basis: Sequence[str] = (),
    notes: Iterable[str] = (),
) -> list[Section]:
    """Makes an answer's sections: title, remarks, table with source, notes."""
    title, *more = sentences
    sections = [Section(title, sentences=more)]
    if table.rows:
        sections.append(Section(table=table))
        sections += [Section(sentences=basis)] if basis else []
    return [*sections, *listing(phrase('Notes'), notes)]


class TableColumn(NamedTuple):
    """Column of a table: its heading, the path of its value in a record, its format."""

    label: Text
    path: str
    """Dotted path of the value in a record; empty means the record itself."""
    write: Callable[[Any], str]


def _cell(record: Any, column: TableColumn) -> str | None:
    figure = record
    for name in column.path.split('.') if column.path else ():
        figure = None if figure is None else getattr(figure, name)
    return None if figure is None or figure == {} else column.write(figure)


def tabulate_setting(name: str, path: str) -> TableColumn:
    """Makes a table column with one setting's value in each row.

    Args:
        name: Of the setting; two words a line, so that a table fits.
        path: Of a record's settings by name.
    """

    def write(values: Mapping[str, Any]) -> str:
        value = values.get(name)
        if isinstance(value, bool):
            return phrase('on') if value else phrase('off')
        return '-' if value is None else str(value)

    return TableColumn(quoted(name.replace('_', '\n', 1)), path, write)


def list_facts(record: Any, columns: Sequence[TableColumn]) -> list[Fact]:
    """Lists label and formatted value of each known value of a record."""
    facts = (Fact(column.label, _cell(record, column)) for column in columns)
    return [fact for fact in facts if fact.value is not None]


def tabulate(
    records: Iterable[Any],
    columns: Sequence[TableColumn],
    caption: Text = BLANK,
    texts: int = 0,
    strong: Sequence[int] = (),
) -> Table:
    """Makes a table with one row per record; drops columns unknown in all records."""
    rows = [[_cell(record, column) for column in columns] for record in records]
    used = [place for place in range(len(columns)) if any(row[place] for row in rows)]
    head = [columns[place].label for place in used]
    cells = [
        ['-' if row[place] is None else row[place] for place in used] for row in rows
    ]
    return Table(head, cells, caption, texts, strong)


def to_json(**body: Any) -> str:
    """Encodes a command's answer as one JSON object; unknown values become ``null``.

    An object with sentences that were made of facts has these as ``facts``, by the key
    of the sentence. ``version`` is raised when a key changes its meaning or goes away.
    """
    return json.dumps({'version': 1, **with_facts(body)}, indent=2, default=_plain)


def with_facts(body: Mapping[str, Any]) -> dict[str, Any]:
    """Copies a JSON object and adds ``facts``: the named values of each sentence in it.

    Args:
        body: What it holds by key; sentences stand in it, or in lists in it.
    """
    facts = {key: found for key, value in body.items() if (found := _list_facts(value))}
    return {**body, 'facts': facts} if facts else {**body}


def _list_facts(value: Any) -> Any:
    """Returns the named values of a sentence, or of each sentence in a list."""
    if isinstance(value, (list, tuple)):
        if not any(isinstance(said, Text) and said.facts for said in value):
            return None
        return [facts_of(said) if isinstance(said, str) else None for said in value]
    return facts_of(value) if isinstance(value, Text) else None


def _plain(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return with_facts(msgspec.structs.asdict(value))
    if is_dataclass(value):
        held = {field.name: getattr(value, field.name) for field in fields(value)}
        return with_facts(held)
    # numpy's figures
    return value.item()
