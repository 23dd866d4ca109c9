"""The edit alone, text in and text out, as tables with no-op and refused twins."""

from __future__ import annotations

import pytest

from mmgpu_hooks.configfile.edit import edit_settings
from mmgpu_hooks.configfile.outcome import REMOVE, RefusedError

WORKERS = {'train_dataloader.num_workers': 8}
TWO = {'train_dataloader.num_workers': 8, 'train_dataloader.prefetch_factor': 4}
GONE = {'train_dataloader.num_workers': REMOVE}


@pytest.mark.parametrize(
    ('before', 'settings', 'after'),
    [
        # A literal is replaced where it stands.
        ('dict(num_workers=2)', WORKERS, 'dict(num_workers=8)'),
        ('dict(num_workers=(2))', WORKERS, 'dict(num_workers=8)'),
        ('dict(num_workers=0x2)', WORKERS, 'dict(num_workers=8)'),
        ('dict(num_workers=-1)', WORKERS, 'dict(num_workers=8)'),
        ('dict(num_workers=None)', WORKERS, 'dict(num_workers=8)'),
        ('dict(num_workers = 2 , a=1)', WORKERS, 'dict(num_workers = 8 , a=1)'),
        ("{'num_workers': 2}", WORKERS, "{'num_workers': 8}"),
        (
            'dict(\n    num_workers=2,  # per GPU\n    # data\n    dataset=d)',
            WORKERS,
            'dict(\n    num_workers=8,  # per GPU\n    # data\n    dataset=d)',
        ),
        # The same name deeper down is another key.
        (
            'dict(num_workers=2, dataset=dict(num_workers=2))',
            WORKERS,
            'dict(num_workers=8, dataset=dict(num_workers=2))',
        ),
        # A spread next to a literal key does not hide it.
        ('dict(num_workers=2, **c)', WORKERS, 'dict(num_workers=8, **c)'),
        # A missing key goes behind the short settings, in the file's style.
        ('dict()', WORKERS, 'dict(num_workers=8)'),
        ('{}', WORKERS, "{'num_workers': 8}"),
        (
            'dict(dataset=dict(pipeline=p))',
            TWO,
            'dict(num_workers=8, prefetch_factor=4, dataset=dict(pipeline=p))',
        ),
        (
            'dict(batch_size=2, dataset=d)',
            TWO,
            'dict(batch_size=2, num_workers=8, prefetch_factor=4, dataset=d)',
        ),
        ('dict(batch_size=2)', WORKERS, 'dict(batch_size=2, num_workers=8)'),
        ('dict(batch_size=2,)', WORKERS, 'dict(batch_size=2, num_workers=8,)'),
        ('dict(a=1,batch_size=2)', WORKERS, 'dict(a=1,batch_size=2,num_workers=8)'),
        (
            'dict(\n    batch_size=2,\n    dataset=d,\n)',
            WORKERS,
            'dict(\n    batch_size=2,\n    num_workers=8,\n    dataset=d,\n)',
        ),
        (
            'dict(\n    batch_size=2,  # two\n    # data\n    dataset=d)',
            WORKERS,
            'dict(\n    batch_size=2,  # two\n    num_workers=8,\n'
            '    # data\n    dataset=d)',
        ),
        (
            'dict(  # all\n    # data\n    dataset=d)',
            WORKERS,
            'dict(  # all\n    num_workers=8,\n    # data\n    dataset=d)',
        ),
        (
            'dict(\n    batch_size=2  # two\n)',
            WORKERS,
            'dict(\n    batch_size=2,  # two\n    num_workers=8\n)',
        ),
        (
            'dict(\n    batch_size=2,  # two\n    # end\n)',
            WORKERS,
            'dict(\n    batch_size=2,  # two\n    num_workers=8,\n    # end\n)',
        ),
        (
            'dict(\n    batch_size=2, drop_last=True, dataset=d)',
            WORKERS,
            'dict(\n    batch_size=2, drop_last=True, num_workers=8, dataset=d)',
        ),
        (
            'dict(batch_size=2,\n     dataset=d)',
            WORKERS,
            'dict(batch_size=2,\n     num_workers=8,\n     dataset=d)',
        ),
        (
            'dict(_delete_=True, dataset=d)',
            WORKERS,
            'dict(_delete_=True, num_workers=8, dataset=d)',
        ),
        ('{"batch_size": 2}', WORKERS, '{"batch_size": 2, "num_workers": 8}'),
        (
            "{\n    'batch_size': 2,\n    'dataset': d,\n}",
            WORKERS,
            "{\n    'batch_size': 2,\n    'num_workers': 8,\n    'dataset': d,\n}",
        ),
        # Removing takes the comma and the comment on the same line along.
        ('dict(num_workers=2)', GONE, 'dict()'),
        ('dict(num_workers=2, a=1)', GONE, 'dict(a=1)'),
        ('dict(a=1, num_workers=2)', GONE, 'dict(a=1)'),
        ('dict(a=1, num_workers=2,)', GONE, 'dict(a=1,)'),
        ('dict(a=1, num_workers=2, b=3)', GONE, 'dict(a=1, b=3)'),
        ("{'a': 1, 'num_workers': 2}", GONE, "{'a': 1}"),
        (
            'dict(\n    a=1,  # one\n    num_workers=2,  # two\n    # b\n    b=3)',
            GONE,
            'dict(\n    a=1,  # one\n    # b\n    b=3)',
        ),
        ('dict(\n    a=1,\n    num_workers=2)', GONE, 'dict(\n    a=1)'),
        ('dict(\n    a=1,\n    num_workers=2,\n)', GONE, 'dict(\n    a=1,\n)'),
        ('dict(num_workers=2,\n     a=1)', GONE, 'dict(a=1)'),
        (
            'dict(\n    a=1,  # one\n    num_workers=2)',
            GONE,
            'dict(\n    a=1  # one\n    )',
        ),
    ],
)
def test_edits_one_display(before, settings, after):
    head = '# first\n_base_ = "x.py"\n\ntrain_dataloader = '
    tail = '\nlast = 1  # end\n'
    edited = edit_settings(head + before + tail, settings)
    assert edited == head + after + tail
    assert edit_settings(edited, settings) == edited


@pytest.mark.parametrize(
    ('text', 'settings'),
    [
        ('train_dataloader = dict(num_workers=8)\n', WORKERS),
        ('train_dataloader = dict(num_workers=0x8)\n', WORKERS),
        ('train_dataloader = dict(batch_size=2)\n', GONE),
        ('_base_ = "x.py"\n', GONE),
        ('train_dataloader = dict()\n', {}),
    ],
)
def test_leaves_what_is_spelled_already(text, settings):
    assert edit_settings(text, settings) == text


def test_a_bool_is_not_the_integer_that_equals_it():
    before = 'train_dataloader = dict(pin_memory=1)\n'
    after = edit_settings(before, {'train_dataloader.pin_memory': True})
    assert after == 'train_dataloader = dict(pin_memory=True)\n'


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        ('a = 1\n', 'a = 1\n\ntrain_dataloader = dict(num_workers=8)\n'),
        ('a = 1\n\n', 'a = 1\n\ntrain_dataloader = dict(num_workers=8)\n'),
        ('a = 1', 'a = 1\n\ntrain_dataloader = dict(num_workers=8)'),
        ('a = 1\r\n', 'a = 1\r\n\r\ntrain_dataloader = dict(num_workers=8)\r\n'),
        ('a = 1  # x', 'a = 1  # x\n\ntrain_dataloader = dict(num_workers=8)'),
        (
            'with read_base():\n    from .a import *\n',
            'with read_base():\n    from .a import *\n\n'
            'train_dataloader.update(num_workers=8)\n',
        ),
        (
            'with read_base():\n    from .a import *\n'
            'train_dataloader.update(dataset=1)\n'
            'train_dataloader.update(num_workers=2, a=1)\nb = 1\n',
            'with read_base():\n    from .a import *\n'
            'train_dataloader.update(dataset=1)\n'
            'train_dataloader.update(num_workers=8, a=1)\nb = 1\n',
        ),
        # Reading a loader, or changing another key of it, is no obstacle.
        (
            'x = train_dataloader.get("num_workers")\n',
            'x = train_dataloader.get("num_workers")\n\n'
            'train_dataloader = dict(num_workers=8)\n',
        ),
        (
            '_base_.train_dataloader.dataset.pipeline = 1\n',
            '_base_.train_dataloader.dataset.pipeline = 1\n\n'
            'train_dataloader = dict(num_workers=8)\n',
        ),
        (
            'x = dict(train_dataloader=1)\n',
            'x = dict(train_dataloader=1)\n\ntrain_dataloader = dict(num_workers=8)\n',
        ),
        (
            'def f():\n    train_dataloader = 1\n',
            'def f():\n    train_dataloader = 1\n\n'
            'train_dataloader = dict(num_workers=8)\n',
        ),
    ],
)
def test_overrides_an_inherited_loader_at_the_end(before, after):
    assert edit_settings(before, WORKERS) == after
    assert edit_settings(after, WORKERS) == after


def test_a_long_override_is_broken_into_lines():
    settings = {f'train_dataloader.{key}': 8 for key in ('num_workers', 'a' * 30)}
    settings['train_dataloader.pin_memory'] = True
    after = edit_settings('a = 1\n', settings)
    assert after == (
        'a = 1\n\ntrain_dataloader = dict(\n    num_workers=8,\n'
        f'    {"a" * 30}=8,\n    pin_memory=True)\n'
    )


def test_edits_several_loaders():
    before = 'train_dataloader = dict(a=1)\nval_dataloader = dict(num_workers=1)\n'
    settings = {**WORKERS, 'val_dataloader.num_workers': 2}
    assert edit_settings(before, settings) == (
        'train_dataloader = dict(num_workers=8, a=1)\n'
        'val_dataloader = dict(num_workers=2)\n'
    )


T = 'train_dataloader'


@pytest.mark.parametrize(
    ('text', 'line', 'words'),
    [
        (f'n = 4\n{T} = dict(num_workers=n)\n', 2, 'the variable n'),
        (f'{T} = dict(\n  num_workers=2 * 4)\n', 2, 'the computed value 2 * 4'),
        (f'{T} = dict(num_workers=len("a"))\n', 1, 'the call len("a")'),
        (f'{T} = dict(num_workers={{{{_base_.n}}}})\n', 1, 'expected num_workers as'),
        (f'{T} = dict(**common)\n', 1, '**common'),
        (f'{T} = dict(\n  *common)\n', 2, '*common'),
        (f'{T} = dict(common)\n', 1, 'only literal keys'),
        (f'{T} = {{**common}}\n', 1, '**common'),
        (f'{T} = {{KEY: 4}}\n', 1, 'the computed key KEY'),
        (f'{T} = {{"num_workers": 1, "num_workers": 2}}\n', 1, 'found it 2 times'),
        (f'{T} = dict()\nx = 1\n{T} = dict()\n', 1, 'on lines 1, 3'),
        (f'{T} = None\n', 1, 'found None'),
        (f'{T} = other\n', 1, 'the variable other'),
        (f'{T} = build(num_workers=2)\n', 1, 'the call build(num_workers=2)'),
        (f'{T} = dict() or dict()\n', 1, 'the computed value'),
        (f'x = 1\nif x:\n    {T} = dict(num_workers=2)\n', 3, 'plain top-level'),
        (f'{T}: dict = dict(num_workers=2)\n', 1, 'plain top-level'),
        (f'{T} = x = dict(num_workers=2)\n', 1, 'plain top-level'),
        (f'{T}, x = dict(num_workers=2), 1\n', 1, 'plain top-level'),
        (f'*{T}, x = 1, 2\n', 1, 'plain top-level'),
        (f'{T} |= dict(num_workers=2)\n', 1, 'plain top-level'),
        (f'for {T} in []:\n    pass\n', 1, 'plain top-level'),
        (f'def {T}():\n    pass\n', 1, 'plain top-level'),
        (f'from a import {T}\n', 1, 'plain top-level'),
        (f'del {T}\n', 1, 'plain top-level'),
        (f'{T} = dict()\n{T}["num_workers"] = 2\n', 2, '["num_workers"]'),
        (f'{T} = dict()\n{T}.num_workers = 2\n', 2, 'set through'),
        (f'{T} = dict()\n{T}[key] = 2\n', 2, f'{T}[key]'),
        (f'{T} = dict()\n{T}["num_workers"] += 2\n', 2, 'set through'),
        (f'_base_.{T}.num_workers = 2\n', 1, 'set through'),
        (f'_base_["{T}"]["num_workers"] = 2\n', 1, 'set through'),
        (f'{T} = dict()\n{T}.update(num_workers=2)\n', 2, f'{T}.update(...)'),
        (f'{T} = dict()\n{T}.update(dict(num_workers=2))\n', 2, f'{T}.update(...)'),
        (f'{T} = dict()\n{T}.update({{"num_workers": 2}})\n', 2, f'{T}.update(...)'),
        (f'{T} = dict(num_workers=1)\n{T}.pop("num_workers")\n', 2, f'{T}.pop(...)'),
        (f'with read_base():\n    pass\n{T}.update(dict(num_workers=2))\n', 3, 'up'),
        (f'with read_base():\n    pass\n{T}.update(num_workers=n)\n', 3, 'variable'),
        (f'with read_base():\n    pass\n{T}.pop("num_workers")\n', 3, 'pop'),
        (f'{T} = dict()\n{T}.update(**common)\n', 2, f'{T}.update(...)'),
    ],
)
def test_refuses_what_it_does_not_understand(text, line, words):
    with pytest.raises(RefusedError) as caught:
        edit_settings(text, WORKERS)
    assert caught.value.line == line
    assert words in caught.value.reason
    assert '\n' not in caught.value.reason
