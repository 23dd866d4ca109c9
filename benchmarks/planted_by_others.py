"""Pipelines of known loading times, by outsiders, to test iteration time predictions.

Each is one kind of training that users of MMDetection have: what its samples cost, what
they look like, how they are collated, and what a step does in the training process.
Nothing in the package may be tuned to them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from mmengine.dataset import pseudo_collate
from mmengine.structures import InstanceData
from torch.nn.functional import pad

from benchmarks.costs import (
    BLOCK,
    Work,
    draw_blocks,
    guess_iter_s,
    log_normal_block,
    pareto_block,
)
from benchmarks.toy import Sized

Step = Callable[[Any], None]
"""Type of functions that do the training process's work on one batch."""


@dataclass(frozen=True)
class Cost:
    """CPU and waiting time of reading one image, in milliseconds on an idle machine."""

    cpu_ms: float
    wait_ms: float = 0.0


class PlantedByOthers:
    """Base class of synthetic pipelines whose samples and steps take known times.

    Attributes:
        name: In the table.
        batch: Samples of a batch.
        costs: A block of reads, drawn again and again.
        is_in_order: True if the block is read as it stands, not shuffled.
        reads: That one sample takes.
        decoder: Kind of work that a read burns its CPU with.
        side: Of the square image that is handed over.
        step_ms: Of a step, mean.
        step_cpu_ms: Part of it that the training process works; it sleeps for the rest.
        step_work: Kind of that work.
        collate: Makes a batch of samples.
    """

    origin = 'others'
    hogs = 0
    name: str
    batch: int = 4
    costs: Sequence[Cost]
    is_in_order = False
    reads = 1
    decoder = 'burn'
    side = 128
    step_ms: float
    step_cpu_ms = 0.0
    step_work = 'burn'
    collate = staticmethod(pseudo_collate)

    @property
    def period(self) -> int:
        """Number of samples over which random read times average to a known mean."""
        return len(self.costs)

    def guess_iter_s(self, workers: int, cores: int) -> float:
        """Estimates an iteration's seconds from the known loading and step times."""
        reads = self.batch * self.reads
        return guess_iter_s(
            workers,
            cores,
            cpu_s=reads * fmean(cost.cpu_ms for cost in self.costs) / 1000,
            wait_s=reads * fmean(cost.wait_ms for cost in self.costs) / 1000,
            step_s=self.step_ms / 1000,
            step_cpu_s=self.step_cpu_ms / 1000,
        )

    def make_dataset(
        self, folder: Path, works: dict[str, Work], length: int, seed: int = 1
    ) -> PlantedSamples:
        """Returns the data set, in a different order for each training."""
        return PlantedSamples(self, works[self.decoder], length, seed)

    def make_sample(self, index: int) -> dict[str, Any]:
        """Returns the content of one sample, without spending its reading time."""
        return {'inputs': torch.zeros(3, self.side, self.side), 'data_samples': index}

    def make_step(self, works: dict[str, Work]) -> Step:
        """Returns the train step; without CPU work it sleeps, as if a GPU computed."""
        work, work_s = works[self.step_work], self.step_cpu_ms / 1000
        sleep_s = self.step_ms / 1000 - work_s

        def step(batch: Any) -> None:
            work.burn(work_s)
            time.sleep(sleep_s)

        return step


class PlantedSamples(Sized):
    """Data set whose samples take the read times of a pipeline with known costs."""

    def __init__(
        self, pipeline: PlantedByOthers, work: Work, length: int, seed: int
    ) -> None:
        super().__init__(length)
        self._pipeline, self._work = pipeline, work
        costs = draw_blocks(pipeline.costs, seed)
        if pipeline.is_in_order:
            costs = itertools.cycle(pipeline.costs)
        self._costs = list(itertools.islice(costs, length * pipeline.reads))

    def __getitem__(self, index: int) -> dict[str, Any]:
        reads = self._pipeline.reads
        for cost in self._costs[index * reads : (index + 1) * reads]:
            self._work.burn(cost.cpu_ms / 1000)
            if cost.wait_ms:
                time.sleep(cost.wait_ms / 1000)
        return self._pipeline.make_sample(index)


class TinyCrops(PlantedByOthers):
    """Pipeline of 32-pixel crops from memory, 64 per batch."""

    name = '64 tiny crops'
    batch = 64
    costs = (Cost(0.22),) * BLOCK
    decoder = 'python'  # its pieces are small enough
    side = 32
    step_ms = 11


class ManyTensors(PlantedByOthers):
    """Pipeline of instance segmentation: boxes, masks and meta data as many tensors."""

    name = 'many small tensors'
    batch = 3
    costs = tuple(Cost(2.4 * factor) for factor in log_normal_block(0.3, 48))
    step_ms = 10

    def make_sample(self, index: int) -> dict[str, Any]:
        objects = 1 + index % 7
        data = {
            kind: InstanceData(
                bboxes=torch.zeros(objects, 4),
                labels=torch.zeros(objects, dtype=torch.long),
                masks=torch.zeros(objects, 28, 28, dtype=torch.bool),
                areas=torch.zeros(objects),
            )
            for kind in ('gt_instances', 'ignored_instances', 'proposals')
        }
        meta = {
            key: torch.zeros(2)
            for key in ('img_shape', 'ori_shape', 'scale_factor', 'pad_shape')
        }
        return {**super().make_sample(index), 'data_samples': data, 'meta': meta}


class HugeFiles(PlantedByOthers):
    """Pipeline of aerial photographs; 1 in 53 has 30 times the pixels."""

    name = '1 of 53 files is huge'
    costs = (Cost(1.8),) * 52 + (Cost(54),)
    step_ms = 11


class RetriedReads(PlantedByOthers):
    """Pipeline with HTTP storage, where 1 of 19 requests times out and is retried."""

    name = '1 of 19 reads is retried'
    batch = 2
    costs = (Cost(0.7, 3),) * 18 + (Cost(0.7, 83),)
    step_ms = 9


class ObjectStore(PlantedByOthers):
    """Pipeline with a shared object store, whose waits are Pareto-distributed."""

    name = 'object store, Pareto 1.5'
    costs = tuple(Cost(0.6, 5 * factor) for factor in pareto_block(1.5, 128))
    step_ms = 13


class NetworkDrive(PlantedByOthers):
    """Pipeline with a network drive, whose waits are log-normal with high variance."""

    name = 'network drive, log-normal 2.5'
    batch = 2
    costs = tuple(Cost(1.5, 9 * factor) for factor in log_normal_block(2.5, 128))
    step_ms = 12


class ColdShards(PlantedByOthers):
    """Pipeline with images in shards: every 16th image opens a shard, which is slow.

    With four images a batch each fourth batch opens a shard: of 1, 2 or 4 workers it is
    always the same one that does, of 3 each in turn.
    """

    name = 'each 16th read is cold'
    costs = (Cost(6, 50), *[Cost(1.1)] * 15)
    is_in_order = True
    step_ms = 12


class SortedBySize(PlantedByOthers):
    """Pipeline of a data set sorted by image size, and read in this order."""

    name = 'sorted by size'
    costs = tuple(Cost(1 + 7 * number / 95) for number in range(96))
    is_in_order = True
    step_ms = 16


class LaptopTraining(PlantedByOthers):
    """Pipeline of a laptop without GPU: polygons in Python, a step of two threads."""

    name = 'Python decode, step of 2 threads'
    batch = 2
    costs = tuple(Cost(4.5 * factor) for factor in log_normal_block(0.4))
    decoder = 'python'
    step_ms = step_cpu_ms = 22
    step_work = 'threads'


class PythonInTheLoop(PlantedByOthers):
    """Pipeline with target assignment in Python on the training thread in each step."""

    name = 'Python on the training thread'
    batch = 3
    costs = tuple(Cost(4 * factor) for factor in log_normal_block(0.3, 48))
    step_ms = 16
    step_cpu_ms = 7
    step_work = 'python'


class BytesConverted(PlantedByOthers):
    """Pipeline of uint8 images that the training process converts to floats.

    As MMDetection's data preprocessor does on the CPU.
    """

    name = 'bytes, converted in the loop'
    costs = tuple(Cost(3.5 * factor) for factor in log_normal_block(0.5))
    step_ms = 10

    def make_sample(self, index: int) -> dict[str, Any]:
        image = torch.zeros(3, 480, 640, dtype=torch.uint8)
        return {'inputs': image, 'data_samples': index}

    def make_step(self, works: dict[str, Work]) -> Step:
        sleep = super().make_step(works)
        mean = torch.tensor([123.7, 116.3, 103.5]).view(3, 1, 1)
        std = torch.tensor([58.4, 57.1, 57.4]).view(3, 1, 1)

        def step(batch: Any) -> None:
            torch.stack([(image.float() - mean) / std for image in batch['inputs']])
            sleep(batch)

        return step


class PaddedFloats(PlantedByOthers):
    """Pipeline of 1333x800 float images, padded by workers to the batch's largest."""

    name = 'floats of 1333x800, padded'
    batch = 2
    costs = tuple(Cost(9 * factor) for factor in log_normal_block(0.3, 24))
    step_ms = 45

    def make_sample(self, index: int) -> dict[str, Any]:
        # one in four stands upright
        height, width = (1333, 800) if index % 4 == 3 else (800, 1333)
        return {'inputs': torch.zeros(3, height, width), 'data_samples': index}

    @staticmethod
    def collate(samples: Sequence[Any]) -> Any:
        images = [sample['inputs'] for sample in samples]
        height = max(image.shape[1] for image in images)
        width = max(image.shape[2] for image in images)
        padded = [
            pad(image, (0, width - image.shape[2], 0, height - image.shape[1]))
            for image in images
        ]
        batch = pseudo_collate([{**sample, 'inputs': 0} for sample in samples])
        return {**batch, 'inputs': torch.stack(padded)}


class Mosaics(PlantedByOthers):
    """Pipeline of YOLO's Mosaic on a hard disk: four reads and a canvas per sample."""

    name = 'mosaic of 4 reads'
    batch = 2
    costs = tuple(Cost(0.9, 2.2 * factor) for factor in log_normal_block(1))
    reads = 4
    side = 160
    step_ms = 15

    def make_sample(self, index: int) -> dict[str, Any]:
        tile = torch.ones(3, self.side, self.side)
        canvas = torch.full((3, 2 * self.side, 2 * self.side), 114.0)
        for row, column in itertools.product((0, self.side), repeat=2):
            canvas[:, row : row + self.side, column : column + self.side] = tile
        return {'inputs': canvas, 'data_samples': index}


class MultiScaleSteps(PlantedByOthers):
    """Pipeline of multi-scale training, where every tenth step takes five times longer.

    ``step_ms`` is the mean.
    """

    name = 'each 10th step is 5 times as long'
    costs = tuple(Cost(2.6 * factor) for factor in log_normal_block(0.4, 40))
    step_ms = 11.2

    def make_step(self, works: dict[str, Work]) -> Step:
        short_s = self.step_ms / 1000 / 1.4
        lengths_s = itertools.cycle([short_s] * 9 + [5 * short_s])
        return lambda batch: time.sleep(next(lengths_s))


OTHERS: tuple[PlantedByOthers, ...] = (
    TinyCrops(),
    ManyTensors(),
    HugeFiles(),
    RetriedReads(),
    ObjectStore(),
    NetworkDrive(),
    ColdShards(),
    SortedBySize(),
    LaptopTraining(),
    PythonInTheLoop(),
    BytesConverted(),
    PaddedFloats(),
    Mosaics(),
    MultiScaleSteps(),
)
