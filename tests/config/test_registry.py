"""Tests that config rewrites check keys, types and ranges of the known settings."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config.hook_arguments import ARGUMENTS
from mmgpu_hooks.config.loading import RefusedError
from mmgpu_hooks.config.registry import describe_refusal, is_checked
from mmgpu_hooks.config.settings import parse_settings
from mmgpu_hooks.recommend.job import Setting
from mmgpu_hooks.recommend.settings import SETTINGS

OF_CONFIG = [setting for setting in SETTINGS if not setting.is_alone]


@pytest.mark.parametrize('setting', SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize('value', [-1, 2**31, 0.5, '4'])
def test_a_value_out_of_range_is_refused_in_one_sentence(
    setting: Setting, value: float | str
) -> None:
    with pytest.raises(RefusedError) as refused:
        parse_settings({setting.key(): value})
    expected = f'expected {setting.values.expected} for {setting.key()}'
    assert str(refused.value) == f'{expected}, found {value!r}'


@pytest.mark.parametrize('setting', OF_CONFIG, ids=lambda setting: setting.name)
def test_each_loader_takes_the_same_values(setting: Setting) -> None:
    keys = [setting.key()]
    if setting.is_of_loader:
        keys = [setting.key(name) for name in ('val_dataloader', 'test_dataloader')]
    for key in keys:
        assert setting.values.expected in (describe_refusal(key, -1) or '')
        assert is_checked(key)


def test_arguments_of_the_hook_are_found_wherever_the_hook_stands() -> None:
    assert 'worker_nice' in ARGUMENTS
    for place in ('default_hooks.gpu_efficiency', 'custom_hooks.0'):
        assert describe_refusal(f'{place}.worker_nice', 20) is not None
        assert describe_refusal(f'{place}.worker_nice', None) is None
