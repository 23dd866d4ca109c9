"""Predicted beside measured iterations over ``num_workers``, a panel a batch size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.schema import SweepRow
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.scales import Scale, choose_unit, round_ticks
from mmgpu_hooks.show.pictures.shapes import Area, Label, Line, Mark, Picture, Shape
from mmgpu_hooks.show.pictures.what_if_chart import draw_axis

NAME, TITLE = 'sweep-predicted', 'Iterations, measured and predicted from one run'
_LEGEND, _HEAD, _PLOT, _FOOT = 26.0, 30.0, 150.0, 44.0
_SMALL = 12.0
_MEASURED, _PREDICTED = 'data_wait', 'step'

Panel = tuple[str, list[SweepRow]]


def chart_sweep_curves(rows: Sequence[SweepRow]) -> Chart | NoChart:
    """Iteration time over workers; what is predicted as a band, trials as marks."""
    panels = _split(rows)
    if not panels:
        return NoChart(NAME, TITLE, 'No trial was measured.')
    said = '; '.join(_describe(row) for _, group in panels for row in group)

    def draw(width: float) -> Picture:
        shapes: list[Shape] = list(_legend())
        top = _LEGEND
        for title, group in panels:
            shapes += _draw_panel(title, group, top, width)
            top += _HEAD + _PLOT + _FOOT
        return Picture(NAME, TITLE, f'{said}.', width, top, tuple(shapes))

    return Chart(NAME, TITLE, f'{said}.', draw)


def _split(rows: Sequence[SweepRow]) -> list[Panel]:
    """What differs in more than the workers gets a panel of its own."""
    panels: dict[str, list[SweepRow]] = {}
    for row in rows:
        if row.iter_s is not None or row.predicted is not None:
            title = ', '.join(row.setting.name.split(', ')[1:])
            panels.setdefault(title, []).append(row)
    return list(panels.items())


def _describe(row: SweepRow) -> str:
    measured = format_seconds(row.iter_s.value) if row.iter_s else 'not measured'
    predicted = row.predicted
    said = format_seconds(predicted.iter_time_s) if predicted else 'nothing'
    return f'{row.setting.name}: {measured}, predicted {said}'


def _legend() -> Iterator[Shape]:
    yield Mark(6, 10, 'diamond', _MEASURED, 10)
    yield Label(18, 14, 'measured', 'faint', size=_SMALL)
    yield Line([[(96, 10), (120, 10)]], _PREDICTED, 1.6)
    words = 'predicted, 9 in 10 within the band'
    yield Label(128, 14, words, 'faint', size=_SMALL)


def _draw_panel(
    title: str, rows: Sequence[SweepRow], top: float, width: float
) -> Iterator[Shape]:
    highest_s = max(_highest(row) for row in rows)
    factor, unit = choose_unit(highest_s)
    ticks = round_ticks(highest_s * factor, 4)
    left, right = (52.0 if width > 500 else 40.0), width - 8
    bottom = top + _HEAD + _PLOT
    up = Scale(0.0, ticks[-1] / factor, bottom, top + _HEAD)
    across = Scale(-0.5, len(rows) - 0.5, left, right)
    head = f'{title}: iteration, {unit}' if title else f'Iteration, {unit}'
    yield Label(left, top + _HEAD - 12, head, bold=True, size=_SMALL)
    yield from draw_axis(ticks, factor, up, left, right)
    yield from _draw_predicted(rows, across, up)
    for place, row in enumerate(rows):
        x = across(place)
        if row.iter_s is not None:
            low, high = up(row.iter_s.low), up(row.iter_s.high)
            yield Line([[(x, low), (x, high)]], _MEASURED, 1.6)
            tip = _describe(row)
            yield Mark(x, up(row.iter_s.value), 'diamond', _MEASURED, 10, tip)
        workers = str(row.setting.num_workers)
        yield Label(x, bottom + 18, workers, 'ink', 'middle')
    yield Label(right, bottom + 34, 'num_workers', 'faint', 'end', size=_SMALL)


def _draw_predicted(
    rows: Sequence[SweepRow], across: Scale, up: Scale
) -> Iterator[Shape]:
    known = [
        (across(place), row.predicted)
        for place, row in enumerate(rows)
        if row.predicted is not None
    ]
    if not known:
        return
    upper = [(x, up(one.iter_time_high_s)) for x, one in known]
    lower = [(x, up(one.iter_time_low_s)) for x, one in known]
    yield Area([[*upper, *reversed(lower)]], _PREDICTED)
    yield Line([[(x, up(one.iter_time_s)) for x, one in known]], _PREDICTED, 1.6)


def _highest(row: SweepRow) -> float:
    measured_s = row.iter_s.high if row.iter_s is not None else 0.0
    predicted_s = row.predicted.iter_time_high_s if row.predicted is not None else 0.0
    return max(measured_s, predicted_s)
