"""Real trials: MMEngine's Runner in processes of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.experiment.engine import Plan, Turn, run_plan
from mmgpu_hooks.experiment.trial import ENDLESS, read_trial_run
from mmgpu_hooks.schema import Trial, TrialSpec
from training.detection import environ, render_config
from training.trial_toys import processes_of, write_config

TOYS = 'training.trial_toys.'

TRIALS: dict[str, dict[str, Any]] = {
    'completed': {'num_workers': 2, 'item_s': 0.01, 'step_s': 0.002},
    'hanging': {'dataset': TOYS + 'HangingDataset', 'num_workers': 2},
    'greedy': {'dataset': TOYS + 'GreedyDataset', 'num_workers': 1},
    'killed': {'dataset': TOYS + 'KilledDataset'},
}
SPECS: dict[str, dict[str, Any]] = {
    'completed': {
        'settings': {'train_dataloader.num_workers': 0, 'model.step_s': 0.01},
        'hook': {'interval': 10},
    },
}


def run_spec(spec: TrialSpec, block: int, *, time_limit_s: float = 300) -> Trial:
    turn = Turn('trial', spec, (block,), time_limit_s=time_limit_s)
    (trial,) = run_plan(Plan([turn]), environ=environ()).trials
    return trial


def run_toy(folder: Path, name: str) -> Trial:
    root = folder / name
    root.mkdir()
    spec = TrialSpec(
        config=str(write_config(root, **TRIALS[name])),
        folder=str(root / 'trial'),
        **SPECS.get(name, {}),
    )
    block = 30 if name == 'completed' else ENDLESS
    return run_spec(spec, block, time_limit_s=7 if name == 'hanging' else 100)


@pytest.fixture(scope='module')
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp('trials')


@pytest.fixture(scope='module')
def results(folder: Path) -> dict[str, Trial]:
    # the one that hangs waits beside the others
    with ThreadPoolExecutor(3) as pool:
        names = ['hanging', *(name for name in TRIALS if name != 'hanging')]
        return dict(zip(names, pool.map(lambda name: run_toy(folder, name), names)))


def test_a_trial_trains_with_its_own_settings(results):
    result = results['completed']
    assert (result.status, result.error, result.iterations) == ('completed', None, 30)
    summary = read_trial_run(Path(result.folder))
    assert summary is not None
    assert summary.iterations == 30
    assert summary.steady_iterations == 20
    # no workers: two images of 10 ms, then a step of 10 ms; never shorter
    assert summary.run.loader.num_workers == 0
    assert summary.data_wait_s >= 0.02
    assert summary.step_s >= 0.01
    assert summary.run.config_path.endswith('toy.py')


def test_a_trial_neither_validates_nor_saves_and_keeps_the_training_s_hooks(results):
    folder = Path(results['completed'].folder)
    assert read_trial_run(folder).ledger_s['validation'] == 0
    assert not list(folder.rglob('*.pth'))
    assert not list(folder.rglob('events.out.*'))
    assert 'EMAHook' in (folder / 'training.log').read_text()
    assert 'CheckpointHook' not in (folder / 'training.log').read_text()


def test_a_trial_that_hangs_in_its_workers_is_killed_with_them(results, folder):
    result = results['hanging']
    assert result.status == 'timed_out'
    assert result.error == 'killed after 7 s, 0 iterations done'
    assert processes_of(folder) == []


def test_a_worker_without_memory_is_a_result(results):
    result = results['greedy']
    assert result.status == 'out_of_memory'
    assert result.error == 'MemoryError: no room for an image'


def test_a_trial_killed_from_outside_is_one_without_memory(results):
    result = results['killed']
    assert result.status == 'out_of_memory'
    assert 'killed by SIGKILL' in result.error


@pytest.mark.slow
def test_mmdetection_is_tried_with_a_setting_of_its_own(images, tmp_path):
    config = tmp_path / 'detector.py'
    config.write_text(render_config(images, default_hooks='', epochs=50))
    spec = TrialSpec(
        config=str(config),
        folder=str(tmp_path / 'trial'),
        settings={'train_dataloader.num_workers': 2},
        hook={'interval': 5},
    )
    result = run_spec(spec, 20)
    assert (result.status, result.error, result.iterations) == ('completed', None, 20)
    recorded = read_trial_run(Path(result.folder))
    assert recorded.run.loader.num_workers == 2
    assert recorded.run.versions['mmdet']
    assert processes_of(tmp_path) == []
