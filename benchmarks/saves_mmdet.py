"""A real MMDetection training that saves every few iterations."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.experiment.training import run_training
from mmgpu_hooks.schema import RunEvidence
from mmgpu_hooks.schema.reader import read_evidence

ITERATIONS, SAVE_INTERVAL = 24, 6
CORES = 2

CONFIG = """\
_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
default_hooks = dict(
    logger=dict(interval=3),
    checkpoint=dict(by_epoch=False, interval={save_interval}, max_keep_ckpts=1),
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook', summary=False),
)
custom_hooks = []
model = dict(backbone=dict(init_cfg=None), bbox_head=dict(num_classes=2))
train_dataloader = dict(
    batch_size=4, num_workers={num_workers}, persistent_workers=True,
    # a pass over few images would end before the workers are busy
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        data_root='{data_root}/', ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='RandomResize', scale=(2560, 1920), ratio_range=(0.8, 1.2),
                 keep_ratio=True),
            dict(type='PhotoMetricDistortion'),
            dict(type='RandomCrop', crop_size=(64, 64)),
            dict(type='RandomFlip', prob=0.5),
            dict(type='Pad', size=(64, 64)),
            dict(type='PackDetInputs'),
        ],
    ),
)
train_cfg = dict(
    _delete_=True, type='IterBasedTrainLoop', max_iters={iterations}, val_interval=1000)
log_processor = dict(by_epoch=False)
val_cfg = val_dataloader = val_evaluator = None
test_cfg = test_dataloader = test_evaluator = None
randomness = dict(seed=7)
"""
"""RTMDet-tiny on small crops of large, distorted images: loading is the work, so that
workers never get ahead of the loop and are busy in every save."""

_WARNING = re.compile(r'GPUEfficiencyHook: (Saving .*)')


@dataclass(frozen=True)
class DetectorRun:
    """What one training left."""

    evidence: RunEvidence
    warnings: list[str]
    """Of slow saves, as they were printed."""


def train_detector(folder: Path, num_workers: int) -> DetectorRun:
    """Train with MMDetection's own script, on two cores.

    Args:
        folder: Of the run and its images.
        num_workers: Of the loader.
    """
    data = folder / 'images'
    write_demo_dataset(data, images=40, width=960, height=720)
    config = folder / f'detector_{num_workers}.py'
    config.write_text(
        CONFIG.format(
            data_root=data,
            num_workers=num_workers,
            iterations=ITERATIONS,
            save_interval=SAVE_INTERVAL,
        )
    )
    warnings: list[str] = []

    def note(line: str) -> None:
        found = _WARNING.search(line)
        if found is not None:
            warnings.append(found[1])

    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, set(sorted(usable)[:CORES]))
    try:
        work_dir = folder / f'detector_{num_workers}'
        run_training(config, work_dir, on_line=note, environ={'OMP_NUM_THREADS': '1'})
    finally:
        os.sched_setaffinity(0, usable)
    (path,) = work_dir.glob('*/vis_data/gpu_efficiency.jsonl')
    return DetectorRun(read_evidence(path), warnings)
