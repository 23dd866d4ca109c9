"""MMDetection's own training pipelines, on the demo's images."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.registry import DATASETS
from mmengine.utils import import_modules_from_strings
from torch.utils.data import Dataset

from benchmarks.predict_pipelines import Pipeline
from mmgpu_hooks.experiment.demo_dataset import DemoDataset, write_demo_dataset

IMAGES, WIDTH, HEIGHT = 64, 800, 600

_RETINANET = 'retinanet/retinanet_r50_fpn_1x_coco.py'
_MASK_RCNN_LSJ = 'common/lsj-100e_coco-instance.py'
_YOLOX = 'yolox/yolox_s_8xb8-300e_coco.py'

# the milliseconds of loading are guesses, for the length of a training only
PIPELINES = (
    Pipeline('RetinaNet', 45, 0, 0.3, 1, 60, recipe=_RETINANET),
    Pipeline('Mask R-CNN, LSJ', 95, 0, 0.3, 1, 60, recipe=_MASK_RCNN_LSJ),
    Pipeline('YOLOX, Mosaic and MixUp', 370, 0, 0.3, 1, 100, recipe=_YOLOX),
)
"""With a step that only sleeps."""


class RecipeImages(Dataset[dict]):
    """The data set of a config of MMDetection, as long as is wanted.

    Args:
        recipe: The config.
        folder: Where the demo's images are, or will be.
        length: Of the data set.
    """

    def __init__(self, recipe: str, folder: Path, length: int) -> None:
        demo = write_demo_dataset(folder, images=IMAGES, width=WIDTH, height=HEIGHT)
        annotations = _add_masks(demo)
        import_modules_from_strings('mmdet.datasets')
        config = Config.fromfile(_find_config(recipe))
        dataset = config.train_dataloader.dataset
        _point_to(dataset, demo.image_folder, annotations)
        dataset['_scope_'] = 'mmdet'
        self._dataset = DATASETS.build(dataset)
        self.metainfo = self._dataset.metainfo
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        return self._dataset[index % len(self._dataset)]


def _find_config(recipe: str) -> str:
    """The config file in MMDetection's own wheel."""
    package = Path(import_module('mmdet').__file__ or '').parent
    return str(package / '.mim' / 'configs' / recipe)


def _add_masks(demo: DemoDataset) -> Path:
    """Annotations in which every box is a polygon too, for pipelines with masks."""
    path = demo.annotation_file.with_name('annotations_with_masks.json')
    content = json.loads(demo.annotation_file.read_text())
    for box in content['annotations']:
        x, y, width, height = box['bbox']
        right, bottom = x + width, y + height
        box['segmentation'] = [[x, y, right, y, right, bottom, x, bottom]]
    path.write_text(json.dumps(content))
    return path


def _point_to(node: Any, images: Path, annotations: Path) -> None:
    """Set the files of every COCO data set in a config."""
    if isinstance(node, dict):
        if node.get('type') == 'CocoDataset':
            node['data_root'] = ''
            node['ann_file'] = str(annotations)
            node['data_prefix'] = {'img': str(images)}
            node['metainfo'] = {'classes': ('rectangle', 'ellipse')}
        for value in node.values():
            _point_to(value, images, annotations)
    elif isinstance(node, (list, tuple)):
        for value in node:
            _point_to(value, images, annotations)
