"""Ground truth of the demo's data, and synthetic predictions of a detector."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmdet.evaluation.metrics import CocoMetric
from mmdet.structures import DetDataSample
from mmengine.evaluator import Evaluator
from mmengine.structures import InstanceData

from mmgpu_hooks.experiment.demo_dataset import CATEGORIES, write_demo_dataset

SIZE = WIDTH, HEIGHT = 320, 240
META = {'classes': CATEGORIES}
MODULE = __import__(CocoMetric.__module__, fromlist=['*'])
"""Module in which MMDetection's CocoMetric looks up ``load`` and ``COCOeval``."""


def write_annotations(folder: Path, images: int = 12) -> Path:
    """Writes the demo's data set with an outline per object and some crowds."""
    write_demo_dataset(folder, images=images, width=WIDTH, height=HEIGHT)
    path = folder / 'annotations.json'
    coco = json.loads(path.read_text())
    for number, note in enumerate(coco['annotations']):
        left, top, width, height = note['bbox']
        right, bottom = left + width, top + height
        outline = [left, top, right, top, right, bottom, left + width / 3, bottom]
        note.update(segmentation=[outline], iscrowd=int(number % 7 == 0))
    outlined = folder / 'outlined.json'
    outlined.write_text(json.dumps(coco))
    return outlined


def predict(
    annotations: Path,
    *,
    every: int = 1,
    masks: bool = False,
    seed: int = 3,
) -> list[DetDataSample]:
    """Returns predicted boxes, some near the ground truth, some with equal scores.

    Args:
        annotations: The ground truth.
        every: Of so many images one has results.
        masks: Whether each box has a mask.
        seed: Of chance.
    """
    rng, coco = np.random.default_rng(seed), json.loads(annotations.read_text())
    samples = []
    for number, image in enumerate(coco['images']):
        notes = [n for n in coco['annotations'] if n['image_id'] == image['id']]
        near = np.repeat([note['bbox'] for note in notes], 4, axis=0)
        near = near + rng.normal(scale=3, size=near.shape)
        far = rng.uniform((0, 0, 8, 8), (260, 200, 120, 120), (20, 4))
        boxes = np.concatenate([near, far])
        boxes[:, 2:] = boxes[:, :2] + np.maximum(boxes[:, 2:], 2)
        labels = np.repeat([note['category_id'] - 1 for note in notes], 4)
        labels = np.concatenate([labels, rng.integers(2, size=20)])
        count = 0 if number % every else len(boxes)
        samples.append(_pack(image, boxes[:count], labels[:count], rng, masks))
    return samples


def _pack(
    image: dict[str, Any], boxes: Any, labels: Any, rng: Any, masks: bool
) -> DetDataSample:
    found = InstanceData(
        bboxes=torch.tensor(np.array(boxes), dtype=torch.float32),
        labels=torch.tensor(labels),
        scores=torch.tensor(rng.uniform(size=len(boxes)).round(2), dtype=torch.float32),
    )
    if masks:
        y, x = np.mgrid[:HEIGHT, :WIDTH]
        left, top, right, bottom = (side[:, None, None] for side in boxes.T)
        inside = (x >= left) & (x < right) & (y >= top) & (y < bottom)
        found.masks = torch.tensor(inside & (rng.uniform(size=SIZE[::-1]) > 0.1))
    sample = DetDataSample(metainfo={'img_id': image['id'], 'ori_shape': SIZE[::-1]})
    sample.pred_instances = found
    return sample


def evaluate(
    metric: Any, samples: Sequence[DetDataSample], size: int | None = None
) -> dict[str, float]:
    """Returns the metric values that MMEngine's evaluator computes batch by batch.

    Args:
        metric: A metric, or its config.
        samples: Those of this rank.
        size: Images of all ranks.
    """
    evaluator = Evaluator(metric)
    evaluator.dataset_meta = META
    for start in range(0, len(samples), 5):
        evaluator.process(samples[start : start + 5])
    found: dict[str, float] = evaluator.evaluate(size or len(samples))
    return found
