from __future__ import annotations

import pytest

from benchmarks.sweep_judge import fold_figures, render_trials
from fakes.sweeps import make_sweep
from fakes.sweeps import make_sweep_row as row
from fakes.swept_batches import make_trial

SWEPT = make_sweep(
    row(0, 0.8, predicted_s=0.84),
    row(2, 0.5, predicted_s=0.5, is_calibration=True),
    row(4, 0.4, predicted_s=0.6, is_settled=False),
    row(8, None, predicted_s=0.7),
    asked=5,
)


def figures_of(sweep, others_s):
    return {figure.name: figure for figure in fold_figures(sweep, others_s)}


def test_errors_are_those_of_what_was_predicted_and_measured():
    figures = figures_of(SWEPT, [0.8, 0.5, 0.4, None])
    error = figures['iteration, predicted from one run: error, median']
    # 5 % and 50 %; the one run itself is not counted
    assert error.value == pytest.approx(27.5)
    assert (error.verdict, error.note) == ('missed', '2 predictions; worst 50.0 %')
    inside = figures['intervals that hold the truth']
    assert (inside.value, inside.verdict, inside.note) == (50.0, 'missed', '1 of 2')
    assert figures['trials measured'].value == 3
    assert figures['trials measured'].unit == 'of 5'
    lost = figures['batch 4: lost by the setting predicted fastest']
    assert lost.value == pytest.approx(100 * (1 - 0.4 / 0.5))


@pytest.mark.parametrize(
    ('others_s', 'value', 'verdict'),
    [
        ([0.8, 0.5, 0.4, None], 0.0, 'met'),
        ([0.8, 0.4, 0.32, None], 25.0, 'missed'),
        ([None] * 4, None, 'missed'),
    ],
)
def test_another_clock_must_agree(others_s, value, verdict):
    name = "iteration, measured, against MMEngine's own timer: median"
    figure = figures_of(SWEPT, others_s)[name]
    assert figure.value == (None if value is None else pytest.approx(value))
    assert figure.verdict == verdict


def test_a_sweep_without_predictions_misses_and_does_not_fail():
    figures = figures_of(make_sweep(row(0)), [0.5])
    error = figures['iteration, predicted from one run: error, median']
    assert (error.value, error.verdict) == (None, 'missed')


def test_unseen_peaks_show_what_the_proportional_rule_is_off():
    figures = figures_of(make_sweep(*map(make_trial, (1, 3, 8))), [0.5] * 3)
    fit = figures['peak memory, fit of the others: worst']
    assert fit.value == pytest.approx(0, abs=1e-6)
    rule = figures['peak memory, in proportion: worst']
    # 8 times the 3.5 GiB of one image, of 17.5 GiB
    assert rule.value == pytest.approx(60)
    assert (rule.note, rule.verdict) == ('2 batch sizes, cuda_allocator', '')


def test_every_trial_is_a_line():
    lines = render_trials(SWEPT.rows).splitlines()
    assert len(lines) == 2 + 4
    cells = [cell.strip() for cell in lines[2].split('|')[1:-1]]
    assert cells[:7] == ['4', '0', '800', '16', '840', '756 to 924', '+5.0']
    assert 'the one run' in lines[3]
    assert [line.split('|')[-2].strip() for line in lines[2:]] == [
        'settled',
        'settled',
        'time',
        'failed',
    ]
