"""What another setting of the loader, and another batch size, would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class NoPrediction:
    """Why nothing is predicted."""

    reason: str
    """One sentence: what is missing or absurd, and what helps."""


@dataclass(frozen=True)
class FittedRun:
    """One of several runs that the line over the batch size was fitted to."""

    path: str
    num_workers: int
    prefetch_factor: Optional[int]
    batch_size: Optional[int]
    iterations: int
    """Iterations the figures are taken over."""
    iter_time_s: float
    gpu_mem_peak_bytes: Optional[int]
    """``None`` when unknown, as on the CPU."""


@dataclass(frozen=True)
class Prediction:
    """What one setting of the loader would give on the same host."""

    num_workers: int
    prefetch_factor: Optional[int]
    """``None`` without workers."""
    batch_size: Optional[int]
    iter_time_s: float
    """A steady iteration, first waits of epochs left out."""
    iter_time_low_s: float
    """The truth is expected between low and high 9 times in 10."""
    iter_time_high_s: float
    data_wait_s: float
    """Part of ``iter_time_s``."""
    images_per_s: Optional[float]
    """``None`` when the batch size is unknown."""
    limit: str
    """What keeps it from being faster: a member of
    :data:`mmgpu_hooks.model.prediction.LIMITS`."""
