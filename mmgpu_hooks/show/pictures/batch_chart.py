"""Memory and speed over the batch size: measured, fitted, and in proportion."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.model.batches import predict_peak
from mmgpu_hooks.recommend.sweep_batches import BatchSizes, fold_batch_sizes
from mmgpu_hooks.schema import MemoryFit, SweepRow
from mmgpu_hooks.show.figures import format_bytes
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.scales import Scale, round_ticks
from mmgpu_hooks.show.pictures.shapes import (
    Area,
    Label,
    Line,
    Mark,
    Picture,
    Point,
    Shape,
)
from mmgpu_hooks.show.pictures.what_if_chart import draw_axis
from mmgpu_hooks.show.sweep_batches import PRECISIONS

NAME, TITLE = 'sweep-batch-size', 'Batch size against memory and speed'
_LEGEND, _HEAD, _PLOT, _FOOT = 26.0, 30.0, 170.0, 44.0
_SMALL, _STEPS, _HEADROOM = 12.0, 32, 1.1
_MEASURED, _FIT, _NAIVE, _CARD = 'data_wait', 'step', 'other', 'problem'
_LEGEND_LINES = (
    (96.0, _FIT, '', 'fit, 9 in 10 within the band'),
    (310.0, _NAIVE, '5 4', 'in proportion to the smallest'),
)


def chart_batch_sizes(rows: Sequence[SweepRow]) -> Chart | NoChart:
    """A panel of memory and one of speed for each precision."""
    groups = fold_batch_sizes(rows)
    if not any(group.rules or group.images_per_s for group in groups):
        why = 'One batch size was trained.'
        if groups:
            why = 'No trial tells its memory or its images per second.'
        return NoChart(NAME, TITLE, why)
    said = ' '.join(map(_say, groups))

    def draw(width: float) -> Picture:
        shapes, top = list(_draw_legend()), _LEGEND
        for group in groups:
            for panel, is_told in (
                (_draw_memory, group.rules),
                (_draw_speed, group.images_per_s),
            ):
                if is_told:
                    shapes += panel(group, top, width)
                    top += _HEAD + _PLOT + _FOOT
        return Picture(NAME, TITLE, said, width, top, tuple(shapes))

    return Chart(NAME, TITLE, said, draw)


def _say(group: BatchSizes) -> str:
    words = PRECISIONS[group.amp]
    told = [
        f'batch {row.batch_size}: {format_bytes(row.peak_bytes)}' for row in group.rules
    ]
    told += [
        f'batch {batch}: {speed:.1f} images/s'
        for batch, speed in group.images_per_s.items()
    ]
    return f'{words.capitalize() + ": " if words else ""}{"; ".join(told)}.'


def _draw_legend() -> Iterator[Shape]:
    yield Mark(6, 10, 'diamond', _MEASURED, 10)
    yield Label(18, 14, 'measured', 'faint', size=_SMALL)
    for x, role, dash, words in _LEGEND_LINES:
        yield Line([[(x, 10), (x + 24, 10)]], role, 1.6, dash)
        yield Label(x + 32, 14, words, 'faint', size=_SMALL)


def _draw_memory(group: BatchSizes, top: float, width: float) -> Iterator[Shape]:
    fit = group.memory if isinstance(group.memory, MemoryFit) else None
    last = _HEADROOM * max(row.batch_size for row in group.rules)
    batches = [max(round(last * n / _STEPS), 1) for n in range(1, _STEPS + 1)]
    seen = [predict_peak(fit, b) for b in dict.fromkeys(batches)] if fit else []
    highest = max(
        *(float(row.peak_bytes) for row in group.rules),
        *(float(one.high_bytes) for one in seen),
        0.0,
    )
    unit, name = (2.0**30, 'GiB') if highest >= 2**30 else (2.0**20, 'MiB')
    words = f'Peak memory, {name}'
    up, across, shapes = _open_panel(group, words, highest / unit, last, top, width)
    yield from shapes
    if seen:
        upper = [(across(p.batch_size), up(p.high_bytes / unit)) for p in seen]
        lower = [(across(p.batch_size), up(p.low_bytes / unit)) for p in seen]
        middle = [(across(p.batch_size), up(p.peak_bytes / unit)) for p in seen]
        yield Area([[*upper, *reversed(lower)]], _FIT)
        yield Line([middle], _FIT, 1.6)
    first = group.rules[0]
    each = first.peak_bytes / first.batch_size / unit
    yield Line([_cut(each, last, across, up)], _NAIVE, 1.6, '5 4')
    if group.card is not None and group.card.room_bytes / unit <= up.high:
        y = up(group.card.room_bytes / unit)
        yield Line([[(across.start, y), (across.end, y)]], _CARD, 1.6)
        yield Label(across.end, y - 5, 'the card is full', _CARD, 'end', _SMALL)
    for row in group.rules:
        x, y = across(row.batch_size), up(row.peak_bytes / unit)
        tip = f'batch {row.batch_size}: {format_bytes(row.peak_bytes)}'
        yield Mark(x, y, 'diamond', _MEASURED, 10, tip)


def _draw_speed(group: BatchSizes, top: float, width: float) -> Iterator[Shape]:
    speeds = group.images_per_s
    last, highest = _HEADROOM * max(speeds), max(speeds.values())
    words = 'Images per second'
    up, across, shapes = _open_panel(group, words, highest, last, top, width)
    yield from shapes
    points = [(across(batch), up(speed)) for batch, speed in speeds.items()]
    yield Line([points], _MEASURED, 1.0)
    for (batch, speed), (x, y) in zip(speeds.items(), points):
        tip = f'batch {batch}: {speed:.1f} images/s'
        yield Mark(x, y, 'diamond', _MEASURED, 10, tip)
        if batch == group.knee:
            yield Label(x, y + 20, 'knee', 'ink', 'middle', _SMALL, bold=True)


def _open_panel(
    group: BatchSizes,
    words: str,
    highest: float,
    last: float,
    top: float,
    width: float,
) -> tuple[Scale, Scale, list[Shape]]:
    """Scales of a panel, up and across, and its axes with the batch sizes."""
    ticks = round_ticks(highest, 4)
    left, right = (52.0 if width > 500 else 40.0), width - 8
    bottom = top + _HEAD + _PLOT
    up = Scale(0.0, ticks[-1], bottom, top + _HEAD)
    across = Scale(0.0, last, left, right)
    precision = PRECISIONS[group.amp]
    head = f'{words}, {precision}' if precision else words
    shapes: list[Shape] = [Label(left, top + _HEAD - 12, head, size=_SMALL, bold=True)]
    shapes += draw_axis(ticks, 1.0, up, left, right)
    for tick in round_ticks(last, 8):
        if 0 < tick <= last and tick == int(tick):
            words = str(int(tick))
            shapes.append(Label(across(tick), bottom + 18, words, 'ink', 'middle'))
    end = Label(right, bottom + 34, 'batch_size', 'faint', 'end', _SMALL)
    return up, across, [*shapes, end]


def _cut(each: float, last: float, across: Scale, up: Scale) -> list[Point]:
    """A line from nothing, as far as the panel reaches."""
    end = min(last, up.high / each)
    return [(across(0.0), up(0.0)), (across(end), up(each * end))]
