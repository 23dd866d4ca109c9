"""Whatever bytes a config is made of, only the edit differs."""

from __future__ import annotations

import stat

import pytest

from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

WORKERS = {'train_dataloader.num_workers': 8}


@pytest.mark.parametrize(
    'raw',
    [
        b'# a\r\ntrain_dataloader = dict(\r\n    num_workers=2,\r\n    b=1)\r\nc = 1',
        b'train_dataloader = dict(num_workers=2)',
        '# caf\u00e9 \u4e2d\ntrain_dataloader = dict(num_workers=2)\n\n\n'.encode(),
        b'# -*- coding: latin-1 -*-\ntrain_dataloader = dict(num_workers=2)\n',
        '# coding: utf8\nx = "\u00e9"\ntrain_dataloader = {"num_workers":2}'.encode(),
        '# coding: latin1\nx = "\u00e9"\ntrain_dataloader = {"num_workers":2}'.encode(),
        b'a = "\\d"\x0c\ntrain_dataloader = dict(num_workers=2); b = 1\n',
        b'a = 1\r\nb = 2\ntrain_dataloader = dict(num_workers=2)\r\n',
        'a = "x\u2028y"  # \u2028\ntrain_dataloader = dict(num_workers=2)\n'.encode(),
    ],
)
def test_every_other_byte_stays(tmp_path, raw):
    source = tmp_path / 'c.py'
    source.write_bytes(raw)
    outcome = rewrite_config(source, WORKERS)
    assert outcome.status == 'rewritten', outcome.reason
    expected = raw.replace(b'num_workers=2', b'num_workers=8')
    expected = expected.replace(b'"num_workers":2', b'"num_workers":8')
    assert outcome.target.read_bytes() == expected


def test_crlf_is_used_for_new_lines_too(tmp_path):
    source = tmp_path / 'c.py'
    source.write_bytes(b'train_dataloader = dict(\r\n    batch_size=2,\r\n    b=1)\r\n')
    target = rewrite_config(source, WORKERS).target
    assert target.read_bytes() == (
        b'train_dataloader = dict(\r\n    batch_size=2,\r\n    num_workers=8,\r\n'
        b'    b=1)\r\n'
    )


def test_a_byte_order_mark_stays(tmp_path):
    source = tmp_path / 'c.py'
    # MMEngine does not load one, so there is no proof by loading.
    source.write_bytes(b'\xef\xbb\xbftrain_dataloader = dict(num_workers=2)\n')
    target = rewrite_config(source, WORKERS, load=False).target
    assert target.read_bytes() == (
        b'\xef\xbb\xbftrain_dataloader = dict(num_workers=8)\n'
    )


def test_mode_bits_of_the_original_are_kept(tmp_path):
    source = tmp_path / 'own.py'
    source.write_bytes(b'train_dataloader = dict(num_workers=2)\n')
    source.chmod(0o640)
    target = rewrite_config(source, WORKERS).target
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
