from __future__ import annotations

import math
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replaced import replace
from fakes.reported import make_full_run
from fakes.runs import make_evidence, make_interval
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.pictures.all_charts import list_charts
from mmgpu_hooks.show.pictures.bars import WIDTHS, Bar, Segment, draw_bars
from mmgpu_hooks.show.pictures.chart import Chart
from mmgpu_hooks.show.pictures.envelope import find_reaches, find_top, fold_columns
from mmgpu_hooks.show.pictures.scales import (
    choose_unit,
    clock_ticks,
    format_clock,
    format_tick,
    round_ticks,
)
from mmgpu_hooks.show.pictures.shapes import (
    Box,
    Label,
    Layer,
    Mark,
    Picture,
    shorten,
    text_width,
)
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.pictures.timeline import Timeline, fold_timeline, fold_timelines

SVG = '{http://www.w3.org/2000/svg}'


@pytest.mark.parametrize(
    ('high', 'most', 'ticks'),
    [
        (0.0, 5, [0, 1]),
        (float('nan'), 5, [0, 1]),
        (1.0, 5, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (297.0, 3, [0, 100, 200, 300]),
        (0.0031, 3, [0, 0.002, 0.004]),
        (7.0, 4, [0, 2, 4, 6, 8]),
    ],
)
def test_ticks_are_round_and_reach_the_highest(high, most, ticks):
    assert round_ticks(high, most) == pytest.approx(ticks)


@settings(deadline=None)
@given(st.floats(1e-9, 1e9), st.integers(1, 10))
def test_ticks_are_few_and_cover_what_is_shown(high, most):
    ticks = round_ticks(high, most)
    assert len(ticks) <= most + 1
    assert ticks[-1] >= high * (1 - 1e-6)


@pytest.mark.parametrize(
    ('low', 'high', 'ticks'),
    [
        (0.0, 81.6, [0, 15, 30, 45, 60, 75]),
        (3600.0, 9000.0, [3600, 4500, 5400, 6300, 7200, 8100, 9000]),
        (2.0, 4.0, [2, 2.25, 2.5, 2.75, 3, 3.25, 3.5, 3.75, 4]),
        (5.0, 5.0, [5]),
    ],
)
def test_moments_are_round(low, high, ticks):
    assert clock_ticks(low, high) == pytest.approx(ticks)


@pytest.mark.parametrize(
    ('seconds', 'words'),
    [(0, '0:00'), (5, '0:05'), (2.25, '0:02.2'), (750, '12:30'), (11100, '3:05:00')],
)
def test_a_moment_is_written_as_a_clock_has_it(seconds, words):
    assert format_clock(seconds) == words


def test_an_axis_has_the_unit_that_fits():
    assert [choose_unit(s)[1] for s in (0.0005, 0.2, 3.0, 1200.0)] == [
        *('us', 'ms', 's', 'min')
    ]
    assert format_tick(0.30000000000000004) == '0.3'


@settings(deadline=None)
@given(st.text(max_size=80), st.floats(20, 400))
def test_a_shortened_label_fits(words, width):
    short = shorten(words, width)
    assert len(short) <= max(len(words), 3)
    assert short == words or text_width(short) <= max(width, 3 * 13)


def boxes(picture: Picture, *roles: str) -> list[Box]:
    return [
        shape
        for shape in picture.shapes
        if isinstance(shape, Box) and shape.role in roles and shape.height > 12
    ]


def two_bars(**options) -> Picture:
    bars = [
        Bar(
            'a',
            (Segment('x', 3.0, '3 s', 'step'), Segment('y', 1.0, '1 s', 'hooks')),
            '4',
        ),
        Bar('b', (Segment('x', 2.0, '2 s', 'step'),), '2'),
    ]
    return draw_bars('n', 'T', 'D', bars, 900, **options)


def test_bars_are_as_long_as_their_values():
    long, part, short = (box.width + 1 for box in boxes(two_bars(), 'step', 'hooks'))
    assert long / part == pytest.approx(3)
    assert short / part == pytest.approx(2)


def test_bars_of_shares_are_equally_long():
    long, part, whole = (
        box.width + 1 for box in boxes(two_bars(is_share=True), 'step', 'hooks')
    )
    assert long + part == pytest.approx(whole)


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1e6), min_size=1, max_size=6), max_size=6),
    st.sampled_from(sorted(WIDTHS.values())),
)
def test_bars_stay_inside_their_picture(values, width):
    bars = [
        Bar(
            'a bar' * 9,
            tuple(Segment(p, v, '1 s', p) for p, v in zip(PARTS, row)),
            '9 s',
        )
        for row in values
    ]
    picture = draw_bars('n', 'T', 'D', bars, width)
    for shape in picture.shapes:
        if isinstance(shape, Box):
            assert shape.x >= 0
            assert shape.x + shape.width <= width + 1
            assert shape.y + shape.height <= picture.height
        if isinstance(shape, Label):
            assert 0 <= shape.y <= picture.height


def timeline_of(waits: list[float]) -> Timeline:
    intervals = [make_interval(n, data_wait_s=wait) for n, wait in enumerate(waits)]
    moments = 0.0
    timed = []
    for record in intervals:
        moments += record.duration_s
        timed.append(replace(record, elapsed_s=moments))
    made = fold_timeline(Run(replace(make_evidence(1), intervals=tuple(timed))))
    assert made is not None
    return made


@settings(deadline=None)
@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=300), st.integers(1, 60))
def test_fewer_columns_hide_no_peak_and_keep_the_mean(waits, most):
    timeline = timeline_of(waits)
    columns = fold_columns(timeline, timeline.tracks[0], most)
    assert len(columns) <= max(most, 1) or len(waits) <= most
    cells = [column.cell for column in columns if column.cell]
    assert max(cell.high for cell in cells) == pytest.approx(max(waits), abs=1e-9)
    assert min(cell.low for cell in cells) == pytest.approx(min(waits), abs=1e-9)
    assert all(cell.low <= cell.mean <= cell.high for cell in cells)
    if most == 1:
        mean = math.fsum(waits) / len(waits)
        assert cells[0].mean == pytest.approx(mean, rel=1e-6, abs=1e-9)


def test_a_cell_is_in_the_column_of_its_middle():
    timeline = timeline_of([0.1, 0.2, 0.3, 0.1, 0.2, 0.5])
    columns = fold_columns(timeline, timeline.tracks[0], 3)
    # of 52 s, their middles lie at 3, 10, 19, 27, 34 and 45 s
    cells = [column.cell for column in columns]
    assert [cell and (cell.low, cell.high) for cell in cells] == [
        (0.1, 0.2),
        (0.1, 0.3),
        (0.5, 0.5),
    ]


def test_columns_leave_no_gap():
    timeline = timeline_of([0.1, 30.0, 0.1, 0.1, 0.2, 0.1])
    columns = fold_columns(timeline, timeline.tracks[0], 4)
    assert columns[0].begin_s == 0
    assert [c.begin_s for c in columns[1:]] == [c.end_s for c in columns[:-1]]


def test_too_many_intervals_are_merged_with_their_extremes():
    evidence = replace(
        make_evidence(1),
        intervals=tuple(
            make_interval(n, data_wait_s=0.1 * (1 + n % 3)) for n in range(9)
        ),
    )
    timeline = fold_timeline(Run(evidence), most_cells=4)
    assert timeline is not None
    assert timeline.merged == 3
    assert timeline.iterations == (60, 60, 60)
    cell = timeline.tracks[0].cells[0]
    assert (cell.low, cell.mean, cell.high) == pytest.approx((0.1, 0.2, 0.3))


def test_one_stall_does_not_flatten_the_rest():
    timeline = timeline_of([0.1] * 99 + [50.0])
    columns = fold_columns(timeline, timeline.tracks[0], 400)
    assert find_top(columns) == pytest.approx(0.2)


def test_runs_side_by_side_share_their_axes():
    runs = [make_full_run('a'), make_full_run('b')]
    slow, fast = timeline_of([0.5] * 5), timeline_of([0.1] * 5)
    assert find_reaches([slow, None, fast])['Data wait'] == pytest.approx(0.5)
    assert len(fold_timelines(runs)) == 2


def test_what_happened_is_marked_once():
    timeline = fold_timelines([make_full_run()])[0]
    assert timeline is not None
    kinds = [moment.kind for moment in timeline.moments]
    assert sorted(kinds) == ['epoch', 'epoch', 'save', 'save', 'validation']
    saves = [m for m in timeline.moments if m.kind == 'save']
    assert [m.words for m in saves] == ['epoch_30.pth, 8.000 s', 'save, 16.0 s']
    assert saves[0].at_s < saves[1].at_s


def every_chart() -> list[Chart]:
    runs = [make_full_run()]
    charts = [chart for _, chart in list_charts(runs, fold_timelines(runs))]
    assert all(isinstance(chart, Chart) for chart in charts)
    return charts


@pytest.mark.parametrize('chart', every_chart(), ids=lambda chart: chart.name)
@pytest.mark.parametrize('width', WIDTHS.values(), ids=WIDTHS)
def test_every_picture_is_whole_in_every_width(chart, width):
    picture = chart.draw(width)
    root = ET.fromstring(render_svg(picture))
    assert root.find(f'{SVG}title').text == chart.title
    assert root.find(f'{SVG}desc').text == chart.description
    assert 'nan' not in render_svg(picture)
    outside = [
        shape
        for shape in flat(picture.shapes)
        if isinstance(shape, (Label, Mark)) and not -1 <= shape.x <= width + 1
    ]
    assert outside == []


def flat(shapes):
    for shape in shapes:
        if isinstance(shape, Layer):
            yield from flat(shape.shapes)
        else:
            yield shape


@pytest.mark.parametrize('chart', every_chart(), ids=lambda chart: chart.name)
def test_no_two_lines_of_text_lie_on_each_other(chart):
    labels = [s for s in flat(chart.draw(920).shapes) if isinstance(s, Label)]
    spans = []
    for label in labels:
        wide = text_width(label.text, label.size)
        left = label.x - {'start': 0, 'middle': wide / 2, 'end': wide}[label.anchor]
        spans.append((left, left + wide, label.y, label.text))
    clashes = [
        (one[3], other[3])
        for place, one in enumerate(spans)
        for other in spans[place + 1 :]
        if abs(one[2] - other[2]) < 10 and one[0] < other[1] and other[0] < one[1]
    ]
    assert clashes == []
