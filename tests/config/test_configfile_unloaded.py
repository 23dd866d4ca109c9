"""What a text alone does not justify is refused, where nothing may be loaded."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.outcome import REMOVE, Options
from mmgpu_hooks.config.rewrite import disable_hook, enable_hook, rewrite_config

BLIND = Options(in_place=True, load=False)
TYPE = "dict(type='mmgpu_hooks.GPUEfficiencyHook')"
BASE = "_base_ = 'base.py'\n"


@pytest.fixture
def config(tmp_path):
    return tmp_path / 'leaf.py'


@pytest.mark.parametrize(
    ('act', 'text', 'base', 'words'),
    [
        (
            enable_hook,
            "default_hooks = dict(gpu_efficiency=dict(type='Mine', a=1))\n",
            None,
            'leaf.py:1: expected default_hooks.gpu_efficiency to be free',
        ),
        (
            enable_hook,
            "default_hooks['gpu_efficiency'] = dict(type='Mine')\n",
            None,
            'to be free',
        ),
        (enable_hook, 'h = 1\ndefault_hooks = dict(gpu_efficiency=h)\n', None, 'free'),
        (enable_hook, f'h = {TYPE}\ncustom_hooks = [h]\n', None, 'leaf.py:1: expected'),
        (
            enable_hook,
            BASE,
            "default_hooks = dict(gpu_efficiency=dict(type='Mine'))\n",
            'base.py:1: expected default_hooks.gpu_efficiency to be free',
        ),
        (enable_hook, BASE, None, 'found base.py; let the config be loaded'),
        (enable_hook, "_base_ = 'mmdet::a.py'\n", None, 'found mmdet::a.py'),
        (enable_hook, '_base_ = find()\n', None, 'found find()'),
        (
            enable_hook,
            f"{BASE}_base_.default_hooks.pop('gpu_efficiency')\n",
            f'default_hooks = dict(gpu_efficiency={TYPE})\n',
            'that it takes some out',
        ),
        (
            enable_hook,
            f"{BASE}custom_hooks = [dict(type='EMAHook')]\n",
            f'custom_hooks = [{TYPE}]\n',
            'that it takes some out',
        ),
        (
            disable_hook,
            f'{BASE}model = dict(_delete_=True)\n',
            f'default_hooks = dict(mine={TYPE})\n',
            'base.py; let the config be loaded',
        ),
        (
            disable_hook,
            "default_hooks = dict(gpu_efficiency=dict(type='Mine'))\n"
            "name = 'GPUEfficiencyHook'\n",
            None,
            'leaf.py:2: expected GPUEfficiencyHook only as the type',
        ),
        (disable_hook, f'h = {TYPE}\ncustom_hooks = [h]\n', None, 'leaf.py:1:'),
        (
            disable_hook,
            BASE,
            f'default_hooks = dict(gpu_efficiency={TYPE})\n',
            'base.py; let the config be loaded',
        ),
        (disable_hook, "_base_ = 'mmdet::a.py'\n", None, 'found mmdet::a.py'),
    ],
)
def test_what_cannot_be_placed_is_refused(config, act, text, base, words):
    config.write_text(text)
    if base is not None:
        config.with_name('base.py').write_text(base)
    outcome = act(config, BLIND)
    assert outcome.status == 'refused'
    assert words in outcome.reason
    assert config.read_text() == text


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        (f'a = 1\ndefault_hooks = dict(mine={TYPE})\n', 'a = 1\n'),
        (
            f'default_hooks: dict = dict(mine={TYPE})\n',
            'default_hooks: dict = dict()\n',
        ),
        (f"a = 1\ndefault_hooks['mine'] = {TYPE}\n", 'a = 1\n'),
        (
            f"custom_hooks = [dict(type='EMAHook'), {TYPE}]\n",
            "custom_hooks = [dict(type='EMAHook')]\n",
        ),
    ],
)
def test_a_hook_elsewhere_is_seen_and_taken_out(config, before, after):
    config.write_text(before)
    assert enable_hook(config, BLIND).status == 'unchanged'
    outcome = disable_hook(config, BLIND)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert config.read_text() == after


def test_the_hook_of_a_base_is_on(config):
    config.write_text(BASE)
    config.with_name('base.py').write_text(f'custom_hooks = [{TYPE}]\n')
    assert enable_hook(config, BLIND).status == 'unchanged'


def test_an_argument_of_another_hook_is_refused(config):
    config.write_text("default_hooks = dict(timer=dict(type='T', a=1))\n")
    for value in (5, REMOVE):
        outcome = rewrite_config(config, {'default_hooks.timer.a': value}, load=False)
        assert 'expected GPUEfficiencyHook at default_hooks.timer' in outcome.reason


def test_workers_that_the_text_denies(config):
    config.write_text('train_dataloader = dict(num_workers=0)\n')
    asked = {'train_dataloader.persistent_workers': True}
    outcome = rewrite_config(config, asked, load=False)
    assert 'expected num_workers above 0' in outcome.reason
    config.write_text('train_dataloader = dict(num_workers=1)\n')
    assert rewrite_config(config, asked, load=False).status == 'rewritten'


def test_what_bases_may_hold_beside_no_workers_is_said(config):
    config.write_text(f'{BASE}train_dataloader = dict(num_workers=1)\n')
    none = {'train_dataloader.num_workers': 0}
    outcome = rewrite_config(config, none, load=False, dry_run=True)
    assert 'The bases were not loaded' in outcome.notes[0]
    config.write_text('train_dataloader = dict(num_workers=1)\n')
    assert not rewrite_config(config, none, load=False, dry_run=True).notes
