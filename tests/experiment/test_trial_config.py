from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from mmgpu_hooks.experiment.trial_child import read_trial_config
from mmgpu_hooks.schema.tried import TrialSpec

CONFIG = """\
    train_dataloader = dict(
        batch_size=4, num_workers=8, persistent_workers=True, prefetch_factor=4)
    train_cfg = dict(by_epoch=True, max_epochs=12, val_interval=1)
    val_cfg = dict()
    val_dataloader = dict(batch_size=1)
    val_evaluator = dict(type='CocoMetric')
    default_hooks = dict(
        mine=dict(type='GPUEfficiencyHook', interval=7, gpu_sample_period_s=0.5),
        checkpoint=dict(type='CheckpointHook', interval=1),
        sampler_seed=dict(type='DistSamplerSeedHook'),
    )
    custom_hooks = [
        dict(type='EMAHook'),
        dict(type='mmengine.hooks.CheckpointHook', interval=5),
    ]
    visualizer = dict(
        type='DetLocalVisualizer', vis_backends=[dict(type='WandbVisBackend')])
    resume = True
    load_from = 'weights.pth'
"""

SAVER = (
    "type='CheckpointHook', interval=1, save_optimizer=False, out_dir='s3://bucket', "
    "backend_args=dict(backend='petrel'), save_best='auto'"
)


def read(tmp_path: Path, text: str = CONFIG, **fields):
    path = tmp_path / 'config.py'
    path.write_text(textwrap.dedent(text))
    return read_trial_config(TrialSpec(str(path), str(tmp_path / 'trial'), **fields))


def test_what_trains_stays_and_what_only_leaves_something_goes(tmp_path):
    config = read(tmp_path)
    assert config.train_cfg == {'by_epoch': True, 'max_epochs': 12, 'val_interval': 1}
    assert config.train_dataloader.num_workers == 8
    assert config.load_from == 'weights.pth'
    assert config.work_dir == str(tmp_path / 'trial')
    assert (config.resume, config.launcher) == (False, 'none')
    for key in ('val_cfg', 'val_dataloader', 'val_evaluator', 'test_dataloader'):
        assert config[key] is None
    assert config.default_hooks == {
        'checkpoint': None,
        'sampler_seed': {'type': 'DistSamplerSeedHook'},
        # one hook of ours, with what was set of it
        'gpu_efficiency': {
            'type': 'mmgpu_hooks.GPUEfficiencyHook',
            'interval': 7,
            'gpu_sample_period_s': 0.5,
            'summary': False,
            'write_config': False,
            'slurm_comment': False,
        },
    }
    assert config.custom_hooks == [{'type': 'EMAHook'}]
    assert config.visualizer.type == 'DetLocalVisualizer'
    assert config.visualizer.vis_backends == [{'type': 'LocalVisBackend'}]


def test_settings_are_set_with_what_they_entail(tmp_path):
    settings = {'train_dataloader.num_workers': 0, 'train_cfg.max_epochs': 3}
    config = read(tmp_path, settings=settings)
    # what PyTorch takes without workers
    loader = {'batch_size': 4, 'num_workers': 0}
    resting = {'persistent_workers': False, 'prefetch_factor': None}
    assert config.train_dataloader == {**loader, **resting}
    assert config.train_cfg.max_epochs == 3


def test_a_setting_that_pytorch_would_refuse_is_refused(tmp_path):
    settings = {
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': True,
    }
    with pytest.raises(Exception, match='num_workers above 0'):
        read(tmp_path, settings=settings)


def test_the_hook_is_as_asked_for(tmp_path):
    config = read(tmp_path, hook=None)
    assert config.default_hooks.checkpoint is None
    assert 'mine' not in config.default_hooks
    assert 'gpu_efficiency' not in config.default_hooks
    # over what the config has; what is not named stays
    hook = read(tmp_path, hook={'interval': 2}).default_hooks.gpu_efficiency
    assert (hook.interval, hook.gpu_sample_period_s) == (2, 0.5)
    # as the config has it, and only where it has one
    kept = read(tmp_path, hook=None, keeps_hook=True).default_hooks.gpu_efficiency
    quiet = (kept.summary, kept.write_config)
    assert (kept.interval, *quiet) == (7, False, False)
    without = CONFIG.replace('GPUEfficiencyHook', 'LoggerHook')
    left = read(tmp_path, without, hook=None, keeps_hook=True).default_hooks
    assert 'gpu_efficiency' not in left


@pytest.mark.parametrize(('line', 'seed'), [('', 0), ('randomness = dict(seed=5)', 5)])
def test_the_seed_is_the_config_s_own(tmp_path, line, seed):
    config = read(tmp_path, textwrap.dedent(CONFIG) + line)
    assert config.randomness.seed == seed


def test_saves_of_its_own_take_the_place_of_the_config_s(tmp_path):
    text = CONFIG.replace("type='CheckpointHook', interval=1", SAVER)
    config = read(tmp_path, text, save_interval=24)
    assert config.default_hooks.checkpoint == {
        'type': 'CheckpointHook',
        'by_epoch': False,
        'interval': 24,
        'max_keep_ckpts': 1,
        'save_last': False,
        # what a checkpoint holds is as in the config; where it goes is not
        'save_optimizer': False,
    }
    assert config.custom_hooks == [{'type': 'EMAHook'}]


def test_a_whole_trial_validates_and_saves_as_the_config_says(tmp_path):
    config = read(tmp_path, is_whole=True)
    assert config.val_cfg is not None
    assert config.default_hooks.checkpoint.interval == 1
    assert config.visualizer.vis_backends == [{'type': 'WandbVisBackend'}]
    assert config.resume is False


@pytest.mark.parametrize('place', ['default_hooks', 'custom_hooks', 'absent'])
def test_a_whole_trial_gives_the_hook_its_arguments_where_it_stands(tmp_path, place):
    ours = "dict(type='GPUEfficiencyHook', interval=7, tune=False)"
    text = {
        'default_hooks': f'default_hooks = dict(mine={ours})',
        'custom_hooks': f"custom_hooks = [dict(type='EMAHook'), {ours}]",
        'absent': "custom_hooks = [dict(type='EMAHook')]",
    }[place]
    config = read(tmp_path, text, is_whole=True, hook={'tune': True})
    given = config.get('default_hooks') or {}
    hooks = [*given.values(), *(config.get('custom_hooks') or ())]
    found = [hook for hook in hooks if hook['type'] != 'EMAHook']
    own = {'type': 'GPUEfficiencyHook', 'interval': 7, 'tune': True}
    added = {'type': 'mmgpu_hooks.GPUEfficiencyHook', 'tune': True}
    assert found == [added if place == 'absent' else own]
    # not asked for, it stays as the user wrote it
    if place == 'default_hooks':
        assert read(tmp_path, text, is_whole=True).default_hooks.mine.tune is False


@pytest.mark.parametrize('launcher', ['none', 'pytorch'])
def test_several_ranks_are_launched_and_amp_leaves_nothing(tmp_path, launcher):
    text = textwrap.dedent(CONFIG) + textwrap.dedent(
        """\
        optim_wrapper = dict(
            type='AmpOptimWrapper', loss_scale='dynamic', optimizer=dict(type='SGD'))
        """
    )
    settings = {'optim_wrapper.type': 'OptimWrapper'}
    ranks = 1 + (launcher == 'pytorch')
    config = read(tmp_path, text, settings=settings, ranks=ranks, last_saves=2)
    assert config.launcher == launcher
    plain = {'type': 'OptimWrapper', 'optimizer': {'type': 'SGD'}}
    assert config.optim_wrapper == plain
    # the checkpoint hook is there, and waits to be asked
    assert config.default_hooks.checkpoint.interval == 10**9
    assert read(tmp_path, text).optim_wrapper.loss_scale == 'dynamic'
