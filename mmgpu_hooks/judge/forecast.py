"""The answer of ``mmgpu predict``: iterations, and memory against batch size. Pure."""

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
    """Predicted peak of the memory with one batch size, and its interval."""

    batch_size: int
    peak_bytes: int
    low_bytes: int
    """Lower end of the interval that holds the true peak 9 times in 10."""
    high_bytes: int


@dataclass(frozen=True)
class MemoryForecast:
    """Memory of the card against batch size: a line, and what it predicts."""

    fixed_bytes: int
    """Memory that any batch takes."""
    image_bytes: int
    """Growth of the peak per image."""
    relative_error: float
    """Relative standard error of a peak."""
    peaks: tuple[SizedPeak, ...]
    """Predicted peaks of the batch sizes that were asked for."""
    card_bytes: int | None
    """Memory of the card; ``None`` when it is unknown, as ``oom_batch_size`` and
    ``safe_batch_size`` are then."""
    oom_batch_size: int | None
    """Smallest batch size expected to run out of memory; ``None`` also when none is."""
    safe_batch_size: int | None
    """Largest batch size that fits safely."""


def forecast_memory(
    fit: MemoryFit, batch_sizes: Sequence[int], card: CardRoom | None
) -> MemoryForecast:
    """Forecast GPU memory at some batch sizes, and the largest batch size that fits.

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
    """The answer of ``mmgpu predict``."""

    run: str
    """Path of the evidence that the answer rests on."""
    status: str
    workload: Workload
    predictions: Sequence[Prediction]
    notes: Sequence[str]
    fitted_runs: Mapping[str, int | None] | None = None
    """Batch sizes of the runs that were fitted; ``None`` when one run was asked for."""
    memory: MemoryForecast | None = None
    """Memory against batch size; ``None`` when one run was asked for, or their peaks
    make no line (a note says why)."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """Values of all settings in the run itself, by name."""
