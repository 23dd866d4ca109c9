"""Trains a whole planted job with MMEngine, real workers and our hook."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook

from benchmarks.planted_job import build_runner, end_workers, keep_evidence
from benchmarks.predict_training import StampedModel, Work, make_dataset
from benchmarks.regret_jobs import Job

GRAIN = 2**18
"""Floats in a MiB."""


class _Span(Hook):
    """Seconds from the first epoch's start to the last one's end."""

    priority = 0
    began_s = seconds = 0.0

    def before_train(self, runner: Any) -> None:
        self.began_s = time.perf_counter()

    def after_train(self, runner: Any) -> None:
        self.seconds = time.perf_counter() - self.began_s


def train_job(
    folder: Path,
    job: Job,
    workers: int,
    persistent: bool,
    works: dict[str, Work],
    iterations: int,
) -> tuple[float, Path]:
    """Train all epochs.

    Args:
        folder: Work directories are made and removed there.
        job: The job.
        workers: ``num_workers``.
        persistent: ``persistent_workers``, where there are workers.
        works: From `make_works`.
        iterations: Of one epoch.

    Returns:
        Seconds of the whole job, and the evidence.
    """
    pipeline = job.pipeline
    dataset: Any = make_dataset(
        folder, pipeline, works['burn'], iterations * pipeline.batch
    )
    model = StampedModel(pipeline, works[pipeline.step])
    if job.save_mib:
        model.register_buffer('ballast', torch.zeros(job.save_mib * GRAIN))
    loader: dict[str, Any] = {'batch_size': pipeline.batch, 'num_workers': workers}
    if workers:
        loader |= {'prefetch_factor': 2, 'persistent_workers': persistent}
        if job.worker_mib:
            loader['worker_init_fn'] = _Ballast(job.worker_mib)
    checkpoint: dict[str, Any] | None = None
    if job.saves_per_epoch:
        checkpoint = {
            'type': 'CheckpointHook',
            'by_epoch': False,
            'interval': iterations // job.saves_per_epoch,
            'max_keep_ckpts': 1,
        }
    span = _Span()
    runner = build_runner(
        folder,
        model,
        dataset,
        loader,
        epochs=job.epochs,
        interval=10,
        checkpoint=checkpoint,
        custom_hooks=[span],
    )
    runner.train()
    end_workers(runner)
    return span.seconds, keep_evidence(Path(runner.work_dir))


class _Ballast:
    """Takes memory in each worker, as a data set with a cache does."""

    def __init__(self, mib: int) -> None:
        self._mib = mib
        self._held: Any = None

    def __call__(self, worker: int) -> None:
        self._held = torch.ones(self._mib * GRAIN)
