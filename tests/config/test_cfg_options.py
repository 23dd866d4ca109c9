"""The argument of ``tools/train.py`` that says the same as an edit."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from pathlib import Path

import pytest

from mmgpu_hooks.config.loading import parse_flat, read_config
from mmgpu_hooks.config.outcome import REMOVE
from mmgpu_hooks.config.request import render_options
from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')


@pytest.fixture
def folder(tmp_path):
    (tmp_path / 'leaf.py').write_text(
        'train_dataloader = dict(batch_size=2, num_workers=2)\n'
    )
    return tmp_path


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
