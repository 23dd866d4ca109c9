"""Tests settings that change a config in memory: accepted and refused ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.config.loading import RefusedError, read_config
from mmgpu_hooks.config.overrides import Override, override_settings
from mmgpu_hooks.config.settings import OF_RUNNER, parse_assignments

CONFIG = """\
max_epochs = 12
model = dict(
    type='RetinaNet', backbone=dict(type='ResNet', depth=50, out_indices=(0, 1)),
    scales=[8, 16])
train_dataloader = dict(
    batch_size=2, num_workers=2, persistent_workers=True,
    dataset=dict(type='CocoDataset', pipeline=[dict(type='Resize', scale=1.0)]))
train_cfg = dict(by_epoch=True, max_epochs=max_epochs)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.02), clip_grad=None)
default_hooks = dict(logger=dict(type='LoggerHook', interval=50))
custom_hooks = [dict(type='EMAHook', momentum=0.1)]
env_cfg = dict(cudnn_benchmark=False)
"""


@pytest.fixture
def override(tmp_path: Path):
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG)

    def run(*assignments: str) -> Override:
        return override_settings(
            path, read_config(path), parse_assignments(assignments)
        )

    return run


@pytest.mark.parametrize(
    ('text', 'value'),
    [
        ('train_dataloader.num_workers=8', 8),
        ('train_dataloader.dataset.pipeline.0.scale=0.5', 0.5),
        ('env_cfg.mp_cfg.opencv_num_threads=0', 0),
        ('env_cfg.cudnn_benchmark=True', True),
        ('optim_wrapper.optimizer.lr=0.1', 0.1),
        ('optim_wrapper.type=AmpOptimWrapper', 'AmpOptimWrapper'),
        ('model.backbone.depth=18', 18),
        ('custom_hooks.0.momentum=0.2', 0.2),
        ('custom_hooks=None', None),
        ('model.backbone=None', None),
        # another hook's, which no rewrite sets
        ('default_hooks.logger.interval=1', 1),
        ('default_hooks.gpu_efficiency.type=mmgpu_hooks.GPUEfficiencyHook', None),
        ('compile=True', True),
        ('load_from=weights.pth', 'weights.pth'),
    ],
)
def test_what_mmengine_merges_is_set(override, text, value):
    found = override(text)
    key = text.partition('=')[0]
    merged = found.config[tuple(key.split('.'))]
    assert merged == found.changes[key]
    assert value is None or merged == value
    assert set(found.changes) == {key}


@pytest.mark.parametrize(
    ('text', 'unknown'),
    [
        ('model.backbone.depth=18', False),
        ('model.backbone.with_cp=True', True),
        ('optim_wrapper.accumulative_counts=4', True),
        ('env_cfg.mp_cfg.mp_start_method=fork', True),
        ('train_dataloader.prefetch_factor=4', False),
    ],
)
def test_a_key_that_the_config_does_not_have_is_named(override, text, unknown):
    assert override(text).unknown == (text.partition('=')[0],) * unknown


def test_what_a_setting_entails_is_set_and_what_holds_is_not(override):
    found = override('train_dataloader.num_workers=0', 'model.backbone.depth=50')
    assert found.changes == {
        'train_dataloader.num_workers': 0,
        'train_dataloader.persistent_workers': False,
    }
    assert override('train_dataloader.num_workers=2').changes == {}


def test_an_argument_of_our_hook_may_come_with_the_hook(override):
    place = 'default_hooks.gpu_efficiency'
    kind = f'{place}.type=mmgpu_hooks.GPUEfficiencyHook'
    found = override(kind, f'{place}.optimize=ema,history')
    assert found.changes[f'{place}.optimize'] == 'ema,history'
    with pytest.raises(RefusedError, match='found another or none'):
        override(f'{place}.optimize=ema')
    with pytest.raises(RefusedError, match="found 'emma'"):
        override(kind, f'{place}.optimize=emma')


REFUSED = {
    # as `mmgpu set` says it
    'num_workers': "expected KEY=VALUE, found 'num_workers'",
    'train_dataloader.num_worker=8': 'did you mean num_workers?',
    'train_dataloader.num_workers=-1': 'expected a whole number from 0',
    'train_dataloader.num_workers=many': "found 'many'",
    'train_dataloader.pin_memory=2': 'expected True or False',
    'train_dataloader.timeout=-1': "PyTorch's DataLoader takes",
    'train_dataloader.dataset=None': 'expected a single value',
    'default_hooks.gpu_efficiency.interval=5': 'give the argument to mmgpu run',
    'model.backbone.depth=[18]': 'expected a bool, number, string or None',
    'model.backbone.depth=1e999': 'expected a bool, number, string or None',
    # of its own
    'max_epochs=1': 'found max_epochs, a variable of the config',
    'modle.backbone.depth=18': 'did you mean model?',
    'foo=1': 'expected a key that MMEngine reads, found foo; it reads model',
    'custom_imports.imports=x': 'compare two configs instead',
    'model.bakbone.depth=18': 'did you mean backbone?',
    'model.backbone.deptj=18': 'did you mean depth?',
    'model=5': 'expected a single value in model, found a dict',
    'optim_wrapper.clip_grad.max_norm=35': 'to be a dict or list, found None',
    'custom_hooks.1.momentum=1': "an index below 1 in custom_hooks, found '1'",
    'custom_hooks.first=0.2': "found 'first'",
    'model.scales.0=4': 'MMEngine can merge, found model.scales.0',
    'model.backbone.out_indices.0=4': 'MMEngine can merge',
    # MMEngine would make dicts of them
    'param_scheduler.0.end=5': "a list in param_scheduler for '0', found none",
    'model.neck.0.depth=4': "a list in model.neck for '0', found none",
    'model.backbone.0=4': "a list in model.backbone for '0', found a dict",
    'custom_hooks.\u0661.momentum=1': 'an index below 1 in custom_hooks',
    'model..depth=4': "found 'model..depth'",
    '=4': "found ''",
}


@pytest.mark.parametrize('text', REFUSED)
def test_what_cannot_be_trained_is_one_sentence(override, text):
    with pytest.raises(RefusedError) as refusal:
        override(text)
    assert REFUSED[text] in str(refusal.value)
    assert '\n' not in str(refusal.value)


@pytest.mark.parametrize('text', ['custom_hooks.0.x=1', 'custom_hooks.ema.x=1'])
def test_hooks_are_a_list_where_the_config_has_none(tmp_path, text):
    path = tmp_path / 'mine.py'
    path.write_text(CONFIG.replace('custom_hooks', 'hooks'))
    with pytest.raises(RefusedError, match='expected a list in custom_hooks for'):
        override_settings(path, read_config(path), parse_assignments([text]))


def test_workers_are_asked_for_with_what_only_they_have(override):
    with pytest.raises(RefusedError, match='num_workers above 0'):
        override('train_dataloader.num_workers=0', 'train_dataloader.prefetch_factor=4')
    with pytest.raises(RefusedError, match='found it twice'):
        override('model.backbone.depth=1', 'model.backbone.depth=2')


def test_what_a_runner_reads_is_known():
    import inspect

    from mmengine.runner import FlexibleRunner, Runner

    read = {
        name
        for kind in (Runner, FlexibleRunner)
        for name in inspect.signature(kind.__init__).parameters
    }
    assert read - {'self', 'cfg'} <= {*OF_RUNNER}
