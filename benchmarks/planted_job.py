"""Builds the Runner of a planted job, and keeps what our hook recorded of it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from mmengine.dataset import DefaultSampler, pseudo_collate
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import Runner


def build_runner(
    folder: Path,
    model: BaseModel,
    dataset: Any,
    loader: dict[str, Any],
    *,
    epochs: int,
    interval: int,
    checkpoint: dict[str, Any] | None = None,
    custom_hooks: Sequence[Hook] = (),
) -> Any:
    """A run with MMEngine's default hooks and ours, in a folder of its own.

    Args:
        folder: Where the run's folder is made.
        model: What is trained.
        dataset: Its images, in order.
        loader: Further arguments of the DataLoader.
        epochs: Passes over the images.
        interval: Iterations of an interval.
        checkpoint: The config of CheckpointHook; without one nothing is saved.
        custom_hooks: Others to run.
    """
    name = f'job_{uuid.uuid4().hex}'
    return Runner(
        model=model,
        work_dir=str(folder / name),
        train_dataloader=torch.utils.data.DataLoader(
            dataset,
            sampler=DefaultSampler(dataset, shuffle=False),
            collate_fn=pseudo_collate,
            **loader,
        ),
        train_cfg={'by_epoch': True, 'max_epochs': epochs},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.01}},
        custom_hooks=list(custom_hooks),
        default_hooks={
            'logger': {'type': 'LoggerHook', 'interval': interval},
            'checkpoint': checkpoint,
            'gpu_efficiency': {
                'type': 'mmgpu_hooks.GPUEfficiencyHook',
                'summary': False,
            },
        },
        visualizer={
            'type': 'Visualizer',
            'vis_backends': [{'type': 'LocalVisBackend'}],
        },
        log_level='ERROR',
        experiment_name=name,
    )


def end_workers(runner: Any) -> None:
    """End persistent workers, which else live on until the run is collected.

    That would be in a cycle, with their queues closed before they are told, and take
    5 s for each.
    """
    iterator = getattr(runner.train_loop.dataloader, '_iterator', None)
    if iterator is not None:
        iterator._shutdown_workers()
        runner.train_loop.dataloader._iterator = None


def keep_evidence(work_dir: Path) -> Path:
    """Put the run's evidence beside its folder, which is removed."""
    evidence = next(work_dir.glob('*/vis_data/gpu_efficiency.jsonl'))
    kept = work_dir.with_suffix('.jsonl')
    shutil.move(str(evidence), kept)
    shutil.rmtree(work_dir)
    return kept
