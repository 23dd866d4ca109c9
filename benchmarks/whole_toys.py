"""Data sets, models and metrics of benchmark trainings, which take known times.

A config names it in ``custom_imports``. What an item costs is planted as CPU of the
process that loads it and as a wait, so the same on a busy machine.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.registry import DATASETS, METRICS, MODELS

from benchmarks.toy import OneWeight, Sized
from benchmarks.why_hangs import hold_log, log


def burn(seconds: float) -> None:
    """Computes for the given CPU seconds in this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def name_classes(count: int) -> list[str]:
    """Returns names for a number of artificial classes."""
    return [f'class {number}' for number in range(count)]


@DATASETS.register_module()
class PlantedImages(Sized):
    """Data set whose images take known CPU and waiting times to load.

    Args:
        length: Of the data set.
        cpu_ms: CPU of one image.
        wait_ms: Wait for one image, as for slow storage.
        cache_mib: Of a cache that each process fills with what it loads.
        logs_at: Image that a line is logged for, by a handler whose lock this process
            holds when it forks.
        classes: That its metric is told of.
    """

    def __init__(
        self,
        length: int,
        cpu_ms: float = 0.0,
        wait_ms: float = 0.0,
        cache_mib: int = 0,
        logs_at: int | None = None,
        classes: int = 0,
    ) -> None:
        super().__init__(length)
        self._cpu_s, self._wait_s = cpu_ms / 1000, wait_ms / 1000
        self.metainfo = {'classes': name_classes(classes)}
        self._cache: list[torch.Tensor] = []
        self._cache_mib, self._logs_at = cache_mib, logs_at
        if logs_at is not None:
            hold_log()

    def __getitem__(self, index: int) -> dict[str, Any]:
        burn(self._cpu_s)
        if index == self._logs_at:
            log()
        if len(self._cache) * 2 < self._cache_mib:
            self._cache.append(torch.ones(2**18 * 2))
        if self._wait_s:
            time.sleep(self._wait_s)
        return {'inputs': torch.zeros(3, 64, 64), 'data_samples': index}


@DATASETS.register_module()
class PlantedAnnotations(BaseDataset):
    """Data set whose annotations take a known time to parse.

    Args:
        length: Of the data set.
        parse_s: CPU seconds of parsing.
        ann_file: A file, whatever is in it.
    """

    def __init__(self, length: int, parse_s: float, ann_file: str) -> None:
        self._length, self._parse_s = length, parse_s
        super().__init__(ann_file=ann_file, pipeline=[])

    def load_data_list(self) -> list[dict[str, Any]]:
        burn(self._parse_s)
        return [{'img_id': number} for number in range(self._length)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {'inputs': torch.zeros(3, 64, 64), 'data_samples': index}


@MODELS.register_module()
class PlantedDetector(OneWeight):
    """Model whose train step sleeps, as if a GPU computed.

    Args:
        step_ms: Of one training step.
        predict_ms: Of one batch in validation.
        megabytes: That are saved with the weights.
        grows_from: Step from which on each leaves 4 MiB in this process.
        grows_until: Step before which that ends.
    """

    def __init__(
        self,
        step_ms: float,
        predict_ms: float = 0.0,
        megabytes: int = 0,
        grows_from: int = 0,
        grows_until: int = 0,
    ) -> None:
        super().__init__()
        self._growing, self._steps = range(grows_from, grows_until), 0
        self._kept: list[torch.Tensor] = []
        self._step_s, self._predict_s = step_ms / 1000, predict_ms / 1000
        self.register_buffer('ballast', torch.zeros(megabytes * 250_000))

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        if mode == 'loss':
            time.sleep(self._step_s)
            self._steps += 1
            if self._steps in self._growing:
                self._kept.append(torch.ones(2**20))
            return super().forward()
        time.sleep(self._predict_s)
        return data_samples


def draw_boxes(index: int, count: int) -> Any:
    """Returns the fixed boxes of an image as left, top, width and height."""
    rng = np.random.default_rng(index)
    sides = np.exp(rng.uniform(np.log(6), np.log(300), (count, 2)))
    corners = rng.uniform(0, 1, (count, 2)) * np.maximum((640, 480) - sides, 1)
    return np.hstack([corners, sides]).round(2)


@MODELS.register_module()
class PlantedBoxes(PlantedDetector):
    """Model that predicts many boxes, some of them close to the ground truth.

    Args:
        boxes: Of each image.
        step_ms: Of one training step.
    """

    def __init__(self, boxes: int, step_ms: float) -> None:
        super().__init__(step_ms)
        self._boxes = boxes

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        if mode == 'loss':
            return super().forward(inputs, data_samples, mode)
        return [self._predict(int(index)) for index in data_samples]

    def _predict(self, index: int) -> dict[str, Any]:
        rng, boxes = np.random.default_rng(index + 200_000), draw_boxes(index, 7)
        more = draw_boxes(index + 100_000, self._boxes - len(boxes))
        found = np.concatenate([boxes + rng.normal(scale=2, size=boxes.shape), more])
        found[:, 2:] = found[:, :2] + np.maximum(found[:, 2:], 1)
        instances = {
            'bboxes': torch.tensor(found, dtype=torch.float32),
            'scores': torch.tensor(rng.uniform(size=len(found)), dtype=torch.float32),
            'labels': torch.tensor(rng.integers(80, size=len(found))),
        }
        return {
            'img_id': index + 1,
            'ori_shape': (480, 640),
            'pred_instances': instances,
        }


def write_truth(path: Path, images: int, classes: int) -> None:
    """Writes the ground truth for :class:`PlantedBoxes` as a COCO annotation file."""
    notes = list[dict[str, Any]]()
    for index in range(images):
        for number, box in enumerate(draw_boxes(index, 7)):
            notes.append(
                {
                    'id': len(notes) + 1,
                    'image_id': index + 1,
                    'category_id': (index + number) % classes + 1,
                    'bbox': box.tolist(),
                    'area': float(box[2] * box[3]),
                    'iscrowd': 0,
                }
            )
    truth = {
        'images': [
            {'id': index + 1, 'width': 640, 'height': 480, 'file_name': ''}
            for index in range(images)
        ],
        'annotations': notes,
        'categories': [
            {'id': number + 1, 'name': name}
            for number, name in enumerate(name_classes(classes))
        ],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(truth))


@METRICS.register_module()
class CountImages(BaseMetric):
    """Metric that returns the number of predicted images."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        return {'images': float(sum(results))}
