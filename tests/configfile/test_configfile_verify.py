"""The proof must notice every kind of damage, not only accept good edits."""

from __future__ import annotations

import functools

import pytest

from mmgpu_hooks.configfile.loading import parse_flat
from mmgpu_hooks.configfile.outcome import REMOVE
from mmgpu_hooks.configfile.verify import (
    is_held,
    is_same,
    verify_config,
    verify_text,
)

BEFORE = (
    'a = 1  # a\ntrain_dataloader = dict(\n    num_workers=2,  # n\n    x=[1, 2])\n'
)


@pytest.mark.parametrize(
    ('after', 'word'),
    [
        (BEFORE.replace('=2,', '=8,'), None),
        (BEFORE.replace('=2,', '=8, pin_memory=True,'), 'other entries'),
        (BEFORE.replace('[1, 2]', '[1,2]').replace('=2,', '=8,'), 'other entries'),
        (BEFORE.replace('# a', '# b').replace('=2,', '=8,'), 'outside'),
        (BEFORE.replace('=2,', '=8,') + '\n', 'outside'),
        (BEFORE.replace('=2,  # n', '=8,'), 'comments'),
        (BEFORE.replace('=2,  # n', '=8,  # n # n'), 'comments'),
        ('a = 1  # a\n', 'one train_dataloader statement'),
    ],
)
def test_text_proof(after, word):
    reason = verify_text(BEFORE, after, 'train_dataloader', {'num_workers'}, False)
    assert reason is None if word is None else word in str(reason)


@pytest.mark.parametrize(
    ('after', 'good'),
    [
        ('a = 1\n\ntrain_dataloader = dict(num_workers=8)\n', True),
        ('a = 1\n\ntrain_dataloader.update(num_workers=8)\n', True),
        ('a = 1\n\ntrain_dataloader = dict(num_workers=8, b=1)\n', False),
        ('a = 2\n\ntrain_dataloader = dict(num_workers=8)\n', False),
        ('a = 1\nb = 1\ntrain_dataloader = dict(num_workers=8)\n', False),
        ('a = 1\ntrain_dataloader = dict(num_workers=8)  # new\n', False),
    ],
)
def test_text_proof_of_an_appended_statement(after, good):
    reason = verify_text('a = 1\n', after, 'train_dataloader', {'num_workers'}, False)
    assert (reason is None) is good


def test_a_removed_key_takes_only_its_comment():
    removed = BEFORE.replace('    num_workers=2,  # n\n', '')
    keys = {'num_workers'}
    assert verify_text(BEFORE, removed, 'train_dataloader', keys, True) is None
    added = removed.replace('dict(', 'dict(  # new')
    assert verify_text(BEFORE, added, 'train_dataloader', keys, True) is not None


def flat(**loader):
    return parse_flat({'train_dataloader': loader, 'other': {'x': [1, (2,)]}})


def test_config_proof_names_an_unintended_change():
    settings = {'train_dataloader.num_workers': 8}
    before, after = flat(num_workers=2), flat(num_workers=8)
    assert verify_config(before, after, settings) is None
    assert 'overrides' in str(verify_config(before, before, settings))
    worse = {**after, ('other', 'x', '0'): 5}
    assert 'other.x.0 would change' in str(verify_config(before, worse, settings))
    more = {**worse, ('new',): 1}
    assert '1 more' in str(verify_config(before, more, settings))
    fewer = {key: value for key, value in after.items() if key[:1] != ('other',)}
    assert verify_config(before, fewer, settings) is not None
    assert parse_flat({'a': [1]}) != parse_flat({'a': (1,)})


def test_what_holds_already():
    config = flat(num_workers=1, prefetch_factor=None, timeout=None)
    assert is_held(config, 'train_dataloader.num_workers', 1)
    assert not is_held(config, 'train_dataloader.num_workers', True)
    assert not is_held(config, 'train_dataloader.num_workers', REMOVE)
    assert not is_held(config, 'train_dataloader.pin_memory', None)
    assert is_held(config, 'train_dataloader.pin_memory', REMOVE)
    assert is_held(config, 'train_dataloader.prefetch_factor', REMOVE)
    assert not is_held(config, 'train_dataloader.timeout', REMOVE)


def test_leaves_compare_by_type_value_and_definition():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError('no')

        def __hash__(self):
            return 0

    def make(number):
        exec(f'def f(): return {number}\ndef g(): return f()', space := {})
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
