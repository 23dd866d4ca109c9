"""Draws the charts of a run's page by matplotlib, as SVG.

Colours follow the page's light or dark scheme. Where matplotlib is not installed there
are no pictures: tables and sentences stand in.

A chart paints itself: a `Chart` has a description and a function that draws it on a
figure of matplotlib. On the page it is SVG, and its colours become the page's
variables.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import filled
from mmgpu_hooks.judge.memory import count_left, find_host_growth
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.recorded import PART_NAMES, PARTS
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.words import current, in_english, say


class Color(NamedTuple):
    """Colour on a page, as hex codes for the light and the dark scheme."""

    light: str
    """Hex colour on a light background."""
    dark: str
    """Hex colour on a dark background."""


COLORS: dict[str, Color] = {
    'paper': Color('#ffffff', '#14171a'),
    'panel': Color('#f6f7f8', '#1b1f23'),
    'ink': Color('#1a1d21', '#e8eaed'),
    'faint': Color('#565d66', '#a3abb5'),
    'rule': Color('#d9dde2', '#333a42'),
    'accent': Color('#0b57b0', '#7db4f5'),
    'problem': Color('#b3261e', '#ff8f86'),
    'notice': Color('#7a5200', '#e9b44c'),
    'ok': Color('#1c6b3a', '#69c98d'),
    # fills: 3:1 against the paper, and neighbours of a bar differ in lightness
    'data_wait': Color('#c2410c', '#f08a4b'),
    'step': Color('#2f6fb2', '#5b9bd8'),
    'hooks': Color('#5b3f99', '#b69cf0'),
    'checkpoint_save': Color('#8f6410', '#d8ae4a'),
    'validation': Color('#176a5e', '#54bfae'),
    'startup': Color('#8f2f63', '#e489b8'),
    'other': Color('#69717b', '#8d96a0'),
    'gpu': Color('#3c7d2b', '#86c775'),
}
"""Colours of the page and its charts, by role such as ``step``."""

LIGHT = {role: color.light for role, color in COLORS.items()}
_ROLES = {light: role for role, light in LIGHT.items()}
_INK, _FAINT = LIGHT['ink'], LIGHT['faint']
_PAPER, _RULE = LIGHT['paper'], LIGHT['rule']
WIDTH = 8.6
_BAR, _PANEL, _EDGE = 0.29, 1.55, 0.45
"""Heights in inches of a bar, of a panel with its title, and of the time axis.

An inch is 96 pixels.
"""
_SMALL, _TINY = 9.5, 8.5
_STYLE: dict[str, Any] = {
    'svg.fonttype': 'none',
    'font.size': _SMALL,
    'text.color': _INK,
    'text.parse_math': False,
    'lines.linewidth': 1.3,
    'axes.xmargin': 0,
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
_FONTS = {
    'zh-CN': (
        'Noto Sans CJK SC',
        'Noto Sans SC',
        'Noto Sans CJK JP',
        'Source Han Sans SC',
        'Source Han Sans CN',
        'WenQuanYi Micro Hei',
        'WenQuanYi Zen Hei',
        'Microsoft YaHei',
        'SimHei',
        'PingFang SC',
        'Hiragino Sans GB',
        'Heiti SC',
        'Arial Unicode MS',
        'Droid Sans Fallback',
    )
}
"""Font families with the letters of a language that matplotlib's own font lacks."""
_LAST_RESORT = 'Last Resort High-Efficiency'
"""Font that matplotlib brings from 3.9 on, with a box for every letter there is."""
_POINTS = 400
"""Maximum number of points that a chart draws of a line over time."""
_CUT = 4.0
"""Multiple of the 99th percentile of a panel's values at which its y axis is cut off.
"""


@dataclass(frozen=True)
class Chart:
    """Chart of a page, which is drawn when the page is rendered."""

    description: Text
    """Description of the chart for readers who cannot see it."""
    paint: Callable[[Any], None]
    """Function that draws the chart on a matplotlib figure."""


def can_draw() -> bool:
    """True if matplotlib can be imported.

    One that was built for another NumPy cannot.
    """
    try:
        importlib.import_module('matplotlib.figure')
    except Exception:  # noqa: BLE001 - whatever its import raises
        return False
    return True


def chart_ledger(run: Run) -> Chart | None:
    """Charts a training's seconds by part as a bar; ``None`` without recorded time."""
    ledger_s = defaultdict[str, float](float)
    for part in PARTS:
        if seconds := run.figures.ledger_s.get(part):
            ledger_s[part if part in LIGHT else 'other'] += seconds
    whole_s = sum(ledger_s.values())

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, _BAR + _EDGE)
        axes, end = figure.subplots(), 0.0
        for role, length in ledger_s.items():
            name, style = say(PART_NAMES[role]), {'color': LIGHT[role], 'lw': 0.8}
            axes.barh(0, length, 0.68, end, label=name, edgecolor=_PAPER, **style)
            # a name is written where its part is long enough
            if length > whole_s * 0.016 * len(name):
                place = {'ha': 'center', 'va': 'center_baseline', 'fontsize': _TINY}
                axes.text(end + length / 2, 0, name, color=_PAPER, **place)
            end += length
        axes.set(xlim=(0, whole_s), xticks=[], yticks=[])
        axes.spines['bottom'].set_visible(False)
        place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1), 'borderaxespad': 0.2}
        marks = {'handlelength': 0.8, 'handleheight': 0.8, 'handletextpad': 0.4}
        axes.legend(ncols=8, columnspacing=1.2, **place, **marks)

    if not ledger_s:
        return None
    return Chart(phrase('Parts of {whole_s}.', whole_s=whole_s), paint)


def _open_panels(figure: Any, titles: Sequence[Text], x_title: Text) -> list[Any]:
    """Stacks one panel per title on a figure, with a common x axis."""
    figure.set_size_inches(WIDTH, len(titles) * _PANEL + _EDGE)
    panels = figure.subplots(len(titles), sharex=True, squeeze=False)[:, 0]
    for axes, title in zip(panels, titles):
        title_of = {'fontsize': _TINY, 'fontweight': 'bold', 'pad': 9}
        axes.set_title(say(title), loc='left', **title_of)
        axes.locator_params(axis='y', nbins=4)
        axes.grid(axis='y', color=_RULE, lw=0.7)
        axes.tick_params(axis='y', length=0)
    panels[-1].set_xlabel(say(x_title), loc='right', fontsize=_TINY, color=_FAINT)
    return list(panels)


def chart_growth(run: Run) -> Chart | None:
    """Charts growing host memory of training process and workers, until it is full.

    ``None`` without growth, or where the free memory is unknown.
    """
    growth = find_host_growth(run)
    if growth is None or growth.room is None or growth.full_in is None:
        return None
    room, gib = growth.room, 2.0**-30
    read = run.every.having('process_own_bytes')
    read = read.take(np.linspace(0, len(read) - 1, min(len(read), _POINTS)).astype(int))
    held = read.column('process_own_bytes') + filled(read.column('worker_own_bytes'))
    x, left = read.column('iteration'), count_left(run)
    ahead = min(growth.full_in, left if left is not None else growth.full_in)
    each, ranks = growth.bytes_each, run.meta.host.ranks
    forecast = [held[-1], held[-1] + each * ahead / ranks]
    full = growth.full_in + int(x[-1])
    said = phrase('full at iteration {iteration}', iteration=full)

    def paint(figure: Any) -> None:
        title = phrase('Training process and workers, GiB')
        (axes,) = _open_panels(figure, [title], phrase('iterations'))
        read_as = {'color': LIGHT['validation'], 'label': say(phrase('as read'))}
        axes.plot(x, gib * held, ds='steps-pre', **read_as)
        ends, values = [x[-1], x[-1] + ahead], gib * np.array(forecast)
        axes.plot(ends, values, color=LIGHT['problem'], ls='--', label=say(said))
        most = gib * (held[-1] + room.free_bytes / ranks)
        label = say(phrase('what there is'))
        axes.axhline(most, color=_INK, ls='--', label=label)
        axes.set_ylim(0)
        place = {'loc': 'lower right', 'bbox_to_anchor': (1.0, 0.98)}
        axes.legend(ncols=4, handlelength=1.4, borderaxespad=0.1, **place)

    return Chart(
        phrase(
            'Memory grows by {rise_bytes} per 1000 iterations, {full}; {free_bytes} '
            'are free {bound}.',
            room,
            rise_bytes=1000 * each,
            full=said,
        ),
        paint,
    )


def chart_forecast(
    points: Sequence[Prediction], marks: Mapping[int, Text], measured_s: float | None
) -> Chart | None:
    """Charts predicted seconds per iteration by worker count; ``None`` for one count.

    Args:
        points: By number of workers.
        marks: ``now`` and ``new``, by number of workers.
        measured_s: An iteration of the run itself.
    """
    if len(points) < 2:
        return None
    scale = scale_seconds(max(point.iter_time_high_s for point in points))
    places = {point.num_workers: number for number, point in enumerate(points)}
    low = [scale.factor * point.iter_time_low_s for point in points]
    line = [scale.factor * point.iter_time_s for point in points]
    high = [scale.factor * point.iter_time_high_s for point in points]
    best = next((n for n, mark in marks.items() if mark == 'new'), None)
    title = phrase('An iteration against workers, {unit}', scale)
    if best is not None and measured_s is not None:
        title = phrase(
            'An iteration against workers, {unit}: {then_s} predicted with '
            '{new_workers:d}, {measured_s} measured now',
            scale,
            then_s=points[places[best]].iter_time_s,
            new_workers=best,
            measured_s=measured_s,
        )
    elif best is not None:
        title = phrase(
            'An iteration against workers, {unit}: {then_s} predicted with '
            '{new_workers:d}',
            scale,
            then_s=points[places[best]].iter_time_s,
            new_workers=best,
        )

    def paint(figure: Any) -> None:
        x_title = phrase('loader workers, evenly spaced')
        (axes,) = _open_panels(figure, [title], x_title)
        figure.set_size_inches(WIDTH, 2.6)
        x, color = list(places.values()), LIGHT['step']
        band = {'color': color, 'alpha': 0.25, 'lw': 0, 'label': say(_BAND)}
        axes.fill_between(x, low, high, **band)
        predicted = say(phrase('predicted'))
        axes.plot(x, line, color=color, marker='o', ms=4, label=predicted)
        for workers, mark in marks.items():
            at, is_now = places[workers], mark == 'now'
            role = 'problem' if is_now else 'accent'
            value_s = points[at].iter_time_s
            if is_now and measured_s is not None:
                value_s = measured_s
            name = phrase('this run, measured') if is_now else phrase('recommended')
            style = {'color': LIGHT[role], 'mfc': 'none', 'mew': 1.8}
            marker = 'D' if is_now else 'o'
            height = scale.factor * value_s
            axes.plot(at, height, marker, ms=11, ls='', label=say(name), **style)
        axes.set_xticks(x, list(map(str, places)))
        axes.set_ylim(0)
        axes.margins(x=0.03)
        place = {'loc': 'upper right', 'bbox_to_anchor': (1.0, 1.0)}
        axes.legend(ncols=2, handlelength=1.4, borderaxespad=0.1, **place)

    return Chart(title, paint)


_BAND = phrase('9 times in 10 within')


class Scale(NamedTuple):
    """Unit that values are shown in, and the multiplier from their base unit to it."""

    factor: float
    """Multiplier from the base unit to the shown unit."""
    unit: str


def scale_seconds(largest_s: float) -> Scale:
    """Chooses the unit (s, ms or us) in which the largest value is at least 1."""
    for scale in (Scale(1.0, 's'), Scale(1e3, 'ms')):
        if largest_s * scale.factor >= 1:
            return scale
    return Scale(1e6, 'us')


class _TrackSource(NamedTuple):
    """Definition of a timeline panel: its title, its colour, and the field it shows."""

    title: Text
    role: str
    """Key of the panel's colour in :data:`COLORS`."""
    field: str
    """Dotted name of the interval record's field that the panel shows."""


_TRACKS = (
    _TrackSource(phrase('Data wait'), 'data_wait', 'data_wait.total_s'),
    _TrackSource(phrase('Step'), 'step', 'step.total_s'),
    _TrackSource(phrase('GPU utilisation'), 'gpu', 'gpu.util_pct'),
    _TrackSource(phrase('Memory of the GPU, peak'), 'startup', 'gpu_mem_peak_bytes'),
    _TrackSource(phrase('Memory of the process'), 'validation', 'process_rss_bytes'),
)


class _TimeUnit(NamedTuple):
    """Unit of the time axis, chosen by the length of the training."""

    least_s: float
    """Shortest training, in seconds, whose time axis has the unit."""
    seconds: float
    title: Text
    """Title of the chart's time axis in the unit."""


_TIME_UNITS = (
    _TimeUnit(
        3 * 3600.0,
        3600.0,
        phrase('hours since training began    ▼ save  ◆ validation  │ epoch'),
    ),
    _TimeUnit(
        180.0,
        60.0,
        phrase('minutes since training began    ▼ save  ◆ validation  │ epoch'),
    ),
    _TimeUnit(
        0.0,
        1.0,
        phrase('seconds since training began    ▼ save  ◆ validation  │ epoch'),
    ),
)
_MARKS = {'checkpoint_save': '▼', 'validation': '◆'}


@dataclass(frozen=True)
class _Track:
    """Curves of a timeline panel: mean, least, largest value per group of intervals."""

    title: Text
    color: str
    mean: Sequence[float]
    least: Sequence[float]
    most: Sequence[float]
    top: float | None
    """Upper end of the y axis; ``None`` leaves the choice to matplotlib."""


class _Event(NamedTuple):
    """Save, validation or start of an epoch that is marked on the timeline."""

    at_s: float
    """Seconds from the start of training to the event."""
    kind: str


def chart_timeline(run: Run) -> Chart | None:
    """Charts data wait, step and GPU over time, with saves and epochs marked.

    Neighbouring intervals are merged where there are too many: the line is their
    mean, the band reaches from the smallest to the largest.
    """
    count = len(run.intervals)
    groups = np.array_split(np.arange(count), max(min(count, _POINTS), 1))
    found = (_merge(run, figure, groups) for figure in _TRACKS)
    tracks = [track for track in found if track is not None]
    if not tracks:
        return None
    ends_s = run.column('elapsed_s')
    begin_s = ends_s[0] - run.column('duration_s')[0]
    edges_s = np.array([begin_s, *(ends_s[group[-1]] for group in groups)])
    unit = next(unit for unit in _TIME_UNITS if edges_s[-1] >= unit.least_s)
    x = edges_s / unit.seconds
    titles = [track.title for track in tracks]

    def paint(figure: Any) -> None:
        panels = _open_panels(figure, titles, unit.title)
        for axes, track in zip(panels, tracks):
            band = {'step': 'pre', 'color': track.color, 'alpha': 0.2, 'lw': 0}
            axes.fill_between(x, track.least, track.most, **band)
            axes.plot(x, track.mean, color=track.color, ds='steps-pre')
            axes.set_ylim(0, track.top)
        first = panels[0]
        for event in _find_events(run):
            at, kind = event.at_s / unit.seconds, event.kind
            if kind == 'epoch':
                first.axvline(at, color=_RULE, lw=0.8, zorder=0)
                continue
            place = {'transform': first.get_xaxis_transform(), 'ha': 'center'}
            first.text(at, 1, _MARKS[kind], color=LIGHT[kind], fontsize=7, **place)

    return Chart(phrase('Over time: {titles:;}.', titles=tuple(titles)), paint)


def _merge(run: Run, figure: _TrackSource, groups: Sequence[Any]) -> _Track | None:
    """Makes a timeline panel's curves: a record field by group of log intervals."""
    values, is_sum = run.column(figure.field), figure.field.endswith('total_s')
    if is_sum:
        iterations = run.column('iterations')
        values = values / np.where(iterations > 0, iterations, np.nan)
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    most = float(known.max())
    top, scale = 1.05 * most, Scale(2.0**-30, 'GiB')
    title = phrase('{figure}, GiB', figure=figure.title)
    if is_sum:
        usual = _CUT * float(np.percentile(known, 99))
        is_cut = 0 < usual < most
        top = usual if is_cut else top
        scale = scale_seconds(min(top, most))
        facts = {'figure': figure.title, 'unit': scale.unit}
        title = phrase('{figure}, {unit} per iteration', **facts)
        if is_cut:
            title = phrase(
                '{figure}, {unit} per iteration (cut off: highest {most_s})',
                most_s=most,
                **facts,
            )
    elif figure.field.endswith('_pct'):
        top, scale = 100.0, Scale(1.0, '%')
        title = phrase('{figure}, %', figure=figure.title)
    parts = [scale.factor * values[group] for group in groups]
    # the first point begins the first step
    parts = [parts[0], *parts]
    with warnings.catch_warnings():
        # of intervals in which it is unknown
        warnings.simplefilter('ignore')
        return _Track(
            title=title,
            color=LIGHT[figure.role],
            mean=[float(np.nanmean(part)) for part in parts],
            least=[float(np.nanmin(part)) for part in parts],
            most=[float(np.nanmax(part)) for part in parts],
            top=top * scale.factor or None,
        )


def _find_events(run: Run) -> Iterator[_Event]:
    """Finds the times of saves, validations and epoch starts for the timeline.

    At most one of a kind in a hundredth of the axis.
    """
    ends_s, epochs = run.column('elapsed_s'), run.column('epoch')
    masks = {
        'checkpoint_save': filled(run.column('saves')) > 0,
        'validation': filled(run.column('ledger_s', 'validation')) > 0,
        'epoch': np.append(np.diff(epochs) > 0, [False]),
    }
    for kind, mask in masks.items():
        places = (100 * ends_s[mask] / ends_s[-1]).astype(int)
        for first in np.unique(places, return_index=True)[1]:
            yield _Event(float(ends_s[mask][first]), kind)


def find_font() -> str | None:
    """Finds the installed font family by which the letters of charts are laid out.

    The reader's browser draws them, with fonts of its own.

    Returns:
        Empty for matplotlib's own; ``None`` where no font has the language's letters.
    """
    families = _FONTS.get(current().language)
    if families is None:
        return ''
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    # matplotlib's last resort draws boxes, but boxes as wide as the letters
    last = '' if _LAST_RESORT in installed else None
    return next((family for family in families if family in installed), last)


_PROLOGUE = re.compile(r'^.*?(?=<svg)|<(metadata|style|title)\b.*?</\1>', re.DOTALL)
_IDS = re.compile(r'(\bid="|url\(#|href="#)')


def draw(chart: Chart, prefix: str) -> str:
    """Renders a chart as an SVG element, with the page's CSS variables as colours.

    Args:
        chart: What to draw.
        prefix: Makes its ids different from those of other charts.
    """
    import matplotlib
    from matplotlib.figure import Figure

    buffer = io.StringIO()
    style: Any = {**_STYLE, 'svg.hashsalt': prefix}
    font = find_font()
    if font:
        style['font.sans-serif'] = [font, *matplotlib.rcParams['font.sans-serif']]
    speaking = contextlib.nullcontext() if font is not None else in_english()
    with matplotlib.rc_context(style), speaking, warnings.catch_warnings():
        warnings.filterwarnings('ignore', r'Glyph \d+ .* missing from')
        figure = Figure(facecolor=_PAPER, layout='constrained')
        chart.paint(figure)
        figure.savefig(buffer, format='svg', metadata={'Date': None})
    source = _PROLOGUE.sub('', buffer.getvalue())
    source = re.sub('#[0-9a-f]{6}', _color, source)
    source = _IDS.sub(rf'\g<1>{prefix}-', source)
    words = escape(say(chart.description))
    return source.replace('<svg ', f'<svg role="img" aria-label="{words}" ', 1)


def _color(match: re.Match[str]) -> str:
    role = _ROLES.get(match[0])
    return f'var(--{role})' if role else match[0]
