"""Tests finding the base config's hooks that a ``custom_hooks`` list replaced."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.loading import load_config
from mmgpu_hooks.config.lost_hooks import find_lost_hooks

pytest.importorskip('mmengine.config', reason='MMEngine loads configs')

BASE = """\
custom_hooks = [dict(type='EMAHook'), dict(type='SwitchHook', priority=49)]
"""
TEXT = "_base_ = './base.py'\n"
LAZY = """\
from mmengine.config import read_base
with read_base():
    from .base import *
"""
MINE = "custom_hooks = [dict(type='MyHook')]\n"
BOTH = ['EMAHook', 'SwitchHook']


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'base.py').write_text(BASE)
    (tmp_path / 'between.py').write_text(TEXT + MINE)
    return tmp_path


@pytest.mark.parametrize(
    ('text', 'lost'),
    [
        (TEXT, []),
        (MINE, []),
        (TEXT + MINE, BOTH),
        (LAZY + MINE, BOTH),
        (TEXT + 'custom_hooks = []\n', BOTH),
        (TEXT + 'custom_hooks = None\n', BOTH),
        (TEXT + "custom_hooks = [dict(type='EMAHook', momentum=0.1)]\n", BOTH[1:]),
        (TEXT + "custom_hooks = [*_base_.custom_hooks, dict(type='MyHook')]\n", []),
        (LAZY + "custom_hooks.append(dict(type='MyHook'))\n", []),
        (LAZY + "custom_hooks += [dict(type='MyHook')]\n", []),
        (
            LAZY + "ema = dict(type='EMAHook')\ncustom_hooks = [ema, custom_hooks[1]]",
            [],
        ),
        # a class in place of its name is the same hook
        (
            'from mmengine.hooks import EMAHook\n'
            f'{LAZY}custom_hooks = [dict(type=EMAHook)]\n',
            BOTH[1:],
        ),
    ],
)
def test_lost_hooks_are_named_and_the_printed_cure_brings_them_back(folder, text, lost):
    config = folder / 'leaf.py'
    config.write_text(text)
    found = find_lost_hooks(config)
    assert [hook.name for hook in found] == lost
    assert all(hook.is_own for hook in found)
    assert {hook.base for hook in found} <= {str(folder / 'base.py')}
    cures = {hook.cure for hook in found}
    assert len(cures) == bool(lost)
    for cure in cures:
        kept = [line for line in text.splitlines(True) if 'custom_hooks = ' not in line]
        config.write_text(''.join(kept) + cure + '\n')
        assert find_lost_hooks(config) == ()
        hooks = [hook['type'] for hook in load_config(config)['custom_hooks']]
        names = {str(getattr(kind, '__name__', kind)).split('.')[-1] for kind in hooks}
        assert {*BOTH, *(['MyHook'] if 'MyHook' in text else [])} == names
        assert len(hooks) == len(names)


def test_the_file_that_drops_them_is_named(folder):
    config = folder / 'leaf.py'
    config.write_text("_base_ = './between.py'\n")
    (first, second) = find_lost_hooks(config)
    assert (first.name, second.name) == ('EMAHook', 'SwitchHook')
    assert first.is_own is second.is_own is False
    assert first.config == second.config == str(folder / 'between.py')
    assert first.base == str(folder / 'base.py')


def test_what_a_config_has_again_is_not_lost(folder):
    config = folder / 'leaf.py'
    config.write_text(
        "_base_ = './between.py'\n"
        "custom_hooks = [*_base_.custom_hooks, dict(type='EMAHook'),\n"
        "                dict(type='SwitchHook')]\n"
    )
    assert find_lost_hooks(config) == ()
