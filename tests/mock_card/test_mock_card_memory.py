"""Tests ``mmgpu estimate-memory`` against the peak of FakeGPU's allocator.

Focal losses have no place here: MMCV has no kernel of theirs for the CPU.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from training.detection import environ

MODELS = {
    'rtmdet_tiny': 'rtmdet/rtmdet_tiny_8xb32-300e_coco.py',
    'yolox_tiny': 'yolox/yolox_tiny_8xb8-300e_coco.py',
    'rtmdet_s': 'rtmdet/rtmdet_s_8xb32-300e_coco.py',
    'yolov3_mobilenet': 'yolo/yolov3_mobilenetv2_8xb24-320-300e_coco.py',
    'faster_rcnn_r50': 'faster_rcnn/faster-rcnn_r50_fpn_1x_coco.py',
    'cascade_rcnn_r50': 'cascade_rcnn/cascade-rcnn_r50_fpn_1x_coco.py',
    'gfl_r50': 'gfl/gfl_r50_fpn_1x_coco.py',
    'centernet_r18': 'centernet/centernet_r18_8xb16-crop512-140e_coco.py',
}
CONFIG = """
_base_ = 'mmdet::{base}'
{imports}
custom_hooks = [{hook}]
default_hooks = dict(
    logger=dict(interval=3), checkpoint=dict(interval=-1))
model = dict(
    backbone=dict(init_cfg=None), data_preprocessor=dict(batch_augments=None))
train_dataloader = dict(
    _delete_=True, batch_size=4, num_workers=0,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CocoDataset', data_root='{data}/', ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='Resize', scale=(128, 128), keep_ratio=False),
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(_delete_=True, type='EpochBasedTrainLoop', max_epochs=1)
val_cfg = val_dataloader = val_evaluator = None
test_cfg = test_dataloader = test_evaluator = None
auto_scale_lr = dict(enable=False)
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_estimates_bound_the_modelled_peaks(mock_cards, tmp_path):
    write_demo_dataset(tmp_path, images=12, width=128, height=128)
    planned = {
        name: mock_cards.plan_config(
            name,
            CONFIG.format(
                base=base,
                data=tmp_path,
                imports="custom_imports = dict(imports=['mock_card.card'])",
                hook="dict(type='mmgpu_hooks.GPUEfficiencyHook')",
            ),
        )
        for name, base in MODELS.items()
    }
    codes = mock_cards.train()
    failed = {name for name, code in codes.items() if code}
    assert not failed, [planned[name].printed[-3000:] for name in failed]
    for name, base in MODELS.items():
        config = tmp_path / f'{name}.py'
        config.write_text(CONFIG.format(base=base, data=tmp_path, imports='', hook=''))
        words = ['--image-size', '128x128', '--format', 'json']
        answered = subprocess.run(
            [sys.executable, '-m', 'mmgpu_hooks', 'estimate-memory', config, *words],
            env=environ(),
            stdout=subprocess.PIPE,
            check=True,
        )
        estimate = json.loads(answered.stdout)
        total = estimate['total_bytes']['4']
        peak = planned[name].run.figures.gpu_mem_peak_bytes
        # activations go while gradients come, and there are no workspaces here
        assert peak is not None, name
        assert total - estimate['static']['gradient_bytes'] <= peak <= total, name
        assert peak >= 0.8 * total, name
