"""Data wait, step and GPU utilisation over time, with what happened in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.show.pictures.envelope import (
    Column,
    fold_columns,
    split_runs,
)
from mmgpu_hooks.show.pictures.moments import Moment
from mmgpu_hooks.show.pictures.scales import (
    Scale,
    choose_unit,
    clock_ticks,
    format_clock,
    format_tick,
    round_ticks,
)
from mmgpu_hooks.show.pictures.shapes import (
    Area,
    Box,
    Label,
    Layer,
    Line,
    Mark,
    Picture,
    Shape,
)
from mmgpu_hooks.show.pictures.timeline import Timeline, Track

MARKS = {'epoch': 'bar', 'validation': 'diamond', 'save': 'triangle'}
"""By kind of moment, in the order in which they are drawn."""
MARK_ROLES = {'save': 'checkpoint_save', 'validation': 'validation', 'epoch': 'faint'}
_SMALL = 12.0
_LANE = 22.0
_TITLE = 24.0
_PLOT = 84.0
_GAP = 12.0
_AXIS = 40.0
_PIXELS_A_COLUMN = 2.0


@dataclass(frozen=True)
class TrackRoom:
    """Where a track is drawn."""

    top: float
    bottom: float


@dataclass(frozen=True)
class TimelineLayout:
    """The geometry of the picture, which the script takes over as it is."""

    width: float
    height: float
    left: float
    right: float
    lane: float
    """Middle of the line of marks."""
    rooms: tuple[TrackRoom, ...]


def lay_out(tracks: int, width: float) -> TimelineLayout:
    """Rooms below each other."""
    rooms = []
    top = _LANE
    for _ in range(tracks):
        top += _TITLE
        rooms.append(TrackRoom(top, top + _PLOT))
        top += _PLOT + _GAP
    left = 52.0 if width > 500 else 40.0
    return TimelineLayout(
        width, top - _GAP + _AXIS, left, width - 8, _LANE / 2, tuple(rooms)
    )


def shown_tracks(timeline: Timeline) -> list[Track]:
    """Those with a figure."""
    return [track for track in timeline.tracks if any(track.cells)]


def draw_timeline(
    timeline: Timeline,
    reaches: Mapping[str, float],
    name: str,
    title: str,
    description: str,
    width: float,
) -> Picture:
    """The whole run.

    Args:
        timeline: Of :func:`mmgpu_hooks.show.pictures.timeline.fold_timeline`.
        reaches: Of :func:`mmgpu_hooks.show.pictures.envelope.find_reaches`.
        name: Of the picture.
        title: What it shows.
        description: What it says.
        width: In pixels.
    """
    tracks = shown_tracks(timeline)
    layout = lay_out(len(tracks), width)
    across = Scale(timeline.begin_s, timeline.end_s, layout.left, layout.right)
    moving: list[Shape] = [*_clock(across, layout), *_moments(timeline, across, layout)]
    fixed: list[Shape] = []
    most = int((layout.right - layout.left) / _PIXELS_A_COLUMN)
    for track, room in zip(tracks, layout.rooms):
        columns = fold_columns(timeline, track, most)
        fixed.append(_frame(layout, room))
        moving += _track(track, columns, reaches[track.title], across, room, layout)
    return Picture(
        name,
        title,
        description,
        layout.width,
        layout.height,
        (*fixed, Layer('moving', tuple(moving))),
    )


def _frame(layout: TimelineLayout, room: TrackRoom) -> Shape:
    return Line([[(layout.left, room.bottom), (layout.right, room.bottom)]], 'faint')


def _clock(across: Scale, layout: TimelineLayout) -> Iterator[Shape]:
    bottom = layout.rooms[-1].bottom
    most = 8 if layout.width > 500 else 4
    for moment in clock_ticks(across.low, across.high, most):
        x = across(moment)
        yield Line([[(x, bottom), (x, bottom + 5)]], 'faint')
        yield Label(
            x, bottom + 18, format_clock(moment), 'faint', 'middle', size=_SMALL
        )
    words = 'time since training began'
    yield Label(layout.right, bottom + 34, words, 'faint', 'end', size=_SMALL)


def _moments(
    timeline: Timeline, across: Scale, layout: TimelineLayout
) -> Iterator[Shape]:
    """One mark of a kind at most in every few pixels."""
    bottom = layout.rooms[-1].bottom
    for kind, outline in MARKS.items():
        for moment, count in thin_moments(timeline.moments, kind, across):
            x = across(moment.at_s)
            words = (
                moment.words if count == 1 else f'{moment.words} and {count - 1} more'
            )
            if kind == 'epoch':
                yield Line([[(x, layout.lane - 6), (x, bottom)]], 'rule')
            yield Mark(
                x,
                layout.lane,
                outline,
                MARK_ROLES[kind],
                9.0,
                f'{words}, at {format_clock(moment.at_s)}',
            )


def thin_moments(
    moments: Sequence[Moment], kind: str, across: Scale, pixels: float = 6.0
) -> list[tuple[Moment, int]]:
    """The first moment of every ``pixels``, and how many there are in them."""
    thinned: list[tuple[Moment, int]] = []
    for moment in moments:
        if moment.kind != kind:
            continue
        if thinned and across(moment.at_s) - across(thinned[-1][0].at_s) < pixels:
            thinned[-1] = (thinned[-1][0], thinned[-1][1] + 1)
        else:
            thinned.append((moment, 1))
    return thinned


def _track(
    track: Track,
    columns: Sequence[Column],
    top: float,
    across: Scale,
    room: TrackRoom,
    layout: TimelineLayout,
) -> Iterator[Shape]:
    if track.unit == '%':
        factor, unit, ticks = 1.0, '%', [0.0, 50.0, 100.0]
    else:
        factor, unit = choose_unit(top)
        ticks = round_ticks(top * factor, 3)
    up = Scale(0.0, ticks[-1] / factor, room.bottom, room.top)
    title = f'{track.title}, {unit}{"" if unit == "%" else " per iteration"}'
    yield Label(layout.left, room.top - 9, title, 'ink', size=_SMALL, bold=True)
    for tick in ticks:
        y = up(tick / factor)
        if tick:
            yield Line([[(layout.left, y), (layout.right, y)]], 'rule')
        yield Label(
            layout.left - 7, y + 4, format_tick(tick), 'faint', 'end', size=_SMALL
        )
    for stretch in split_runs(columns):
        yield from _curve(stretch, across, up, track.role)
    yield from _beyond(columns, across, up, layout, room)


def _curve(
    stretch: Sequence[Column], across: Scale, up: Scale, role: str
) -> Iterator[Shape]:
    def height(value: float) -> float:
        return up(min(value, up.high))

    upper, lower, middle = [], [], []
    for column in stretch:
        assert column.cell is not None
        for moment in (column.begin_s, column.end_s):
            x = across(moment)
            upper.append((x, height(column.cell.high)))
            lower.append((x, height(column.cell.low)))
            middle.append((x, height(column.cell.mean)))
    if upper != lower:
        yield Area([[*upper, *reversed(lower)]], role)
    yield Line([middle], role, 1.6)


def _beyond(
    columns: Sequence[Column],
    across: Scale,
    up: Scale,
    layout: TimelineLayout,
    room: TrackRoom,
) -> Iterator[Shape]:
    """A sign where the figure leaves the picture, and how far it goes."""
    cut = [c for c in columns if c.cell and c.cell.high > up.high * (1 + 1e-9)]
    if not cut:
        return
    for column in cut:
        x = across((column.begin_s + column.end_s) / 2)
        yield Box(x - 2, room.top - 3, 4, 3, 'problem')
    peak_s = max(column.cell.high for column in cut if column.cell)
    factor, unit = choose_unit(peak_s)
    words = f'cut off: up to {peak_s * factor:.3g} {unit}'
    yield Label(layout.right, room.top - 9, words, 'problem', 'end', size=_SMALL)
