"""``mmgpu save-bench`` for real: trainings that save, and nothing left of them."""

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
from training.detection import environ
from training.trial_toys import processes_of, write_config

TOYS = 'training.trial_toys.'


@pytest.fixture
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PYTHONPATH', environ()['PYTHONPATH'])
    monkeypatch.setenv('OMP_NUM_THREADS', '1')


def assert_nothing_left(folder: Path) -> None:
    files = [path for path in folder.rglob('*') if path.is_file()]
    assert [path.name for path in files if path.stat().st_size] == ['toy.py']


def run_bench(folder: Path, capsys: Any, *words: str, **toy: Any) -> dict[str, Any]:
    config = write_config(folder, epochs=1, **toy)
    given = [str(config), '--saves', '3', '--format', 'json', *words]
    assert main(['save-bench', *given, '--work-dir', str(folder / 'runs')]) == 0
    assert processes_of(folder) == []
    assert_nothing_left(folder)
    body: dict[str, Any] = json.loads(capsys.readouterr().out)
    return body


@pytest.mark.timing
def test_saves_are_measured_beside_each_number_of_workers(
    tmp_path, capsys, surroundings
):
    # an epoch has 20 iterations, so the trainings are made longer
    body = run_bench(
        tmp_path, capsys, '--num-workers', '2', '0', item_s=0.005, step_s=0.002
    )
    alone, beside = body['rows']
    assert body['reference'] == alone['setting']
    assert [row['setting']['num_workers'] for row in body['rows']] == [0, 2]
    assert [row['status'] for row in body['rows']] == ['completed', 'completed']
    for row, gap in zip(body['rows'], (8, 12)):
        # the first one is left out
        at = [save['iteration'] for save in row['saves']]
        assert at == [2 * gap, 3 * gap, 4 * gap]
        assert {save['occasion'] for save in row['saves']} == {'iteration'}
        walls = sorted(save['wall_s'] for save in row['saves'])
        assert row['save_s'] == walls[1]
        assert row['cpu_s'] > 0
        assert row['bytes'] > 1000
    assert [save['workers'] for save in beside['saves']] == [2, 2, 2]
    # two images of 5 ms, which workers load beside the step
    assert alone['data_wait_s'] >= 0.01
    assert beside['gross_s'] == pytest.approx(beside['save_s'] - alone['save_s'])
    assert 0 <= beside['net_s'] <= max(beside['gross_s'], 0.0) + 1e-9


@pytest.mark.slow
def test_one_that_crashes_is_a_row_and_not_the_end(tmp_path, capsys, surroundings):
    body = run_bench(
        tmp_path, capsys, '--num-workers', '0', '3', dataset=TOYS + 'CrowdedDataset'
    )
    fine, crashed = body['rows']
    assert (fine['status'], len(fine['saves'])) == ('completed', 3)
    assert (crashed['status'], crashed['save_s']) == ('out_of_memory', None)
    assert crashed['error'] == 'MemoryError: no room for an image'


@pytest.mark.slow
def test_a_config_that_does_not_train_is_said_to(tmp_path, capsys, surroundings):
    config = write_config(tmp_path, dataset=TOYS + 'GreedyDataset')
    given = [str(config), '--num-workers', '0', '--work-dir', str(tmp_path)]
    assert main(['save-bench', *given]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert 'expected a config that trains and saves' in line
    assert 'with 0 workers: MemoryError: no room for an image' in line


@pytest.mark.slow
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_prints_what_there_is_and_leaves_nothing(tmp_path, number):
    config = write_config(tmp_path, item_s=0.2, length=400)
    words = [str(config), '--num-workers', '0', '1', '--work-dir', str(tmp_path)]
    bench = subprocess.Popen(
        [sys.executable, '-m', 'mmgpu_hooks', 'save-bench', *words],
        env=environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.rglob('iter_*.pth')) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert processes_of(tmp_path)
        bench.send_signal(number)
        output = bench.communicate(timeout=20)[0]
    finally:
        bench.kill()
    assert bench.returncode == 130
    assert output.startswith('Stopped when 0 of 2 settings were trained.')
    assert 'Traceback' not in output
    assert processes_of(tmp_path) == []
    assert_nothing_left(tmp_path)
