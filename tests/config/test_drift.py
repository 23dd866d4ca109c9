from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.config.drift import (
    read_drift,
    read_learning_rate,
    read_workload_drift,
)
from mmgpu_hooks.config.loading import LoadError
from mmgpu_hooks.schema import LearningRate

CONFIG = """\
model = dict(type='A', backbone=dict(depth=18))
optim_wrapper = dict(type='OptimWrapper', optimizer=dict(type='SGD', lr=0.02))
train_dataloader = dict(
    batch_size=4,
    num_workers=2,
    persistent_workers=True,
    dataset=dict(pipeline=[dict(type='Load'), dict(type='Resize', scale=(8, 8))]),
)
train_cfg = dict(max_epochs=12)
custom_hooks = [dict(type='EMAHook'), dict(type='GPUEfficiencyHook', interval=10)]
auto_scale_lr = dict(base_batch_size=16, enable=False)
work_dir = 'a'
"""


@pytest.fixture
def drift(tmp_path: Path):
    def read(*edits: tuple[str, str]) -> str | None:
        text = CONFIG
        for old, new in edits:
            assert old in text
            text = text.replace(old, new)
        (tmp_path / 'one.py').write_text(CONFIG)
        (tmp_path / 'two.py').write_text(text)
        return read_workload_drift(tmp_path / 'one.py', tmp_path / 'two.py')

    return read


def test_how_it_is_loaded_for_how_long_and_at_what_rate_makes_no_other_workload(drift):
    assert drift() is None
    changed = drift(
        ('batch_size=4', 'batch_size=8'),
        ('num_workers=2', 'num_workers=0'),
        ('persistent_workers=True', 'persistent_workers=False, prefetch_factor=None'),
        ('lr=0.02', 'lr=0.04'),
        ('max_epochs=12', 'max_epochs=1'),
        ('interval=10', 'interval=20'),
        ("work_dir = 'a'", "work_dir = 'b'"),
    )
    assert changed is None


@pytest.mark.parametrize(
    ('edit', 'said'),
    [
        (('depth=18', 'depth=50'), 'model.backbone.depth 18 -> 50'),
        (('scale=(8, 8)', 'scale=(8, 16)'), 'pipeline.1.scale.1 8 -> 16'),
        (("type='SGD'", "type='AdamW'"), "optimizer.type 'SGD' -> 'AdamW'"),
        (("dict(type='EMAHook')", 'dict()'), "hooks.0.type 'EMAHook' -> absent"),
        (("type='A', ", ''), "model.type 'A' -> absent"),
        ((", dict(type='Resize', scale=(8, 8))", ''), 'pipeline a list -> a list and'),
    ],
)
def test_what_is_trained_does(drift, edit, said):
    found = drift(edit)
    assert found.startswith('its config is another one (')
    assert said in found


def test_the_learning_rate_of_a_config(tmp_path):
    path = tmp_path / 'one.py'
    path.write_text(CONFIG)
    assert read_learning_rate(path) == LearningRate(0.02, 16, False)
    path.write_text(CONFIG.replace('enable=False', 'enable=True'))
    assert read_learning_rate(path) == LearningRate(0.02, 16, True)
    path.write_text('model = dict()')
    assert read_learning_rate(path) == LearningRate(None, None, False)
    path.write_text('model = dict(')
    assert read_learning_rate(path) is None
    with pytest.raises(LoadError):
        read_workload_drift(path, path)


def test_a_config_that_changed_since_the_run_is_noticed(tmp_path):
    config, copy = tmp_path / 'config.py', tmp_path / 'copy.py'
    config.write_text(CONFIG)
    copy.write_text(CONFIG.replace('batch_size=4', 'batch_size=8, pin_memory=True'))
    said = read_drift(config, copy)
    assert 'train_dataloader.batch_size 8 -> 4' in said
    assert 'train_dataloader.pin_memory True -> None' in said
    # a dump spells tuples in its own way
    copy.write_text(CONFIG.replace('(8, 8)', '[8, 8]'))
    assert read_drift(config, copy) is None
    copy.write_text('1 / 0\n')
    assert read_drift(config, copy) is None
