"""Compares CocoMetric and FastCocoMetric on the same results, array by array.

Importing it imports MMDetection, as `coco_metric` does.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import MMLogger

from mmgpu_hooks.measure.clock import process_cpu_s
from mmgpu_hooks.optimize.coco_metric import (
    ARRAYS,
    FastCocoMetric,
    find_coco_metric,
    rebind,
)
from mmgpu_hooks.schema.judged import MetricCheck


class _Kept(FastCocoMetric):
    """FastCocoMetric that keeps every COCOeval object it makes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made: list[Any] = []

    def open_evaluation(self, truth: Any, results: Any, kind: str) -> Any:
        self.made.append(super().open_evaluation(truth, results, kind))
        return self.made[-1]


def check_metric(annotations: Path, results: Path, kind: str) -> MetricCheck:
    """Evaluates results by CocoMetric and by FastCocoMetric, and compares both.

    Each takes as long as in a validation.

    Args:
        annotations: Ground truth.
        results: As CocoMetric writes them.
        kind: ``bbox`` or ``segm``.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If a file is not what it should be.
    """
    arguments = {'ann_file': str(annotations), 'metric': kind}
    rows = json.loads(results.read_text())
    with _silence():
        plain, fast = find_coco_metric()(**arguments), _Kept(**arguments)
        api = plain._coco_api
        names = [entry['name'] for entry in api.dataset['categories']]
        for metric in (plain, fast):
            metric.dataset_meta = {'classes': names}
        kept = [*_list_results(rows, api.get_cat_ids(cat_names=names), kind)]
        made: list[Any] = []
        compute = _keep_evaluations(type(plain).compute_metrics, made)
        began_s = process_cpu_s()
        said = compute(plain, kept)
        plain_s, began_s = process_cpu_s() - began_s, process_cpu_s()
        fast_said = fast.compute_metrics(kept)
        fast_s = process_cpu_s() - began_s
    return MetricCheck(
        images=len(kept),
        rows=len(rows),
        differing=tuple(_list_differing(made, fast.made, said, fast_said)),
        plain_cpu_s=plain_s,
        fast_cpu_s=fast_s,
        plain_reason=fast.plain_reason,
    )


def _keep_evaluations(function: Any, made: list[Any]) -> Any:
    """Copies ``compute_metrics`` so that its COCOeval objects are kept in a list."""
    make = function.__globals__['COCOeval']

    def keep(*args: Any) -> Any:
        made.append(make(*args))
        return made[-1]

    return rebind(function, {'COCOeval': keep})


def _list_results(
    rows: list[dict[str, Any]], categories: list[int], kind: str
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Converts COCO results to those that ``CocoMetric.process`` stores, by image."""
    by_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_image[row['image_id']].append(row)
    labels = {category: label for label, category in enumerate(categories)}
    for image, found in by_image.items():
        boxes = np.array([row['bbox'] for row in found], np.float64)
        boxes[:, 2:] += boxes[:, :2]
        result: dict[str, Any] = {
            'img_id': image,
            'bboxes': boxes.astype(np.float32),
            'scores': np.array([row['score'] for row in found], np.float32),
            'labels': np.array([labels[row['category_id']] for row in found]),
        }
        if kind == 'segm':
            result['masks'] = [dict(row['segmentation']) for row in found]
        yield {}, result


def _list_differing(
    plain: list[Any],
    fast: list[Any],
    said: Mapping[str, float],
    fast_said: Mapping[str, float],
) -> Iterator[str]:
    for ours, theirs in zip(fast, plain):
        for name in ARRAYS:
            if not np.array_equal(ours.eval[name], theirs.eval[name]):
                yield name
        if not np.array_equal(ours.stats, theirs.stats):
            yield 'stats'
    if dict(said) != dict(fast_said):
        yield 'figures'


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Context that hides the prints of pycocotools and the log of MMDetection."""
    logger = MMLogger.get_current_instance()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logger.setLevel(level)
