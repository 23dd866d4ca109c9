"""Charts of the page: one declarative specification, drawn by matplotlib as SVG.

Colours follow the page's light or dark scheme. Where matplotlib is not installed there
are no pictures: tables and sentences stand in.
"""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from mmgpu_hooks.show.text import visible

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
    'other': ('#69717b', '#8d96a0'),
    'gpu': ('#3c7d2b', '#86c775'),
}
"""Each role's colour on a light and on a dark ground."""

_INK, _FAINT, _PAPER, _RULE = (
    COLORS[role][0] for role in ('ink', 'faint', 'paper', 'rule')
)
_ROLES = {light: role for role, (light, _) in COLORS.items()}
_WIDTH = 8.6
_BAR, _PANEL, _EDGE = 0.29, 1.55, 0.45
"""Inches at 96 pixels: the page's column, a bar, a panel with its title, an axis."""
_SMALL, _TINY = 9.5, 8.5
EVENTS = ('save', 'validation', 'epoch')
_MARKS = {'save': ('▼', 'checkpoint_save'), 'validation': ('◆', 'validation')}
_STYLE: dict[str, Any] = {
    'svg.fonttype': 'none',
    'font.family': 'sans-serif',
    'font.size': _SMALL,
    'text.color': _INK,
    'text.parse_math': False,
    'axes.edgecolor': _FAINT,
    'xtick.color': _FAINT,
    'ytick.color': _FAINT,
    'axes.spines.top': False,
    'axes.spines.right': False,
    'axes.spines.left': False,
    'legend.frameon': False,
    'legend.fontsize': _TINY,
    'legend.labelcolor': _FAINT,
}


Part = tuple[str, str, float]
"""Name, role of its colour, and length of one part of the bar."""


@dataclass(frozen=True)
class Series:
    """One line of a panel; NaN is a gap."""

    name: str
    values: Sequence[float]
    role: str = 'step'
    """Of the palette."""
    low: Sequence[float] = ()
    """With ``high``: a band about the line."""
    high: Sequence[float] = ()
    style: str = 'line'
    """``line``, ``steps`` or ``dashed``."""


@dataclass(frozen=True)
class Panel:
    """Lines over the common axis of a chart's panels."""

    title: str
    """The quantity with its unit."""
    series: Sequence[Series]
    top: float | None = None
    """Where its axis ends; by default at the largest value."""


@dataclass(frozen=True)
class Chart:
    """What is drawn: a bar of parts, or panels of lines over ``x``."""

    title: str
    description: str
    """For a reader who cannot see it."""
    parts: Sequence[Part] = ()
    panels: Sequence[Panel] = ()
    x: Sequence[float] = ()
    x_title: str = ''
    marks: Sequence[tuple[float, str]] = ()
    """Events on the axis: where, and which of :data:`EVENTS`."""


def can_draw() -> bool:
    """Whether matplotlib is there and works: one built for another NumPy does not."""
    try:
        importlib.import_module('matplotlib.figure')
    except Exception:  # noqa: BLE001 - whatever its import raises
        return False
    return True


def _draw_bar(figure: Any, chart: Chart) -> None:
    figure.set_size_inches(_WIDTH, _BAR + _EDGE)
    axes = figure.subplots()
    whole, end = sum(length for _, _, length in chart.parts), 0.0
    for name, role, length in chart.parts:
        style = {'color': COLORS[role][0], 'lw': 0.8, 'edgecolor': _PAPER}
        axes.barh(0, length, 0.68, end, label=visible(name), **style)
        # a name is written where its part is long enough
        if length > whole * 0.016 * len(name):
            place = {'ha': 'center', 'va': 'center_baseline', 'fontsize': _TINY}
            axes.text(end + length / 2, 0, visible(name), color=_PAPER, **place)
        end += length
    axes.set(xlim=(0, whole), xticks=[], yticks=[])
    axes.spines['bottom'].set_visible(False)
    place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1), 'borderaxespad': 0.2}
    marks = {'handlelength': 0.8, 'handleheight': 0.8, 'handletextpad': 0.4}
    axes.legend(ncols=8, columnspacing=1.2, **place, **marks)


def _draw_lines(figure: Any, chart: Chart) -> None:
    count = len(chart.panels)
    figure.set_size_inches(_WIDTH, count * _PANEL + _EDGE)
    axes = figure.subplots(count, sharex=True, squeeze=False)[:, 0]
    for one, panel in zip(axes, chart.panels):
        _draw_panel(one, chart, panel)
    title = visible(chart.x_title)
    axes[-1].set_xlabel(title, loc='right', fontsize=_TINY, color=_FAINT)
    for x, kind in chart.marks:
        if kind == 'epoch':
            axes[0].axvline(x, color=_RULE, lw=0.8, zorder=0)
            continue
        sign, role = _MARKS[kind]
        place = {'transform': axes[0].get_xaxis_transform(), 'ha': 'center'}
        axes[0].text(x, 1.0, sign, color=COLORS[role][0], fontsize=7, **place)


def _draw_panel(axes: Any, chart: Chart, panel: Panel) -> None:
    xs = chart.x
    for one in panel.series:
        color, is_steps = COLORS[one.role][0], one.style == 'steps'
        if len(one.low):
            step = 'pre' if is_steps else None
            band = {'color': color, 'alpha': 0.2, 'lw': 0}
            axes.fill_between(xs, one.low, one.high, step=step, **band)
        axes.plot(
            xs,
            one.values,
            color=color,
            lw=1.3,
            label=visible(one.name),
            drawstyle='steps-pre' if is_steps else 'default',
            linestyle='--' if one.style == 'dashed' else '-',
            marker='o' if one.style == 'line' else '',
            markersize=3,
        )
        if one.style == 'line':
            axes.set_xticks(list(xs))
    axes.set_ylim(0, panel.top)
    if len(xs) > 1:
        axes.set_xlim(min(xs), max(xs))
    axes.locator_params(axis='y', nbins=4)
    axes.grid(axis='y', color=_RULE, lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis='y', length=0)
    title = visible(panel.title)
    axes.set_title(title, loc='left', fontsize=_TINY, fontweight='bold', pad=9)
    if len(panel.series) > 1:
        place = {'loc': 'lower right', 'bbox_to_anchor': (1.0, 0.98)}
        axes.legend(ncols=4, handlelength=1.4, borderaxespad=0.1, **place)


_PROLOGUE = re.compile(r'^.*?(?=<svg)|<(metadata|style|title)\b.*?</\1>', re.DOTALL)
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


def draw(chart: Chart, prefix: str) -> str:
    """The chart as an element of a page: its colours are the page's variables.

    Args:
        chart: What to draw.
        prefix: Makes its ids different from those of other charts.
    """
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    style: Any = {**_STYLE, 'svg.hashsalt': prefix}
    with matplotlib.rc_context(style), warnings.catch_warnings():
        # a name may hold letters that the font lacks
        warnings.simplefilter('ignore')
        figure = Figure(facecolor=_PAPER, layout='constrained')
        (_draw_bar if chart.parts else _draw_lines)(figure, chart)
        figure.savefig(buffer, format='svg', metadata={'Date': None})
    source = _PROLOGUE.sub('', buffer.getvalue())
    source = re.sub('#[0-9a-f]{6}', _color, source)
    source = _IDS.sub(rf'\g<1>{prefix}-', source)
    words = escape(visible(f'{chart.title}. {chart.description}'), quote=True)
    return source.replace('<svg ', f'<svg role="img" aria-label="{words}" ', 1)


def _color(match: re.Match[str]) -> str:
    role = _ROLES.get(match[0])
    return f'var(--{role})' if role else match[0]
