"""Answer of ``mmgpu predict``: iteration times, and memory by batch size; no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmgpu_hooks.judge.memory import CardRoom
from mmgpu_hooks.model.batches import (
    MemoryFit,
    find_largest_batch,
    find_oom_batch,
    predict_peak,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.judged import Prediction


@dataclass(frozen=True)
class SizedPeak:
    """Predicted GPU memory peak in bytes for one batch size, and its 90 % interval."""

    batch_size: int
    peak_bytes: int
    low_bytes: int
    """Lower end, in bytes, of the 90 % interval of a predicted GPU memory peak."""
    high_bytes: int


@dataclass(frozen=True)
class MemoryForecast:
    """GPU memory in bytes against batch size: a fitted line, and predicted peaks."""

    fixed_bytes: int
    """Bytes of GPU memory that a training needs at any batch size."""
    image_bytes: int
    """Bytes by which the GPU memory peak grows per image of a batch."""
    relative_error: float
    """Relative standard error of a predicted GPU memory peak."""
    peaks: tuple[SizedPeak, ...]
    """Predicted GPU memory peaks, in bytes, of the batch sizes that were asked for."""
    card_bytes: int | None
    """Bytes of the GPU's memory; ``None`` when they are unknown.

    ``oom_batch_size`` and ``safe_batch_size`` are unknown then, too.
    """
    oom_batch_size: int | None
    """Smallest batch size expected to run out of GPU memory; ``None``: none known."""
    safe_batch_size: int | None
    """Largest batch size that fits into GPU memory safely; ``None``: unknown."""


def forecast_memory(
    fit: MemoryFit, batch_sizes: Sequence[int], card: CardRoom | None
) -> MemoryForecast:
    """Forecasts GPU memory at some batch sizes, and the largest batch size that fits.

    Args:
        fit: To measured peaks.
        batch_sizes: Asked for.
        card: ``None`` when its size is unknown.
    """
    peaks = (
        SizedPeak(batch, **predict_peak(fit, batch)._asdict()) for batch in batch_sizes
    )
    return MemoryForecast(
        fixed_bytes=round(fit.fixed_bytes),
        image_bytes=round(fit.image_bytes),
        relative_error=fit.relative_error,
        peaks=tuple(peaks),
        card_bytes=card.total_bytes if card else None,
        oom_batch_size=find_oom_batch(fit, card.room_bytes) if card else None,
        safe_batch_size=find_largest_batch(fit, card.safe_bytes) if card else None,
    )


@dataclass(frozen=True)
class Forecast:
    """Answer of ``mmgpu predict``: iteration times, and GPU memory by batch size."""

    run: str
    """Path of the evidence file that the predictions are based on."""
    status: str
    workload: Workload
    predictions: Sequence[Prediction]
    notes: Sequence[str]
    fitted_runs: Mapping[str, int | None] | None = None
    """Batch size of each run the predictions rest on, by path; ``None`` for one run."""
    memory: MemoryForecast | None = None
    """Forecast of GPU memory against batch size; ``None`` without a fitted line.

    None is fitted when one run was asked for, or when the peaks make no line (a note
    says why).
    """
    own: Mapping[str, Any] = field(default_factory=dict)
    """Values of all DataLoader settings in the recorded run itself, by name."""
