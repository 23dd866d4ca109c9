"""Tests rewrites of config files: proven by loading, other files untouched."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

WORKERS = {'train_dataloader.num_workers': 8}
OWN = (
    "work_dir = './work_dirs/{{ fileBasenameNoExtension }}'\n"
    'train_dataloader = dict(num_workers=2, dataset=dict(a=1))  # mine\n'
)
BASE = (
    'train_dataloader = dict(\n'
    '    batch_size=2, num_workers=2, prefetch_factor=2, timeout=5,\n'
    '    dataset=dict(a=1))\n'
    'val_dataloader = dict(num_workers=1)\ntest_dataloader = val_dataloader\n'
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'base.py').write_text(BASE)
    (tmp_path / 'leaf.py').write_text("_base_ = './base.py'\n")
    (tmp_path / 'own.py').write_text(OWN)
    return tmp_path


def listing(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob('*')
        if path.is_file()
    }


def test_writes_beside_the_original(folder):
    source = folder / 'own.py'
    before = listing(folder)
    outcome = rewrite_config(source, WORKERS)
    text = OWN.replace('num_workers=2', 'num_workers=8')
    assert outcome.status == 'rewritten'
    assert outcome.source == source
    assert outcome.target == folder / 'own_recommended.py'
    assert (outcome.text, outcome.reason, outcome.backup) == (text, None, None)
    assert listing(folder) == {**before, 'own_recommended.py': text.encode()}
    assert outcome.diff.startswith(f'--- {source}\n+++ {outcome.target}\n')


@pytest.mark.parametrize(
    ('recipe', 'said'),
    [
        ('optim_wrapper = dict(optimizer=dict(lr=0.02))', 'goes to 0.04, 2 times'),
        ('auto_scale_lr = dict(enable=True, base_batch_size=16)', 'x ranks / 16'),
        (
            'train_cfg = dict(type="IterBasedTrainLoop", max_iters=90001)',
            'max_iters stays at 90001: the training sees 2 times as many images. For '
            'as many as before it goes to 45000, and so do val_interval,',
        ),
        (
            'train_cfg = dict(by_epoch=True, max_epochs=12)\n'
            'param_scheduler = [dict(type="LinearLR", by_epoch=False, end=500), '
            'dict(type="MultiStepLR", by_epoch=True, milestones=[8, 11])]',
            'max_epochs stays at 12: the training sees as many images, in 0.5 times as '
            'many iterations. What param_scheduler counts in iterations (LinearLR, '
            'end=500) lasts 2 times as many epochs.',
        ),
        (
            'train_cfg = dict(by_epoch=True, max_epochs=12)',
            'in 0.5 times as many iterations.',
        ),
    ],
)
def test_what_another_batch_size_means_is_said(folder, recipe, said):
    (folder / 'leaf.py').write_text(f'_base_ = "base.py"\n{recipe}\n')
    size = {'train_dataloader.batch_size': 4}
    assert said in ' '.join(rewrite_config(folder / 'leaf.py', size).notes)
    # of the other loaders, and of what stays, there is nothing to say
    others = {'train_dataloader.num_workers': 3, 'val_dataloader.batch_size': 4}
    assert said not in ' '.join(rewrite_config(folder / 'leaf.py', others).notes)


def test_a_dry_run_leaves_nothing_behind(folder):
    before = listing(folder)
    outcome = rewrite_config(folder / 'leaf.py', WORKERS, dry_run=True)
    assert (outcome.status, outcome.target.name) == ('rewritten', 'leaf_recommended.py')
    in_place = rewrite_config(folder / 'own.py', WORKERS, dry_run=True, in_place=True)
    assert (in_place.status, in_place.backup) == ('rewritten', None)
    assert listing(folder) == before


def test_in_place_keeps_the_original(folder):
    source = folder / 'own.py'
    source.chmod(0o754)
    outcome = rewrite_config(source, WORKERS, in_place=True)
    assert (outcome.target, outcome.backup) == (source, folder / 'own.py.bak')
    assert outcome.backup.read_text() == OWN
    assert source.read_text() == outcome.text
    for path in (source, outcome.backup):
        assert stat.S_IMODE(path.stat().st_mode) == 0o754
    # The first original survives a second rewrite.
    second = rewrite_config(source, {'train_dataloader.num_workers': 3}, in_place=True)
    assert second.backup == folder / 'own.py.bak.1'
    assert outcome.backup.read_text() == OWN
    assert second.backup.read_text() == outcome.text


def test_in_place_follows_a_symbolic_link(folder):
    real = folder / 'deep'
    real.mkdir()
    (real / 'real.py').write_text("_base_ = './base.py'\n")
    link = folder / 'link.py'
    link.symlink_to(real / 'real.py')
    # MMEngine resolves bases from the link's folder, so does the proof.
    outcome = rewrite_config(link, WORKERS, in_place=True)
    assert outcome.status == 'rewritten', outcome.reason
    assert link.is_symlink()
    assert 'num_workers=8' in (real / 'real.py').read_text()
    assert outcome.backup == real / 'real.py.bak'


def test_output_elsewhere_is_proven_where_it_will_live(folder, tmp_path_factory):
    away = tmp_path_factory.mktemp('away')
    outcome = rewrite_config(folder / 'own.py', WORKERS, output=away / 'x.py')
    assert outcome.status == 'rewritten', outcome.reason
    assert list(listing(away)) == ['x.py']
    lost = rewrite_config(folder / 'leaf.py', WORKERS, output=away / 'y.py')
    assert lost.status == 'refused'
    assert 'relative bases do not resolve there' in lost.reason
    # Another base of the same name would load, but as another config.
    (away / 'base.py').write_text(BASE.replace('a=1', 'a=2'))
    other = rewrite_config(folder / 'leaf.py', WORKERS, output=away / 'y.py')
    assert other.status == 'refused'
    assert 'train_dataloader.dataset.a would change too' in other.reason
    assert sorted(listing(away)) == ['base.py', 'x.py']


@pytest.mark.parametrize(
    'text',
    [
        'train_dataloader = x = dict(a=2)\n',
        'y = dict()\ntrain_dataloader = y\ntrain_dataloader["a"] = 1\n',
        'y = dict(num_workers=1)\ntrain_dataloader = y\n'
        'train_dataloader["num_workers"] += 1\n',
        'train_dataloader = dict(a=[])\nlength = len(train_dataloader)\n',
    ],
)
def test_what_others_would_see_is_overridden_at_the_end(tmp_path, text):
    source = tmp_path / 'mine.py'
    source.write_text(text)
    outcome = rewrite_config(source, WORKERS)
    assert outcome.reason is None
    added = '\ntrain_dataloader = dict(train_dataloader, num_workers=8)\n'
    assert outcome.target.read_text() == text + added
    assert rewrite_config(outcome.target, WORKERS).status == 'unchanged'


def test_both_names_of_a_dict_are_set_where_it_is_spelled(tmp_path):
    source = tmp_path / 'mine.py'
    source.write_text(
        'val_dataloader = dict(num_workers=1)\ntest_dataloader = val_dataloader\n'
    )
    alike = {f'{name}_dataloader.num_workers': 8 for name in ('test', 'val')}
    outcome = rewrite_config(source, alike, dry_run=True)
    assert outcome.text == source.read_text().replace('1', '8')
    assert outcome.changes == alike
    apart = {**alike, 'test_dataloader.num_workers': 4}
    outcome = rewrite_config(source, apart, dry_run=True)
    assert outcome.text == (
        'val_dataloader = dict(num_workers=8)\ntest_dataloader = val_dataloader\n\n'
        'test_dataloader = dict(test_dataloader, num_workers=4)\n'
    )


def test_what_a_config_prints_is_not_ours_to_print(folder, capfd):
    noisy = (
        'import sys\nprint("loud")\nsys.stderr.write("loud")\na = "\\d"\n'
        '_deprecation_ = dict(expected="x")\n'
    )
    (folder / 'own.py').write_text(noisy + OWN)
    assert rewrite_config(folder / 'own.py', WORKERS).status == 'rewritten'
    assert capfd.readouterr() == ('', '')


@pytest.mark.parametrize('failing', [1, 2])
def test_a_failure_in_the_middle_leaves_nothing(folder, monkeypatch, failing):
    before = listing(folder)
    real, calls = os.replace, []

    def replace(*args):
        calls.append(args)
        if len(calls) == failing:
            raise OSError(28, 'No space left on device')
        return real(*args)

    monkeypatch.setattr(os, 'replace', replace)
    outcome = rewrite_config(folder / 'own.py', WORKERS, in_place=True)
    assert outcome.status == 'refused'
    assert 'No space left on device' in outcome.reason
    # Only within one folder is a replacement atomic.
    assert all(Path(old).parent == Path(new).parent for old, new in calls)
    assert listing(folder) == before


@pytest.mark.parametrize(
    'raw',
    [
        b'# a\r\ntrain_dataloader = dict(\r\n    num_workers=2,\r\n    b=1)\r\nc = 1',
        '# caf\u00e9 \u4e2d\ntrain_dataloader = dict(num_workers=2)\n\n\n'.encode(),
        b'# -*- coding: latin-1 -*-\ntrain_dataloader = dict(num_workers=2)\n',
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


@pytest.mark.parametrize(
    ('was', 'is_said'),
    [
        ("['ema', 'history']", False),
        ("('ema', 'history')", False),
        ("'ema'", False),
        ('[NAME, "history"]', True),
        ('NAME', True),
    ],
)
def test_only_an_expression_is_said_to_be_followed_no_longer(tmp_path, was, is_said):
    config = tmp_path / 'mine.py'
    hook = f"dict(type='mmgpu_hooks.GPUEfficiencyHook', optimize={was})"
    # used twice, so that the variable itself is not edited
    config.write_text(
        f"NAME = 'ema'\nother = NAME\ndefault_hooks = dict(gpu_efficiency={hook})\n"
    )
    found = rewrite_config(config, {'default_hooks.gpu_efficiency.optimize': 'all'})
    assert found.status == 'rewritten'
    assert ('no longer follows' in ' '.join(found.notes)) is is_said
