"""Tests ``mmgpu predict`` on one run, and on several runs of different batch sizes."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.pooled import make_pooled
from fakes.prepared import make_starved
from fakes.runs import (
    GIB,
    make_evidence,
    make_inside_workers,
    make_loader,
    make_run,
    write_run,
)
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.recorded import LoaderSettings
from mmgpu_hooks.schema.values import Whole

CONFIG = """\
model = dict(type='A')
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(batch_size=2, num_workers=4, persistent_workers=True)
auto_scale_lr = dict(base_batch_size=16, enable=False)
train_cfg = dict(type='IterBasedTrainLoop', max_iters=90000)
"""


@pytest.fixture
def starved(tmp_path) -> str:
    """Run with two workers at 0.4 s per batch and a train step of 0.1 s."""
    return str(write_run(tmp_path / 'run1', make_starved()))


@pytest.fixture
def write_pair(tmp_path):
    """Function that writes two runs: batch size 2 (newest) and batch size 4."""

    def write(**other: Any) -> list[str]:
        config = tmp_path / 'mine.py'
        config.write_text(CONFIG)
        run: dict[str, Any] = {'config_path': str(config)}
        pair = make_pooled(2, day=28, run=run), make_pooled(4, day=26, run=run, **other)
        return [
            str(write_run(tmp_path / f'run{number}', evidence, CONFIG))
            for number, evidence in enumerate(pair)
        ]

    return write


def test_the_table_has_a_row_per_number_of_workers_and_marks_the_run(starved, capsys):
    assert main(['predict', starved, '--num-workers', '0', '1', '2', '8']) == 0
    rows = map(str.split, capsys.readouterr().out.splitlines())
    known = [row[:2] for row in rows if row and row[0].isdigit()]
    assert [row[0] for row in known] == ['0', '1', '2', '8']
    assert known[2][1] == '*'


def test_every_setting_can_be_varied(starved, ask, capsys):
    words = ['--num-workers', '0', '2', '--prefetch-factor', '2', '8']
    words += ['--persistent-workers', 'off', 'on']
    found = ask('predict', starved, *words)['predictions']
    # without workers there is nothing to vary
    assert [prediction['num_workers'] for prediction in found] == [0, 2, 2, 2, 2]
    alone, off, on, *_ = found
    assert alone['settings'] == {
        'num_workers': 0,
        'prefetch_factor': None,
        'persistent_workers': False,
    }
    # the starts of twelve epochs are no part of an iteration
    assert off['iter_time_s'] == on['iter_time_s']
    assert off['training_s'] > on['training_s'] > 1200 * on['iter_time_s']
    assert main(['predict', starved, *words]) == 0
    table = capsys.readouterr().out
    assert 'training' in table
    assert all(len(line) <= 80 for line in table.splitlines()[2:])


def test_workers_that_start_anew_do_so_where_nothing_else_is_asked(tmp_path, ask):
    loader = make_loader(2, persistent_workers=False, batches_per_epoch=50)
    evidence = make_evidence(
        30,
        run=make_run(loader=loader, max_epochs=12),
        workers=make_inside_workers(0.3),
        first_waits=2,
        first_wait_s=6.0,
    )
    path = str(write_run(tmp_path / 'run1', evidence))
    found = ask('predict', path, '--num-workers', '2', '4')['predictions']
    words = ['--num-workers', '2', '4', '--persistent-workers', 'off', 'on']
    off, on = (
        [
            prediction['training_s']
            for prediction in ask('predict', path, *words)['predictions']
            if prediction['settings']['persistent_workers'] is is_kept
        ]
        for is_kept in (False, True)
    )
    assert [prediction['training_s'] for prediction in found] == off
    assert all(kept < anew for kept, anew in zip(on, off))


def test_a_value_of_unknown_effect_is_not_predicted(starved, ask, capsys):
    assert main(['predict', starved, '--opencv-num-threads', '1']) == 2
    assert 'what another number of them makes' in capsys.readouterr().err
    # beside values that are known it is a note
    answer = ask('predict', starved, '--worker-nice', '0', '5')
    asked = [prediction['settings'] for prediction in answer['predictions']]
    assert {settings['worker_nice'] for settings in asked} == {0}
    assert 'What a niceness below 10 makes of the saves is unknown.' in answer['notes']


def test_what_a_pinned_copy_takes_is_not_in_a_run(tmp_path, capsys):
    run = write_run(tmp_path / 'run1', make_pooled(2))
    assert main(['predict', str(run), '--pin-memory', 'on']) == 2
    assert 'mmgpu sweep --pin-memory off on measures it' in capsys.readouterr().err


def test_the_json_answer_has_intervals_and_limits(starved, ask):
    answer = ask('predict', starved)
    keys = ('version', 'run', 'status', 'workload', 'predictions', 'notes')
    assert tuple(answer) == keys
    assert [prediction['num_workers'] for prediction in answer['predictions']] == [
        0,
        1,
        2,
        4,
        8,
    ]
    two_workers = answer['predictions'][2]
    assert two_workers['iter_time_s'] == pytest.approx(0.2, rel=0.02)
    assert (
        two_workers['iter_time_low_s']
        < two_workers['iter_time_s']
        < two_workers['iter_time_high_s']
    )
    assert (two_workers['batch_size'], two_workers['limit']) == (4, 'workers')
    assert answer['workload']['num_workers'] == 2


@pytest.mark.parametrize('form', ['text', 'json'])
@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({'intervals': 1, 'iterations': 5}, 'Not enough evidence: 5 steady iterations'),
        ({'run': make_run(loader=LoaderSettings())}, 'The num_workers of the loader'),
    ],
)
def test_what_cannot_be_predicted_is_said(tmp_path, capsys, fields, reason, form):
    run = write_run(tmp_path / 'run1', make_evidence(**fields))
    assert main(['predict', str(run), '--format', form]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    assert err.startswith(f'mmgpu predict: {reason}')


def test_several_batch_sizes_predict_others(write_pair, ask):
    runs = write_pair()
    options = ['--batch-size', '2', '4', '8', '--num-workers', '4']
    answer = ask('predict', *runs, *options)
    assert [prediction['batch_size'] for prediction in answer['predictions']] == [
        2,
        4,
        8,
    ]
    times = [prediction['iter_time_s'] for prediction in answer['predictions']]
    assert times == pytest.approx([0.081, 0.101, 0.141], rel=0.03)
    assert [*answer['fitted_runs'].values()] == [2, 4]
    assert answer['run'].startswith(runs[0])
    memory = answer['memory']
    assert memory['peaks'][2]['peak_bytes'] == pytest.approx(17 * GIB, rel=1e-3)
    assert (memory['oom_batch_size'], memory['card_bytes']) == (40, 80 * GIB)
    # 5 GiB with 2: twice the batch is not twice the memory


def test_one_run_predicts_no_other_batch_size(write_pair, ask, capsys):
    run = write_pair()[0]
    assert main(['predict', run, '--batch-size', '8']) == 2
    assert 'runs with several batch sizes' in capsys.readouterr().err
    answer = ask('predict', run, '--batch-size', '2', '8')
    assert {prediction['batch_size'] for prediction in answer['predictions']} == {2}
    assert 'fitted_runs' not in answer


def test_a_run_of_another_training_is_left_out_by_name(write_pair, ask, capsys):
    runs = write_pair(device='cpu')
    answer = ask('predict', *runs)
    assert [*answer['fitted_runs'].values()] == [2]
    (left_out,) = [note for note in answer['notes'] if 'left out' in note]
    assert 'device is cpu there' in left_out
    assert runs[1] in left_out
    assert main(['predict', *runs, '--batch-size', '4']) == 2
    assert f'{runs[1]}/' in capsys.readouterr().err


@pytest.mark.parametrize('command', [['predict'], ['recommend', '--dry-run']])
def test_a_folder_that_cannot_be_read_is_refused(command, write_pair, capsys):
    runs = write_pair()
    assert main([*command, *runs, f'{runs[0]}/nothing']) == 2
    assert 'nothing: expected' in capsys.readouterr().err


def test_a_batch_size_is_rewritten_where_allowed_and_the_rate_is_advice(
    write_pair, ask, tmp_path
):
    runs = write_pair()
    answer = ask('recommend', *runs, '--dry-run')
    assert not [change for change in answer['changes'] if 'batch_size' in change['key']]
    assert len(answer['fitted_runs']) == 2
    answer = ask('recommend', *runs, '--allow-batch-size')
    notes = ' '.join(answer['notes'])
    assert 'it goes to 0.08, 4 times' in notes
    assert '4 times as many images. For as many as before it goes to 22500' in notes
    written = (tmp_path / 'mine_recommended.py').read_text()
    assert 'batch_size=8' in written
    # nothing else: neither the rate nor its scaling, nor the length
    assert 'lr=0.02' in written and 'enable=False' in written
    assert 'max_iters=90000' in written


@pytest.mark.parametrize('setting', SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize('command', ['predict', 'sweep'])
def test_each_setting_is_an_option_with_the_registrys_range(command, setting, capsys):
    option = f'--{setting.name.replace("_", "-")}'
    assert main([command, '--help']) == 0
    words = ' '.join(capsys.readouterr().out.split())
    takes = f'{option} [off|on]...'
    expected, found = "is not one of 'off', 'on'", 'maybe'
    if isinstance(setting.values, Whole):
        most, takes = setting.most or setting.values.most, f'{option} N...'
        range_of = f'{setting.values.least}<=x<={most}]'
        assert range_of in words.partition(takes)[2].partition(' --')[0]
        expected = f'expected {Whole(setting.values.least, most).expected}, found'
        found = str(most + 1)
    assert takes in words
    assert main([command, 'gone', option, found]) == 2
    said = capsys.readouterr().err
    assert f"'{option}'" in said
    assert expected in said
    assert found in said
