"""Trainings whose saves are held by something planted, and nothing else."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mmengine.dataset import pseudo_collate
from mmengine.fileio import FileClient, LocalBackend, register_backend
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.model import BaseModel
from mmengine.runner import Runner
from torch import Tensor, nn
from torch.utils.data import Dataset

from mmgpu_hooks.schema import RunEvidence
from mmgpu_hooks.schema.reader import read_evidence


class PlantedDataset(Dataset[dict]):
    """Items that each take so much CPU of a worker.

    Args:
        cpu_s: CPU seconds per item.
    """

    def __init__(self, cpu_s: float) -> None:
        self.cpu_s = cpu_s

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        until = time.thread_time() + self.cpu_s
        while time.thread_time() < until:
            pass
        return {'inputs': torch.tensor(float(index % 97))}


class PlantedModel(BaseModel):
    """One weight that learns, beside many bytes that are saved with it."""

    def __init__(self, megabytes: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer('ballast', torch.zeros(int(megabytes * 250_000)))

    def forward(self, inputs: Any, mode: str = 'tensor', **_: Any) -> Any:
        return {'loss': (self.weight * torch.stack(inputs) / 97 - 1).pow(2).mean()}


class SlowBackend(LocalBackend):
    """Blocks in ``put``, as a disk does that has others to serve.

    Args:
        put_s: For how long.
    """

    def __init__(self, put_s: float = 0.0) -> None:
        self.put_s = put_s

    def put(self, obj: bytes, filepath: str | Path) -> None:
        time.sleep(self.put_s)
        super().put(obj, filepath)


class FarBackend(SlowBackend):
    """Writes nowhere on this host."""

    def put(self, obj: bytes, filepath: str | Path) -> None:
        time.sleep(self.put_s)


for _name, _backend in (('slow', SlowBackend), ('far', FarBackend)):
    register_backend(_name, _backend, prefixes=_name, force=True)
    FileClient.register_backend(_name, _backend, prefixes=_name, force=True)


class GrowHub(Hook):
    """Has the message hub hold long histories, as after a million iterations.

    Args:
        megabytes: Of histories.
    """

    def __init__(self, megabytes: float) -> None:
        self.megabytes = megabytes

    def before_train(self, runner: Runner) -> None:
        for number in range(10):
            history = HistoryBuffer()
            length = int(self.megabytes * 1e6 / 10 / 16)
            history._log_history = np.zeros(length)
            history._count_history = np.ones(length)
            runner.message_hub.log_scalars[f'train/history_{number}'] = history
            runner.message_hub._resumed_keys[f'train/history_{number}'] = True


class Pause(Hook):
    """Makes each iteration longer, in which nobody does anything.

    Args:
        seconds: By so much.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def after_train_iter(self, runner: Runner, **_: Any) -> None:
        time.sleep(self.seconds)


class LossTape(Hook):
    """Keeps each iteration's loss, bit by bit."""

    def __init__(self) -> None:
        self.losses: list[str] = []

    def after_train_iter(
        self,
        runner: Runner,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        self.losses.append(outputs['loss'].item().hex())


@dataclass(frozen=True)
class Trained:
    """What one training left."""

    evidence: RunEvidence
    warnings: int
    """Of slow saves, while it was on."""
    losses: list[str]

    @property
    def gap_s(self) -> float:
        """Mean time from one save's end to the next one's begin."""
        saves = self.evidence.save_records
        saves_s = sum(save.wall_s for save in saves)
        assert self.evidence.end is not None
        return ((self.evidence.end.duration_s or 0.0) - saves_s) / len(saves)


def train_planted(
    folder: Path,
    *,
    saves: int,
    megabytes: float = 200.0,
    interval: int = 1,
    num_workers: int = 0,
    cpu_s: float = 0.0,
    worker_nice: int | None = None,
    backend: dict[str, Any] | None = None,
    hub_megabytes: float = 0.0,
    pause_s: float = 0.0,
) -> Trained:
    """Train for so many saves.

    Args:
        folder: Of the run; in memory, so that no disk has a part in it.
        saves: How many.
        megabytes: Of each.
        interval: Iterations between two saves.
        num_workers: Of the loader.
        cpu_s: CPU that an item takes a worker.
        worker_nice: Argument of our hook.
        backend: ``backend_args`` of MMEngine's CheckpointHook.
        hub_megabytes: Histories in the message hub.
        pause_s: In each iteration, so that saves are as far apart as in another run.
    """
    tape = LossTape()
    checkpoint: dict[str, Any] = {
        'type': 'CheckpointHook',
        'by_epoch': False,
        'interval': interval,
        'max_keep_ckpts': 1,
    }
    if backend is not None:
        checkpoint.update(
            out_dir=f'{backend["backend"]}://{folder}/out', backend_args=backend
        )
        if backend['backend'] == 'slow':
            checkpoint['out_dir'] = str(folder / 'out')
    runner = Runner(
        model=PlantedModel(megabytes),
        work_dir=str(folder / 'run'),
        train_dataloader={
            'dataset': PlantedDataset(cpu_s),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': num_workers,
            'collate_fn': {'type': pseudo_collate},
        },
        train_cfg={'by_epoch': False, 'max_iters': saves * interval},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
        default_hooks={
            'logger': {'type': 'LoggerHook', 'interval': 10},
            'checkpoint': checkpoint,
            'gpu_efficiency': {
                'type': 'mmgpu_hooks.GPUEfficiencyHook',
                'worker_nice': worker_nice,
                'summary': False,
            },
        },
        custom_hooks=[
            tape,
            *[GrowHub(hub_megabytes)] * bool(hub_megabytes),
            *[Pause(pause_s)] * bool(pause_s),
        ],
        log_processor={'by_epoch': False},
        log_level='WARNING',
        randomness={'seed': 3},
        experiment_name=f'saves_{uuid.uuid4().hex}',
    )
    try:
        runner.train()
    finally:
        iterator = runner.train_loop.dataloader_iterator._iterator
        if hasattr(iterator, '_shutdown_workers'):
            iterator._shutdown_workers()
    (path,) = (folder / 'run').glob('*/vis_data/gpu_efficiency.jsonl')
    (log,) = (folder / 'run').glob('*/*.log')
    lines = log.read_text().splitlines()
    said = sum('GPUEfficiencyHook: Saving' in line for line in lines)
    return Trained(read_evidence(path), said, tape.losses)


@contextlib.contextmanager
def hogs(count: int) -> Iterator[None]:
    """Programs that want a core each and have nothing to do with the training."""
    started = [
        subprocess.Popen([sys.executable, '-c', 'while True: pass'])
        for _ in range(count)
    ]
    try:
        time.sleep(0.2)
        yield
    finally:
        for hog in started:
            hog.kill()
            hog.wait()
