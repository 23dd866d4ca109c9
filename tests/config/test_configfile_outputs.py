"""Overlay, base edit, command line, no loading: each is what an edit is."""

from __future__ import annotations

import ast
import importlib.util
import os
import shlex
import sys
from pathlib import Path

import pytest

from mmgpu_hooks.config import prove
from mmgpu_hooks.config.bases import parse_bases
from mmgpu_hooks.config.drift import parse_drift, read_drift
from mmgpu_hooks.config.loading import parse_flat, read_config
from mmgpu_hooks.config.outcome import REMOVE
from mmgpu_hooks.config.overlay import render_options
from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

WORKERS = {'train_dataloader.num_workers': 8}
DEEP = 'train_dataloader = dict(batch_size=2, num_workers=2, dataset=dict(a=1))\n'
LAZY = """\
from mmengine.config import read_base
with read_base():
    from .base import *
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'deep.py').write_text(DEEP)
    (tmp_path / 'base.py').write_text("_base_ = 'deep.py'\nval_dataloader = dict()\n")
    (tmp_path / 'leaf.py').write_text("_base_ = ['./base.py']\nlr = 1\n")
    return tmp_path


def loads_as(target, source, **changes):
    now, before = read_config(target), read_config(source)
    changed = {('train_dataloader', key): value for key, value in changes.items()}
    return now == {**before, **changed}


def test_an_overlay_is_three_lines(folder):
    source = folder / 'leaf.py'
    outcome = rewrite_config(source, WORKERS, overlay=True)
    assert outcome.target == folder / 'leaf_recommended.py'
    assert outcome.target.read_text() == (
        "_base_ = './leaf.py'\n\ntrain_dataloader = dict(num_workers=8)\n"
    )
    assert loads_as(outcome.target, source, num_workers=8)
    assert outcome.diff.startswith(f'--- /dev/null\n+++ {outcome.target}\n@@ -0,0')


def test_an_overlay_elsewhere_finds_its_base(folder):
    away = folder / 'a' / 'b'
    away.mkdir(parents=True)
    gone = {'train_dataloader.num_workers': 8, 'train_dataloader.pin_memory': True}
    outcome = rewrite_config(
        folder / 'leaf.py', gone, overlay=True, output=away / 'mine.py'
    )
    assert outcome.text.startswith("_base_ = '../../leaf.py'\n")
    assert loads_as(outcome.target, folder / 'leaf.py', num_workers=8, pin_memory=True)


def test_an_overlay_of_a_lazy_config(folder):
    (folder / 'base.py').write_text(DEEP)
    (folder / 'lazy.py').write_text(LAZY)
    outcome = rewrite_config(folder / 'lazy.py', WORKERS, overlay=True)
    assert outcome.status == 'rewritten', outcome.reason
    assert outcome.text.endswith(
        'with read_base():\n    from .lazy import *\n\n'
        'train_dataloader.update(num_workers=8)\n'
    )
    assert loads_as(outcome.target, folder / 'lazy.py', num_workers=8)
    (folder / 'not-a-name.py').write_text(LAZY)
    refused = rewrite_config(folder / 'not-a-name.py', WORKERS, overlay=True)
    assert 'a base whose path can be imported' in refused.reason


def test_an_overlay_cannot_be_everything(folder):
    both = rewrite_config(folder / 'leaf.py', WORKERS, overlay=True, in_place=True)
    assert 'either an overlay or an in-place edit' in both.reason
    gone = {'train_dataloader.batch_size': REMOVE}
    assert 'it is inherited' in (
        rewrite_config(folder / 'leaf.py', gone, overlay=True).reason
    )
    held = {'train_dataloader.num_workers': 2}
    assert rewrite_config(folder / 'leaf.py', held, overlay=True).status == 'unchanged'


def test_the_base_is_edited_only_when_asked(folder):
    outcome = rewrite_config(folder / 'leaf.py', WORKERS, edit_base=True)
    assert outcome.status == 'rewritten', outcome.reason
    assert outcome.target == folder / 'deep.py'
    assert (folder / 'deep.py').read_text() == DEEP.replace('workers=2', 'workers=8')
    assert outcome.backup.read_text() == DEEP
    assert 'every config that inherits it changes' in outcome.notes[0]
    assert read_config(folder / 'leaf.py')[('train_dataloader', 'num_workers')] == 8
    added = rewrite_config(
        folder / 'leaf.py', {'val_dataloader.num_workers': 1}, edit_base=True
    )
    assert added.target == folder / 'base.py'


def test_a_base_edit_that_cannot_be(folder):
    leaf = folder / 'leaf.py'
    two = {**WORKERS, 'val_dataloader.num_workers': 1}
    outcome = rewrite_config(leaf, two, edit_base=True)
    assert 'expected all settings in one file' in outcome.reason
    outcome = rewrite_config(leaf, WORKERS, edit_base=True, output=folder / 'x.py')
    assert 'drop one' in outcome.reason
    # The leaf has the last word, so the base is not where it is spelled.
    leaf.write_text("_base_ = 'base.py'\ntrain_dataloader = dict(num_workers=4)\n")
    assert rewrite_config(leaf, WORKERS, edit_base=True, dry_run=True).target == leaf
    leaf.write_text("_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'\n")
    outcome = rewrite_config(leaf, WORKERS, edit_base=True)
    assert 'expected a base in this project' in outcome.reason


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ("_base_ = 'a.py'", ['a.py']),
        ("_base_ = ['./a.py', '../b/c.py', 'mmdet::d.py']", ['./a.py', '../b/c.py']),
        ("_base_ = ('a.py',)", ['a.py']),
        ('_base_ = 5', []),
        ('_base_ = {{}: 1}', []),
        ('_base_ = find()', []),
        ('with read_base():\n    from ..a.b import *', ['../a/b.py']),
        ('with read_base():\n    from .c import x as y', ['c.py']),
        ('with read_base():\n    from mmdet.configs.a import *', []),
    ],
)
def test_the_bases_are_read_without_running_anything(text, names):
    assert parse_bases(ast.parse(text)) == names


def test_without_loading_nothing_is_executed(folder):
    source = folder / 'leaf.py'
    source.write_text(f'open({str(folder / "ran")!r}, "w")\n1 / 0\n{DEEP}')
    outcome = rewrite_config(source, WORKERS, load=False)
    assert (outcome.status, outcome.proven) == ('rewritten', False)
    assert 'num_workers=8' in outcome.target.read_text()
    assert not (folder / 'ran').exists()
    assert rewrite_config(source, WORKERS).status == 'refused'


@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('x = 1\n', 'expected a train_dataloader in the config or its bases'),
        (DEEP + 'exec("x = 1")\n', 'leaf.py:2: expected a config that can be judged'),
        (DEEP + 'globals()["train_dataloader"] = {}\n', 'leaf.py:2: expected'),
        ('train_dataloader = None\n', 'found None'),
        ('train_dataloader = dict(num_workers=[1])\n', 'expected a single value'),
        ('train_dataloader = build()\n', 'found the function call build()'),
    ],
)
def test_without_loading_what_cannot_be_known_is_refused(folder, text, words):
    (folder / 'leaf.py').write_text(text)
    outcome = rewrite_config(folder / 'leaf.py', WORKERS, load=False)
    assert outcome.status == 'refused'
    assert words in outcome.reason


def test_without_loading_missing_bases_are_no_obstacle(folder):
    (folder / 'base.py').unlink()
    outcome = rewrite_config(folder / 'leaf.py', WORKERS, load=False)
    assert outcome.text.endswith('\n\ntrain_dataloader = dict(num_workers=8)\n')


def test_a_copy_of_ours_is_written_again(folder):
    first = rewrite_config(folder / 'leaf.py', WORKERS)
    again = rewrite_config(first.target, {'train_dataloader.num_workers': 3})
    assert again.target == first.target
    assert again.backup == folder / 'leaf_recommended.py.bak'
    assert 'num_workers=3' in first.target.read_text()
    assert not (folder / 'leaf_recommended_recommended.py').exists()


def train_script():
    spec = importlib.util.find_spec('mmdet')
    if spec is None or spec.origin is None:
        pytest.skip('MMDetection is not installed')
    path = Path(spec.origin).parent / '.mim' / 'tools' / 'train.py'
    script = importlib.util.spec_from_file_location('mmdet_train', path)
    module = importlib.util.module_from_spec(script)
    script.loader.exec_module(module)
    return module


def test_the_line_means_the_same_to_the_train_script(folder, monkeypatch):
    from mmengine.config import Config

    script = train_script()
    monkeypatch.setitem(os.environ, 'LOCAL_RANK', '0')
    settings = {
        'train_dataloader.num_workers': 8,
        'train_dataloader.persistent_workers': True,
        'train_dataloader.pin_memory_device': 'cuda:0',
        'train_dataloader.timeout': 1.5,
        'train_dataloader.prefetch_factor': None,
        'default_hooks.gpu_efficiency.type': 'mmgpu_hooks.GPUEfficiencyHook',
        'auto_scale_lr.base_batch_size': 16,
    }
    outcome = rewrite_config(folder / 'leaf.py', settings)
    assert outcome.status == 'rewritten', outcome.reason
    argv = ['train.py', str(outcome.source), *shlex.split(outcome.cfg_options)]
    monkeypatch.setattr(sys, 'argv', argv)
    arguments = script.parse_args()
    config = Config.fromfile(arguments.config)
    config.merge_from_dict(arguments.cfg_options)
    assert parse_flat(config.to_dict()) == read_config(outcome.target)


@pytest.mark.parametrize('value', ['', '8', 'true', 'None', 'a,b', '[1]', 'a b', "'a'"])
def test_a_text_that_the_train_script_would_read_otherwise_has_no_line(value):
    assert render_options({'train_dataloader.pin_memory_device': value}) is None


def test_the_line_says_what_removal_means():
    gone = {'train_dataloader.prefetch_factor': REMOVE}
    assert render_options(gone) == '--cfg-options train_dataloader.prefetch_factor=None'
    assert render_options({'train_dataloader.batch_size': REMOVE}) is None
    assert render_options({}) is None


def test_a_config_that_changed_since_the_run_is_noticed(folder):
    copy = folder / 'copy.py'
    copy.write_text(DEEP.replace('batch_size=2', 'batch_size=4, pin_memory=True'))
    said = read_drift(folder / 'leaf.py', copy)
    assert 'train_dataloader.batch_size 4 -> 2' in said
    assert 'train_dataloader.pin_memory True -> None' in said
    copy.write_text(DEEP)
    assert read_drift(folder / 'leaf.py', copy) is None
    copy.write_text('1 / 0\n')
    assert read_drift(folder / 'leaf.py', copy) is None


def test_what_a_dump_spells_otherwise_is_no_drift():
    now = parse_flat({'train_dataloader': {'a': (1, 2), 't': int, '_x': 1}, 'lr': 1})
    then = parse_flat({'train_dataloader': {'a': [1, 2], 't': 'int'}, 'lr': 2})
    assert parse_drift(now, then) == []


def test_an_edit_that_does_not_settle_is_refused(folder, monkeypatch):
    real = prove.edit_settings

    def restless(text, settings, **options):
        return real(text.replace('lr = 1', 'lr =  1'), settings, **options)

    monkeypatch.setattr(prove, 'edit_settings', restless)
    outcome = rewrite_config(folder / 'leaf.py', WORKERS)
    assert outcome.status == 'refused'
    assert 'expected the steps of the edit to follow' in outcome.reason
    assert not (folder / 'leaf_recommended.py').exists()
