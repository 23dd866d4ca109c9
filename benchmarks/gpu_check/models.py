"""What `make gpu-check` trains: a toy always, a real detector when there is one."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.utils.data import Dataset

SMALL, LARGE = 256, 640
"""Sides of the images in pixels; both are multiples of what detectors pad to."""

Item = Callable[[int, int], 'dict[str, Any]']


class Subject(NamedTuple):
    """What is trained."""

    name: str
    model: BaseModel
    item: Item
    """Makes an image of an index and a side."""


class Images(Dataset['dict[str, Any]']):
    """Images whose sides are given, in order.

    Args:
        item: Makes one of an index and a side.
        sides: Their sides, in pixels.
    """

    def __init__(self, item: Item, sides: list[int]) -> None:
        self._item = item
        self._sides = sides

    def __len__(self) -> int:
        return len(self._sides)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._item(index, self._sides[index])


def toy() -> Subject:
    """Two convolutions, the same weights each time."""
    return Subject('toy', ToyModel(), toy_item)


def detector() -> Subject | None:
    """A detector of torchvision, else of MMDetection; ``None`` without either."""
    if find_spec('torchvision') is not None:
        return Subject('torchvision FasterRCNN', TorchvisionDetector(), toy_item)
    if find_spec('mmdet') is not None:
        return Subject('MMDetection RTMDet-tiny', _rtmdet(), _detection_item)
    return None


class ToyModel(BaseModel):
    """Its loss depends on the images alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
        generator = torch.Generator().manual_seed(1)
        for weights in self.parameters():
            nn.init.uniform_(weights, -0.1, 0.1, generator=generator)

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        features = self.layers(torch.stack(list(inputs)))
        return {'loss': features.pow(2).mean()} if mode == 'loss' else [features]


class TorchvisionDetector(BaseModel):
    """Faster R-CNN with a small backbone, without any download."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

        # resized to 320 x 320, a large image would take what a small one takes
        self.detector = fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=3, _skip_resize=True
        )

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        images = list(inputs)
        boxes = torch.tensor([[10.0, 10.0, 90.0, 90.0]], device=images[0].device)
        labels = torch.ones(1, dtype=torch.int64, device=images[0].device)
        targets = [{'boxes': boxes, 'labels': labels} for _ in images]
        return self.detector(images, targets)


def toy_item(index: int, side: int) -> dict[str, Tensor]:
    """An image that depends on its index alone."""
    generator = torch.Generator().manual_seed(index)
    return {
        'inputs': torch.rand(3, side, side, generator=generator),
        'data_samples': torch.tensor(float(index)),
    }


def _rtmdet() -> BaseModel:
    from mmdet.registry import MODELS
    from mmdet.utils import register_all_modules
    from mmengine.config import Config

    register_all_modules(init_default_scope=True)
    base = "_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'"
    config = Config.fromstring(base, '.py').model
    config.backbone.init_cfg = None  # no download
    config.data_preprocessor.batch_augments = None  # one GPU needs no mosaic of sizes
    model = MODELS.build(config)
    assert isinstance(model, BaseModel)
    return model


def _detection_item(index: int, side: int) -> dict[str, Any]:
    from mmdet.structures import DetDataSample
    from mmengine.structures import InstanceData

    sample = DetDataSample(
        metainfo={
            'img_shape': (side, side),
            'ori_shape': (side, side),
            'pad_shape': (side, side),
            'scale_factor': (1.0, 1.0),
            'img_id': index,
        },
        gt_instances=InstanceData(
            bboxes=torch.tensor([[10.0, 10.0, 90.0, 90.0]]), labels=torch.tensor([0])
        ),
    )
    image = (toy_item(index, side)['inputs'] * 255).to(torch.uint8)
    return {'inputs': image, 'data_samples': sample}
