"""Small trainings for benchmarks: MMEngine's Runner with a tiny model."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import pseudo_collate
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import nn
from torch.utils.data import Dataset

SAVES = {'type': 'CheckpointHook', 'by_epoch': False}
HOOK = {
    'type': 'mmgpu_hooks.GPUEfficiencyHook',
    'summary': False,
    'write_config': False,
}


class Sized(Dataset[dict[str, Any]]):
    """Data set of a given length."""

    metainfo: dict[str, Any] = {}  # noqa: RUF012  # MMEngine asks the instance for it

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


class OneWeight(BaseModel):
    """Model with a single weight, whose train step takes almost no time."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, *args: Any, **more: Any) -> Any:
        return {'loss': self.weight.sum()}


def build_runner(
    model: Any,
    dataset: Any,
    work_dir: Path | str,
    *,
    kind: Any = Runner,
    loader: Mapping[str, Any] | None = None,
    hooks: Mapping[str, Any] | None = None,
    interval: int = 10,
    **more: Any,
) -> Any:
    """Returns a Runner that loads one sample per iteration for one epoch.

    It saves nothing.

    Args:
        model: What to train.
        dataset: What to train it on.
        work_dir: Of the run.
        kind: Class of the Runner.
        loader: More settings of the train loader.
        hooks: Default hooks by name, ours among them.
        interval: Iterations per line of LoggerHook.
        more: Further arguments of the Runner, or others than those here.
    """
    arguments = {
        'model': model,
        'work_dir': str(work_dir),
        'train_dataloader': {
            'dataset': dataset,
            'batch_size': 1,
            'num_workers': 0,
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'collate_fn': {'type': pseudo_collate},
            **(loader or {}),
        },
        'train_cfg': {'by_epoch': True, 'max_epochs': 1},
        'optim_wrapper': {'optimizer': {'type': 'SGD', 'lr': 0.01}},
        'default_hooks': {
            'logger': {'type': 'LoggerHook', 'interval': interval},
            'checkpoint': {**SAVES, 'interval': -1, 'save_last': False},
            **(hooks or {}),
        },
        'log_level': 'ERROR',
        'experiment_name': f'toy_{uuid.uuid4().hex}',
    }
    return kind(**{**arguments, **more})
