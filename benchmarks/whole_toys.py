"""Data, model and metric of the planted ordinary trainings, built from config files.

A config names it in ``custom_imports``. What an item costs is planted as CPU of the
process that loads it and as a wait, so the same on a busy machine.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.registry import DATASETS, METRICS, MODELS

from benchmarks.toy import OneWeight, Sized


def burn(seconds: float) -> None:
    """Use so much CPU of this thread."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@DATASETS.register_module()
class PlantedImages(Sized):
    """Images that cost CPU and waiting.

    Args:
        length: Of the data set.
        cpu_ms: CPU of one image.
        wait_ms: Wait for one image, as for slow storage.
    """

    def __init__(self, length: int, cpu_ms: float = 0.0, wait_ms: float = 0.0) -> None:
        super().__init__(length)
        self._cpu_s, self._wait_s = cpu_ms / 1000, wait_ms / 1000

    def __getitem__(self, index: int) -> dict[str, Any]:
        burn(self._cpu_s)
        if self._wait_s:
            time.sleep(self._wait_s)
        return {'inputs': torch.zeros(3, 64, 64), 'data_samples': index}


@DATASETS.register_module()
class PlantedAnnotations(BaseDataset):
    """Images whose annotations take long to parse.

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
    """A step that leaves the cores free, as one on a GPU does.

    Args:
        step_ms: Of one training step.
        predict_ms: Of one batch in validation.
        megabytes: That are saved with the weights.
    """

    def __init__(
        self, step_ms: float, predict_ms: float = 0.0, megabytes: int = 0
    ) -> None:
        super().__init__()
        self._step_s, self._predict_s = step_ms / 1000, predict_ms / 1000
        self.register_buffer('ballast', torch.zeros(megabytes * 250_000))

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        if mode == 'loss':
            time.sleep(self._step_s)
            return super().forward()
        time.sleep(self._predict_s)
        return data_samples


@METRICS.register_module()
class CountImages(BaseMetric):
    """Counts what was predicted."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(len(data_samples))

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        return {'images': float(sum(results))}
