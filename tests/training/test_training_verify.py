"""``mmgpu verify`` for real: trainings in turns, and nothing left when it stops."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from fakes.runs import make_evidence, make_run, render_evidence
from mmgpu_hooks.commands.main import main
from mmgpu_hooks.schema import LoaderSettings
from mmgpu_hooks.schema.run_folder import EVIDENCE_NAME
from training.detection import environ
from training.trial_toys import processes_of, write_config


def write_run(folder: Path, config: Path, **fields) -> Path:
    """A run that was starved without workers."""
    loader = LoaderSettings(
        num_workers=0,
        persistent_workers=False,
        prefetch_factor=None,
        pin_memory=False,
        batch_size=2,
        batches_per_epoch=20,
        dataset_length=40,
        start_method=None,
    )
    run = make_run(config_path=str(config), loader=loader, work_dir=str(folder))
    fields = {'data_wait_s': 0.04, 'step_s': 0.02, **fields}
    folder.mkdir(exist_ok=True)
    text = render_evidence(make_evidence(run=run, **fields))
    (folder / EVIDENCE_NAME).write_text(text)
    return folder


@pytest.mark.timing
def test_the_gain_is_measured_and_kept_beside_what_was_predicted(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    monkeypatch.setenv('OMP_NUM_THREADS', '1')
    config = write_config(tmp_path, item_s=0.01, step_s=0.01, length=240, epochs=1)
    folder = write_run(tmp_path / 'run', config)
    assert main(['verify', str(folder), '--format', 'json']) == 0
    answer = json.loads(capsys.readouterr().out)
    # two images of 10 ms before each step of 10 ms, or at once beside it; a busy
    # machine only adds to it
    assert answer['before_s'] >= 0.03
    assert answer['gain']['value'] > 0.2
    assert answer['after_s'] < answer['before_s']
    assert answer['pairs'] >= 4
    assert answer['before']['train_dataloader.num_workers'] == 0
    assert answer['after']['train_dataloader.num_workers'] > 0
    assert answer['predicted_gain'] > 0.5
    assert answer['external_cpu_cores'] >= 0
    assert processes_of(tmp_path) == []


def wait_for(what, seconds: float = 60.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError('it did not come')


@pytest.mark.parametrize(
    'number', [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)]
)
def test_stopping_it_leaves_nothing_running(tmp_path, number):
    config = write_config(tmp_path, item_s=0.01, step_s=0.01, num_workers=1)
    verify = subprocess.Popen(
        [sys.executable, '-m', 'mmgpu_hooks', 'verify', str(config), str(config)],
        cwd=tmp_path,
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        # one of them is held in its tracks, and its worker with it
        held = wait_for(
            lambda: [
                process
                for process in processes_of(tmp_path)
                if process.info['status'] == psutil.STATUS_STOPPED
            ]
        )
        assert held
        verify.send_signal(number)
        # on a busy machine too: one that trains on is no noise
        output = verify.communicate(timeout=20)[0]
    finally:
        verify.kill()
        verify.communicate()
    wait_for(lambda: not processes_of(tmp_path), 10.0)
    if number == signal.SIGINT:
        assert verify.returncode == 130
        assert 'Traceback' not in output


@pytest.mark.slow
def test_a_setting_that_cannot_train_is_said_to(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    good = write_config(tmp_path)
    bad = tmp_path / 'bad.py'
    bad.write_text(good.read_text() + "model['step_s'] = 'never'\n")
    code = main(['verify', str(bad), str(good), '--work-dir', str(tmp_path)])
    assert code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('mmgpu verify: expected two settings that train, found that')
    assert 'the first one does not (TypeError: ' in line
    assert processes_of(tmp_path) == []
