"""``disable`` undoes ``enable`` byte for byte, and other hooks are not ours."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.outcome import REMOVE, Options
from mmgpu_hooks.config.rewrite import disable_hook, enable_hook, rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

OURS = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook')"


@pytest.fixture
def config(tmp_path):
    return tmp_path / 'c.py'


@pytest.mark.parametrize('load', [True, False])
@pytest.mark.parametrize(
    'raw',
    [
        b'# only\n',
        b'# only',
        b'a = 1',
        b'a = 1\n\n',
        b'a = 1\n\n\n\n',
        b'a = 1\r\n\r\n',
        b'a = 1\n   ',
        b'a = 1\n\n  \n',
        b'a = 1\n\n  \n\t',
        b'a = 1\n# end\n  \n',
        b'default_hooks = dict()\n',
        b'a = 1\n\ndefault_hooks = dict()\n',
        b'default_hooks = dict()\nb = 1\n',
        b'default_hooks = {}\n',
        b"default_hooks = dict(a=dict(type='IterTimerHook'))\n\n\nb = 1\n",
    ],
)
def test_it_is_undone_to_the_byte(config, raw, load):
    config.write_bytes(raw)
    here = Options(in_place=True, load=load)
    outcome = enable_hook(config, here)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert enable_hook(config, here).status == 'unchanged'
    outcome = disable_hook(config, here)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert config.read_bytes() == raw


@pytest.mark.parametrize(
    ('head', 'line'),
    [
        ('a = 1\n', f'default_hooks = dict({OURS})\n'),
        (
            'default_hooks = dict()\n',
            "default_hooks['gpu_efficiency'] = dict(type='GPUEfficiencyHook')\n",
        ),
    ],
)
def test_the_blank_lines_around_a_line_of_the_user_stay(config, head, line):
    config.write_text(f'{head}\n{line}\nb = 1\n')
    outcome = disable_hook(config)
    assert (outcome.status, outcome.reason) == ('rewritten', None)
    assert config.read_text() == f'{head}\n\nb = 1\n'


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
        ('default_hooks.gpu_efficiency.type', REMOVE),
        ('custom_hooks.0.type', 'mmgpu_hooks.GPUEfficiencyHook'),
        ('default_hooks.timer.interval', 6),
        ('default_hooks.timer.interval', REMOVE),
        ('custom_hooks.0.b', REMOVE),
    ],
)
@pytest.mark.parametrize('load', [True, False])
def test_hooks_of_others_are_left_alone(config, key, value, load):
    config.write_text(HOOKS)
    outcome = rewrite_config(config, {key: value}, load=load)
    assert outcome.status == 'refused', outcome.text
    assert 'hook' in outcome.reason.lower()


@pytest.mark.parametrize('value', [6, REMOVE])
def test_arguments_of_ours_are_set(config, value):
    config.write_text(HOOKS)
    key = 'default_hooks.gpu_efficiency.interval'
    assert rewrite_config(config, {key: value}).status == 'rewritten'


def test_a_place_that_is_taken_is_not_made_ours(config):
    config.write_text("default_hooks = dict(gpu_efficiency=dict(type='Mine', a=1))\n")
    key = 'default_hooks.gpu_efficiency.type'
    outcome = rewrite_config(config, {key: 'mmgpu_hooks.GPUEfficiencyHook'})
    assert 'found another or none' in outcome.reason
