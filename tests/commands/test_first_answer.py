"""Tests ``mmgpu recommend`` without the hook, on logs of MMEngine and MMCV 1.x."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fakes.runs import make_evidence, write_run
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.judge.framework_log import parse_loader

RUN = '20261121_101500'
OF_2_X = '20220101_120000.log.json'
CONFIG = "data = dict(samples_per_gpu=2, workers_per_gpu={}, train=dict(type='A'))\n"
METADATA = {
    'env_info': 'sys.platform: linux\nPython: 3.7.11',
    'config': CONFIG.format(2),
    'seed': 0,
    'exp_name': 'faster_rcnn_r50_fpn_1x_coco.py',
}


def make_line(number: int, time: float = 0.5, wait: float = 0.2, **logged: Any) -> Any:
    """Returns the n-th train line of a ``scalars.json``, one per 50 iterations."""
    return {
        'lr': 0.02,
        'data_time': wait,
        'loss': 1.1328,
        'time': time,
        'epoch': 1,
        'iter': 50 * number,
        'memory': 3811,
        'step': 50 * number,
        **logged,
    }


def make_old_line(epoch: int, iteration: int, wait: float = 0.2) -> Any:
    """Returns a train line of MMCV 1.x's JSON log, with the iteration in the epoch."""
    return {
        'mode': 'train',
        'epoch': epoch,
        'iter': iteration,
        'lr': 0.00198,
        'memory': 3811,
        'data_time': wait,
        'loss': float('nan'),
        'time': 0.3 + wait,
    }


VALIDATION = {'coco/bbox_mAP': 0.12, 'data_time': 2.5, 'time': 3.1, 'step': 1}
OLD_VALIDATION = {'mode': 'val', 'epoch': 1, 'iter': 5000, 'lr': 0.02, 'bbox_mAP': 0.12}


def write_lines(path: Path, lines: Iterable[Any], end: str = '') -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('\n'.join([*map(json.dumps, lines), end]))
    return path


@pytest.fixture
def scalars(tmp_path: Path) -> Path:
    """Path of MMEngine's ``scalars.json`` in the run's folder."""
    return tmp_path / RUN / 'vis_data' / 'scalars.json'


@pytest.fixture
def old_log(tmp_path: Path) -> Path:
    """Path of MMCV 1.x's JSON log in the work_dir."""
    return tmp_path / OF_2_X


def test_scalars_of_mmengine_say_the_share_of_data_time(ask, tmp_path, scalars):
    # the first line has the warm-up, that of a validation is none of training
    slow_start = make_line(1, time=9.0, wait=8.0)
    rest = [make_line(number) for number in range(2, 8)]
    write_lines(scalars, [slow_start, *rest, VALIDATION])
    answer = ask('recommend', tmp_path)
    assert (answer['source'], answer['run']) == ('mmengine', str(scalars))
    verdict = answer['verdict']
    assert (verdict['name'], verdict['confidence']) == ('data_bound', 'low')
    facts = verdict['facts']['sentence']['why']
    assert facts['data_share'] == pytest.approx(0.4)
    assert (facts['iterations'], facts['lines']) == (300, 6)
    first = answer['first_answer']
    assert first['peak_memory_bytes'] == 3811 * 2**20
    assert first['switch_on'] == 'mmgpu run tools/train.py CONFIG'
    assert (answer['changes'], answer['advice']) == ([], [])
    assert 'on a log alone' in answer['no_change_reason']


def test_a_log_of_2_x_says_it_by_epochs_and_what_can_be_done(ask, tmp_path, old_log):
    epochs = [make_old_line(e, i) for e in (1, 2) for i in (50, 100, 125)]
    write_lines(old_log, [METADATA, *epochs[:3], OLD_VALIDATION, *epochs[3:]])
    answer = ask('recommend', tmp_path)
    assert (answer['source'], answer['verdict']['name']) == ('mmcv', 'data_bound')
    facts = answer['verdict']['facts']['sentence']['why']
    # two epochs of 125, without the first 50
    assert facts['data_share'] == pytest.approx(0.4)
    assert facts['iterations'] == 200
    assert answer['first_answer']['num_workers'] == 2
    assert 'workers_per_gpu=N' in answer['advice'][0]
    assert 'is for MMEngine' in answer['advice'][1]


def test_the_answer_as_text_ends_in_the_line_that_switches_it_on(
    capsys, tmp_path, scalars
):
    write_lines(scalars, [make_line(number) for number in range(1, 8)])
    config = 'train_dataloader = dict(batch_size=2, num_workers=0)\n'
    (scalars.parent / 'config.py').write_text(config)
    assert main(['recommend', str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith('Data-bound, too few workers (low confidence)\n')
    assert 'data_time is 40 % of an iteration (0.200 s of 0.500 s' in out
    assert '0 workers, batches of 2' in out
    assert "3.7 GiB: torch's peak on one card" in out
    assert 'Switch on mmgpu run tools/train.py CONFIG' in out


def test_little_data_time_is_compute_bound(ask, tmp_path, scalars):
    write_lines(scalars, [make_line(number, wait=0.01) for number in range(1, 8)])
    verdict = ask('recommend', tmp_path)['verdict']
    assert (verdict['name'], verdict['confidence']) == ('compute_bound', 'low')


def test_waits_in_few_lines_are_no_verdict(ask, tmp_path, scalars):
    lines = [
        make_line(n, 3.0 if n == 4 else 0.3, 2.8 if n == 4 else 0.01) for n in range(9)
    ]
    write_lines(scalars, lines[1:])
    verdict = ask('recommend', tmp_path)['verdict']
    assert verdict['name'] == 'not_enough_evidence'
    assert 'half of them have at most 3 %, one has 93 %.' in verdict['sentence']


@pytest.mark.parametrize(
    ('workers', 'name'), [(2, 'startup_bound'), (0, 'not_enough_evidence')]
)
def test_waits_where_epochs_begin_are_starts_of_workers(
    ask, tmp_path, old_log, workers, name
):
    """Tests that slow first iterations count as worker starts, if there are workers."""
    lines = [
        make_old_line(epoch, 50 * n, wait=2.8 if n == 1 else 0.01)
        for epoch in (1, 2, 3)
        for n in range(1, 5)
    ]
    write_lines(old_log, [{**METADATA, 'config': CONFIG.format(workers)}, *lines])
    answer = ask('recommend', tmp_path)
    assert answer['verdict']['name'] == name
    facts = answer['verdict']['facts']['sentence']['why']
    # two of the three epochs: the first line has the warm-up
    whole_s = 2 * 3.1 + 9 * 0.31
    assert facts['data_share'] == pytest.approx((2 * 2.8 + 9 * 0.01) / whole_s)
    if workers:
        assert facts['start_share'] == pytest.approx(2 * 2.79 / whole_s)
    # more workers are no cure
    assert len(answer['advice']) == 1


@pytest.mark.parametrize('kept', [1, 2])
def test_torn_and_odd_lines_cost_themselves_alone(ask, tmp_path, old_log, kept):
    odd = ['[1, 2]', '{"mode": "train", "iter": 50, "time": true}', 'no json', '']
    lines = [METADATA, *(make_old_line(1, 50 * n) for n in range(1, 6))]
    text = '\n'.join([*map(json.dumps, lines), *odd[: 2 * kept], '{"mode": "tr'])
    old_log.write_text(text)
    answer = ask('recommend', tmp_path)
    assert answer['first_answer']['lines'] == 5
    assert answer['verdict']['facts']['sentence']['why']['iterations'] == 200
    assert f'{OF_2_X}: 1 torn last line skipped.' in answer['notes']
    assert f'{OF_2_X}: {kept} line{"s" * (kept > 1)} skipped.' in answer['notes']


def test_a_resumed_log_goes_on_where_it_was_resumed(ask, tmp_path, scalars):
    again = [make_line(number) for number in (1001, 1002, 1003, 1002, 1003, 1004)]
    write_lines(scalars, again)
    facts = ask('recommend', tmp_path)['verdict']['facts']['sentence']['why']
    # not 50,000 before the first line, and not fewer than none where it goes back
    assert facts['iterations'] == 250


def test_of_several_trainings_in_a_log_the_last_counts(ask, tmp_path, old_log):
    before = [make_old_line(1, 50 * n, wait=2.0) for n in range(1, 6)]
    after = [make_old_line(2, 50 * n, wait=0.2) for n in range(1, 6)]
    other = {**METADATA, 'config': CONFIG.format(4)}
    write_lines(old_log, [METADATA, *before, other, *after, METADATA])
    answer = ask('recommend', tmp_path)
    assert answer['first_answer']['num_workers'] == 4
    assert answer['first_answer']['data_time_share'] == pytest.approx(0.4)


def test_the_newest_log_with_train_lines_is_read(ask, tmp_path, old_log):
    write_lines(tmp_path / '20211231_120000.log.json', [make_old_line(1, 50)] * 3)
    write_lines(old_log, [METADATA, *(make_old_line(1, 50 * n) for n in range(1, 6))])
    write_lines(tmp_path / '20220102_120000.log.json', [METADATA])
    assert ask('recommend', tmp_path)['run'] == str(old_log)


@pytest.mark.parametrize(
    'name', ['', RUN, f'{RUN}/vis_data', f'{RUN}/vis_data/{RUN}.json']
)
def test_the_second_copy_of_mmengine_is_enough(ask, tmp_path, scalars, name):
    copy = scalars.with_name(f'{RUN}.json')
    write_lines(copy, [make_line(number) for number in range(1, 8)])
    assert ask('recommend', tmp_path / name)['run'] == str(copy)


def test_scalars_with_hierarchy_are_read(ask, tmp_path, scalars):
    lines = [
        {'train/data_time': 0.2, 'train/time': 0.5, 'iter': 50 * n, 'step': 50 * n}
        for n in range(1, 6)
    ]
    write_lines(scalars, lines)
    first = ask('recommend', tmp_path)['first_answer']
    assert first['data_time_share'] == pytest.approx(0.4)
    assert first['peak_memory_bytes'] is None


@pytest.mark.parametrize('number', [1, 2])
def test_few_lines_are_too_little(ask, tmp_path, scalars, number):
    write_lines(scalars, [make_line(1, iter=10 * n) for n in range(1, number + 1)])
    answer = ask('recommend', tmp_path)
    assert answer['verdict']['name'] == 'not_enough_evidence'
    assert answer['first_answer']['data_time_share'] is None


@pytest.mark.parametrize('lines', [[], [VALIDATION]], ids=['empty', 'validations'])
def test_a_log_without_training_is_refused_as_before(capsys, tmp_path, scalars, lines):
    write_lines(scalars, lines)
    assert main(['recommend', str(tmp_path)]) == 2
    assert 'expected evidence of GPUEfficiencyHook' in capsys.readouterr().err


@pytest.mark.parametrize('option', ['--check', '--in-place', '--optimize', '--cores=4'])
def test_what_needs_evidence_is_refused_as_before(capsys, tmp_path, scalars, option):
    write_lines(scalars, [make_line(number) for number in range(1, 8)])
    assert main(['recommend', str(tmp_path), option]) == 2
    assert 'expected evidence of GPUEfficiencyHook' in capsys.readouterr().err


def test_an_older_run_with_evidence_is_named(ask, tmp_path, scalars):
    older = tmp_path / '20261120_101500'
    write_run(older, make_evidence())
    write_lines(scalars, [make_line(number) for number in range(1, 8)])
    (note,) = ask('recommend', tmp_path)['notes']
    assert f'mmgpu recommend {older}' in note


def test_evidence_counts_before_any_log(ask, tmp_path):
    run = write_run(tmp_path / RUN, make_evidence())
    write_lines(run / 'scalars.json', [make_line(number) for number in range(1, 8)])
    assert 'first_answer' not in ask('recommend', run, '--dry-run')


def test_a_pipe_in_the_place_of_a_log_is_left_alone(capsys, tmp_path, old_log):
    os.mkfifo(old_log)
    assert main(['recommend', str(tmp_path)]) == 2
    assert 'expected gpu_efficiency.jsonl' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('config', 'found'),
    [
        ('data = dict(workers_per_gpu=4)', {'num_workers': 4}),
        ('data = {"samples_per_gpu": 2}', {'batch_size': 2}),
        (
            'data = dict(workers_per_gpu=4, train_dataloader=dict(workers_per_gpu=8))',
            {'num_workers': 8},
        ),
        (
            'train_dataloader = dict(batch_size=2, num_workers=0)\n'
            'val_dataloader = dict(batch_size=1, num_workers=9)',
            {'num_workers': 0, 'batch_size': 2},
        ),
        ('train_dataloader = dict(num_workers=n, batch_size=True)', {}),
        ('train_dataloader = dict(', {}),
    ],
    ids=['2.x', 'a display', '2.18', '3.x', 'no literals', 'no Python'],
)
def test_the_loader_is_read_from_the_config(config, found):
    assert parse_loader(config) == found
