"""Models that ``make gpu-check`` trains: a toy model and torchvision's Faster R-CNN."""

from __future__ import annotations

import time
from importlib.util import find_spec
from typing import Any

import torch
from mmengine.model import BaseModel
from torch import Tensor, nn
from torch.utils.data import Dataset

SMALL, LARGE = 256, 640
"""Image sides in pixels of small and large images, multiples of 32 as detectors pad."""


class Images(Dataset['dict[str, Any]']):
    """Data set of random images with given sides in a fixed order.

    Args:
        sides: In pixels.
        item_s: Seconds that each takes to load.
    """

    def __init__(self, sides: list[int], item_s: float = 0.0) -> None:
        self._sides, self._item_s = sides, item_s

    def __len__(self) -> int:
        return len(self._sides)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        time.sleep(self._item_s)
        generator, side = torch.Generator().manual_seed(index), self._sides[index]
        image = torch.rand(3, side, side, generator=generator)
        return {'inputs': image, 'data_samples': torch.tensor(float(index))}


class ToyModel(BaseModel):
    """Model of two convolutions with fixed initial weights and an image-dependent loss.

    Args:
        more: Further parameters, each of which is in the loss.
    """

    def __init__(self, more: int = 0) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 4, 3))
        self.more = nn.ParameterList(torch.zeros(8) for _ in range(more))
        generator = torch.Generator().manual_seed(1)
        for weights in self.parameters():
            nn.init.uniform_(weights, -0.1, 0.1, generator=generator)

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        features = self.layers(torch.stack(list(inputs)))
        if mode != 'loss':
            return [features]
        return {
            'loss': features.pow(2).mean() + sum(weights.sum() for weights in self.more)
        }


class TorchvisionDetector(BaseModel):
    """Torchvision's Faster R-CNN with a small backbone and random weights."""

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


def list_models() -> list[type[BaseModel]]:
    """Returns the models that can be trained with the packages installed here."""
    has_detector = find_spec('torchvision') is not None
    return [ToyModel, TorchvisionDetector] if has_detector else [ToyModel]
