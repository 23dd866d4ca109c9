"""Tests edits of config texts in memory, also of texts that need no change."""

from __future__ import annotations

import pytest

from mmgpu_hooks.config import edits

WORKERS = {'train_dataloader.num_workers': 8}
TWO = {'train_dataloader.num_workers': 8, 'train_dataloader.prefetch_factor': 4}


def edit_settings(text, settings):
    return edits.edit_settings(text, settings).text


@pytest.mark.parametrize(
    ('before', 'settings', 'after'),
    [
        # A literal is replaced where it stands.
        ('dict(num_workers=(2))', WORKERS, 'dict(num_workers=(8))'),
        (
            'dict(num_workers=(\n  2 * 2  # c\n))',
            WORKERS,
            'dict(num_workers=(\n  8  # c\n))',
        ),
        # A missing key goes behind the short settings, in the file's style.
        ('dict()', WORKERS, 'dict(num_workers=8)'),
        ('{}', WORKERS, "{'num_workers': 8}"),
        (
            'dict(dataset=dict(pipeline=p))',
            TWO,
            'dict(num_workers=8, prefetch_factor=4,\n'
            '                        dataset=dict(pipeline=p))',
        ),
        ('dict(batch_size=2,)', WORKERS, 'dict(batch_size=2, num_workers=8,)'),
        ('dict(a=1,batch_size=2)', WORKERS, 'dict(a=1,batch_size=2,num_workers=8)'),
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
            'dict(\n    batch_size=2, drop_last=True, dataset=d)',
            WORKERS,
            'dict(\n    batch_size=2, drop_last=True, num_workers=8, dataset=d)',
        ),
    ],
    ids=[
        'in brackets',
        'an expression',
        'no key',
        'a literal dict',
        'before nested settings',
        'a comma at the end',
        'no blanks',
        'before a comment',
        'behind a comment',
        'a comment behind the last',
        'in the last line of short ones',
    ],
)
def test_edits_one_display(before, settings, after):
    head = '# first\n_base_ = "x.py"\n\ntrain_dataloader = '
    tail = '\nlast = 1  # end\n'
    edited = edit_settings(head + before + tail, settings)
    assert edited == head + after + tail
    assert edit_settings(edited, settings) == edited


@pytest.mark.parametrize(
    ('before', 'after'),
    [
        ('a = 1\n', 'a = 1\n\ntrain_dataloader = dict(num_workers=8)\n'),
        ('a = 1', 'a = 1\n\ntrain_dataloader = dict(num_workers=8)'),
        ('a = 1\r\n', 'a = 1\r\n\r\ntrain_dataloader = dict(num_workers=8)\r\n'),
    ],
    ids=['a line', 'without line end', 'CRLF'],
)
def test_overrides_an_inherited_loader_at_the_end(before, after):
    assert edit_settings(before, WORKERS) == after
    assert edit_settings(after, WORKERS) == after


T = 'train_dataloader'
OVER = f'\n{T} = dict({T}, num_workers=8)\n'


@pytest.mark.parametrize(
    'before',
    [
        f'{T} = dict() | dict(a=1)\n',
        f'{T} = build(num_workers=2)\n',
        f'{T} = dict()\n{T} |= dict(a=2)\n',
        f'{T} = dict(a=1)\n{T}.pop("num_workers", 1)\n',
        f'{T} = dict()\n{T}.update(common)\n',
        f'{T} = dict()\n{T}.setdefault("num_workers", 2)\n',
        f'{T} = dict()\ndel {T}["num_workers"]\n',
        f'{T} = {{"num_workers": 2, **common}}\n',
    ],
)
def test_overrides_what_it_cannot_edit(before):
    assert edit_settings(before, WORKERS) == before + OVER
    assert edit_settings(before + OVER, WORKERS) == before + OVER
