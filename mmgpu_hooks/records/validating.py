"""What is measured of one validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from mmgpu_hooks.records.loading import WorkersWindow
from mmgpu_hooks.records.measured import DurationStats, LoaderSettings


@dataclass(frozen=True)
class ValidationRecord:
    """One validation in the midst of training, with what its own loader did."""

    iteration: int
    """Iterations of training done when it began, counted over the whole training."""
    epoch: int
    """1-based."""
    wall_s: float
    """All of it, the metrics included."""
    iterations: int = 0
    """Batches that the figures of iterations are taken over; 0 where the loop has no
    iterations that could be seen."""
    data_wait: Optional[DurationStats] = None
    """``None`` without iterations, as are the next two."""
    step: Optional[DurationStats] = None
    """From the batch in hand until the next is asked for: forward, the evaluator's
    part of a batch, hooks."""
    iter: Optional[DurationStats] = None
    """``data_wait`` + ``step``."""
    first_waits: int = 0
    """How many of the waits were the first of a pass through the loader."""
    first_wait_s: float = 0.0
    """Their sum: workers that start, and the first batch."""
    data_wait_cpu_s: Optional[float] = None
    """CPU inside the waits but the first ones, of whoever loads there: the training
    thread, or the whole process when it loads without workers."""
    process_cpu_s: Optional[float] = None
    """CPU of the training process, all threads, in the steps and those waits."""
    whole_cpu_s: Optional[float] = None
    """CPU of the training process, all threads, in all of ``wall_s``."""
    run_delay_s: Optional[float] = None
    """What the training thread waited for a core in all of ``wall_s``."""
    batch_bytes: Optional[int] = None
    """Bytes of the tensors in its first batch."""
    batch_tensors: Optional[int] = None
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    """Live settings of its loader."""
    workers: Optional[WorkersWindow] = None
    """Its own workers."""
    train_workers: Optional[int] = None
    """Workers of the train loader that were alive meanwhile."""
    train_workers_cpu_s: Optional[float] = None
    strangers_cpu_s: Optional[float] = None
    """CPU of everybody else on the host, other ranks too."""
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is missing, by field."""
