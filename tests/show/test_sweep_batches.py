from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import pytest

from fakes.replaced import replace
from fakes.sweeps import make_sweep
from fakes.swept_batches import GIB, make_full, make_trial
from mmgpu_hooks.schema import SweepRow
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.batch_chart import chart_batch_sizes
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.shapes import Label, Line, Mark
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.pictures.sweep_charts import list_sweep_charts
from mmgpu_hooks.show.sweep_table import render_sweep_json
from mmgpu_hooks.show.sweep_text import render_sweep

PLANTED = [*(make_trial(batch) for batch in (1, 3, 8)), make_full(16)]

TEXT = """\
Batch size against memory and speed
  memory    1.5 GiB with any batch (model and optimizer take 1.0 GiB) and 2.0 GiB per
            image of 1.1 M padded pixels, fitted to 3 peaks
  card      24.0 GiB in all, 512 MiB not for tensors; out of memory is expected from a
            batch of 12 on; 9 fit safely
  batch 16  ran out of memory; the fit expects 33.5 GiB (31.8 GiB to 35.2 GiB, 9 times
            in 10)
  speed     images/s, with the fastest setting of the loader: 14.3 with a batch of 1,
            33.3 with a batch of 3, 57.1 with a batch of 8; it still rises at the
            largest, so the knee is there or beyond it

batch  measured     fit of the others           proportional
    1   3.5 GiB   3.5 GiB (0 % above)                      -
    3   7.5 GiB   7.5 GiB (0 % above)  10.5 GiB (40 % above)
    8  17.5 GiB  17.5 GiB (0 % above)  28.0 GiB (60 % above)"""


def with_amp(row: SweepRow, amp: bool, **fields: object) -> SweepRow:
    return replace(row, setting=replace(row.setting, amp=amp), **fields)


def render_words(*rows: SweepRow) -> str:
    return ' '.join(render_sweep(make_sweep(*rows), width=200).split())


def test_the_whole_section():
    text = render_sweep(make_sweep(*PLANTED), width=88)
    begin = text.index('Batch size against')
    assert text[begin : text.index('\n\nNotes')] == TEXT


def test_one_batch_size_has_no_section():
    assert 'against' not in render_words(make_trial(4), make_trial(4, workers=0))


def test_memory_of_the_process_is_said_to_be_of_no_card():
    resident = {'memory_source': 'process_rss', 'card_bytes': None}
    words = render_words(make_trial(1, **resident), make_trial(4, **resident))
    assert (
        'card unknown: peaks are those of the training process in the RAM (resident), '
        'as there is no CUDA; what they would take of a card, and where it would be '
        'full, is not known from them'
    ) in words
    assert 'out of memory is expected' not in words


def test_memory_that_does_not_grow_is_a_reason_and_still_compared():
    flat = {'memory_peak_bytes': 4 * GIB}
    words = render_words(make_trial(1, **flat), make_trial(4, **flat))
    assert 'memory Memory does not grow with the batch size: 4096 MiB with 1' in words
    assert '4 4.0 GiB - 16.0 GiB (300 % above)' in words


def test_the_knee_is_said():
    rows = [make_trial(1, 0.1), make_trial(4, 0.2), make_trial(8, 0.4)]
    assert (
        '10.0 with a batch of 1, 20.0 with a batch of 4, 20.0 with a batch of 8; the '
        'knee is 4, the smallest within 3.0 % of the fastest'
    ) in render_words(*rows)


def test_precisions_have_a_section_each_and_one_together():
    rows = [with_amp(make_trial(batch), False) for batch in (1, 4)]
    rows += [
        with_amp(
            make_trial(batch),
            True,
            memory_peak_bytes=GIB + batch * GIB,
            images_per_s=30.0,
        )
        for batch in (1, 4)
    ]
    words = render_words(*rows)
    at = [
        words.index(title)
        for title in (
            'Batch size against memory and speed, full precision memory 1.5 GiB',
            'Batch size against memory and speed, mixed precision memory 1.0 GiB',
            'Mixed precision beside full batch 1 57 % of the memory, 2.10 times the '
            'images/s batch 4 53 % of the memory, 0.75 times the images/s',
        )
    ]
    assert at == sorted(at)


def test_the_json_answer_has_the_same():
    body = json.loads(render_sweep_json(make_sweep(*PLANTED), 'c.py', '/runs'))
    (group,) = body['batch_sizes']
    assert group['memory']['fixed_bytes'] == 3 * GIB // 2
    assert group['memory']['image_bytes'] == 2 * GIB
    assert group['memory']['workspace_bytes'] == GIB // 2
    assert group['memory']['oom_batch_size'] == 12
    assert [row['proportional_error_pct'] for row in group['memory']['rules']] == [
        None,
        pytest.approx(40),
        pytest.approx(60),
    ]
    assert group['out_of_memory'] == [16]
    assert [peak['batch_size'] for peak in group['memory']['peaks']] == [16]
    assert [one['batch_size'] for one in group['images_per_s']] == [1, 3, 8]
    assert (group['knee_batch_size'], group['memory_reason']) == (8, None)
    assert body['mixed_precision'] == []


def test_the_json_answer_says_why_there_is_no_fit():
    rows = [make_trial(batch, memory_peak_bytes=None) for batch in (1, 2)]
    body = json.loads(render_sweep_json(make_sweep(*rows), 'c.py', '/runs'))
    (group,) = body['batch_sizes']
    assert group['memory'] is None
    assert 'none was measured' in group['memory_reason']


@pytest.mark.parametrize('width', WIDTHS.values(), ids=WIDTHS)
def test_the_picture_holds_what_was_measured_and_the_fit(width):
    rows = [with_amp(row, amp) for amp in (False, True) for row in PLANTED]
    chart = chart_batch_sizes(rows)
    assert isinstance(chart, Chart)
    assert chart.description.startswith(
        'Full precision: batch 1: 3.5 GiB; batch 3: 7.5 GiB; batch 8: 17.5 GiB; batch '
        '1: 14.3 images/s'
    )
    picture = chart.draw(width)
    ET.fromstring(render_svg(picture))
    marks = [s for s in picture.shapes if isinstance(s, Mark) and s.tip]
    assert [mark.tip for mark in marks[:3]] == [
        'batch 1: 3.5 GiB',
        'batch 3: 7.5 GiB',
        'batch 8: 17.5 GiB',
    ]
    assert len(marks) == 12
    fit = next(s for s in picture.shapes if isinstance(s, Line) and s.role == 'step')
    assert fit.points  # the legend's
    for shape in picture.shapes:
        if isinstance(shape, (Mark, Label)):
            assert 0 <= shape.x <= width + 1
            assert 0 <= shape.y <= picture.height
        if isinstance(shape, Line):
            heights = [y for line in shape.points for _, y in line]
            assert all(0 <= y <= picture.height for y in heights)


def test_the_measured_lie_on_the_fit():
    chart = chart_batch_sizes(PLANTED)
    assert isinstance(chart, Chart)
    shapes = chart.draw(920).shapes
    curve = next(
        s.points[0]
        for s in shapes
        if isinstance(s, Line) and s.role == 'step' and len(s.points[0]) > 2
    )
    heights = {round(x, 3): y for x, y in curve}
    marks = [s for s in shapes if isinstance(s, Mark) and s.tip.endswith('GiB')]
    assert len(marks) == 3
    for mark in marks:
        assert heights[round(mark.x, 3)] == pytest.approx(mark.y, abs=0.01)


def test_the_proportional_line_ends_where_its_panel_does():
    chart = chart_batch_sizes([make_trial(batch) for batch in (1, 3, 16)])
    assert isinstance(chart, Chart)
    shapes = chart.draw(920).shapes
    lines = [s for s in shapes if isinstance(s, Line)]
    legend, rule = (s.points[0] for s in lines if s.dash)
    panel = [s.points[0] for s in lines if s.role == 'rule' and not s.dash]
    # 56 GiB at a batch of 16 are beyond the 40 GiB that are shown
    assert rule[1][1] == pytest.approx(min(y for points in panel for _, y in points))
    assert legend[0][0] < rule[1][0] < max(s.x for s in shapes if isinstance(s, Mark))


def test_it_is_among_the_pictures_of_a_sweep():
    names = [chart.name for chart in list_sweep_charts(make_sweep(*PLANTED))]
    assert 'sweep-batch-size' in names


@pytest.mark.parametrize(
    ('rows', 'reason'),
    [
        ([make_trial(4)], 'One batch size was trained.'),
        (
            [make_full(4), make_full(8)],
            'No trial tells its memory or its images per second.',
        ),
    ],
)
def test_without_several_batch_sizes_there_is_no_picture(rows, reason):
    chart = chart_batch_sizes(rows)
    assert isinstance(chart, NoChart)
    assert chart.reason == reason
