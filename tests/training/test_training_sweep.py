"""``mmgpu sweep`` for real: short trainings, kept and gone on with."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.main import main
from training.detection import environ, render_config
from training.trial_toys import processes_of, write_config

TOYS = 'training.trial_toys.'


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    monkeypatch.setenv('OMP_NUM_THREADS', '1')


def sweep(config: Path, *words: str, code: int = 0) -> None:
    folder = config.parent
    given = [str(config), '--seconds', '0.5', '--format', 'json', *words]
    assert main(['sweep', *given, '--work-dir', str(folder / 'w')]) == code
    assert processes_of(folder) == []


def read_answer(capsys: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


@pytest.mark.timing
def test_settings_are_trained_kept_and_not_trained_again(tmp_path, capsys):
    # an epoch of ten batches: the training is made longer
    config = write_config(tmp_path, item_s=0.004, step_s=0.004, epochs=1)
    words = ['--num-workers', '2', '0']
    sweep(config, *words)
    body = read_answer(capsys)
    alone, beside = body['rows']
    assert [row['status'] for row in body['rows']] == ['completed', 'completed']
    assert [row['setting']['num_workers'] for row in body['rows']] == [0, 2]
    # two images of 4 ms in the loop, then a step of 4 ms; never shorter
    assert alone['iter_s']['value'] >= 0.012
    assert alone['data_wait_s'] >= 0.008
    assert beside['iter_s']['value'] < alone['iter_s']['value']
    for row in body['rows']:
        assert row['iter_s']['count'] >= 6
        assert row['iterations'] >= 60
        assert row['images_per_s'] == pytest.approx(2 / row['iter_s']['value'], rel=0.2)
        assert row['memory_source'] == 'process_rss'
        assert row['memory_peak_bytes'] > 50e6
        assert row['cpu_cores'] > 0
        assert row['is_loss_finite'] is True
        assert row['predicted'] is not None
    assert (alone['is_calibration'], beside['is_calibration']) == (False, True)
    folder = tmp_path / 'w' / 'sweep'
    assert json.loads((folder / 'sweep.json').read_text()) == body
    assert not list(tmp_path.rglob('*.pth'))

    # nothing of it is trained again, and the predictions come from what was kept
    before = sorted(folder.glob('trials/*/*/*.log'))
    sweep(config, *words)
    again = read_answer(capsys)
    assert [row['is_reused'] for row in again['rows']] == [True, True]
    assert again['rows'][0]['predicted'] == alone['predicted']
    assert again['rows'][0]['iter_s'] == alone['iter_s']
    assert sorted(folder.glob('trials/*/*/*.log')) == before

    # evidence that is gone is said to be
    for evidence in Path(beside['folder']).rglob('gpu_efficiency*.jsonl'):
        evidence.unlink()
    sweep(config, *words)
    rows = read_answer(capsys)['rows']
    assert [row['predicted'] for row in rows] == [None, None]
    assert 'evidence' in rows[0]['unpredicted']


@pytest.mark.slow
def test_out_of_memory_and_out_of_time_are_rows(tmp_path, capsys):
    config = write_config(tmp_path, dataset=TOYS + 'CrowdedDataset')
    sweep(config, '--num-workers', '0', '3')
    fine, crowded = read_answer(capsys)['rows']
    assert fine['iter_s'] is not None
    assert (crowded['status'], crowded['iter_s']) == ('out_of_memory', None)
    assert crowded['error'] == 'MemoryError: no room for an image'

    hanging = tmp_path / 'hanging'
    hanging.mkdir()
    config = write_config(hanging, dataset=TOYS + 'HangingDataset')
    sweep(config, '--num-workers', '1', '--time-limit', '8')
    (row,) = read_answer(capsys)['rows']
    assert (row['status'], row['error']) == (
        'timed_out',
        'killed after 8 s, 0 iterations done',
    )


@pytest.mark.slow
@pytest.mark.parametrize('workers', [['0', '1', '2'], ['0']])
def test_a_config_that_does_not_train_is_given_up_early(tmp_path, capsys, workers):
    config = write_config(tmp_path, dataset='training.toy.NoSuchDataset')
    sweep(config, '--num-workers', *workers, code=2)
    out, err = capsys.readouterr()
    assert out == ''
    (line,) = err.splitlines()
    assert 'expected a config that trains, found that' in line
    assert 'NoSuchDataset' in line
    count = min(len(workers), 2)
    assert f'{count} of {count} trial(s) failed' in line
    assert len(list((tmp_path / 'w' / 'sweep' / 'trials').iterdir())) == count


@pytest.mark.slow
def test_a_loss_that_is_none_is_never_the_best(tmp_path, capsys):
    config = write_config(
        tmp_path, more="optim_wrapper['optimizer']['lr'] = float('nan')\n"
    )
    sweep(config, '--num-workers', '0')
    body = read_answer(capsys)
    (row,) = body['rows']
    assert row['is_loss_finite'] is False
    assert body['best'] == []
    assert not list(tmp_path.rglob('*.pth'))


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured_and_goes_on_later(tmp_path, capsys):
    config = write_config(tmp_path, item_s=0.002, length=400)
    words = [str(config), '--num-workers', '0', '1', '--work-dir', str(tmp_path / 'w')]
    command = [sys.executable, '-m', 'mmgpu_hooks', 'sweep', *words]
    command += ['--seconds', '2']
    process = subprocess.Popen(
        command,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    ledger = tmp_path / 'w' / 'sweep' / 'trials.jsonl'
    try:
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            is_kept = ledger.is_file() and ledger.read_text().count('\n') == 1
            if is_kept and processes_of(tmp_path):
                break
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=30)[0]
    finally:
        process.kill()
    assert process.returncode == 130
    assert output.startswith('Stopped when 1 of 2 settings were trained; the same')
    assert 'Traceback' not in output
    assert processes_of(tmp_path) == []
    sweep(config, '--num-workers', '0', '1', '--seconds', '2')
    reused = [row['is_reused'] for row in read_answer(capsys)['rows']]
    assert sorted(reused) == [False, True]


@pytest.mark.slow
def test_mmdetection_is_swept(images, tmp_path, capsys):
    config = tmp_path / 'detector.py'
    config.write_text(render_config(images, default_hooks='', epochs=1))
    sweep(config, '--num-workers', '0', '2', '--batch-size', '1', '2')
    body = read_answer(capsys)
    assert [row['status'] for row in body['rows']] == ['completed'] * 4
    assert len(body['best']) == 2
