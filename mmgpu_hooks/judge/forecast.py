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
    """The peak of the memory with one batch size, and where the truth is expected."""

    batch_size: int
    peak_bytes: int
    low_bytes: int
    """The truth is expected between low and high 9 times in 10."""
    high_bytes: int


@dataclass(frozen=True)
class MemoryForecast:
    """Memory of the card against batch size: a line."""

    fixed_bytes: int
    """Of any batch."""
    image_bytes: int
    """Of each image of a batch."""
    relative_error: float
    """Standard error of a peak over itself."""
    peaks: tuple[SizedPeak, ...]
    """Peaks of the batch sizes that were asked for."""
    card_bytes: int | None
    """``None`` when the size of the card is unknown, as are then the next two."""
    oom_batch_size: int | None
    """The smallest batch size that is expected to run out of memory; ``None`` also when
    none is."""
    safe_batch_size: int | None
    """The largest batch size that fits safely."""


def forecast_memory(
    fit: MemoryFit, batch_sizes: Sequence[int], card: CardRoom | None
) -> MemoryForecast:
    """Forecast memory against batch size.

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
    """The evidence it rests on."""
    status: str
    workload: Workload
    predictions: Sequence[Prediction]
    notes: Sequence[str]
    fitted_runs: Mapping[str, int | None] | None = None
    """Batch sizes of the runs that were fitted; ``None`` when one was asked for."""
    memory: MemoryForecast | None = None
    """``None`` when one run was asked for, or their peaks make no line (a note says
    why)."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The run's own values of all settings, by name."""
