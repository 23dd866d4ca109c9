"""What ``mmgpu verify`` refuses before it trains anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.runs import make_evidence, make_run, render_evidence
from mmgpu_hooks.cli.main import main
from mmgpu_hooks.schema import LoaderSettings
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME

STARVED = LoaderSettings(
    num_workers=0,
    persistent_workers=False,
    prefetch_factor=None,
    pin_memory=False,
    batch_size=2,
    batches_per_epoch=20,
    dataset_length=40,
    start_method=None,
)


def write_run(folder: Path, loader: LoaderSettings = STARVED, **fields) -> Path:
    run = make_run(config_path=str(folder / 'gone.py'), loader=loader)
    evidence = make_evidence(run=run, **fields)
    (folder / EVIDENCE_NAME).write_text(render_evidence(evidence))
    return folder


def refusal(capsys, *arguments: object) -> str:
    assert main(['verify', *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ''
    (line,) = err.splitlines()
    return line


def test_nothing_to_verify(tmp_path, capsys):
    folder = write_run(tmp_path, data_wait_s=0.0001, step_s=0.2)
    line = refusal(capsys, folder)
    assert 'expected a recommendation to verify, found none' in line
    assert 'data is at hand' in line


def test_a_config_that_is_gone(tmp_path, capsys):
    assert 'gone.py nor a copy' in refusal(capsys, write_run(tmp_path))


def test_a_config_that_does_not_load(tmp_path, capsys):
    broken = tmp_path / 'broken.py'
    broken.write_text('1 / 0\n')
    line = refusal(capsys, write_run(tmp_path), '--config', broken)
    assert 'expected a config that MMEngine loads, found ZeroDivisionError' in line


def test_a_run_without_our_evidence(tmp_path, capsys):
    text = '{"lr": 0.1, "data_time": 0.1, "time": 0.2, "iter": 50, "step": 50}\n'
    (tmp_path / 'scalars.json').write_text(text)
    assert "only MMEngine's log" in refusal(capsys, tmp_path)


def test_a_folder_without_a_run(tmp_path, capsys):
    assert 'found an empty folder' in refusal(capsys, tmp_path)


@pytest.mark.parametrize('given', [['a.py'], ['a.py', 'run'], ['a', 'b'], ['a'] * 3])
def test_neither_one_run_nor_two_configs(given, capsys):
    line = refusal(capsys, *given)
    assert (
        f'expected the folder of one run or two configs, found {" ".join(given)}'
        in (line)
    )


def test_configs_that_are_not_there(tmp_path, capsys):
    line = refusal(capsys, tmp_path / 'a.py', tmp_path / 'b.py')
    assert 'expected a config file, found nothing there' in line


@pytest.mark.parametrize('minutes', ['0', '-1', 'nan', 'soon'])
def test_a_time_that_is_none(minutes, capsys):
    with pytest.raises(SystemExit, match='2'):
        main(['verify', 'run', '--max-minutes', minutes])
    assert '--max-minutes' in capsys.readouterr().err
