from __future__ import annotations

import csv
import io
import json

import pytest

from fakes.replaced import replace
from fakes.sweeps import make_prediction, make_sweep
from fakes.sweeps import make_sweep_row as row
from fakes.swept_batches import GIB, make_full, make_trial
from mmgpu_hooks.schema import Estimate, Sweep, SweepRow
from mmgpu_hooks.show.sweep import (
    list_sweep_charts,
    render_sweep,
    render_sweep_csv,
    render_sweep_json,
    render_sweep_plan,
)

SWEPT = make_sweep(
    row(0, 0.8, predicted_s=0.84),
    row(2, 0.5, predicted_s=0.5, is_calibration=True),
    row(4, 0.4, predicted_s=0.48, is_settled=False),
    row(8, None, predicted_s=0.6, status='out_of_memory', error='MemoryError: no room'),
)
PLANTED = [*(make_trial(batch) for batch in (1, 3, 8)), make_full(16)]


def words_of(sweep: Sweep) -> str:
    return ' '.join(render_sweep(sweep).split())


def test_the_answer_is_first_and_each_trial_has_a_line():
    text = render_sweep(SWEPT)
    lines = [' '.join(line.split()) for line in text.splitlines()]
    assert lines[0].startswith('Fastest that this host carries: 2 workers, batch 4')
    assert max(map(len, text.splitlines())) <= 80
    for line in (
        'workers batch iteration +- predicted wait /s memory cores',
        '0 4 0.800 s 16.0 ms 0.840 s 0.160 s 5.0 800 MiB 1.5',
        '2 4 0.500 s 10.0 ms *0.500 s 0.100 s 8.0 800 MiB 1.5 best',
    ):
        assert line in lines
    words = ' '.join(lines)
    assert 'off by 12.5 % (median of 2), 1 of 2 within' in words
    assert 'beyond the host' in words
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
            'few batches (15) beside the workers (from 2 on)',
        ),
    ],
)
def test_what_else_it_says(sweep: Sweep, words: str):
    assert words in words_of(sweep)


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


def test_an_iteration_that_drifts_has_no_width():
    drifting = replace(row(1), iter_s=Estimate(0.5, -0.1, 1.1, 6))
    assert words_of(make_sweep(drifting)).count('0.500 s (drifts) ') == 2


def test_only_columns_that_say_something_are_there():
    card = {'gpu_util_pct': 61.6, 'gpu_zero_pct': 24.0, 'gpu_swing_pct': 40.0}
    setting = {'amp': True, 'pin_memory': False, 'prefetch_factor': 4}
    text = render_sweep(
        make_sweep(row(2, **card, save_s=1.5, setting=setting)), width=100
    )
    (line,) = [line for line in text.splitlines() if line.startswith('      2')]
    assert line.split()[:5] == ['2', '4', '4', 'no', 'yes']
    assert ' 62 24 40 800 MiB 1.5 1.500 s' in ' '.join(line.split())
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


@pytest.mark.parametrize('side_by_side', [1, 2])
def test_the_plan_says_what_would_be_trained_and_for_how_long(side_by_side):
    settings = [row(n).setting for n in (0, 2, 4)]
    text = render_sweep_plan(
        settings,
        [row(2)],
        least={one: 50 + 10 * one.num_workers for one in settings},
        side_by_side=side_by_side,
        measure_s=60,
        whole_s=600,
        folder='/runs/a',
    )
    words = ' '.join(text.split())
    assert words.startswith('Would train 2 of 3 setting(s)')
    assert '2 workers, batch 4 measured already' in words
    assert '4 workers, batch 4 to be trained' in words
    turns = 2 // side_by_side
    assert f'about {60.0 * turns:.1f} s and {turns} start(s)' in words
    assert 'at least 50 (few workers) to 90 (many)' in words
    assert f'never more than {10.0 * turns:.1f} min' in words.replace(
        '600.0 s', ''
    ) or ('600.0 s' in words)
    assert '/runs/a' in words


def test_charts_hold_what_was_measured_and_predicted():
    unmeasured = replace(row(0, None), predicted=make_prediction(0, 0.3))
    sweep = replace(SWEPT, rows=(*SWEPT.rows, unmeasured))
    predicted, iteration = list_sweep_charts(sweep)
    assert (predicted.name, iteration.name) == ('sweep-predicted', 'sweep-iteration')
    assert predicted.panels[0].title == 'Iteration, ms'
    measured, line = predicted.panels[0].series
    assert measured.values == [800.0, 500.0, 400.0, None, None]
    assert line.values == pytest.approx([840.0, 500.0, 480.0, 600.0, 300.0])
    assert len(line.low) == len(line.high) == 5
    assert list(iteration.texts) == ['0.800 s', '0.500 s', '0.400 s']
    assert list_sweep_charts(make_sweep(row(0, None))) == []


def with_amp(one: SweepRow, amp: bool, **fields: object) -> SweepRow:
    return replace(one, setting=replace(one.setting, amp=amp), **fields)


def test_several_batch_sizes_have_a_section():
    words = words_of(make_sweep(*PLANTED))
    for said in (
        '1.5 GiB with any batch (model and optimizer take 1.0 GiB) and 2.0 GiB per',
        '24.0 GiB in all, 512 MiB not for tensors',
        'from a batch of 12 on; 9 fit safely',
        'the fit expects 33.5 GiB (31.8 GiB to 35.2 GiB',
        '8 17.5 GiB 17.5 GiB (0 % above) 28.0 GiB (60 % above)',
    ):
        assert said in words
    assert 'against' not in words_of(
        make_sweep(make_trial(4), make_trial(4, workers=0))
    )


def test_memory_of_the_process_is_said_to_be_of_no_card():
    resident = {'memory_source': 'process_rss', 'card_bytes': None}
    words = words_of(make_sweep(make_trial(1, **resident), make_trial(4, **resident)))
    assert 'card unknown' in words
    assert 'out of memory is expected' not in words


def test_memory_that_does_not_grow_is_a_reason_and_still_compared():
    flat = {'memory_peak_bytes': 4 * GIB}
    words = words_of(make_sweep(make_trial(1, **flat), make_trial(4, **flat)))
    assert 'Memory does not grow with the batch size: 4096 MiB with 1' in words
    assert '4 4.0 GiB - 16.0 GiB (300 % above)' in words


def test_the_knee_is_said():
    rows = [make_trial(1, 0.1), make_trial(4, 0.2), make_trial(8, 0.4)]
    assert 'the knee is 4' in words_of(make_sweep(*rows))


def test_precisions_have_a_section_each_and_one_together():
    mixed = {'memory_peak_bytes': 2 * GIB, 'images_per_s': 30.0}
    rows = [with_amp(make_trial(batch), False) for batch in (1, 4)]
    rows += [with_amp(make_trial(batch), True, **mixed) for batch in (1, 4)]
    sweep = make_sweep(*rows)
    words = words_of(sweep)
    assert words.index('full precision') < words.index('mixed precision')
    assert 'batch 1 57 % of the memory, 2.10 times the images/s' in words
    names = [chart.name for chart in list_sweep_charts(sweep)]
    assert names[2:] == ['sweep-batch-size-full', 'sweep-batch-size-mixed']


def test_the_fit_is_drawn_through_what_was_measured():
    chart = list_sweep_charts(make_sweep(*PLANTED))[-1]
    assert chart.name == 'sweep-batch-size'
    measured, fit, full = chart.panels[0].series
    assert full.name == 'the card is full'
    known = [n for n, value in enumerate(measured.values) if value is not None]
    assert [chart.x[n] for n in known] == [1.0, 3.0, 8.0]
    for n in known:
        assert measured.values[n] == pytest.approx(fit.values[n])


def test_the_json_answer_has_the_batch_sizes():
    body = json.loads(render_sweep_json(make_sweep(*PLANTED), 'c.py', '/runs'))
    (group,) = body['batch_sizes']
    assert group['memory']['fixed_bytes'] == 3 * GIB // 2
    assert group['memory']['image_bytes'] == 2 * GIB
    assert group['memory']['oom_batch_size'] == 12
    errors = [rule['proportional_error_pct'] for rule in group['memory']['rules']]
    assert errors == [None, pytest.approx(40), pytest.approx(60)]
    assert group['out_of_memory'] == [16]
    assert [peak['batch_size'] for peak in group['memory']['peaks']] == [16]
    assert (group['knee_batch_size'], group['memory_reason']) == (8, None)
    assert body['mixed_precision'] == []
    rows = [make_trial(batch, memory_peak_bytes=None) for batch in (1, 2)]
    body = json.loads(render_sweep_json(make_sweep(*rows), 'c.py', '/runs'))
    assert body['batch_sizes'][0]['memory'] is None
    assert 'none was measured' in body['batch_sizes'][0]['memory_reason']
