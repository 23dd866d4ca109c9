"""Draws charts of a sweep's page: memory, utilisation over time, speed, saves.

Each title says what was found; a figure that is unknown has no axes.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from mmgpu_hooks.schema.figures import format_bytes
from mmgpu_hooks.schema.judged import Estimate
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import MemoryLine, Sweep, SweepRow
from mmgpu_hooks.show.charts import LIGHT, WIDTH, Chart, Scale, scale_seconds
from mmgpu_hooks.show.words import say


class _LineStyle(NamedTuple):
    """Colour and marker of one line in a sweep's chart, unlike those of other lines."""

    role: str
    """Key of the line's colour in ``COLORS`` of `charts`."""
    marker: str


_LINES = (
    _LineStyle('data_wait', 'o'),
    _LineStyle('step', 's'),
    _LineStyle('gpu', '^'),
    _LineStyle('hooks', 'D'),
    _LineStyle('startup', 'v'),
    _LineStyle('validation', 'P'),
    _LineStyle('checkpoint_save', 'X'),
    _LineStyle('other', '*'),
)
_TINY = 8.5
_LEGEND_WIDTH = 32
"""Maximum number of characters per line of a legend."""
_MOST_TIMELINES = 24
_BEST = phrase('best of its batch size')
_LONGEST_AXIS = 2.5
"""Multiple of the largest plotted mean at which axis and error bars are cut off."""


def _titled(axes: Any, title: Text) -> None:
    axes.set_title(say(title), loc='left', fontsize=9.5, fontweight='bold', pad=9)
    axes.grid(axis='y', color=LIGHT['rule'], lw=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(axis='y', length=0)


def _label_x(axes: Any, words: Text) -> None:
    axes.set_xlabel(say(words), loc='right', fontsize=_TINY, color=LIGHT['faint'])


def title_memory(line: MemoryLine) -> Text:
    """Phrases the memory chart's title: ``Batch 8 takes 1.5 times what ...``."""
    first, last = line.points[0], line.points[-1]
    times = last.batch_size / first.batch_size
    grown = last.total_bytes / first.total_bytes
    facts = {
        'last': last.batch_size,
        'grown_times': max(grown, 0.1),
        'first': first.batch_size,
        'times': times,
    }
    if line.fixed_bytes > 0:
        return phrase(
            'Batch {last} takes {grown_times:.1f} times what batch {first} takes, not '
            '{times:.3g} times: {fixed_bytes} are taken before the first image',
            line,
            **facts,
        )
    return phrase(
        'Batch {last} takes {grown_times:.1f} times what batch {first} takes, not '
        '{times:.3g} times',
        **facts,
    )


def _scale_memory(line: MemoryLine) -> Scale:
    largest = max(point.total_bytes for point in line.points)
    return Scale(2.0**-30, 'GiB') if largest >= 2**30 else Scale(2.0**-20, 'MiB')


class _MemoryPart(NamedTuple):
    """Part of a training's memory in a stacked bar chart: label, colour and sizes."""

    role: str
    """Key of the part's colour in ``COLORS`` of `charts`."""
    label: Text
    sizes: Sequence[float]
    """Memory of the part at each batch size, in the unit of the chart's axis."""


def _memory_parts(line: MemoryLine) -> list[_MemoryPart]:
    """Lists the parts of memory in a chart's stacked bars, from the bottom up."""
    factor = _scale_memory(line).factor
    rest = phrase('activations and temporaries')
    if line.source == 'host':
        rest = phrase('activations, Python, libraries and data')
    parts: list[_MemoryPart] = []

    def add(role: str, label: Text, sizes: Sequence[float]) -> None:
        if any(sizes):
            parts.append(_MemoryPart(role, label, [factor * size for size in sizes]))

    models = [point.model_bytes for point in line.points]
    known = [model for model in models if model is not None]
    if len(known) == len(models):
        add('step', phrase('parameters'), [model.parameters for model in known])
        add('validation', phrase('gradients'), [model.gradients for model in known])
        states = [model.optimizer_state for model in known]
        add('hooks', phrase('optimizer state'), states)
        others = [p.total_bytes - m.total for p, m in zip(line.points, known)]
        add('data_wait', rest, [max(size, 0) for size in others])
    else:
        totals = [point.total_bytes for point in line.points]
        add('data_wait', phrase('all together'), totals)
    kept = [max((p.reserved_bytes or 0) - p.total_bytes, 0) for p in line.points]
    add('other', phrase('kept by the allocator beyond its peak'), kept)
    return parts


def chart_memory(line: MemoryLine, failed: Sequence[int]) -> Chart:
    """Charts memory by batch size in stacked bars, with a fitted line and intercept.

    Args:
        line: Fitted to at least two batch sizes.
        failed: Batch sizes that ran out of memory.
    """
    title, parts = title_memory(line), _memory_parts(line)
    scale = _scale_memory(line)
    xs = [point.batch_size for point in line.points]
    most = max([*xs, *failed])
    fitted = phrase(
        'fitted: {fixed_bytes} + {image_bytes} an image, within {residual_pct:.1f} %',
        line,
    )

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 3.6)
        axes, bottom = figure.subplots(), [0.0] * len(xs)
        _titled(axes, title)
        near = min(b - a for a, b in zip(xs, xs[1:]))
        width = min(max(0.6 * near, 0.014 * most), 0.08 * most)
        for part in parts:
            style = {'color': LIGHT[part.role], 'edgecolor': LIGHT['paper'], 'lw': 0.6}
            axes.bar(xs, part.sizes, width, bottom, label=say(part.label), **style)
            bottom = [low + size for low, size in zip(bottom, part.sizes)]
        top = max(bottom)
        ends = [0, 1.05 * most]
        heights = [
            scale.factor * (line.fixed_bytes + line.image_bytes * x) for x in ends
        ]
        axes.plot(ends, heights, color=LIGHT['ink'], label=say(fitted))
        first = line.points[0]
        each = scale.factor * first.total_bytes / first.batch_size
        label = say(phrase('if it were proportional to batch {batch_size}', first))
        heights = [each * x for x in ends]
        axes.plot(ends, heights, color=LIGHT['faint'], ls=':', label=label)
        if line.fixed_bytes > 0:
            axes.plot(0, heights[0], 'o', color=LIGHT['ink'], clip_on=False, ms=6)
        for point, height in zip(line.points, bottom):
            said = format_bytes(point.total_bytes)
            place = {'ha': 'center', 'va': 'bottom', 'fontsize': _TINY}
            axes.text(point.batch_size, height + 0.02 * top, said, **place)
        for batch in failed:
            place = {'ha': 'center', 'va': 'top', 'fontsize': _TINY}
            color = LIGHT['problem']
            full = say(phrase('out of\nmemory'))
            axes.text(batch, 1.2 * top, full, color=color, **place)
        axes.set(xlim=(0, 1.08 * most), ylim=(0, 1.25 * top))
        axes.set_ylabel(scale.unit, color=LIGHT['faint'])
        axes.set_xticks(sorted({0, *xs, *failed}))
        _label_x(axes, phrase('batch size, images'))
        place = {'loc': 'upper left', 'bbox_to_anchor': (0, -0.13), 'ncols': 2}
        axes.legend(handlelength=1.6, borderaxespad=0.0, **place)

    return Chart(title, paint)


class _TimelineTitle(NamedTuple):
    """Both title lines of a panel in the chart of GPU utilisation over time."""

    setting: Text
    figures: Text


def title_timeline(row: SweepRow, *, is_best: bool) -> _TimelineTitle:
    """Phrases both title lines of a trial's panel: ``2 workers``, ``43 %, ...``."""
    name = row.setting.name
    if is_best:
        name = phrase('★ {setting}', setting=name)
    if row.gpu_util_pct is None:
        return _TimelineTitle(name, phrase('too short for a figure'))
    if row.gpu_zero_pct is None:
        return _TimelineTitle(name, phrase('{gpu_util_pct} (n={gpu_samples:d})', row))
    figures = phrase(
        '{gpu_util_pct}, {gpu_zero_pct} of time at 0 (n={gpu_samples:d})', row
    )
    return _TimelineTitle(name, figures)


def chart_timelines(sweep: Sweep) -> Chart | None:
    """Charts GPU utilisation and share of time at 0 % over time, one panel per trial.

    Returns:
        ``None`` where no trial has a sample.
    """
    rows = [row for row in sweep.rows if row.gpu_timeline][:_MOST_TIMELINES]
    if not rows:
        return None
    columns = max(min(len({row.setting.num_workers for row in rows}), 4), 2)
    lines = -(-len(rows) // columns)
    titles = (title_timeline(row, is_best=row.setting in sweep.best) for row in rows)
    described = tuple(phrase('{setting}: {figures}', title) for title in titles)
    end_s = max(row.gpu_timeline[-1].end_s for row in rows)

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 1.55 * lines + 0.75)
        grid = figure.subplots(lines, columns, sharex=True, sharey=True, squeeze=False)
        for axes in grid.flat[len(rows) :]:
            axes.set_visible(False)
        for axes, row in zip(grid.flat, rows):
            _paint_timeline(axes, row, is_best=row.setting in sweep.best)
            axes.set(xlim=(0, end_s), ylim=(0, 100), yticks=[0, 50, 100])
        for axes in grid[:, 0]:
            axes.set_ylabel('%', color=LIGHT['faint'])
        for n in range(columns):
            shown = [axes for axes in grid[:, n] if axes.get_visible()]
            shown[-1].tick_params(labelbottom=True)
        _label_x(grid[-1, 0], phrase('seconds since training began'))
        handles, labels = grid[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc='outside lower right', ncols=3)

    description = phrase('GPU utilisation over time: {trials:;}.', trials=described)
    return Chart(description, paint)


def _paint_timeline(axes: Any, row: SweepRow, *, is_best: bool) -> None:
    spans = row.gpu_timeline
    color = LIGHT['accent'] if is_best else LIGHT['ink']
    title = title_timeline(row, is_best=is_best)
    style = {'loc': 'left', 'fontsize': _TINY, 'fontweight': 'bold', 'color': color}
    axes.set_title('\n'.join(map(say, title)), pad=5, **style)
    axes.grid(axis='y', color=LIGHT['rule'], lw=0.7)
    axes.tick_params(axis='y', length=0)
    warm = [span for span in spans if span.is_warm_up]
    if warm:
        # not in the panel's figures
        label = say(phrase('warm-up'))
        axes.axvspan(0, warm[-1].end_s, color=LIGHT['rule'], lw=0, label=label)
    edges = [spans[0].begin_s, *(span.end_s for span in spans)]
    heights = [span.util_pct for span in spans]
    style = {'color': LIGHT['gpu'], 'alpha': 0.75, 'lw': 0}
    label = say(phrase('utilisation'))
    axes.stairs(heights, edges, fill=True, label=label, **style)
    zeros = [float('nan') if s.zero_pct is None else s.zero_pct for s in spans]
    style = {'color': LIGHT['problem'], 'lw': 1.4, 'baseline': None}
    label = say(phrase('share of the interval at 0 %'))
    axes.stairs(zeros, edges, label=label, **style)


def group_rows(
    rows: Sequence[SweepRow], is_shown: Callable[[SweepRow], bool]
) -> dict[Text, list[SweepRow]]:
    """Groups the trials whose settings differ only in the number of workers."""
    groups: dict[Text, list[SweepRow]] = defaultdict(list)
    own = phrase("the config's own settings")
    for row in rows:
        if is_shown(row):
            # no workers stand in every line of other numbers of batches ahead
            groups[row.setting.group or own].append(row)
    return groups


def _wrap(group: Text) -> str:
    """Wraps the name of a group of trials to a legend's width."""
    return '\n'.join(textwrap.wrap(say(group), _LEGEND_WIDTH))


def _ordinals(groups: Mapping[Text, Sequence[SweepRow]]) -> dict[int, int]:
    """Returns equally spaced positions on a chart's x axis, by number of workers.

    So 0, 1 and 2 stay legible beside 32.
    """
    numbers = {row.setting.num_workers for rows in groups.values() for row in rows}
    return {workers: place for place, workers in enumerate(sorted(numbers))}


def title_speed(sweep: Sweep) -> Text:
    """Phrases the speed chart's title: ``Fastest: 2 workers, with 6.1 images/s``."""
    rows = {row.setting: row for row in sweep.rows}
    if not sweep.best:
        return phrase('No setting can be recommended')
    best = rows[sweep.best[0]]
    iter_s = best.iter_s.value if best.iter_s else None
    speed = phrase('{iter_s}', iter_s=iter_s)
    if best.images_per_s is not None:
        speed = phrase('{images_per_s:.1f} images/s', best)
    facts = {'setting': best.setting.name, 'speed': speed}
    if sweep.find_rivals(best):
        return phrase(
            'Fastest: {setting}, with {speed} (not sure: intervals overlap)', **facts
        )
    return phrase('Fastest: {setting}, with {speed}', **facts)


def _phrase_intervals(estimates: Sequence[Estimate]) -> Text:
    """Phrases the speed chart's caption: number of log intervals behind its means."""
    counts = [estimate.count for estimate in estimates]
    least, most = min(counts), max(counts)
    basis = phrase(
        'mean and 95 % interval of {least} to {most_intervals}',
        least=least,
        most_intervals=most,
    )
    if least == most:
        basis = phrase('mean and 95 % interval of {intervals}', intervals=least)
    longest = max(estimate.high for estimate in estimates)
    longest /= max(estimate.value for estimate in estimates)
    if longest > _LONGEST_AXIS:
        basis = phrase('{basis}; the longest are cut off by the axis', basis=basis)
    return basis


def chart_speed(sweep: Sweep) -> Chart | None:
    """Charts iteration time and images/s by number of workers, with 95 % intervals."""
    groups = group_rows(sweep.rows, lambda row: row.is_measured)
    if not groups:
        return None
    places, whole_title = _ordinals(groups), title_speed(sweep)
    estimates = [r.iter_s for rows in groups.values() for r in rows if r.iter_s]
    scale = scale_seconds(max(estimate.high for estimate in estimates))
    basis = _phrase_intervals(estimates)
    shown_rows = [row for rows in groups.values() for row in rows]
    has_images = all(row.images_per_s for row in shown_rows)

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 3.5)
        panels = figure.subplots(1, 1 + has_images, squeeze=False)[0]
        titles = [phrase('Images/s')] if has_images else []
        titles.append(phrase('An iteration, {unit}', scale))
        for axes, title in zip(panels, titles):
            is_iteration = axes is panels[-1]
            _titled(axes, title)
            styles = zip(groups.items(), _LINES * len(groups))
            for number, ((group, rows), style) in enumerate(styles):
                spans = [
                    _speed_span(row, scale.factor, is_iteration=is_iteration)
                    for row in rows
                ]
                # beside each other, so that no interval hides another one
                aside = 0.05 * (number - (len(groups) - 1) / 2)
                x = [places[row.setting.num_workers] + aside for row in rows]
                _paint_line(axes, x, spans, _wrap(group), style)
                rings = [
                    (at, span.value)
                    for at, span, row in zip(x, spans, rows)
                    if row.setting in sweep.best
                ]
                if rings:
                    _mark_best(axes, rings)
            axes.set_xticks(list(places.values()), list(map(str, places)))
            spans = [
                _speed_span(row, scale.factor, is_iteration=is_iteration)
                for row in shown_rows
            ]
            # an interval of few values may be many times as long as the axis
            _, top = axes.get_ylim()
            top = min(top, _LONGEST_AXIS * max(span.value for span in spans))
            axes.set_ylim(0, top)
            axes.margins(x=0.08)
            _label_x(axes, phrase('loader workers'))
        figure.suptitle(
            say(whole_title), x=0.01, ha='left', fontsize=9.5, fontweight='bold'
        )
        handles, labels = panels[0].get_legend_handles_labels()
        title_of = {'title': say(basis), 'title_fontsize': _TINY, 'alignment': 'left'}
        place = {'loc': 'outside lower left', 'ncols': 4, **title_of}
        legend = figure.legend(handles, labels, **place)
        legend.get_title().set_color(LIGHT['faint'])

    description = phrase('{title}; {basis}.', title=whole_title, basis=basis)
    return Chart(description, paint)


class _Span(NamedTuple):
    """Mean with the ends of its confidence interval, in the unit of a chart's axis."""

    value: float
    low: float
    high: float


def _speed_span(row: SweepRow, factor: float, *, is_iteration: bool) -> _Span:
    assert row.iter_s is not None  # only measured rows are shown
    value, low, high = row.iter_s.value, max(row.iter_s.low, 0.0), row.iter_s.high
    speed = row.images_per_s
    if speed is None or is_iteration:
        return _Span(factor * value, factor * low, factor * high)
    # an interval from 0 s has no end in images/s; the upper half stands for it
    fastest = speed * value / low if low > 0.5 * value else 2 * speed
    return _Span(speed, speed * value / high, fastest)


def _paint_line(
    axes: Any,
    x: Sequence[float],
    spans: Sequence[_Span],
    label: str,
    style: _LineStyle,
) -> None:
    values = [span.value for span in spans]
    errors = [
        [max(span.value - span.low, 0.0) for span in spans],
        [max(span.high - span.value, 0.0) for span in spans],
    ]
    color = LIGHT[style.role]
    look = {'color': color, 'marker': style.marker, 'ms': 5, 'capsize': 3}
    axes.errorbar(x, values, errors, label=label, elinewidth=1.1, **look)


def _mark_best(axes: Any, points: Sequence[tuple[float, float]]) -> None:
    ring = {'mfc': 'none', 'mec': LIGHT['accent'], 'mew': 1.8}
    x, y = zip(*points)
    known, best = axes.get_legend_handles_labels()[1], say(_BEST)
    label = {} if best in known else {'label': best}
    axes.plot(x, y, 'o', ms=13, ls='', **label, **ring)


class _SaveGrowth(NamedTuple):
    """Checkpoint save times with the fewest and most workers, all else being equal."""

    group: Text
    fewest: SweepRow
    most: SweepRow
    ratio: float
    """Ratio of the save time with the most workers to that with the fewest."""


def title_saves(groups: Mapping[Text, Sequence[SweepRow]]) -> Text:
    """Phrases a saves chart's title: ``A save takes 0.31 s beside 2 workers, ...``."""
    found = []
    for group, rows in groups.items():
        fewest, most = rows[0], rows[-1]
        if fewest.save_s and most.save_s:
            ratio = most.save_s / fewest.save_s
            found.append(_SaveGrowth(group, fewest, most, ratio))
    largest = max(found, key=lambda growth: growth.ratio)
    fewest, most = largest.fewest, largest.most
    facts = {
        'save_s': most.save_s,
        'workers': most.setting.num_workers,
        'group': largest.group,
    }
    if fewest is most:
        return phrase('A save takes {save_s} beside {workers} ({group})', **facts)
    return phrase(
        'A save takes {save_s} beside {workers}, {fewest_save_s} beside '
        '{fewest_workers:d} ({group})',
        fewest_save_s=fewest.save_s,
        fewest_workers=fewest.setting.num_workers,
        **facts,
    )


def chart_saves(sweep: Sweep) -> Chart | None:
    """Charts save times by number of workers: each save, and each setting's median."""
    groups = group_rows(sweep.rows, lambda row: row.save_s is not None)
    if not groups:
        return None
    places, title = _ordinals(groups), title_saves(groups)
    saves_s = [
        save_s for rows in groups.values() for row in rows for save_s in row.saves_s
    ]
    counts = {len(row.saves_s) for rows in groups.values() for row in rows}
    scale = scale_seconds(max(saves_s))
    basis = phrase(
        'dots: each of {counts:/} saves beside the running workers; line: median',
        counts=tuple(map(str, sorted(counts))),
    )

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 3.1)
        axes = figure.subplots()
        _titled(axes, title)
        for (group, rows), line in zip(groups.items(), _LINES * len(groups)):
            x = [places[row.setting.num_workers] for row in rows]
            # each row of a group has saves
            saved = [row.save_s for row in rows if row.save_s is not None]
            medians = [scale.factor * save_s for save_s in saved]
            color = LIGHT[line.role]
            style = {'color': color, 'marker': line.marker, 'ms': 6}
            axes.plot(x, medians, label=_wrap(group), **style)
            for at, row in zip(x, rows):
                dots = [scale.factor * save_s for save_s in row.saves_s]
                axes.plot([at] * len(dots), dots, '.', color=color, ms=4)
        axes.set_xticks(list(places.values()), list(map(str, places)))
        axes.set_ylim(0)
        axes.set_ylabel(say(phrase('a save, {unit}', scale)), color=LIGHT['faint'])
        axes.margins(x=0.06)
        _label_x(axes, phrase('loader workers'))
        place = {'loc': 'upper left', 'bbox_to_anchor': (0, -0.16), 'ncols': 4}
        style = {'title_fontsize': _TINY, 'alignment': 'left'}
        title_of = {'title': say(basis), **style}
        legend = axes.legend(borderaxespad=0.0, **place, **title_of)
        legend.get_title().set_color(LIGHT['faint'])

    return Chart(phrase('{title}; {basis}.', title=title, basis=basis), paint)
