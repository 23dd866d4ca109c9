"""Switching the hook on and off in every kind of config, without dropping any other."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.config.outcome import REMOVE, Options
from mmgpu_hooks.config.rewrite import disable_hook, enable_hook, rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

OURS = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook')"
TYPE = ('default_hooks', 'gpu_efficiency', 'type')
BASE = """\
default_hooks = dict(timer=dict(type='IterTimerHook'))
custom_hooks = [dict(type='EMAHook'), dict(type='SwitchHook')]
"""
HERE = Options(in_place=True)
LAZY = """\
from mmengine.config import read_base
with read_base():
    from .base import *
"""
LONG = "default_hooks = dict(\n    logger=dict(type='LoggerHook', interval=50),\n"


@pytest.fixture
def config(tmp_path):
    (tmp_path / 'base.py').write_text(BASE)
    return tmp_path / 'leaf.py'


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        ('a = 1\n', f'a = 1\n\ndefault_hooks = dict({OURS})\n'),
        (
            "_base_ = 'base.py'\n",
            f"_base_ = 'base.py'\n\ndefault_hooks = dict({OURS})\n",
        ),
        (LAZY, f'{LAZY}\ndefault_hooks.update({OURS})\n'),
        (f'{LONG})\n', f'{LONG}    {OURS},\n)\n'),
        (
            'default_hooks = {}\n',
            "default_hooks = {'gpu_efficiency': " + OURS[15:] + '}\n',
        ),
        (
            'common = dict(a=1)\ndefault_hooks = dict(**common, b=2)\nx = 1\n',
            f'common = dict(a=1)\ndefault_hooks = dict(**common, b=2,\n'
            f'                     {OURS})\nx = 1\n',
        ),
        ('a = 1', f'a = 1\n\ndefault_hooks = dict({OURS})'),
        ('a = 1\n# end\n  \n', f'a = 1\n# end\n  \n\ndefault_hooks = dict({OURS})\n'),
        ('default_hooks = dict()\n', f'default_hooks = dict({OURS})\n'),
    ],
)
def test_the_hook_is_added_and_taken_out_again(config, before, after):
    config.write_text(before)
    loaded = read_config(config)
    outcome = enable_hook(config, HERE)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert config.read_text() == after
    now = read_config(config)
    assert now[TYPE] == 'mmgpu_hooks.GPUEfficiencyHook'
    assert {path: now[path] for path in loaded} == loaded
    assert enable_hook(config, HERE).status == 'unchanged'
    assert disable_hook(config, HERE).status == 'rewritten'
    assert config.read_text() == before
    assert disable_hook(config, HERE).status == 'unchanged'


@pytest.mark.parametrize('before', ["_base_ = 'base.py'\n", LAZY])
def test_a_hook_of_the_base_is_taken_out_in_the_leaf(config, before):
    base = config.with_name('base.py')
    enable_hook(base, HERE)
    raw = base.read_bytes()
    config.write_text(before)
    loaded = read_config(config)
    outcome = disable_hook(config, HERE)
    assert outcome.status == 'rewritten', outcome.reason
    assert config.read_text().endswith("default_hooks.pop('gpu_efficiency')\n")
    assert base.read_bytes() == raw
    now = read_config(config)
    ours = {path for path in loaded if path[:2] == TYPE[:2]}
    assert now == {path: loaded[path] for path in loaded if path not in ours}
    assert disable_hook(config, HERE).status == 'unchanged'
    assert enable_hook(config, HERE).status == 'rewritten'
    assert read_config(config) == loaded


@pytest.mark.parametrize(
    'entry',
    [
        "dict(type='GPUEfficiencyHook')",
        "dict(interval=9, type='mmgpu_hooks.GPUEfficiencyHook')",
        "{'type': 'mmgpu_hooks.hooks.gpu_efficiency_hook.GPUEfficiencyHook'}",
    ],
)
def test_a_hook_in_the_list_is_seen_and_taken_out(config, entry):
    text = (
        "custom_hooks = [\n    dict(type='EMAHook'),  # kept\n    {}dict(type='B')]\n"
    )
    config.write_text(text.format(f'{entry},  # ours\n    '))
    assert enable_hook(config, HERE).status == 'unchanged'
    assert disable_hook(config, HERE).status == 'rewritten'
    assert config.read_text() == text.format('')


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (
            "default_hooks = dict(gpu_efficiency=dict(type='X'))\n",
            "to be free, found 'X'",
        ),
        ('default_hooks = None\n', 'expected default_hooks'),
        ('if 1:\n    default_hooks = dict()\n', 'leaf.py:2: expected default_hooks'),
    ],
)
def test_where_it_cannot_be_added(config, text, words):
    config.write_text(text)
    outcome = enable_hook(config, HERE)
    assert outcome.status == 'refused'
    assert words in outcome.reason
    assert config.read_text() == text


def test_where_it_cannot_be_taken_out(config):
    twice = "custom_hooks = [dict(type='GPUEfficiencyHook')] * 2\n"
    config.write_text(twice)
    assert 'at most once' in disable_hook(config, HERE).reason
    config.with_name('base.py').write_text(twice.replace(' * 2', ''))
    config.write_text("_base_ = 'base.py'\n")
    outcome = disable_hook(config, HERE)
    assert outcome.status == 'refused'
    assert config.read_text() == "_base_ = 'base.py'\n"


HOOKS = (
    "default_hooks = dict(timer=dict(type='IterTimerHook', interval=5),\n"
    "                     gpu_efficiency=dict(type='GPUEfficiencyHook', interval=5))\n"
    "custom_hooks = [dict(type='EMAHook', b=1)]\n"
)


@pytest.mark.parametrize(
    ('key', 'value'),
    [
        ('default_hooks.timer.type', 'mmgpu_hooks.GPUEfficiencyHook'),
        ('default_hooks.fresh.type', 'mmgpu_hooks.GPUEfficiencyHook'),
        ('default_hooks.gpu_efficiency.type', 'Evil'),
        ('custom_hooks.0.type', 'mmgpu_hooks.GPUEfficiencyHook'),
        ('default_hooks.timer.interval', 6),
        ('custom_hooks.0.b', REMOVE),
    ],
)
def test_hooks_of_others_are_left_alone(config, key, value):
    config.write_text(HOOKS)
    outcome = rewrite_config(config, {key: value})
    assert outcome.status == 'refused', outcome.text
    assert 'hook' in outcome.reason.lower()
