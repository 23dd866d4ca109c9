"""Charts: one declarative specification, drawn by matplotlib as SVG or PNG.

The page embeds the SVG with colours that follow its light or dark scheme. Where
matplotlib is not installed there are no pictures: tables and sentences stand in.
"""

from __future__ import annotations

import functools
import importlib.util
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.show.escaping import visible

COLORS: dict[str, tuple[str, str]] = {
    'paper': ('#ffffff', '#14171a'),
    'panel': ('#f6f7f8', '#1b1f23'),
    'ink': ('#1a1d21', '#e8eaed'),
    'faint': ('#565d66', '#a3abb5'),
    'rule': ('#d9dde2', '#333a42'),
    'accent': ('#0b57b0', '#7db4f5'),
    'problem': ('#b3261e', '#ff8f86'),
    'notice': ('#7a5200', '#e9b44c'),
    'ok': ('#1c6b3a', '#69c98d'),
    # fills: 3:1 against the paper, and neighbours of a bar differ in lightness
    'data_wait': ('#c2410c', '#f08a4b'),
    'step': ('#2f6fb2', '#5b9bd8'),
    'hooks': ('#5b3f99', '#b69cf0'),
    'checkpoint_save': ('#8f6410', '#d8ae4a'),
    'validation': ('#176a5e', '#54bfae'),
    'startup': ('#8f2f63', '#e489b8'),
    'resume': ('#7a4a1d', '#c99a6b'),
    'teardown': ('#4f5d2f', '#a9bb7c'),
    'loop': ('#3f5a73', '#93b0c9'),
    'other': ('#69717b', '#8d96a0'),
    'gpu': ('#3c7d2b', '#86c775'),
}
"""Each role's colour on a light and on a dark ground."""

_WIDTH = 8.6
_BAR, _PANEL, _EDGE = 0.29, 1.35, 0.62
"""Inches at 96 pixels: the page's column, a bar, a panel, title or axis."""
_SMALL, _TINY = 9.5, 8.5
_DPI = 192
"""Of PNG: twice what a page has, so that print is sharp."""
_MARKS = {'save': '▼', 'validation': '◆', 'epoch': '❙'}


class NoMatplotlibError(Exception):
    """matplotlib is not installed; the message says what to do."""


@dataclass(frozen=True)
class Series:
    """One quantity: a part of each bar, or a line."""

    name: str
    values: Sequence[float | None]
    role: str = 'step'
    """Of the palette."""
    low: Sequence[float | None] = ()
    """With ``high``: a band about a line, or error bars about marks."""
    high: Sequence[float | None] = ()
    style: str = 'line'
    """``line``, ``steps``, ``dashed`` or ``marks``."""


@dataclass(frozen=True)
class Panel:
    """A line chart above the others' common axis."""

    title: str
    """The quantity with its unit."""
    series: Sequence[Series]
    top: float | None = None
    """Where its axis ends; by default at the largest value."""


@dataclass(frozen=True)
class Chart:
    """What is drawn: rows of stacked bars (``labels`` and ``bars``), or panels of
    lines over ``x``."""

    name: str
    """Of its file, without an ending."""
    title: str
    description: str
    """For a reader who cannot see it."""
    labels: Sequence[str] = ()
    """One a bar; of lines, the ticks in place of figures."""
    bars: Sequence[Series] = ()
    texts: Sequence[str] = ()
    """At the end of each bar."""
    panels: Sequence[Panel] = ()
    x: Sequence[float] = ()
    x_title: str = ''
    marks: Sequence[tuple[float, str]] = ()
    """Events on the axis: where, and ``save``, ``validation`` or ``epoch``."""


def can_draw() -> bool:
    """Whether matplotlib is there."""
    return importlib.util.find_spec('matplotlib') is not None


def draw(chart: Chart, ending: str) -> bytes:
    """A file of the chart on white.

    Args:
        chart: What to draw.
        ending: ``svg`` or ``png``.

    Raises:
        NoMatplotlibError: If there is nothing to draw it with.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise NoMatplotlibError(
            f'expected matplotlib to draw charts, found none ({error}); run `pip '
            "install 'mmgpu_hooks[plots]'`."
        ) from error
    style: Any = {
        'svg.fonttype': 'none',
        'svg.hashsalt': chart.name,
        'font.family': 'sans-serif',
        'font.size': _SMALL,
        'text.color': COLORS['ink'][0],
        'text.parse_math': False,
        'axes.edgecolor': COLORS['faint'][0],
        'xtick.color': COLORS['faint'][0],
        'ytick.color': COLORS['faint'][0],
        'axes.spines.top': False,
        'axes.spines.right': False,
        'axes.spines.left': False,
    }
    buffer = io.BytesIO()
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # a name may hold letters that the font lacks
        warnings.simplefilter('ignore')
        figure = Figure(figsize=(_WIDTH, 1))
        figure.patch.set_facecolor(COLORS['paper'][0])
        (_draw_bars if chart.bars else _draw_lines)(figure, chart)
        facts = {'Title': visible(chart.title), 'Date': None}
        if ending == 'png':
            facts = {'Title': visible(chart.title)}
        figure.savefig(buffer, format=ending, dpi=_DPI, metadata=facts)
    return buffer.getvalue()


def _draw_bars(figure: Any, chart: Chart) -> None:
    has_legend = len(chart.bars) > 1
    head = 0.28 if has_legend else 0.08
    height = head + _BAR * len(chart.labels) + 0.08
    figure.set_size_inches(_WIDTH, height)
    labels = [_shorten(label) for label in chart.labels]
    left = 0.085 * max(map(len, labels)) + (0.12 if any(labels) else 0.02)
    right = 0.082 * max(map(len, chart.texts), default=0) + 0.12
    width = _WIDTH - left - right
    axes = figure.add_axes(
        (left / _WIDTH, 0.08 / height, width / _WIDTH, 1 - (head + 0.08) / height)
    )
    rows = range(len(labels))
    ends = [0.0] * len(labels)
    whole = max(
        sum(one.values[row] or 0.0 for one in chart.bars) for row in rows
    ) or 1.0  # fmt: skip
    for one in chart.bars:
        values = [value or 0.0 for value in one.values]
        color = COLORS[one.role][0]
        axes.barh(
            rows,
            values,
            0.68,
            ends,
            color=color,
            linewidth=0.8,
            edgecolor=COLORS['paper'][0],
            label=visible(one.name),
        )
        for row, value in enumerate(values):
            # a name is written where the bar has room for it
            if has_legend and value / whole * width > 0.09 * len(one.name) + 0.1:
                axes.text(
                    ends[row] + value / 2,
                    row,
                    visible(one.name),
                    color=COLORS['paper'][0],
                    ha='center',
                    va='center_baseline',
                    fontsize=_TINY,
                )
        ends = [end + value for end, value in zip(ends, values)]
    for row, text in enumerate(chart.texts):
        x = whole if has_legend else ends[row]
        axes.annotate(
            visible(text),
            (x, row),
            (5, 0),
            textcoords='offset points',
            va='center_baseline',
        )
    axes.set(xlim=(0, whole), ylim=(len(labels) - 0.5, -0.5))
    axes.set_yticks(list(rows), [visible(label) for label in labels])
    axes.tick_params(length=0, labelcolor=COLORS['ink'][0])
    axes.set_xticks([])
    axes.spines['bottom'].set_visible(False)
    if has_legend:
        _legend(figure, axes, left, height)


def _legend(figure: Any, axes: Any, left: float, height: float) -> None:
    figure.legend(
        *axes.get_legend_handles_labels(),
        loc='upper left',
        bbox_to_anchor=(left / _WIDTH - 0.006, 1 + 0.04 / height),
        ncols=8,
        frameon=False,
        fontsize=_TINY,
        labelcolor=COLORS['faint'][0],
        handlelength=0.8,
        handleheight=0.8,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )


def _draw_lines(figure: Any, chart: Chart) -> None:
    count = len(chart.panels)
    height = count * (_PANEL + 0.36) + _EDGE
    figure.set_size_inches(_WIDTH, height)
    left, axes = 0.62, None
    for number, panel in enumerate(chart.panels):
        bottom = height - (number + 1) * (_PANEL + 0.36)
        box = (left / _WIDTH, bottom / height, 1 - (left + 0.1) / _WIDTH)
        axes = figure.add_axes((*box, _PANEL / height))
        _draw_panel(axes, chart, panel)
        if number < count - 1:
            axes.tick_params(labelbottom=False, length=0)
        if number == 0:
            for x, kind in chart.marks:
                transform = axes.get_xaxis_transform()
                color = COLORS['checkpoint_save' if kind == 'save' else 'validation'][0]
                words = _MARKS[kind]
                if kind == 'epoch':
                    axes.axvline(x, color=COLORS['rule'][0], linewidth=0.8, zorder=0)
                    continue
                axes.text(
                    x, 1.0, words, transform=transform, color=color, ha='center',
                    fontsize=7,
                )  # fmt: skip
    assert axes is not None
    axes.set_xlabel(
        visible(chart.x_title), loc='right', fontsize=_TINY, color=COLORS['faint'][0]
    )


def _draw_panel(axes: Any, chart: Chart, panel: Panel) -> None:
    xs = chart.x or range(len(chart.labels))
    for one in panel.series:
        color = COLORS[one.role][0]
        points = [(x, y) for x, y in zip(xs, one.values) if y is not None]
        if one.low and one.high:
            spans = [
                (x, low, high)
                for x, low, high in zip(xs, one.low, one.high)
                if low is not None and high is not None
            ]
            if one.style == 'marks':
                for x, low, high in spans:
                    axes.plot((x, x), (low, high), color=color, linewidth=1.4)
            elif spans:
                step = 'pre' if one.style == 'steps' else None
                axes.fill_between(
                    *zip(*spans), color=color, alpha=0.2, linewidth=0, step=step
                )
        if points:
            axes.plot(
                *zip(*points),
                color=color,
                linewidth=1.3,
                label=visible(one.name),
                drawstyle='steps-pre' if one.style == 'steps' else 'default',
                linestyle={'dashed': '--', 'marks': ''}.get(one.style, '-'),
                marker={'marks': 'D', 'line': 'o'}.get(one.style, ''),
                markersize=5 if one.style == 'marks' else 3,
            )
    axes.set_ylim(0, panel.top)
    if len(xs) > 1:
        pad = 0.5 if chart.labels else 0.0
        axes.set_xlim(min(xs) - pad, max(xs) + pad)
    if chart.labels:
        axes.set_xticks(list(xs), [visible(label) for label in chart.labels])
    axes.locator_params(axis='y', nbins=4)
    axes.grid(axis='y', color=COLORS['rule'][0], linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis='y', length=0)
    axes.set_title(
        visible(panel.title), loc='left', fontsize=_TINY, fontweight='bold', pad=9
    )
    if len(panel.series) > 1:
        axes.legend(
            loc='lower right',
            bbox_to_anchor=(1.0, 0.98),
            ncols=4,
            frameon=False,
            fontsize=_TINY,
            labelcolor=COLORS['faint'][0],
            handlelength=1.4,
            borderaxespad=0.1,
        )


def _shorten(label: str, most: int = 34) -> str:
    return label if len(label) <= most else f'…{label[1 - most :]}'


_PROLOGUE = re.compile(r'^.*?(?=<svg)|<(metadata|style|title)\b.*?</\1>', re.DOTALL)
_STYLE = re.compile(r' style="([^"]*)"')
_FONT = re.compile(r'(?:(\d{3}|bold) )?([\d.]+)px.*')
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


@functools.cache
def _roles() -> dict[str, str]:
    return {light: role for role, (light, _) in COLORS.items()}


def draw_inline(chart: Chart, prefix: str) -> str:
    """The chart as an element of a page: its colours are the page's variables.

    Args:
        chart: What to draw.
        prefix: Makes its ids different from those of other charts.

    Raises:
        NoMatplotlibError: If there is nothing to draw it with.
    """
    source = draw(chart, 'svg').decode()
    source = _PROLOGUE.sub('', source)
    # a page without inline styles may forbid them
    source = _STYLE.sub(_attributes, source)
    source = re.sub('#[0-9a-f]{6}', lambda m: _variable(m[0]), source)
    source = _IDS.sub(rf'\g<1>{prefix}-', source)
    words = escape_attribute(f'{chart.title}. {chart.description}')
    return source.replace('<svg ', f'<svg role="img" aria-label="{words}" ', 1)


def _variable(color: str) -> str:
    role = _roles().get(color)
    return f'var(--{role})' if role else color


def _attributes(match: re.Match[str]) -> str:
    """CSS declarations as SVG attributes; ``font`` is no attribute, its parts are."""
    written = []
    for declaration in match[1].split(';'):
        key, _, value = declaration.strip().partition(': ')
        font = _FONT.match(value) if key == 'font' else None
        if font:
            written.append(f' font-size="{font[2]}"')
            if font[1]:
                written.append(f' font-weight="{font[1]}"')
        elif key and key not in ('font', 'font-family'):
            written.append(f' {key}="{value}"')
    return ''.join(written)


def escape_attribute(text: str) -> str:
    """Text for a quoted attribute."""
    from html import escape

    return escape(visible(text), quote=True)
