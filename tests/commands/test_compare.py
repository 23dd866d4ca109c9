from __future__ import annotations

import json

import pytest

from fakes.compared_runs import make_noisy_run, write_run
from fakes.runs import make_run
from mmgpu_hooks.commands.main import main


@pytest.fixture
def runs(tmp_path):
    before = write_run(tmp_path / 'before', make_noisy_run(1))
    loader = make_run().loader
    slower = make_noisy_run(2, data_wait_s=0.16, loader=loader)
    return str(before), str(write_run(tmp_path / 'after', slower))


@pytest.mark.parametrize(
    ('limit', 'code'), [(None, 0), ('5%', 1), ('5 %', 1), ('30%', 0), ('19.9%', 0)]
)
def test_the_gate_falls_only_when_the_whole_interval_is_past_it(runs, limit, code):
    options = [] if limit is None else ['--max-regression', limit]
    assert main(['compare', *runs, *options]) == code


def test_a_faster_run_passes_any_gate(runs):
    assert main(['compare', *reversed(runs), '--max-regression', '0%']) == 0


def test_the_answer_as_json(runs, capsys):
    assert main(['compare', *runs, '--max-regression', '5%', '--format', 'json']) == 1
    answer = json.loads(capsys.readouterr().out)
    keys = 'version before after figures settings obstacles notes max_regression'
    assert list(answer) == [*keys.split(), 'is_regression']
    assert (answer['max_regression'], answer['is_regression']) == (0.05, True)
    assert answer['figures'][0]['name'] == 'iter_s'
    assert answer['figures'][0]['ratio']['low'] > 1.05


def test_runs_that_cannot_be_compared(tmp_path, runs, capsys):
    other = write_run(tmp_path / 'other', make_noisy_run(3, world_size=2))
    short = write_run(tmp_path / 'short', make_noisy_run(3, intervals=3))
    for after in (other, short):
        options = ['--max-regression', '5%']
        assert main(['compare', runs[0], str(after), *options]) == 3
        out = capsys.readouterr().out
        assert out.startswith('The speeds cannot be compared.')
        # what each of them is, is told all the same
        assert 'data wait' in out


def test_a_folder_without_evidence_is_refused(tmp_path, runs, capsys):
    assert main(['compare', runs[0], str(tmp_path / 'none')]) == 2
    assert 'found nothing there' in capsys.readouterr().err
    (tmp_path / 'plain').mkdir()
    (tmp_path / 'plain' / 'scalars.json').write_text('{}\n')
    assert main(['compare', runs[0], str(tmp_path / 'plain')]) == 2
    assert 'train with the hook' in capsys.readouterr().err
