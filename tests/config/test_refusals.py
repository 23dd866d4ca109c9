"""Tests that a config rewrite refuses bad input in one sentence and changes no file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')

WORKERS = {'train_dataloader.num_workers': 8}
OWN = b'train_dataloader = dict(num_workers=2)\n'


def tree(folder):
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob('*')
    }


def refuse(source, settings=None, **options):
    """Requests a config rewrite, asserts its refusal, and returns its outcome."""
    folder = Path(source).parent
    before = tree(folder)
    outcome = rewrite_config(
        source, WORKERS if settings is None else settings, **options
    )
    assert tree(folder) == before
    assert (outcome.status, outcome.target, outcome.backup) == ('refused', None, None)
    assert '\n' not in outcome.reason
    assert outcome.reason.startswith(str(source))
    return outcome


@pytest.mark.parametrize(
    ('raw', 'words'),
    [
        (b'# only a comment\n', 'found a Python file that sets nothing'),
        (b'def main(): ...\nmain()\n', 'found a Python file that sets nothing'),
        (b'x = 1\n', 'expected train_dataloader to be a dict, found none'),
        (b'train_dataloader = None\n', 'to be a dict, found None'),
        (b'a = 1\nb = = 2\n', 'c.py:2: expected valid Python'),
        (b'\x00\x01\x02', 'expected valid Python'),
        (b'# caf\xe9\ntrain_dataloader = dict()\n', 'found other bytes'),
        (b'\xef\xbb\xbf' + OWN, 'a byte-order mark'),
        (b'_base_ = "./gone.py"\n' + OWN, 'gone.py'),
        (b'raise SystemExit(3)\n' + OWN, 'SystemExit: 3'),
        (b'x = "' + b'a' * 201_000 + b'"\n' + OWN, 'found 201 KB'),
        (b'train_dataloader = [dict(num_workers=2)]\n', 'to be a dict, found a list'),
        (b'train_dataloader = dict(num_workers=1)\ndel train_dataloader\n', 'expected'),
        (b'from os import path as train_dataloader\nx = 1\n', 'train_dataloader'),
        (b'import time\nx = time.perf_counter_ns()\n' + OWN, 'x would change too'),
        (b'x = ' + b'-' * 3000 + b'1\n' + OWN, 'expected'),
    ],
)
def test_a_file_that_is_no_config_with_a_loader_is_refused(tmp_path, raw, words):
    source = tmp_path / 'c.py'
    source.write_bytes(raw)
    assert words in refuse(source).reason


@pytest.mark.parametrize('loader', ['None', '[dict()]'])
def test_what_is_no_loader_is_not_blamed_on_its_workers(tmp_path, loader):
    source = tmp_path / 'c.py'
    source.write_text(f'train_dataloader = {loader}\n')
    keeps = {'train_dataloader.persistent_workers': True}
    assert 'train_dataloader to be a dict' in refuse(source, keeps).reason


def test_bad_paths_of_config_and_output_are_refused(tmp_path):
    own = tmp_path / 'own.py'
    own.write_bytes(OWN)
    (tmp_path / 'c.json').write_text('{}')
    (tmp_path / 'folder.py').mkdir()
    (tmp_path / 'dangling.py').symlink_to('gone.py')
    (tmp_path / 'link_out.py').symlink_to('own.py')
    (tmp_path / 'circle.py').symlink_to('circle.py')
    os.mkfifo(tmp_path / 'pipe.py')
    assert 'found none' in refuse(tmp_path / 'missing.py').reason
    assert 'found none' in refuse(tmp_path / 'dangling.py').reason
    assert 'found none' in refuse(tmp_path / 'circle.py').reason
    assert 'found a directory' in refuse(tmp_path / 'folder.py').reason
    assert 'device or pipe' in refuse(tmp_path / 'pipe.py').reason
    assert "found '.json'" in refuse(tmp_path / 'c.json').reason
    for name, words in (
        ('folder.py', 'in the place of a file'),
        ('link_out.py', 'in the place of a file'),
        ('pipe.py', 'in the place of a file'),
        ('own.py', 'in-place'),
        ('x.txt', 'ends in .py'),
        ('no/x.py', 'expected a folder'),
    ):
        assert words in refuse(own, output=tmp_path / name).reason
    both = refuse(own, output=tmp_path / 'x.py', in_place=True)
    assert 'found both' in both.reason
    assert 'file name' in refuse(tmp_path / f'{"a" * 300}.py').reason.lower()
    assert refuse(tmp_path / 'a\0b.py').reason


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'num_workers': 2}, "found 'num_workers'"),
        ({'train_dataloader.dataset.x': 2}, 'only settings of the dataloaders'),
        ({'train_dataloader.lambda': 2}, "an argument of PyTorch's DataLoader"),
        ({'train_dataloader.num_workers': [2]}, 'pass a plain value'),
        ({'train_dataloader.timeout': float('inf')}, 'found inf'),
        ({'val_dataloader.num_workers': 2}, 'expected val_dataloader'),
        ({'train_dataloader.num_workers': None}, 'whole number from 0'),
        ({'train_dataloader.batch_size': True}, 'whole number from 1'),
        ({'train_dataloader.prefetch_factor': -2}, 'whole number from 1'),
        ({'train_dataloader.persistent_workers': 1}, 'expected True or False'),
        ({'train_dataloader.pin_memory': 'cuda'}, 'expected True or False'),
        ({'train_dataloader.sampler': 'dict(x=1)'}, 'expected an argument'),
        ({'train_dataloader.dataset': None}, 'found a dict or list'),
    ],
)
def test_bad_settings_are_refused_with_the_reason(tmp_path, settings, words):
    source = tmp_path / 'c.py'
    source.write_bytes(b'train_dataloader = dict(num_workers=1, dataset=dict(a=1))\n')
    assert words in refuse(source, settings).reason


@pytest.mark.parametrize(
    ('loader', 'settings', 'beside'),
    [
        ('batch_size=2, drop_last=True', {'batch_size': None}, 'drop_last'),
        ('batch_size=2', {'batch_size': None, 'drop_last': True}, 'drop_last'),
        ('batch_size=None', {'drop_last': True}, 'drop_last'),
        ('batch_size=None', {'num_batch_per_epoch': 5}, 'num_batch_per_epoch'),
        (
            'batch_size=2, num_batch_per_epoch=5, drop_last=True',
            {'batch_size': None},
            'drop_last and num_batch_per_epoch',
        ),
        (
            "batch_size=2, batch_sampler=dict(type='AspectRatioBatchSampler')",
            {'batch_size': None},
            'batch_sampler',
        ),
    ],
)
def test_batch_size_none_is_refused_beside_a_setting_that_needs_one(
    tmp_path, loader, settings, beside
):
    source = tmp_path / 'c.py'
    source.write_text(f'val_dataloader = dict(num_workers=0, {loader})\n')
    wanted = {f'val_dataloader.{key}': value for key, value in settings.items()}
    words = f'val_dataloader.batch_size beside {beside}, found None; PyTorch or'
    assert words in refuse(source, wanted).reason


@pytest.mark.parametrize(
    ('loader', 'settings'),
    [
        ('batch_size=2', {'batch_size': None}),
        ('batch_size=2, drop_last=True', {'batch_size': None, 'drop_last': False}),
        ('batch_size=None', {'batch_size': 4, 'drop_last': True}),
        # what a config has already is its own affair
        ('batch_size=None, drop_last=True', {'pin_memory': True}),
        ("type='MyLoader', drop_last=True, batch_size=2", {'batch_size': None}),
    ],
)
def test_batch_size_none_is_written_where_no_setting_needs_one(
    tmp_path, loader, settings
):
    source = tmp_path / 'c.py'
    source.write_text(f'train_dataloader = dict(num_workers=0, {loader})\n')
    wanted = {f'train_dataloader.{key}': value for key, value in settings.items()}
    outcome = rewrite_config(source, wanted, dry_run=True)
    assert outcome.status == 'rewritten', outcome.reason


@pytest.mark.parametrize('key', ['batch_sampler', 'sampler', 'worker_init_fn'])
def test_a_plain_value_for_an_object_that_mmengine_builds_is_refused(tmp_path, key):
    source = tmp_path / 'c.py'
    source.write_text(f'train_dataloader = dict(num_workers=0, {key}=None)\n')
    reason = refuse(source, {f'train_dataloader.{key}': 'Some'}).reason
    assert f'a dict for train_dataloader.{key}, of which MMEngine builds it' in reason
    source.write_text(f"train_dataloader = dict(type='Mine', {key}=None)\n")
    wanted = {f'train_dataloader.{key}': 'Some'}
    assert rewrite_config(source, wanted, dry_run=True).status == 'rewritten'


def test_a_read_only_folder_is_refused_but_output_elsewhere_works(
    tmp_path, monkeypatch
):
    source = tmp_path / 'own.py'
    source.write_bytes(OWN)
    real = tempfile.mkstemp

    def deny(*names, **options):
        if options['dir'] == tmp_path:
            raise PermissionError(13, 'Permission denied', str(tmp_path))
        return real(*names, **options)

    monkeypatch.setattr(tempfile, 'mkstemp', deny)
    assert 'Permission denied' in refuse(source).reason
    # The proof needs no file, so this much is possible.
    assert rewrite_config(source, WORKERS, dry_run=True).status == 'rewritten'
    away = tmp_path / 'away'
    away.mkdir()
    outcome = rewrite_config(source, WORKERS, output=away / 'x.py')
    assert outcome.status == 'rewritten', outcome.reason


def test_an_original_that_changes_meanwhile_is_not_overwritten(tmp_path, monkeypatch):
    source = tmp_path / 'own.py'
    source.write_bytes(OWN)
    real, reads = Path.read_bytes, []

    def read(path):
        reads.append(path)
        return real(path) + (b'# edited\n' if len(reads) == 2 else b'')

    with monkeypatch.context() as patch:
        patch.setattr(Path, 'read_bytes', read)
        outcome = rewrite_config(source, WORKERS, in_place=True)
    assert 'it changed meanwhile' in outcome.reason
    assert [path.name for path in tmp_path.iterdir()] == ['own.py']
    assert source.read_bytes() == OWN


METRIC = {'val_evaluator.type': 'mmgpu_hooks.FastCocoMetric'}
EVALUATORS = """\
val_evaluator = [
    dict(type='VOCMetric'),
    dict(
        metric='bbox',
        type='mmdet.CocoMetric')]
"""


@pytest.mark.parametrize(
    ('text', 'settings', 'words'),
    [
        (
            EVALUATORS,
            METRIC,
            'c.py:5: expected val_evaluator to be a dict, found a list',
        ),
        (EVALUATORS, METRIC, "entry 1 'mmgpu_hooks.FastCocoMetric' by hand"),
        ('_base_ = "base.py"\n', METRIC, 'where it is written, make the type of its'),
        ('val_evaluator = [dict(type="VOCMetric")]\n', METRIC, 'a list of others'),
        ('val_evaluator = dict(type="LVISMetric")\n', METRIC, 'found LVISMetric'),
        ('val_evaluator = dict(metric="bbox")\n', METRIC, 'found none'),
        ('val_evaluator = None\n', METRIC, 'to be a dict, found None'),
        ('lr = 0.1\n', METRIC, 'found none in the config or its bases'),
        ('lr = 0.1\n', {'val_evaluator.type': 'VOCMetric'}, 'change it by hand'),
        ('lr = 0.1\n', {'val_evaluator.metric': 'segm'}, 'only settings of'),
    ],
    ids=[
        'list, its line',
        'list, its entry',
        'list of a base',
        'list of others',
        'another metric',
        'no type',
        'None',
        'nothing',
        'to another metric',
        'another key',
    ],
)
def test_a_metric_that_cannot_be_set_is_refused_with_its_line(
    tmp_path, text, settings, words
):
    (tmp_path / 'base.py').write_text(EVALUATORS)
    source = tmp_path / 'c.py'
    source.write_text(text)
    assert words in refuse(source, settings).reason
