"""Tests the loader probe on MMDetection's own data sets, transforms and hooks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mmdet.datasets  # noqa: F401, registers
import pytest
from mmdet.engine.hooks import PipelineSwitchHook
from mmdet.registry import DATASETS
from mmengine.dataset import pseudo_collate
from mmengine.registry import DefaultScope

from fakes.loaders import open_loops
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.measure.loader import worker as fetch
from mmgpu_hooks.measure.loader.pipeline import PipelineTimer

LOAD = [dict(type='LoadImageFromFile'), dict(type='LoadAnnotations', with_bbox=True)]
RESIZE = dict(
    type='RandomResize', scale=(64, 64), ratio_range=(0.5, 1.5), keep_ratio=True
)
CHOICE = dict(type='RandomChoice', transforms=[[RESIZE], [RESIZE]])
CACHED = dict(type='CachedMosaic', img_scale=(64, 64))
MOSAIC = dict(type='Mosaic', img_scale=(32, 32))
PACK = dict(type='PackDetInputs')
BRANCHES = dict(type='MultiBranch', branch_field=['sup'], sup=[PACK])
ONCE = {'LoadImageFromFile', 'LoadAnnotations', 'PackDetInputs'}


@pytest.fixture(autouse=True)
def names_of_mmdet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets MMDetection's registry as default, and times every batch."""
    monkeypatch.setattr(fetch, '_TIMING_PERIOD_S', 0.0)
    with DefaultScope.overwrite_default_scope('mmdet'):
        yield


@pytest.fixture(scope='module')
def coco(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Config of a small COCO data set on disk."""
    root: Path = tmp_path_factory.mktemp('coco')
    write_demo_dataset(root, images=12, width=96, height=64)
    return dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='annotations.json',
        metainfo=dict(classes=('rectangle', 'ellipse')),
        data_prefix=dict(img='images/'),
    )


@pytest.mark.parametrize(
    ('wrap', 'names'),
    [
        (
            lambda coco: dict(coco, pipeline=[*LOAD, CACHED, CHOICE, PACK]),
            {*ONCE, 'CachedMosaic', 'RandomChoice', 'RandomResize'},
        ),
        (
            lambda coco: dict(
                type='MultiImageMixDataset',
                dataset=dict(coco, pipeline=LOAD),
                pipeline=[MOSAIC, PACK],
            ),
            {*ONCE, 'Mosaic'},
        ),
        (lambda coco: dict(coco, pipeline=[*LOAD, BRANCHES]), {*ONCE, 'MultiBranch'}),
        (
            lambda coco: dict(
                type='ConcatDataset', datasets=[dict(coco, pipeline=[*LOAD, PACK])]
            ),
            ONCE,
        ),
    ],
    ids=['a pipeline', 'mosaic', 'branches', 'concatenated'],
)
def test_the_transforms_of_a_dataset_are_timed_by_name(coco, wrap, names):
    dataset, timer = DATASETS.build(wrap(coco)), PipelineTimer()
    timer.start(SimpleNamespace(dataset=dataset))
    dataset[1]
    costs = timer.stop()
    assert costs.keys() == names
    assert all(seconds > 0.0 for seconds in costs.values())


@pytest.mark.parametrize('persistent', [False, True])
def test_a_pipeline_that_a_hook_switches_is_followed(coco, persistent: bool):
    dataset = DATASETS.build(dict(coco, pipeline=[*LOAD, RESIZE, PACK]))
    hook = PipelineSwitchHook(1, [*LOAD, dict(type='Resize', scale=(32, 32)), PACK])
    logger, names = SimpleNamespace(info=lambda text: None), []
    with open_loops() as build:
        loop = build(
            dataset,
            batch_size=2,
            num_workers=1,
            persistent_workers=persistent,
            collate_fn=pseudo_collate,
        )
        for epoch in range(3):
            hook.before_train_epoch(
                SimpleNamespace(
                    epoch=epoch, train_dataloader=loop.loader, logger=logger
                )
            )
            loop.run_epoch()
            window = loop.read()
            assert window.timed_samples >= 2
            spent_s = sum(window.transforms_s.values())
            assert 0.0 < spent_s < window.batch_time.total_s
            names.append({'RandomResize', 'Resize'} & set(window.transforms_s))
    assert names == [{'RandomResize'}, {'Resize'}, {'Resize'}]
