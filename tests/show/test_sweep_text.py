from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET

import pytest

from fakes.replaced import replace
from fakes.sweeps import make_prediction, make_sweep
from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.schema import Estimate, Sweep
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.chart import Chart, NoChart
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.pictures.sweep_charts import list_sweep_charts
from mmgpu_hooks.show.sweep_table import render_sweep_csv, render_sweep_json
from mmgpu_hooks.show.sweep_text import render_sweep, render_sweep_plan

SWEPT = make_sweep(
    row(0, 0.8, predicted_s=0.84),
    row(2, 0.5, predicted_s=0.5, is_calibration=True),
    row(4, 0.4, predicted_s=0.48, is_settled=False),
    row(8, None, predicted_s=0.6, status='out_of_memory', error='MemoryError: no room'),
)

TEXT = """\
Fastest that this host carries: 2 workers, batch 4: 8.0 images/s, 0.500 s +- 10.0 ms per
iteration.

                                             data images           CPU
workers batch iteration      +- predicted    wait     /s  memory cores
      0     4   0.800 s 16.0 ms   0.840 s 0.160 s    5.0 800 MiB   1.5
      2     4   0.500 s 10.0 ms  *0.500 s 0.100 s    8.0 800 MiB   1.5 best
      4     4   0.400 s  8.0 ms   0.480 s 80.0 ms   10.0 800 MiB   1.5 beyond the host
      8     4         -       -   0.600 s       -      -       -     - out of memory

3 of 4 trial(s) measured, in random order (seed 0), 95.0 s in all. +- is the interval of
the mean at 95 %. Predictions are those of one trial (* in the table): off by 12.5 %
(median of 2), 1 of 2 within their interval.

Notes
  -  8 workers, batch 4: out of memory (MemoryError: no room).
  -  More than 2 worker(s) are more than this host carries: 2 usable cores.
  -  1 trial(s) ended before their interval was within 3.0 %; --seconds gives them more
     time.
  -  Peak memory is that of the training process in the RAM (resident), as there is no
     CUDA."""


def test_the_whole_text():
    assert render_sweep(SWEPT, width=88) == TEXT


@pytest.mark.parametrize(
    ('sweep', 'words'),
    [
        (
            make_sweep(row(0, 0.8), asked=3, is_interrupted=True),
            'Stopped when 1 of 3 settings were trained; the same command goes on from '
            'here. Fastest that this host carries: 0 workers, batch 4',
        ),
        (make_sweep(is_interrupted=True, asked=3), 'Stopped when 0 of 3 settings'),
        (make_sweep(row(0, None)), 'No setting can be recommended'),
        (
            make_sweep(row(0, 0.1, batch=1), row(0, 0.4, batch=8)),
            'Fastest that this host carries: 0 workers, batch 8: 20.0 images/s, 0.400 '
            's +- 8.0 ms per iteration. Next: 0 workers, batch 1: 10.0 images/s, 0.100 '
            's +- 2.0 ms per iteration. Batch size and precision belong to the recipe',
        ),
        (
            make_sweep(row(0, images_per_s=None)),
            'Fastest that this host carries: 0 workers, batch 4: 0.500 s +- 10.0 ms',
        ),
        (
            make_sweep(row(0, is_loss_finite=False), row(1)),
            'batch 4: a loss was not finite, so it is never recommended.',
        ),
        (
            make_sweep(row(1, status='timed_out', error='killed after 9 s')),
            '1 worker, batch 4: out of time (killed after 9 s), 60 iterations until',
        ),
        (
            make_sweep(row(0, None, status='completed', error=None)),
            'ended before there were iterations enough for an interval.',
        ),
        (
            make_sweep(row(0, unpredicted='Nobody knows.'), row(1)),
            'Notes - Nobody knows.',
        ),
        (make_sweep(row(0, external_cpu_cores=1.25)), 'Others used up to 1.2 cores'),
        (make_sweep(row(0, is_reused=True)), '; 1 of them by an earlier start. +-'),
        (make_sweep(row(0), notes=('Something else.',)), '- Something else.'),
        (
            make_sweep(row(2, batches_per_epoch=15), row(1, batches_per_epoch=8)),
            'An epoch has few batches (15) beside the workers (from 2 on)',
        ),
    ],
)
def test_what_else_it_says(sweep: Sweep, words: str):
    assert words in ' '.join(render_sweep(sweep, width=200).split())


@pytest.mark.parametrize(
    ('one', 'words'),
    [
        (row(0), 'best'),
        (row(0, is_loss_finite=False), 'loss not finite'),
        (row(4), 'beyond the host'),
        (row(0, status='timed_out', error='killed'), 'out of time'),
        (row(0, None), 'failed'),
        (row(0, None, status='interrupted'), 'was stopped'),
        (row(0, None, status='completed', error=None), 'too short'),
        (row(0, 0.6), ''),
    ],
)
def test_each_line_ends_with_its_judgement(one, words):
    others = [row(1, 0.5)] if words != 'best' else []
    text = render_sweep(make_sweep(one, *others), width=140)
    begin = f'      {one.setting.num_workers}  '
    (line,) = [line for line in text.splitlines() if line.startswith(begin)]
    assert line.endswith(words or '1.5')


def test_an_iteration_that_drifts_has_no_width():
    text = render_sweep(make_sweep(row(0, iter_s=None), row(2)), width=140)
    assert 'drifts' not in text
    drifting = replace(row(1), iter_s=Estimate(0.5, -0.1, 1.1, 6))
    text = render_sweep(make_sweep(drifting), width=140)
    assert text.count('0.500 s (drifts) ') == 2


def test_only_columns_that_say_something_are_there():
    card = {'gpu_util_pct': 61.6, 'gpu_zero_pct': 24.0, 'gpu_swing_pct': 40.0}
    setting = {'amp': True, 'pin_memory': False, 'prefetch_factor': 4}
    text = render_sweep(
        make_sweep(row(2, **card, save_s=1.5, setting=setting)), width=140
    )
    (line,) = [line for line in text.splitlines() if line.startswith('      2')]
    assert line.split()[:5] == ['2', '4', '4', 'no', 'yes']
    assert '  62   24     40 800 MiB   1.5 1.500 s' in line
    assert 'GPU' not in render_sweep(make_sweep(row(2)))


def test_the_json_answer_says_everything():
    body = json.loads(render_sweep_json(SWEPT, 'a.py', '/runs/a'))
    assert (body['version'], body['config'], body['folder']) == (1, 'a.py', '/runs/a')
    assert body['best'] == [body['rows'][1]['setting']]
    assert body['rows'][2]['prediction_error'] == pytest.approx(0.2)
    assert body['rows'][2]['exceeds_host'] is True
    assert body['rows'][2]['name'] == '4 workers, batch 4'
    assert body['rows'][3]['iter_s'] is None
    assert body['rows'][3]['predicted']['iter_time_s'] == 0.6


def test_csv_has_a_line_a_trial_and_nothing_for_what_is_unknown():
    lines = list(csv.DictReader(io.StringIO(render_sweep_csv(SWEPT.rows))))
    assert [line['num_workers'] for line in lines] == ['0', '2', '4', '8']
    assert lines[0]['iter_s'] == '0.8'
    assert float(lines[0]['iter_high_s']) == pytest.approx(0.816)
    assert lines[0]['predicted_iter_s'] == '0.84'
    assert (lines[3]['iter_s'], lines[3]['error']) == ('', 'MemoryError: no room')
    assert list(csv.DictReader(io.StringIO(render_sweep_csv([])))) == []


def render_plan(settings, *kept, side_by_side: int = 1) -> str:
    least = {one: 50 + 10 * one.num_workers for one in settings}
    return render_sweep_plan(
        settings,
        kept,
        least=least,
        side_by_side=side_by_side,
        measure_s=60,
        whole_s=600,
        folder='/runs/a',
        width=200,
    )


def test_trials_side_by_side_are_planned_in_turns():
    text = render_plan([row(n).setting for n in (0, 1, 2)], side_by_side=2)
    words = ' '.join(text.split())
    assert words.startswith('Would train 3 of 3 setting(s), 2 at a time, in random')
    assert 'about 120.0 s and 2 start(s). ' in words
    assert 'never more than 20.0 min (--time-limit times 2).' in words


def test_the_plan_says_what_would_be_trained_and_for_how_long():
    kept = row(2)
    settings = [row(n).setting for n in (0, 2, 4)]
    text = render_plan(settings, kept)
    words = ' '.join(text.split())
    assert words.startswith('Would train 2 of 3 setting(s), one at a time')
    assert '2 workers, batch 4 measured already' in words
    assert '4 workers, batch 4 to be trained' in words
    assert 'about 120.0 s and 2 start(s). Where iterations are slow it is' in words
    assert (
        'each trains at least 50 (few workers) to 90 (many) of them. It is never'
        in words
    )
    assert 'never more than 20.0 min (--time-limit times 2).' in words
    assert 'Like those that are measured, 40.0 s each, they would take about' in words
    assert 'Results would go to /runs/a. Nothing was trained.' in words


def test_every_picture_is_drawn_in_every_width():
    sweep = replace(
        SWEPT, rows=(*SWEPT.rows, row(1, batch=16, gpu_util_pct=40.0, iter_s=0.2))
    )
    charts = list(list_sweep_charts(sweep))
    assert [chart.name for chart in charts] == [
        'sweep-predicted',
        'sweep-iteration',
        'sweep-speed',
        'sweep-memory',
        'sweep-batch-size',
        'sweep-gpu',
    ]
    for chart in charts:
        assert isinstance(chart, Chart)
        for width in WIDTHS.values():
            ET.fromstring(render_svg(chart.draw(width)))
    assert (
        '8 workers, batch 4: not measured, predicted 0.600 s' in charts[0].description
    )
    assert '1 worker, batch 16: 0.200 s, predicted nothing' in charts[0].description
    assert '0 workers, batch 4 0.800 s; 2 workers' in charts[1].description


def test_a_sweep_without_figures_has_reasons_instead_of_pictures():
    charts = list(list_sweep_charts(make_sweep(row(0, None))))
    assert all(isinstance(chart, NoChart) for chart in charts)
    assert charts[-1].reason == 'No GPU was read.'


def test_what_is_predicted_and_was_not_measured_is_drawn_alone():
    one = replace(row(0, None), predicted=make_prediction(0, 0.3))
    chart = next(iter(list_sweep_charts(make_sweep(one))))
    assert isinstance(chart, Chart)
    assert 'not measured, predicted 0.300 s' in chart.description
