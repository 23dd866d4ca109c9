"""Real MMDetection configs, with their bases, in a copy of its config tree."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest

from mmgpu_hooks.config.outcome import REMOVE
from mmgpu_hooks.config.rewrite import rewrite_config

pytest.importorskip('mmengine.config', reason='the proof loads configs with MMEngine')
SPEC = importlib.util.find_spec('mmdet')
if SPEC is None or SPEC.origin is None:
    pytest.skip('MMDetection is not installed', allow_module_level=True)
CONFIGS = Path(SPEC.origin).parent / '.mim' / 'configs'
if not CONFIGS.is_dir():
    pytest.skip('this MMDetection carries no configs', allow_module_level=True)

SETTINGS = {
    'train_dataloader.num_workers': 7,
    'train_dataloader.persistent_workers': True,
    'train_dataloader.prefetch_factor': 4,
    'train_dataloader.pin_memory': REMOVE,
}


@pytest.fixture(scope='module')
def configs(tmp_path_factory):
    target = tmp_path_factory.mktemp('mmdet') / 'configs'
    shutil.copytree(CONFIGS, target)
    return target


@pytest.mark.parametrize(
    ('name', 'added'),
    [
        # The value is inherited through several bases.
        (
            'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
            'train_dataloader = dict(num_workers=7, prefetch_factor=4,',
        ),
        ('_base_/datasets/coco_detection.py', '    num_workers=7,'),
        ('_base_/datasets/semi_coco_detection.py', 'num_workers = 7'),
        ('dino/dino-4scale_r50_8xb2-12e_coco.py', 'num_workers=7'),
        (
            'strongsort/yolox_x_8xb4-80e_crowdhuman-mot17halftrain_test-'
            'mot17halfval.py',
            '    num_workers=7,',
        ),
    ],
)
def test_real_config(configs, name, added):
    source = configs / name
    raw = source.read_bytes()
    outcome = rewrite_config(source, SETTINGS)
    assert outcome.status == 'rewritten', outcome.reason
    plus = [line[1:] for line in outcome.diff.splitlines() if line[:1] == '+']
    assert any(added in line for line in plus[1:])
    assert source.read_bytes() == raw
    again = rewrite_config(outcome.target, SETTINGS, dry_run=True)
    assert again.status == 'unchanged'
    outcome.target.unlink()
    assert not list(source.parent.glob('.*'))
