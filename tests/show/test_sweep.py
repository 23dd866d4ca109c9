from __future__ import annotations

import json

import pytest

from fakes.replaced import replace
from fakes.sweeps import make_sweep
from fakes.sweeps import make_sweep_row as row
from mmgpu_hooks.schema import Sweep
from mmgpu_hooks.show.sweep import (
    list_sweep_charts,
    render_sweep,
    render_sweep_json,
    render_sweep_plan,
)

SWEPT = make_sweep(
    row(0, 0.8, predicted_s=0.84),
    row(2, 0.5, predicted_s=0.5, is_calibration=True),
    row(4, 0.4, predicted_s=0.48),
    row(8, None, predicted_s=0.6, status='out_of_memory', error='MemoryError: no room'),
)


def lines_of(text: str) -> list[str]:
    return [' '.join(line.split()) for line in text.splitlines()]


def test_the_answer_is_first_and_each_trial_has_a_line():
    text = render_sweep(SWEPT)
    lines = lines_of(text)
    assert lines[0].startswith('Fastest that this host carries: 2 workers, batch 4')
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        'workers batch iteration +- predicted wait /s memory cores',
        '0 4 0.800 s 16.0 ms 0.840 s 0.160 s 5.0 800 MiB 1.5',
        '2 4 0.500 s 10.0 ms 0.500 s 0.100 s 8.0 800 MiB 1.5 best',
    ):
        assert line in lines
    words = ' '.join(lines)
    assert 'the trial with 2 workers, batch 4: off by 12.5 % (median of 2)' in words
    assert 'MemoryError: no room' in words


@pytest.mark.parametrize(
    ('sweep', 'words'),
    [
        (make_sweep(row(0, 0.8), asked=3, is_interrupted=True), '1 of 3 settings'),
        (make_sweep(is_interrupted=True, asked=3), '0 of 3 settings'),
        (make_sweep(row(0, None)), 'No setting can be recommended'),
        (make_sweep(row(0, 0.1, batch=1), row(0, 0.4, batch=8)), 'Next: 0 workers'),
        (make_sweep(row(0, is_loss_finite=False), row(1)), 'a loss was not finite'),
        (
            make_sweep(row(1, status='timed_out', error='killed after 9 s')),
            'out of time (killed after 9 s), 60 iterations',
        ),
        (make_sweep(row(0, unpredicted='No step.'), row(1)), 'Notes - No step.'),
        (make_sweep(row(0, external_cpu_cores=1.25)), '1.2 cores of the host'),
        (make_sweep(row(0, is_reused=True)), '1 of them by an earlier start'),
        (make_sweep(row(0), notes=('Something else.',)), '- Something else.'),
        (
            make_sweep(row(2, batches_per_epoch=15), row(1, batches_per_epoch=8)),
            'few batches in an epoch and 2 workers or more',
        ),
    ],
)
def test_what_else_it_says(sweep: Sweep, words: str):
    assert words in ' '.join(render_sweep(sweep).split())


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
        (row(0, 0.6), '1.5'),
    ],
)
def test_each_line_ends_with_its_judgement(one, words):
    others = [row(1, 0.5)] if words != 'best' else []
    text = render_sweep(make_sweep(one, *others), width=100)
    begin = f'      {one.setting.num_workers}  '
    (line,) = [line for line in text.splitlines() if line.startswith(begin)]
    assert line.endswith(words)


def test_only_columns_that_say_something_are_there():
    card = {'gpu_util_pct': 61.6, 'gpu_zero_pct': 24.0}
    setting = {'prefetch_factor': 4}
    text = render_sweep(make_sweep(row(2, **card, setting=setting)), width=100)
    (line,) = [one for one in lines_of(text) if one.startswith('2 4 4 ')]
    assert ' 62 24 800 MiB 1.5' in line
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


def test_the_plan_says_what_would_be_trained_and_for_how_long():
    settings = [row(n).setting for n in (0, 2, 4)]
    text = render_sweep_plan(
        settings,
        [row(2)],
        least={one: 50 + 10 * one.num_workers for one in settings},
        measure_s=60,
        whole_s=600,
        folder='/runs/a',
    )
    words = ' '.join(text.split())
    assert words.startswith('Would train 2 of 3 setting(s)')
    assert '2 workers, batch 4 measured already' in words
    assert '4 workers, batch 4 90 iterations' in words
    assert '2 start(s), never more than 20.0 min' in words


def test_the_chart_has_a_bar_a_trial_with_what_was_predicted():
    (chart,) = list_sweep_charts(replace(SWEPT, rows=SWEPT.rows[2:]))
    ((label, parts, text),) = chart.bars
    assert (label, text) == ('4 workers, batch 4', '0.400 s (predicted 0.480 s)')
    assert [length for _, _, length in parts] == pytest.approx([0.08, 0.32])
    assert list_sweep_charts(make_sweep(row(0, None))) == []
