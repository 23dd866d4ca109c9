"""Tests that bad hook arguments raise a helpful error when the config is built."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import mmengine.runner  # noqa: F401  # a name is known once this is imported
import pytest
from mmengine.registry import HOOKS

import mmgpu_hooks

NAMES = pytest.mark.parametrize(
    'name', ['GPUEfficiencyHook', 'mmgpu_hooks.GPUEfficiencyHook']
)


def test_a_script_that_imports_us_before_mmengine_may_name_the_hook_alone():
    code = (
        'import mmgpu_hooks, sys\n'
        "assert 'mmengine' not in sys.modules\n"
        'from mmengine.runner import Runner\n'
        'from mmengine.registry import HOOKS\n'
        "print(type(HOOKS.build({'type': 'GPUEfficiencyHook'})).__module__)\n"
    )
    done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
    assert done.stdout.strip() == 'mmgpu_hooks.hooks.gpu_efficiency_hook', done.stderr


@NAMES
@pytest.mark.parametrize(
    ('arguments', 'error', 'sentence'),
    [
        ({'interval': 0}, ValueError, "LoggerHook's) between 1 and inf, found 0"),
        ({'interval': '10'}, TypeError, "found '10'"),
        ({'interval': True}, TypeError, 'found True'),
        ({'gpu_sample_period_s': -1}, ValueError, 'between 0.01 and 60'),
        ({'gpu_sample_period_s': float('nan')}, ValueError, 'found nan'),
        ({'gpu_sample_period_s': '0.2'}, TypeError, "by default 0.2, found '0.2'"),
        ({'summary': 'yes'}, TypeError, "to be True or False, found 'yes'"),
        ({'worker_nice': 20}, ValueError, 'goes first) between 0 and 19, found 20'),
        (
            {'worker_nice': '10'},
            TypeError,
            'number; with 10 training goes first, found',
        ),
        ({'stuck_after_s': -1}, ValueError, 'between 0 and 86400, found -1'),
        ({'stuck_after_s': '60'}, TypeError, "found '60'"),
        ({'scalars': 'some'}, ValueError, "to be 'main' or 'all', found 'some'"),
        ({'optimize': 'emma'}, ValueError, "resume or 'all', found 'emma'"),
        ({'optimize': ['ema', 3]}, TypeError, "found ['ema', 3]"),
        ({'optimize': True}, TypeError, "a list of names or 'all', found True"),
        ({'tune': 1}, TypeError, 'tune to be True or False, found 1'),
        ({'intervall': 10}, TypeError, "unexpected keyword argument 'intervall'"),
    ],
)
def test_a_bad_argument_is_named(name, arguments, error, sentence):
    with pytest.raises(error) as caught:
        HOOKS.build({'type': name, **arguments})
    assert sentence in str(caught.value)
    assert 'GPUEfficiencyHook' in str(caught.value)


@NAMES
@pytest.mark.parametrize(
    'arguments',
    [
        {'interval': None},
        {'gpu_sample_period_s': 0.01, 'summary': False},
        {'optimize': 'ema, history'},
        {'optimize': ['ema', 'history']},
        {'optimize': ('all',)},
        {'tune': True},
    ],
)
def test_good_arguments_build_the_hook(name, arguments):
    hook = HOOKS.build({'type': name, **arguments})
    assert type(hook) is mmgpu_hooks.GPUEfficiencyHook
    for key, value in arguments.items():
        assert getattr(hook, key) == value


def test_the_page_of_arguments_lists_every_argument_with_its_default():
    page = Path(__file__).parents[2] / 'docs' / 'en' / 'arguments.md'
    rows = re.findall(r'^\| `(\w+)` \| (.+?) \|', page.read_text(), re.MULTILINE)
    found = {name: default.strip('`') for name, default in rows}
    arguments = inspect.signature(mmgpu_hooks.GPUEfficiencyHook).parameters.values()
    expected = {argument.name: repr(argument.default) for argument in arguments}
    assert found == {**expected, 'interval': "LoggerHook's"}
