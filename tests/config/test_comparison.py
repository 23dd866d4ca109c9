"""Tests how two configs are compared: differing keys and what they affect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mmgpu_hooks.config.comparison import ConfigDifference, compare_configs
from mmgpu_hooks.config.loading import parse_flat, read_config

LOADER = 'train_dataloader'


def make_config(**more: Any) -> dict[str, Any]:
    steps = [{'type': 'Load'}, {'type': 'Resize', 'scale': (4, 5)}]
    return {
        'model': {'type': 'RetinaNet', 'backbone': {'depth': 50}},
        LOADER: {
            'batch_size': 2,
            'num_workers': 0,
            'dataset': {'type': 'CocoDataset', 'pipeline': steps},
        },
        'default_hooks': {
            'logger': {'type': 'LoggerHook', 'interval': 50},
            'saver': {'type': 'CheckpointHook', 'interval': 1},
        },
        'custom_hooks': [{'type': 'EMAHook'}],
        'optim_wrapper': {'clip_grad': None},
        **more,
    }


def compare(change: Any) -> ConfigDifference:
    """Returns the difference between a config and a copy changed by a function."""
    before, after = make_config(), make_config()
    change(after)
    return compare_configs(parse_flat(before), parse_flat(after))


def steps_of(config: dict[str, Any]) -> list[Any]:
    steps: list[Any] = config[LOADER]['dataset']['pipeline']
    return steps


CASES = {
    'nothing': (lambda c: None, {}, {}, ()),
    'a value': (
        lambda c: c[LOADER].update(num_workers=4),
        {f'{LOADER}.num_workers': 0},
        {f'{LOADER}.num_workers': 4},
        (),
    ),
    'a key more': (
        lambda c: c[LOADER].update(persistent_workers=True),
        {},
        {f'{LOADER}.persistent_workers': True},
        (),
    ),
    'another type of a number': (
        lambda c: c[LOADER].update(num_workers=False),
        {f'{LOADER}.num_workers': 0},
        {f'{LOADER}.num_workers': False},
        (),
    ),
    'a batch size': (
        lambda c: c[LOADER].update(batch_size=4),
        {f'{LOADER}.batch_size': 2},
        {f'{LOADER}.batch_size': 4},
        ('batch size',),
    ),
    'a value inside a transform': (
        lambda c: steps_of(c)[1].update(scale=(4, 6)),
        {f'{LOADER}.dataset.pipeline.1.scale.1': 5},
        {f'{LOADER}.dataset.pipeline.1.scale.1': 6},
        ('pipeline',),
    ),
    'one transform more': (
        lambda c: steps_of(c).insert(1, {'type': 'mmdet.Flip', 'prob': 0.5}),
        {f'{LOADER}.dataset.pipeline': '[Load, Resize]'},
        {f'{LOADER}.dataset.pipeline': '[Load, Flip, Resize]'},
        ('pipeline',),
    ),
    'a list for a tuple': (lambda c: steps_of(c)[1].update(scale=[4, 5]), {}, {}, ()),
    'another spelling': (lambda c: steps_of(c)[1].update(type='x.Resize'), {}, {}, ()),
    'a class for its name': (lambda c: c['model'].update(type=RetinaNet), {}, {}, ()),
    'a model': (
        lambda c: c['model']['backbone'].update(depth=18),
        {'model.backbone.depth': 50},
        {'model.backbone.depth': 18},
        ('model',),
    ),
    'a data set': (
        lambda c: c[LOADER]['dataset'].update(type='LVIS'),
        {f'{LOADER}.dataset.type': 'CocoDataset'},
        {f'{LOADER}.dataset.type': 'LVIS'},
        ('data set',),
    ),
    'a dict for a value': (
        lambda c: c['optim_wrapper'].update(clip_grad={'max_norm': 35}),
        {'optim_wrapper.clip_grad': None},
        {'optim_wrapper.clip_grad': 'dict'},
        (),
    ),
    'a hook more': (
        lambda c: c['custom_hooks'].append({'type': 'mmdet.CheckLossHook'}),
        {'custom_hooks': '[EMAHook]'},
        {'custom_hooks': '[EMAHook, CheckLossHook]'},
        (),
    ),
    'a variable that nothing reads': (lambda c: c.update(workers=4), {}, {}, ()),
}


class RetinaNet:
    """Class used as a ``type`` in a config in place of its name."""


@pytest.mark.parametrize('name', CASES)
def test_what_differs_is_listed_by_dotted_key(name):
    change, before, after, work = CASES[name]
    found = compare(change)
    assert (found.before, found.after) == (before, after)
    assert found.other_work == work
    assert (found.untrained, found.is_of_our_hook) == ((), False)


@pytest.mark.parametrize(
    ('change', 'key'),
    [
        (lambda c: c.update(work_dir='b'), 'work_dir'),
        (lambda c: c.update(val_dataloader={'a': 1}), 'val_dataloader.a'),
        (lambda c: c.update(train_cfg={'val_interval': 1}), 'train_cfg.val_interval'),
        (
            lambda c: c['default_hooks']['saver'].update(interval=9),
            'default_hooks.saver.interval',
        ),
        (
            lambda c: c['custom_hooks'].append({'type': 'CheckpointHook'}),
            'custom_hooks',
        ),
    ],
    ids=[
        'a folder',
        'a section',
        'a key of a section',
        'a default hook',
        'a custom hook',
    ],
)
def test_what_a_short_training_does_not_show_is_told_apart(change, key):
    found = compare(change)
    assert (found.before, found.after, found.untrained) == ({}, {}, (key,))


OURS = {'type': 'mmgpu_hooks.GPUEfficiencyHook'}


@pytest.mark.parametrize(
    'change',
    [
        lambda c: c['default_hooks'].update(gpu_efficiency=OURS),
        lambda c: c['custom_hooks'].append(OURS),
    ],
    ids=['a default hook', 'a custom hook'],
)
def test_a_difference_of_our_own_hook_is_known(change):
    found = compare(change)
    assert found.is_of_our_hook
    assert found.after


def test_the_loader_comes_first_and_the_model_last():
    def change(config: dict[str, Any]) -> None:
        config['model']['backbone']['depth'] = 18
        config['custom_hooks'] = []
        config[LOADER]['num_workers'] = 1

    keys = [*compare(change).after]
    assert keys == [f'{LOADER}.num_workers', 'custom_hooks', 'model.backbone.depth']


def test_a_copy_of_a_config_does_not_differ(tmp_path: Path):
    from mmengine.config import Config

    path, copy = tmp_path / 'mine.py', tmp_path / 'copy.py'
    path.write_text('workers = 4\n' + f'{LOADER} = dict(num_workers=workers)\n')
    Config.fromfile(path).dump(copy)
    found = compare_configs(read_config(path), read_config(copy))
    assert (found.before, found.after) == ({}, {})
