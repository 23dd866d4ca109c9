"""The trainings whose cost is measured: MMEngine's Runner on detection batches."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Callable

import torch
from mmengine.dataset import BaseDataset, pseudo_collate
from mmengine.model import BaseModel
from mmengine.registry import LOOPS
from mmengine.runner import BaseLoop, Runner
from mmengine.structures import BaseDataElement, InstanceData
from torch import Tensor, nn

from benchmarks.planted_job import end_workers

INTERVAL = 50
"""Iterations per line of LoggerHook, as in MMDetection."""

BATCH_SIZE, WORKERS = 2, 2
_SIDE, _BOXES, _CHANNELS, _LAYERS = 64, 8, 16, 10


class MakePixels:
    """Stands for the reading of an image; the work is light."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        pixels = torch.full((3, _SIDE, _SIDE), results['img_id'] % 255)
        results['pixels'] = pixels.to(torch.uint8)
        return results


class PackSample:
    """Packs what MMDetection packs: a tensor and a data sample with its boxes."""

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        sample = BaseDataElement(
            metainfo={'img_id': results['img_id'], 'img_shape': (_SIDE, _SIDE)}
        )
        sample.gt_instances = InstanceData(
            bboxes=torch.rand(_BOXES, 4), labels=torch.zeros(_BOXES, dtype=torch.long)
        )
        return {'inputs': results['pixels'], 'data_samples': sample}


class Images(BaseDataset):
    """Images with boxes, through a pipeline.

    Args:
        length: Images.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        super().__init__(pipeline=[MakePixels(), PackSample()])

    def load_data_list(self) -> list[dict[str, Any]]:
        return [{'img_id': index} for index in range(self._length)]


class Network(BaseModel):
    """Ten convolutions with their norms, forward and backward: about 10 ms.

    Between two steps the caches are as cold as a real model leaves them.
    """

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for index in range(_LAYERS):
            layers += [
                nn.Conv2d(_CHANNELS if index else 3, _CHANNELS, 3, padding=1),
                nn.BatchNorm2d(_CHANNELS),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        features = self.layers(torch.stack(inputs).float() / 255)
        return {'loss': features.mean()} if mode == 'loss' else features


class FixedWork(BaseModel):
    """A step of always the same matrix products.

    Args:
        products: How many; see :func:`find_products`.
    """

    def __init__(self, products: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._products = products

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        work(self._products)
        return {'loss': self.weight.sum()}


@functools.lru_cache(maxsize=1)
def matrices() -> tuple[Tensor, Tensor]:
    """What a fixed step multiplies, and where it leaves the product.

    One pair for all trainings: where memory happens to lie can make one training
    faster than another by more than a hook costs.
    """
    return torch.full((384, 384), 1 / 384), torch.empty(384, 384)


@torch.no_grad()
def work(products: int) -> None:
    """Multiply so often."""
    square, product = matrices()
    for _ in range(products):
        torch.mm(square, square, out=product)


def find_products(seconds: float) -> int:
    """How many products take so long on this machine."""
    best_s = float('inf')
    for _ in range(5):
        begin = time.perf_counter()
        work(20)
        best_s = min(best_s, (time.perf_counter() - begin) / 20)
    return max(1, round(seconds / best_s))


class NoWork(BaseModel):
    """A step that does nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self._outputs = {'loss': torch.tensor(1.0)}

    def forward(
        self, inputs: Any, data_samples: Any = None, mode: str = 'tensor'
    ) -> Any:
        return self._outputs

    def train_step(self, data: Any, optim_wrapper: Any) -> Any:
        return self._outputs


@LOOPS.register_module()
class BareLoop(BaseLoop):
    """Trains on one and the same batch; the loader's workers live, and make no other.

    Args:
        iterations: Of the one epoch, unless somebody else asks for them.
    """

    on_begun: Callable[[], None] | None = None
    """Called when it has begun, in place of its own iterations."""

    def __init__(self, runner: Any, dataloader: Any, iterations: int) -> None:
        super().__init__(runner, dataloader)
        self.iter = self.epoch = self._epoch = self._iter = 0
        self.max_iters, self.max_epochs = iterations, 1
        self.val_begin, self.val_interval = 0, 1
        self.stop_training = False

    def run(self) -> Any:
        runner = self.runner
        runner.call_hook('before_train')
        runner.call_hook('before_train_epoch')
        self._batch = next(iter(self.dataloader))
        if self.on_begun is None:
            for _ in range(self.max_iters):
                self.take()
        else:
            self.on_begun()
        runner.call_hook('after_train_epoch')
        runner.call_hook('after_train')
        return runner.model

    def take(self) -> None:
        """Train one iteration."""
        runner, batch, index = self.runner, self._batch, self.iter
        runner.call_hook('before_train_iter', batch_idx=index, data_batch=batch)
        outputs = runner.model.train_step(batch, optim_wrapper=runner.optim_wrapper)
        runner.call_hook(
            'after_train_iter', batch_idx=index, data_batch=batch, outputs=outputs
        )
        self.iter = self._iter = index + 1


def build(
    work_dir: Path,
    model: BaseModel,
    iterations: int,
    hooks: Sequence[Any],
    *,
    train_cfg: dict[str, Any] | None = None,
) -> Runner:
    """A Runner with MMEngine's default hooks, an EMAHook and those of ``hooks``.

    Args:
        work_dir: Folder of the run.
        model: What to train.
        iterations: Of the one epoch.
        hooks: Further hooks.
        train_cfg: Of another loop than MMEngine's epochs.
    """
    return Runner(
        model=model,
        work_dir=str(work_dir),
        train_dataloader={
            'dataset': Images(iterations * BATCH_SIZE),
            'sampler': {'type': 'DefaultSampler', 'shuffle': True},
            'batch_size': BATCH_SIZE,
            'num_workers': WORKERS,
            'persistent_workers': True,
            'collate_fn': {'type': pseudo_collate},
        },
        train_cfg=train_cfg or {'by_epoch': True, 'max_epochs': 1},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 1e-4, 'momentum': 0.9}},
        default_hooks={
            'logger': {'type': 'LoggerHook', 'interval': INTERVAL},
            'checkpoint': {
                'type': 'CheckpointHook',
                'interval': -1,
                'save_last': False,
            },
        },
        custom_hooks=[{'type': 'EMAHook'}, *hooks],
        log_level='ERROR',
        experiment_name=f'overhead_{uuid.uuid4().hex}',
    )


def stamp_steps(model: Any, on_step: Callable[[], None]) -> None:
    """Call ``on_step`` at the begin of each step of ``model``."""
    original = model.train_step

    def train_step(*args: Any, **kwargs: Any) -> Any:
        on_step()
        return original(*args, **kwargs)

    model.train_step = train_step


def train(runner: Runner) -> None:
    """Train, and end the workers."""
    try:
        runner.train()
    finally:
        end_workers(runner)
