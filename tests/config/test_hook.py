"""Tests that GPUEfficiencyHook can be added to any config, next to other hooks."""

from __future__ import annotations

import re

import pytest

from mmgpu_hooks.config.loading import read_config
from mmgpu_hooks.config.rewrite import (
    Options,
    disable_hook,
    enable_hook,
    rewrite_config,
)
from mmgpu_hooks.config.settings import find_hooks

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
        (
            'common = dict(a=1)\ndefault_hooks = dict(**common, b=2)\nx = 1\n',
            f'common = dict(a=1)\ndefault_hooks = dict(**common, b=2,\n'
            f'                     {OURS})\nx = 1\n',
        ),
        ('a = 1\n# end\n  \n', f'a = 1\n# end\n  \n\ndefault_hooks = dict({OURS})\n'),
        ('default_hooks = dict()\n', f'default_hooks = dict({OURS})\n'),
        (
            'if 1:\n    default_hooks = dict()\n',
            f'if 1:\n    default_hooks = dict()\n\ndefault_hooks.update({OURS})\n',
        ),
    ],
)
def test_the_hook_is_added(config, before, after):
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


@pytest.mark.parametrize(
    'before',
    [
        'a = 1',
        'a = 1\r\nb = 2\r\n',
        'default_hooks = dict(\n    a=1,  # t\n    b=2,\n)\nz = 1\n',
        'default_hooks = dict(\n    a=1,  # t\n    b=2)  # u\nz = 1\n',
        "default_hooks = {'a': 1}\n",
    ],
)
def test_enable_and_disable_leave_the_text_as_it_was(config, before):
    config.write_bytes(before.encode())
    assert enable_hook(config, HERE).status == 'rewritten'
    assert disable_hook(config, HERE).status == 'rewritten'
    assert config.read_bytes() == before.encode()


EMA = "dict(type='EMAHook')"
MINE = "dict(type='GPUEfficiencyHook')"
HOOKED = f'default_hooks = dict(a={EMA}, mine={MINE})\n'


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        (
            "_base_ = 'hooked.py'\n",
            "_base_ = 'hooked.py'\n\n_base_.default_hooks.pop('mine')\n",
        ),
        (
            "_base_ = 'hooked.py'\ndefault_hooks = dict(mine=dict(interval=5))\n",
            "_base_ = 'hooked.py'\ndefault_hooks = dict()\n\n"
            "_base_.default_hooks.pop('mine')\n",
        ),
        (
            LAZY.replace('base import', 'hooked import'),
            LAZY.replace('base import', 'hooked import')
            + "\ndefault_hooks.pop('mine')\n",
        ),
        (
            f"default_hooks = dict()\ndefault_hooks['mine'] = {MINE}  # x\nz = 1\n",
            'default_hooks = dict()\nz = 1\n',
        ),
        (
            f'default_hooks = dict()\ndefault_hooks.update(dict(mine={MINE}))\n',
            'default_hooks = dict()\n',
        ),
        (
            f'if 1:\n    {HOOKED}',
            f"if 1:\n    {HOOKED}\ndefault_hooks.pop('mine')\n",
        ),
        (
            f'default_hooks = dict(mine={MINE},  # m\n    a={EMA})\n',
            f'default_hooks = dict(a={EMA})\n',
        ),
        (
            f'default_hooks = dict(a={EMA},  # a\n    mine={MINE})\n',
            f'default_hooks = dict(a={EMA}  # a\n    )\n',
        ),
        (
            f'custom_hooks = [\n    {EMA},  # e\n    {MINE},  # m\n    # b\n'
            f'    {EMA}]\n',
            f'custom_hooks = [\n    {EMA},  # e\n    # b\n    {EMA}]\n',
        ),
        (
            f'custom_hooks = [{MINE}, {EMA}, {MINE}]\n{HOOKED}',
            f'custom_hooks = [{EMA}]\ndefault_hooks = dict(a={EMA})\n',
        ),
        (
            f'custom_hooks = [{EMA}]\ncustom_hooks.append({MINE})\nx = 1\n',
            f'custom_hooks = [{EMA}]\nx = 1\n',
        ),
        (
            f'custom_hooks = [{EMA}]\ncustom_hooks += [{MINE}]\nx = 1\n',
            f'custom_hooks = [{EMA}]\nx = 1\n',
        ),
        (
            f'mine = {MINE}\ncustom_hooks = [{EMA}, mine]\n',
            f'mine = {MINE}\ncustom_hooks = [{EMA}]\n',
        ),
        # else the base's list would come back
        (
            f"_base_ = 'base.py'\ncustom_hooks = [{MINE}]\n",
            "_base_ = 'base.py'\ncustom_hooks = []\n",
        ),
    ],
)
def test_the_hook_is_taken_out_wherever_it_stands(config, before, after):
    (config.parent / 'hooked.py').write_text(HOOKED)
    config.write_text(before)
    outcome = disable_hook(config, HERE)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert config.read_text() == after
    now = read_config(config)
    assert not find_hooks(now)
    assert disable_hook(config, HERE).status == 'unchanged'


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ("_base_ = './listed.py'\n", r'custom_hooks.1 .*in a base \(./listed.py\)'),
        (f'{HOOKED}same = default_hooks\n', 'that other values depend on'),
    ],
)
def test_where_it_cannot_be_taken_out_is_said(config, text, words):
    (config.parent / 'listed.py').write_text(f'custom_hooks = [{EMA}, {MINE}]\n')
    config.write_text(text)
    outcome = disable_hook(config, HERE)
    assert outcome.status == 'refused'
    assert re.search(f'{words}.*; take it out there', outcome.reason)
    assert config.read_text() == text


def test_what_still_imports_the_package_is_said(config):
    config.write_text(
        f"custom_imports = dict(imports=['mmgpu_hooks'])\ncustom_hooks = [{MINE}]\n"
    )
    assert 'before you uninstall' in ' '.join(disable_hook(config, HERE).notes)


@pytest.mark.parametrize(
    'entry',
    [
        "dict(type='GPUEfficiencyHook')",
        "dict(interval=9, type='mmgpu_hooks.GPUEfficiencyHook')",
        "{'type': 'mmgpu_hooks.hooks.gpu_efficiency_hook.GPUEfficiencyHook'}",
    ],
)
def test_a_hook_in_the_list_is_seen(config, entry):
    config.write_text(f"custom_hooks = [dict(type='EMAHook'), {entry}]\n")
    assert enable_hook(config, HERE).status == 'unchanged'


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        (
            "default_hooks = dict(gpu_efficiency=dict(type='X'))\n",
            "to be free, found 'X'",
        ),
        ('default_hooks = None\n', 'the result to load'),
    ],
)
def test_a_config_that_cannot_take_the_hook_is_refused_and_unchanged(
    config, text, words
):
    config.write_text(text)
    outcome = enable_hook(config, HERE)
    assert outcome.status == 'refused'
    assert words in outcome.reason
    assert config.read_text() == text


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
        ('custom_hooks.0.b', 2),
    ],
)
def test_hooks_of_others_are_left_alone(config, key, value):
    config.write_text(HOOKS)
    outcome = rewrite_config(config, {key: value})
    assert outcome.status == 'refused', outcome.text
    assert 'hook' in outcome.reason.lower()


TUNED = OURS.replace("')", "', tune=True)")


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        ('a = 1\n', f'a = 1\n\ndefault_hooks = dict({TUNED})\n'),
        (
            "_base_ = 'base.py'\n",
            f"_base_ = 'base.py'\n\ndefault_hooks = dict({TUNED})\n",
        ),
        (LAZY, f'{LAZY}\ndefault_hooks.update({TUNED})\n'),
        (f'default_hooks = dict({OURS})\n', f'default_hooks = dict({TUNED})\n'),
        (
            f'default_hooks = dict({TUNED.replace("True", "False")})\n',
            f'default_hooks = dict({TUNED})\n',
        ),
    ],
    ids=['no hook', 'inherited hooks', 'pure Python', 'hook is on', 'tune is off'],
)
def test_the_hook_is_told_to_tune(config, before, after):
    config.write_text(before)
    loaded = read_config(config)
    outcome = enable_hook(config, HERE, is_tuned=True)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    now = read_config(config)
    assert now['default_hooks', 'gpu_efficiency', 'tune'] is True
    assert {path for path in loaded if now[path] != loaded[path]} <= {
        ('default_hooks', 'gpu_efficiency', 'tune')
    }
    assert ''.join(config.read_text().split()) == ''.join(after.split())
    assert enable_hook(config, HERE, is_tuned=True).status == 'unchanged'
    # plain enable leaves it so
    assert enable_hook(config, HERE).status == 'unchanged'


def test_a_hook_in_a_list_is_to_be_told_by_hand(config):
    config.write_text(f'custom_hooks = [{MINE}]\n')
    outcome = enable_hook(config, HERE, is_tuned=True)
    assert outcome.status == 'refused'
    assert 'write tune=True into its dict there' in (outcome.reason or '')
    assert config.read_text() == f'custom_hooks = [{MINE}]\n'
    # as it says
    told = MINE.replace("')", "', tune=True)")
    config.write_text(f'custom_hooks = [{told}]\n')
    assert enable_hook(config, HERE, is_tuned=True).status == 'unchanged'
