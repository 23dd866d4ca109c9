from __future__ import annotations

import json

import pytest

from fakes.compared_runs import (
    DRIFTING_AFTER_S,
    DRIFTING_BEFORE_S,
    make_noisy_run,
    make_timed_run,
)
from fakes.runs import make_run, write_run
from mmgpu_hooks.commands.main import main


@pytest.fixture
def runs(tmp_path):
    before = write_run(tmp_path / 'before', make_noisy_run(1))
    loader = make_run().loader
    slower = make_noisy_run(2, data_wait_s=0.16, loader=loader)
    return str(before), str(write_run(tmp_path / 'after', slower))


@pytest.mark.parametrize(
    ('limit', 'code', 'back'),
    [('5%', 1, 0), ('0 %', 1, 0), ('19.9%', 0, 0), ('5', 2, 2)],
)
def test_the_gate_falls_when_the_whole_interval_is_past_it(runs, limit, code, back):
    gate = ['--max-regression', limit]
    assert main(['compare', *runs, *gate]) == code
    assert main(['compare', *reversed(runs), *gate]) == back


def test_the_slower_run_is_named_and_in_what(runs, capsys):
    assert main(['compare', *runs]) == 0
    out = capsys.readouterr().out
    assert 'The second run is slower: +' in out
    assert 'Per iteration: data wait +' in out
    assert main(['compare', *reversed(runs)]) == 0
    assert 'The second run is faster: -' in capsys.readouterr().out
    assert main(['compare', runs[0], runs[0]]) == 0
    assert 'No difference beyond noise: +0.0 %' in capsys.readouterr().out


def test_the_json_answer_has_verdict_figures_and_settings(runs, capsys):
    assert main(['compare', *runs, '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    keys = 'version before after verdict figures settings obstacles notes'
    assert list(answer) == keys.split()
    assert answer['verdict'] == 'slower'
    assert answer['figures'][0]['name'] == 'iter_s'
    assert answer['figures'][0]['difference']['low'] > 0.015


def test_runs_that_cannot_be_compared_end_with_exit_code_3(tmp_path, runs, capsys):
    other = write_run(tmp_path / 'other', make_noisy_run(3, world_size=2))
    short = write_run(tmp_path / 'short', make_noisy_run(3, intervals=3))
    rank = 'Of the second run, rank 0 of 2 is compared.'
    for after, said in ((other, rank), (short, 'unknown')):
        assert main(['compare', runs[0], str(after), '--max-regression', '5%']) == 3
        out = capsys.readouterr().out
        assert out.startswith('The speeds cannot be compared.')
        # what each of them is, is said all the same
        assert 'data wait' in out and said in out


def test_runs_that_drift_apart_are_compared(tmp_path, capsys):
    before = str(write_run(tmp_path / 'before', make_timed_run(DRIFTING_BEFORE_S)))
    after = str(write_run(tmp_path / 'after', make_timed_run(DRIFTING_AFTER_S)))
    assert main(['compare', before, after, '--max-regression', '0%']) == 0
    assert capsys.readouterr().out.startswith('The second run is faster: -')
    assert main(['compare', after, before, '--max-regression', '0%']) == 1
    assert main(['compare', before, after, '--format', 'json']) == 0
    out = capsys.readouterr().out
    answer = json.loads(out[out.index('{') :])
    assert (answer['verdict'], answer['obstacles']) == ('faster', [])


def test_the_gate_at_zero_agrees_with_the_verdict(tmp_path, capsys):
    """Tests that two runs with equal mean speed are no regression at a limit of 0 %."""
    runs = [
        str(write_run(tmp_path / str(seed), make_noisy_run(seed, intervals=18)))
        for seed in (3, 4)
    ]
    assert main(['compare', *runs, '--max-regression', '0%', '--format', 'json']) == 0
    assert json.loads(capsys.readouterr().out)['verdict'] == 'no_difference'


def test_a_run_too_short_says_how_many_more_iterations(tmp_path, runs, capsys):
    short = str(write_run(tmp_path / 'short', make_timed_run([0.3, 0.3, 0.3])))
    assert main(['compare', runs[0], short]) == 3
    said = ' '.join(capsys.readouterr().out.split())
    assert 'train at least 60 more iterations.' in said
    assert main(['compare', runs[0], short, '--format', 'json']) == 3
    assert json.loads(capsys.readouterr().out)['verdict'] is None
    enough = str(write_run(tmp_path / 'enough', make_timed_run([0.3] * 6)))
    assert main(['compare', runs[0], enough]) == 0
