"""The proof must notice every kind of damage, not only accept good edits."""

from __future__ import annotations

import functools

import pytest

from mmgpu_hooks.config.loading import parse_flat
from mmgpu_hooks.config.outcome import REMOVE
from mmgpu_hooks.config.verify import is_held, is_same, verify_config
from mmgpu_hooks.config.verify_text import verify_step

BEFORE = (
    'a = 1  # a\ntrain_dataloader = dict(\n    num_workers=2,  # n\n    x=[1, 2])\n'
)
EIGHT = {('num_workers',): 8}
ADDED = {('pin_memory',): True}
GONE = {('num_workers',): REMOVE}


def verify(before, after, values=EIGHT, variable=None):
    return verify_step(before, after, 'train_dataloader', values, variable)


@pytest.mark.parametrize(
    ('after', 'good'),
    [
        (BEFORE.replace('=2,', '=8,'), True),
        (BEFORE.replace('=2,', '=9,'), False),
        (BEFORE.replace('=2,', '=8.0,'), False),
        (BEFORE.replace('=2,', '=8, pin_memory=True,'), False),
        (BEFORE.replace('[1, 2]', '[1,2]').replace('=2,', '=8,'), False),
        (BEFORE.replace('[1, 2]', '[1, 8]'), False),
        (BEFORE.replace('# a', '# b').replace('=2,', '=8,'), False),
        (BEFORE.replace('a = 1', 'a = 8'), False),
        (BEFORE.replace('a = 1', 'a =  1').replace('=2,', '=8,'), False),
        (BEFORE.replace('=2,', '=8,') + '\n', False),
        (BEFORE.replace('=2,  # n', '=8,'), False),
        (BEFORE.replace('=2,  # n', '=8,  # n # n'), False),
        (BEFORE.replace('    num_workers', '     num_workers'), False),
        ('a = 1  # a\n', False),
    ],
)
def test_text_proof(after, good):
    assert (verify(BEFORE, after) is None) is good


@pytest.mark.parametrize(
    ('after', 'good'),
    [
        (BEFORE.replace('  # n', '  # n\n    pin_memory=True,'), True),
        (BEFORE.replace('  # n', '  # n\n    pin_memory=1,'), False),
        (BEFORE.replace('  # n', '  # n\n    pin=True,'), False),
        (BEFORE.replace('2,  # n', '2, pin_memory=True,'), False),
        (BEFORE.replace('    num_workers=2,  # n\n', '    pin_memory=True,\n'), False),
        (BEFORE.replace('x=[1, 2]', 'pin_memory=True, x=[1,2]'), False),
    ],
)
def test_text_proof_of_an_added_key(after, good):
    assert (verify(BEFORE, after, ADDED) is None) is good


@pytest.mark.parametrize(
    ('after', 'good'),
    [
        ('a = 1\n\ntrain_dataloader = dict(num_workers=8)\n', True),
        ('a = 1\n\ntrain_dataloader.update(num_workers=8)\n', True),
        ('a = 1\n\ntrain_dataloader = dict(train_dataloader, num_workers=8)\n', True),
        ('a = 1\n\ntrain_dataloader = dict(other, num_workers=8)\n', False),
        ('a = 1\n\ntrain_dataloader = dict(num_workers=8, b=1)\n', False),
        ('a = 1\n\ntrain_dataloader = dict(num_workers=9)\n', False),
        ('a = 1\n\nval_dataloader = dict(num_workers=8)\n', False),
        ('a = 2\n\ntrain_dataloader = dict(num_workers=8)\n', False),
        ('a = 1\nb = 1\ntrain_dataloader = dict(num_workers=8)\n', False),
        ('a = 1\ntrain_dataloader = dict(num_workers=8)  # new\n', False),
    ],
)
def test_text_proof_of_an_added_statement(after, good):
    assert (verify('a = 1\n', after) is None) is good


def test_text_proof_of_an_alias_and_a_variable():
    before = 'n = 4\ntrain_dataloader = x\n'
    wrapped = before.replace('= x', '= dict(x, num_workers=8)')
    assert verify(before, wrapped) is None
    assert verify(before, wrapped.replace('dict(x', 'dict(y')) is not None
    assert verify(before, before.replace('4', '8'), variable='n') is None
    assert verify(before, before.replace('4', '8')) is not None
    assert verify(before, before.replace('4', '9'), variable='n') is not None


def test_a_removed_key_takes_only_its_comment():
    removed = BEFORE.replace('    num_workers=2,  # n\n', '')
    assert verify(BEFORE, removed, GONE) is None
    assert verify(BEFORE, removed.replace('dict(', 'dict(  # new'), GONE) is not None
    assert verify(BEFORE, BEFORE.replace(',  # n\n    x=[1, 2]', ''), GONE) is not None
    own = BEFORE + 'train_dataloader = dict(num_workers=1)\n'
    assert verify(own, BEFORE, GONE) is None
    assert verify(own.replace('num_workers=1', 'x=1'), BEFORE, GONE) is not None


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
