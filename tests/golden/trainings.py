"""Toy trainings for golden runs: ``python -m golden.trainings NAME FOLDER``.

``record.py`` calls it, under ``torchrun`` for several ranks, and collects the evidence.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DEMO = 'configs/demo/rtmdet-tiny_demo.py'
SAVING = {'interval': 20, 'by_epoch': False, 'max_keep_ckpts': 1}


@dataclass(frozen=True)
class Training:
    """Settings of a toy training, passed to ``build_runner``."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    burnt_s: float = 0.0
    """CPU seconds that a worker uses for each image."""
    weights: int = 0
    """Number of additional weights in each checkpoint."""
    validated: int = 0
    """Number of validation images, each loaded in 5 ms without workers."""
    ranks: int = 1
    """Number of ranks; the last of several loads four times as slowly."""
    killed_after: int | None = None
    """Iteration after which the training is killed by SIGKILL; ``None`` for never."""
    resumed: bool = False
    """True if the training resumes after an epoch was trained before."""


def of_epochs(epochs: int, iterations: int, **settings: Any) -> dict[str, Any]:
    """Returns settings of a training that logs every ten iterations."""
    defaults = {'log_interval': 10, 'step_s': 0.02}
    return {**defaults, 'epochs': epochs, 'iterations': iterations, **settings}


TRAININGS: dict[str, Training] = {
    'toy_light_loading': Training(
        of_epochs(3, 60, num_workers=2, persistent_workers=True, item_s=0.005)
    ),
    'toy_without_workers': Training(of_epochs(3, 60, item_s=0.02)),
    'toy_waits_for_storage': Training(
        of_epochs(3, 60, num_workers=2, persistent_workers=True, item_s=0.06)
    ),
    'toy_burns_all_cores': Training(
        of_epochs(3, 40, num_workers=4, persistent_workers=True), burnt_s=0.05
    ),
    'toy_short_epochs': Training(
        of_epochs(
            12,
            10,
            num_workers=2,
            item_s=0.02,
            evaluation_s=0.05,
            checkpoint={'interval': 1, 'max_keep_ckpts': 1},
        )
    ),
    'toy_iteration_based': Training(
        of_epochs(1, 160, loop='iter', length=160, num_workers=2, item_s=0.02)
    ),
    'toy_validates': Training(
        of_epochs(4, 40, num_workers=2, persistent_workers=True), validated=60
    ),
    'toy_saves_beside_busy_workers': Training(
        of_epochs(2, 80, num_workers=6, persistent_workers=True, checkpoint=SAVING),
        burnt_s=0.05,
        weights=40_000_000,
    ),
    'toy_two_ranks': Training(
        of_epochs(
            2,
            60,
            length=240,
            item_s=0.005,
            launcher='pytorch',
            env_cfg={'dist_cfg': {'backend': 'gloo'}},
            # without it MMEngine gives each rank a GPU of its own
            cfg={
                'model_wrapper_cfg': {
                    'type': 'MMDistributedDataParallel',
                    'device_ids': None,
                }
            },
        ),
        ranks=2,
    ),
    'toy_killed': Training(
        of_epochs(9, 60, num_workers=1, item_s=0.02), killed_after=100
    ),
    'toy_resumed': Training(
        of_epochs(3, 50, item_s=0.02, checkpoint={'interval': 1}), resumed=True
    ),
}


def train_toy(training: Training, folder: Path) -> None:
    """Runs a toy training in this process."""
    import torch

    from training.toy import train

    torch.set_num_threads(1)
    settings = dict(training.settings)
    if training.ranks > 1:
        torch.distributed.init_process_group('gloo')
        settings['item_s'] *= 4 if torch.distributed.get_rank() else 1
    if training.resumed:
        first = folder / 'first'
        train(_build(training, first, {**settings, 'epochs': 1}))
        last = str(first / 'epoch_1.pth')
        settings |= {'resume': True, 'load_from': last}
    train(_build(training, folder / 'run', settings))


def _build(training: Training, folder: Path, settings: dict[str, Any]) -> Any:
    import torch
    from mmengine.hooks import Hook

    from training.toy import ToyDataset, ToyMetric, build_runner

    class Burning(ToyDataset):
        def __getitem__(self, index: int) -> Any:
            end_s = time.thread_time() + training.burnt_s
            while time.thread_time() < end_s:
                pass
            return super().__getitem__(index)

    class Kill(Hook):
        def after_train_iter(self, runner: Any, **_: Any) -> None:
            if runner.iter + 1 == training.killed_after:
                os.kill(os.getpid(), signal.SIGKILL)

    if training.validated:
        settings['val_dataloader'] = {
            'dataset': ToyDataset(training.validated, 0.005),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': 0,
        }
        settings['val_evaluator'] = {'type': ToyMetric, 'evaluation_s': 0.1}
        settings['val_cfg'] = {}
    runner = build_runner(folder, custom_hooks=[Kill()], **settings)
    if training.burnt_s:
        length = len(runner._train_dataloader['dataset'])
        runner._train_dataloader['dataset'] = Burning(length)
    if training.weights:
        runner.model.register_buffer('ballast', torch.rand(training.weights))
    return runner


if __name__ == '__main__':
    train_toy(TRAININGS[sys.argv[1]], Path(sys.argv[2]))
