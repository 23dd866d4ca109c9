"""Where the time went, in all and over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.figures import PART_NAMES, format_pct, format_seconds
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_section,
    render_table,
    words,
)
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.pictures.chart import NoChart
from mmgpu_hooks.show.pictures.envelope import merge_stretch
from mmgpu_hooks.show.pictures.scales import format_clock
from mmgpu_hooks.show.pictures.time_charts import (
    chart_hooks,
    chart_ledger,
    chart_timeline,
)
from mmgpu_hooks.show.pictures.timeline import Timeline
from mmgpu_hooks.show.pictures.timeline_picture import shown_tracks
from mmgpu_hooks.show.reported_run import ReportedRun

_BUTTONS = (
    ('in', 'Zoom in'),
    ('out', 'Zoom out'),
    ('earlier', 'Earlier'),
    ('later', 'Later'),
    ('whole', 'Whole run'),
)
_MARKS = (('▼', 'save'), ('◆', 'validation'), ('❙', 'begin of an epoch'))
_KEYS = (
    'Drag to zoom in, double-click for the whole run, Ctrl and the wheel to zoom; on '
    'a touch screen pinch, then swipe. With the keyboard: left and right move the '
    'reading line, Shift with them moves the view, + and - zoom, 0 shows the whole run.'
)


def render_ledger(runs: Sequence[ReportedRun]) -> Markup:
    """Every second of training, and hooks by class."""
    known = [(r.label, r.answer.summary) for r in runs if r.answer.summary is not None]
    return render_section(
        'time',
        'Where the time went',
        render_chart(chart_ledger(known), title=False),
        each_run(runs, _of_run),
    )


def _of_run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    return join(_ledger_table(summary), _hooks(summary))


def _ledger_table(summary: Run) -> Markup:
    whole_s, count = summary.duration_s, summary.iterations
    parts = sorted(PARTS, key=lambda part: -summary.ledger_s.get(part, 0.0))
    rows = [
        (
            PART_NAMES[part],
            format_seconds(seconds),
            format_pct(100 * seconds / whole_s) if whole_s > 0 else 'unknown',
            format_seconds(seconds / count if count else None),
        )
        for part in parts
        if (seconds := summary.ledger_s.get(part, 0.0)) > 0 or part == 'other'
    ]
    mean_s = whole_s / count if count else None
    rows.append(('all', format_seconds(whole_s), '100 %', format_seconds(mean_s)))
    caption = f'The whole training by part, {count} iterations'
    return render_table(caption, ['part', 'time', 'share', 'per iteration'], rows)


def _hooks(summary: Run) -> Markup:
    rows = [
        (name, format_seconds(cost.seconds), format_seconds(cost.iteration_s))
        for name, cost in summary.hooks.items()
    ]
    table = render_table(
        'Hooks by class', ['hook', 'whole run', 'per steady iteration'], rows
    )
    return render_chart(chart_hooks(summary), table if rows else None)


def render_over_time(
    runs: Sequence[ReportedRun],
    timelines: Sequence[Timeline | None],
    reaches: Mapping[str, float],
) -> Markup:
    """The zoomable picture of each run."""
    by_label = {
        run.label: (number, timeline)
        for number, (run, timeline) in enumerate(zip(runs, timelines))
    }
    marks = (
        tag('li', tag('span', sign, aria_hidden='true', class_=name.split()[0]), name)
        for sign, name in _MARKS
    )
    return render_section(
        'over-time',
        'Over time',
        tag('ul', *marks, class_='signs', aria_label='Marks'),
        each_run(runs, lambda run: _zoomable(run, *by_label[run.label], reaches)),
    )


def _zoomable(
    run: ReportedRun,
    number: int,
    timeline: Timeline | None,
    reaches: Mapping[str, float],
) -> Markup:
    reason = run.why_no_evidence if run.answer.summary is None else ''
    chart = chart_timeline(timeline, reaches, reason)
    if isinstance(chart, NoChart) or timeline is None:
        return render_chart(chart, title=False)
    buttons = (
        tag('button', label, type='button', data_do=action)
        for action, label in _BUTTONS
    )
    note = (
        'The line is the mean of the intervals in a pixel or two; the band reaches '
        f'from the smallest to the largest of them. {len(timeline.starts_s)} points'
    )
    if timeline.merged > 1:
        note += f', each of up to {timeline.merged} intervals'
    return tag(
        'div',
        tag('div', *buttons, class_='buttons', hidden=True),
        tag(
            'div',
            render_chart(chart, title=False),
            class_='plot',
            data_plot=str(number),
            data_label=f'{run.label} over time, zoomable',
        ),
        tag('p', class_='reading', role='status', aria_label='Reading'),
        tag('p', _KEYS, class_='basis keys', hidden=True, id=f'keys-{number}'),
        tag('p', words(f'{note}.'), class_='basis'),
        tag('details', tag('summary', 'The figures as a table'), _points(timeline)),
    )


def _points(timeline: Timeline, most: int = 40) -> Markup:
    """The run in at most so many stretches of equal numbers of points."""
    count = len(timeline.starts_s)
    size = -(-count // most)
    tracks = shown_tracks(timeline)
    rows = []
    for first in range(0, count, size):
        inside = range(first, min(first + size, count))
        cells = [merge_stretch(timeline, track, inside) for track in tracks]
        rows.append(
            (
                format_clock(timeline.ends_s[inside[-1]]),
                timeline.last_iterations[inside[-1]],
                *(
                    'unknown'
                    if cell is None
                    else f'{cell.mean:.0f} %'
                    if track.unit == '%'
                    else format_seconds(cell.mean)
                    for track, cell in zip(tracks, cells)
                ),
            )
        )
    heads = [f'{track.title}, mean' for track in tracks]
    caption = 'Means up to a time since training began'
    return render_table(caption, ['until', 'iteration', *heads], rows)
