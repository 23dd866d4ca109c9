"""Tests the comparison of loaded configs: every unintended change is noticed."""

from __future__ import annotations

import functools
from typing import Any

from mmgpu_hooks.config.loading import (
    check_edit,
    is_held,
    is_same,
    parse_flat,
    read_drift,
)


def flat(**loader):
    return parse_flat({'train_dataloader': loader, 'other': {'x': [1, (2,)]}})


def test_config_proof_names_an_unintended_change():
    settings = {'train_dataloader.num_workers': 8}
    before, after = flat(num_workers=2), flat(num_workers=8)
    assert check_edit(before, after, settings) is None
    assert 'overrides' in str(check_edit(before, before, settings))
    worse = {**after, ('other', 'x', '0'): 5}
    assert 'other.x.0 would change' in str(check_edit(before, worse, settings))
    more = {**worse, ('new',): 1}
    assert '1 more' in str(check_edit(before, more, settings))
    fewer = {key: value for key, value in after.items() if key[:1] != ('other',)}
    assert check_edit(before, fewer, settings) is not None
    assert parse_flat({'a': [1]}) != parse_flat({'a': (1,)})


def test_a_setting_holds_only_with_the_same_type_and_value():
    config = flat(num_workers=1)
    assert is_held(config, 'train_dataloader.num_workers', 1)
    assert not is_held(config, 'train_dataloader.num_workers', True)
    assert not is_held(config, 'train_dataloader.pin_memory', None)


def test_leaves_compare_by_type_value_and_definition():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError('no')

        def __hash__(self):
            return 0

    def make(number):
        space: dict[str, Any] = {}
        exec(f'def f(): return {number}\ndef g(): return f()', space)
        return space['f']

    nan = float('nan')
    assert is_same(nan, float('nan'))
    assert is_same(int, int)
    assert not is_same(int, str)
    assert not is_same(1, 1.0)
    assert is_same(Odd(), Odd())
    assert is_same(make(1), make(1))
    assert not is_same(make(1), make(2))
    assert not is_same(functools.partial(int, 1), functools.partial(int, 2))
    assert not is_same('a', 'b')


LOADER = """\
train_dataloader = dict(
    batch_size=4,
    dataset=dict(pipeline=[dict(type='Load'), dict(type='Resize', scale=(8, 8))]),
)
train_cfg = dict(max_epochs=12)
"""


def test_a_config_that_changed_since_the_run_is_noticed(tmp_path):
    config, copy = tmp_path / 'config.py', tmp_path / 'copy.py'
    config.write_text(LOADER)
    copy.write_text(LOADER.replace('batch_size=4', 'batch_size=8, pin_memory=True'))
    said = read_drift(config, copy)
    assert 'train_dataloader.batch_size 8 -> 4' in said
    assert 'train_dataloader.pin_memory True -> None' in said
    # a dump spells tuples in its own way
    copy.write_text(LOADER.replace('(8, 8)', '[8, 8]'))
    assert read_drift(config, copy) is None
    copy.write_text('1 / 0\n')
    assert read_drift(config, copy) is None
