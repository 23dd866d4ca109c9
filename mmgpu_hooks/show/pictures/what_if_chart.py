"""What an iteration would take with other numbers of workers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.scales import (
    Scale,
    choose_unit,
    format_tick,
    round_ticks,
)
from mmgpu_hooks.show.pictures.shapes import (
    Area,
    Label,
    Line,
    Mark,
    Picture,
    Shape,
    text_width,
)
from mmgpu_hooks.show.reported_run import PredictedSetting, ReportedRun

_TOP, _BOTTOM, _HEIGHT = 30.0, 236.0, 296.0
_SMALL = 12.0
_ROLE = 'step'


def chart_what_if(run: ReportedRun) -> Chart | NoChart:
    """Iteration time over ``num_workers``, with its interval."""
    name, title = 'what-if', 'Other numbers of workers'
    points = pick_points(run.predictions)
    if not points:
        reason = run.why_no_predictions if run.answer.summary else run.why_no_evidence
        return NoChart(name, title, reason)
    said = '; '.join(_describe(point) for point in points)
    marked = [f'{words} {workers}' for workers, words in marked_workers(run).items()]
    description = f'Predicted time of an iteration: {said}. {", ".join(marked)}.'

    def draw(width: float) -> Picture:
        shapes = tuple(_draw(run, points, width))
        return Picture(name, title, description, width, _HEIGHT, shapes)

    return Chart(name, title, description, draw)


def pick_points(predictions: Sequence[PredictedSetting]) -> list[PredictedSetting]:
    """One a number of workers, the fastest, by number."""
    best: dict[int, PredictedSetting] = {}
    for one in predictions:
        known = best.get(one.num_workers)
        if known is None or one.iter_time_s < known.iter_time_s:
            best[one.num_workers] = one
    return [best[workers] for workers in sorted(best)]


def marked_workers(run: ReportedRun) -> dict[int, str]:
    """The current and the recommended number, each with its word."""
    summary = run.answer.summary
    marked: dict[int, str] = {}
    if summary is not None and summary.run.loader.num_workers is not None:
        marked[summary.run.loader.num_workers] = 'now'
    for change in run.answer.recommendation.changes:
        if change.key == WORKERS_KEY and isinstance(change.new, int):
            marked[change.new] = 'recommended'
    return marked


def _describe(point: PredictedSetting) -> str:
    low, high = point.iter_time_low_s, point.iter_time_high_s
    return (
        f'{point.num_workers} worker(s) {format_seconds(point.iter_time_s)} '
        f'({format_seconds(low)} to {format_seconds(high)})'
    )


def _draw(
    run: ReportedRun, points: Sequence[PredictedSetting], width: float
) -> Iterator[Shape]:
    summary = run.answer.summary
    measured_s = summary.iter_s if summary is not None else None
    highest = max(
        max(p.iter_time_high_s, p.iter_time_s, measured_s or 0) for p in points
    )
    factor, unit = choose_unit(highest)
    ticks = round_ticks(highest * factor, 4)
    left, right = (52.0 if width > 500 else 40.0), width - 8
    up = Scale(0.0, ticks[-1] / factor, _BOTTOM, _TOP)
    yield from draw_axis(ticks, factor, up, left, right)
    title = f'Iteration, {unit}'
    yield Label(left, _TOP - 14, title, 'ink', size=_SMALL, bold=True)
    across = Scale(-0.5, len(points) - 0.5, left, right)
    upper = [(across(n), up(p.iter_time_high_s)) for n, p in enumerate(points)]
    lower = [(across(n), up(p.iter_time_low_s)) for n, p in enumerate(points)]
    yield Area([[*upper, *reversed(lower)]], _ROLE)
    middle = [(across(n), up(p.iter_time_s)) for n, p in enumerate(points)]
    yield Line([middle], _ROLE, 1.6)
    if measured_s is not None:
        yield from _measured(measured_s, up, left, right)
    yield from _points(points, marked_workers(run), across, up)
    words = 'num_workers'
    yield Label(right, _BOTTOM + 54, words, 'faint', 'end', size=_SMALL)


def draw_axis(
    ticks: Sequence[float], factor: float, up: Scale, left: float, right: float
) -> Iterator[Shape]:
    """Lines across at round figures.

    Args:
        ticks: The figures.
        factor: How many of their unit one of the scale is.
        up: The scale.
        left: Where the lines begin, in pixels.
        right: Where they end.
    """
    for tick in ticks:
        y = up(tick / factor)
        yield Line([[(left, y), (right, y)]], 'rule' if tick else 'faint')
        words = format_tick(tick)
        yield Label(left - 7, y + 4, words, 'faint', 'end', size=_SMALL)


def _measured(seconds: float, up: Scale, left: float, right: float) -> Iterator[Shape]:
    y = up(seconds)
    yield Line([[(left, y), (right, y)]], 'ink', 1.0, '5 4')
    words = f'dashed: measured {format_seconds(seconds)}'
    yield Label(right, _TOP - 14, words, 'faint', 'end', size=_SMALL)


def _points(
    points: Sequence[PredictedSetting],
    marked: dict[int, str],
    across: Scale,
    up: Scale,
) -> Iterator[Shape]:
    room = across(1.0) - across(0.0)
    for place, point in enumerate(points):
        x, word = across(place), marked.get(point.num_workers, '')
        low, high = up(point.iter_time_low_s), up(point.iter_time_high_s)
        yield Line([[(x, low), (x, high)]], _ROLE, 1.6)
        tip, y = _describe(point), up(point.iter_time_s)
        kind = 'diamond' if word == 'recommended' else 'circle'
        size = 13.0 if word else 8.0
        yield Mark(x, y, kind, 'ok' if word == 'recommended' else _ROLE, size, tip)
        number = str(point.num_workers)
        is_bold = bool(word)
        yield Label(x, _BOTTOM + 18, number, 'ink', 'middle', bold=is_bold)
        if word:
            shown = word if text_width(word, _SMALL) <= 1.6 * room else word[:3] + '.'
            yield Label(x, _BOTTOM + 36, shown, 'ink', 'middle', size=_SMALL)
