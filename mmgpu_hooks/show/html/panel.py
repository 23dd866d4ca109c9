"""The parts that every section of the page is built of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

from mmgpu_hooks.show.figures import bind_figures
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.svg import render_inline
from mmgpu_hooks.show.reported_run import ReportedRun

_NO_BREAK = '\u00a0'


def render_section(name: str, title: str, *children: object) -> Markup:
    """A section with its heading, which the list of sections links to."""
    return tag(
        'section',
        tag('h2', title, id=f'{name}-title'),
        *children,
        id=name,
        aria_labelledby=f'{name}-title',
    )


def render_empty(reason: str) -> Markup:
    """What stands where there is nothing to show: why."""
    return tag('p', tag('strong', 'Nothing to show. '), words(reason), class_='empty')


def words(text: str) -> str:
    """Prose in which no line breaks between a figure and its unit."""
    return bind_figures(text).replace('\ue000', _NO_BREAK)


def render_lines(text: str) -> Markup:
    """Each line a paragraph that begins and ends as a sentence does."""
    sentences = []
    for line in text.split('\n'):
        # a setting is written as it is spelled
        is_name = '=' in line.split(' ')[0] or '_' in line.split(' ')[0]
        begin = line[:1] if is_name else line[:1].upper()
        end = '' if line.endswith('.') else '.'
        sentences.append(tag('p', words(f'{begin}{line[1:]}{end}')))
    return join(*sentences)


def render_chart(
    chart: Chart | NoChart, table: Markup | None = None, *, title: bool = True
) -> Markup:
    """A picture in the width that fits, with its figures as a table behind it."""
    heading = tag('h3', chart.title) if title else None
    if isinstance(chart, NoChart):
        return tag('div', heading, render_empty(chart.reason), class_='figure')
    pictures = [render_inline(chart.draw(width), css) for css, width in WIDTHS.items()]
    return tag('figure', heading, *pictures, behind(table), class_='figure')


def behind(table: Markup | None) -> Markup | None:
    """A table that opens on demand."""
    if table is None:
        return None
    return tag('details', tag('summary', 'The figures as a table'), table)


def render_table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    texts: int = 1,
) -> Markup:
    """A table whose first cell of a row is its heading.

    Args:
        caption: What it holds, for screen readers too.
        head: One word a column.
        rows: Cells; markup is kept.
        texts: Columns from the left that hold words, not figures.
    """
    body = [
        tag(
            'tr',
            tag('th', row[0], scope='row'),
            *(
                tag('td', cell, class_='figures' if place >= texts else None)
                for place, cell in enumerate(row[1:], start=1)
            ),
        )
        for row in rows
    ]
    heads = (
        tag('th', word, scope='col', class_='figures' if place >= texts else None)
        for place, word in enumerate(head)
    )
    return tag(
        'div',
        tag(
            'table',
            tag('caption', caption),
            tag('thead', tag('tr', *heads)),
            tag('tbody', *body),
        ),
        class_='scroll',
        # what scrolls must be reachable by keyboard
        tabindex='0',
        role='group',
        aria_label=caption,
    )


def each_run(
    runs: Sequence[ReportedRun], render: Callable[[ReportedRun], Markup]
) -> Markup:
    """The same for every run: alone, or in columns under the runs' names."""
    if len(runs) == 1:
        return render(runs[0])
    columns = (
        tag('div', tag('p', run.label, class_='run'), render(run), class_='column')
        for run in runs
    )
    return tag('div', join(*columns), class_='columns')
