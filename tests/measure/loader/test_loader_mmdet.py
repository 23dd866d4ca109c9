"""The probe on MMDetection's own datasets, transforms and hooks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cv2
import mmdet.datasets  # noqa: F401, registers
import numpy as np
import pytest
from mmdet.engine.hooks import PipelineSwitchHook
from mmdet.registry import DATASETS
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope
from torch.utils.data import DataLoader

from fakes.loader_loop import Loop
from mmgpu_hooks.measure.loader import worker as fetch
from mmgpu_hooks.measure.loader.pipeline import PipelineTimer
from mmgpu_hooks.schema import WorkersWindow

IMAGES = 12
LOAD = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
RESIZE = dict(
    type='RandomResize', scale=(64, 64), ratio_range=(0.5, 1.5), keep_ratio=True
)
PACK = dict(type='PackDetInputs')
LOGGER = SimpleNamespace(info=lambda text: None)


@pytest.fixture(autouse=True)
def names_of_mmdet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """MMEngine's pipelines look names up in MMDetection's registries."""
    # such small images leave little time to time them
    monkeypatch.setattr(fetch, '_TIMING_SHARE', 1.0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


@pytest.fixture(scope='module')
def coco(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The config of a small dataset on disk."""
    root = tmp_path_factory.mktemp('coco')
    images, boxes = [], []
    for number in range(IMAGES):
        name = f'{number}.jpg'
        cv2.imwrite(str(root / name), np.full((48, 64, 3), number, np.uint8))
        images.append(dict(id=number, file_name=name, height=48, width=64))
        boxes.append(
            dict(
                id=number,
                image_id=number,
                category_id=1,
                bbox=[4, 4, 20, 20],
                area=400,
                iscrowd=0,
            )
        )
    categories = [dict(id=1, name='thing')]
    text = json.dumps(dict(images=images, annotations=boxes, categories=categories))
    (Path(root) / 'all.json').write_text(text)
    return dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='all.json',
        metainfo=dict(classes=('thing',)),
        data_prefix=dict(img=''),
    )


def epochs_of(dataset: Any, *, workers: int, persistent: bool = False) -> Loop:
    """A loop over a dataset with a probe on its loader."""
    loader = DataLoader(
        dataset,
        batch_size=2,
        num_workers=workers,
        persistent_workers=persistent,
        collate_fn=pseudo_collate,
    )
    return Loop(loader)


def run(epochs: Loop) -> WorkersWindow:
    epochs.run_epoch()
    return epochs.read()


@pytest.mark.parametrize('workers', [0, 1])
def test_transforms_of_a_dataset_by_name(coco, workers: int):
    choice = dict(type='RandomChoice', transforms=[[RESIZE], [RESIZE]])
    mosaic = dict(type='CachedMosaic', img_scale=(64, 64))
    pipeline = [*LOAD, mosaic, choice, dict(type='RandomFlip', prob=0.5), PACK]
    epochs = epochs_of(DATASETS.build(dict(coco, pipeline=pipeline)), workers=workers)
    window = run(epochs)
    epochs.close()
    assert set(window.transforms) == {
        'LoadImageFromFile',
        'LoadAnnotations',
        'CachedMosaic',
        'RandomChoice',
        'RandomResize',
        'RandomFlip',
        'PackDetInputs',
    }
    assert window.timed_samples >= 2
    spent = sum(cost.total_s for cost in window.transforms.values())
    assert 0.0 < spent < window.occupancy.total_s


def test_transforms_below_mixing_and_joining_datasets(coco):
    loaded = dict(coco, pipeline=LOAD)
    mixed = DATASETS.build(
        dict(
            type='MultiImageMixDataset',
            dataset=loaded,
            pipeline=[dict(type='Mosaic', img_scale=(32, 32)), PACK],
        )
    )
    joined = DATASETS.build(
        dict(
            type='ConcatDataset',
            datasets=[dict(coco, pipeline=[*LOAD, PACK])],
        )
    )
    timer = PipelineTimer()
    for dataset, loads in ((mixed, 4), (joined, 1)):
        timer.start(SimpleNamespace(dataset=dataset))
        dataset[1]
        costs = timer.stop()
        assert costs['LoadImageFromFile'][0] == loads
        assert costs['PackDetInputs'][0] == 1
        assert ('Mosaic' in costs) == (loads == 4)


@pytest.mark.parametrize('persistent', [False, True])
def test_a_pipeline_that_a_hook_switches_is_followed(coco, persistent: bool):
    dataset = DATASETS.build(dict(coco, pipeline=[*LOAD, RESIZE, PACK]))
    epochs = epochs_of(dataset, workers=1, persistent=persistent)
    hook = PipelineSwitchHook(1, [*LOAD, dict(type='Resize', scale=(32, 32)), PACK])
    names = []
    for epoch in range(3):
        runner = SimpleNamespace(
            epoch=epoch, train_dataloader=epochs.loader, logger=LOGGER
        )
        hook.before_train_epoch(runner)
        names.append({'RandomResize', 'Resize'} & set(run(epochs).transforms))
    epochs.close()
    assert names == [{'RandomResize'}, {'Resize'}, {'Resize'}]
