"""Tests predicted against measured gain in a host-bound training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.commands.read_runs import find_run
from mmgpu_hooks.recommend.host_overhead import with_host_overhead
from mmgpu_hooks.schema.judged import Recommendation
from training.detection import environ

TRAIN = """\
import sys, torch
from mmengine.config import Config
from mmengine.runner import Runner
torch.set_num_threads(1)
config = Config.fromfile(sys.argv[1])
config.work_dir = sys.argv[2]
Runner.from_cfg(config).train()
"""
CONFIG = """\
model = dict(
    type='training.toy.ManyTensorsModel', step_s={step_s}, tensors={tensors})
train_dataloader = dict(
    batch_size=2, num_workers=1, persistent_workers=True,
    dataset=dict(type='training.toy.ToyDataset', length={length}, item_s={item_s}),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'),
)
train_cfg = dict(by_epoch=True, max_epochs=1, val_interval=1)
# as on a card: lists of tensors, though a CPU has no need of them
optim_wrapper = dict(
    optimizer=dict(type='AdamW', lr=0.001, weight_decay=0.05, foreach=True),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
)
default_hooks = dict(
    checkpoint=dict(type='CheckpointHook', interval=-1, save_last=False),
    logger=dict(type='LoggerHook', interval=20),
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook', write_config=False),
)
custom_hooks = [dict(type='EMAHook')]
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
env_cfg = dict(mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
"""


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Function that trains and profiles a config; returns its work_dir."""
    for name, value in environ().items():
        monkeypatch.setenv(name, value)

    def run(ask: Any, **settings: Any) -> Path:
        config, work = tmp_path / 'toy.py', tmp_path / 'work'
        config.write_text(CONFIG.format(**{'item_s': 0.0, **settings}))
        script = tmp_path / 'train.py'
        script.write_text(TRAIN)
        command = [sys.executable, str(script), str(config), str(work)]
        subprocess.run(command, check=True, capture_output=True, env=environ())
        ask('profile', config, '--iterations', '3', '--work-dir', work)
        return work

    return run


@pytest.mark.slow
@pytest.mark.timing
def test_what_is_named_is_what_verify_measures(ask, train):
    work = train(ask, step_s=0.0, tensors=200, length=600)
    answer = ask('recommend', work, '--dry-run')
    assert 'host_overhead' in answer, answer
    found = answer['host_overhead']
    names = [saving['name'] for saving in found['savings']]
    assert names[:2] == ['param_groups', 'ema']
    assert found['key'] == 'default_hooks.gpu_efficiency.optimize'
    setting = f'{found["key"]}={",".join(found["names"])}'
    answer = ask('verify', work, '--set', setting, '--max-minutes', '2')
    measured = -answer['iteration_change']['value']
    assert measured > 0.2
    iter_s = find_run(work).run.figures.iter_s
    assert iter_s is not None
    predicted = 1 - found['predicted_iter_s'] / iter_s
    assert predicted == pytest.approx(measured, rel=0.15)


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    'settings',
    [
        # the model sleeps for so long that what can be spared is below one per cent
        dict(step_s=0.2, tensors=10),
        # much can be spared, and the loop waits for a worker that sleeps
        dict(step_s=0.0, tensors=200, item_s=0.08),
    ],
    ids=['long steps', 'slow storage'],
)
def test_a_training_that_is_bound_elsewhere_has_no_host_overhead(ask, train, settings):
    work = train(ask, length=120, **settings)
    answer = ask('recommend', work, '--dry-run')
    assert answer['evidence']['steady_iterations'] == 40
    run = find_run(work).run
    assert run.host_costs['param_groups'].is_measured
    # more workers would wait together: then the step decides
    assert run.is_data_bound or 'host_overhead' not in answer
    assert with_host_overhead(Recommendation(), run).host_overhead is None
