"""Batch size against memory and speed: what was measured, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class MemoryPoint:
    """The memory that one training with one batch size came to."""

    batch_size: int
    peak_bytes: int
    """Largest peak of the CUDA allocator."""
    pixels: Optional[float] = None
    """Padded pixels of all images of its largest batch; ``None`` when unknown."""
    static_bytes: Optional[int] = None
    """Parameters, gradients, optimizer state, buffers and averaged copies, as they were
    counted; ``None`` when they were not."""
    gradient_bytes: int = 0
    """Part of ``static_bytes`` that is not there while activations are most."""


@dataclass(frozen=True)
class MemoryFit:
    """``peak = fixed + growth x batch``, never below what is always there."""

    fixed_bytes: float
    growth_bytes: float
    """Of each padded pixel where all points know theirs, else of each image."""
    image_pixels: Optional[float]
    """Padded pixels of an image in the batch where they were most: the tail, at which
    memory runs out. ``None`` where growth is per image."""
    static_bytes: Optional[int]
    """As they were counted; ``None`` when they were not."""
    points: Tuple[MemoryPoint, ...]
    relative_error: float
    """Standard error of a point over its peak."""
    degrees: float
    """Degrees of freedom behind ``relative_error``."""
    fixed_variance: float
    """Of the two figures, as multiples of the square of ``relative_error``."""
    growth_variance: float
    covariance: float

    @property
    def image_bytes(self) -> float:
        """Growth per image, at the largest padded size."""
        return self.growth_bytes * (self.image_pixels or 1.0)

    @property
    def workspace_bytes(self) -> Optional[float]:
        """What neither is static nor grows; below zero as far as gradients come when
        activations go. ``None`` when the static part was not counted."""
        return (
            None
            if self.static_bytes is None
            else (self.fixed_bytes - self.static_bytes)
        )


@dataclass(frozen=True)
class PeakPrediction:
    """Peak memory that a batch size would come to."""

    batch_size: int
    peak_bytes: int
    low_bytes: int
    """The truth is expected between low and high 9 times in 10."""
    high_bytes: int


@dataclass(frozen=True)
class MemoryRuleRow:
    """One measured batch size beside what two rules say of it unseen."""

    batch_size: int
    peak_bytes: int
    """The largest that was measured."""
    fit_bytes: Optional[int]
    """By the fit of all other batch sizes; ``None`` with fewer than two others."""
    proportional_bytes: Optional[int]
    """The peak of the smallest batch size, times the ratio; ``None`` of that one."""

    @property
    def fit_error_pct(self) -> Optional[float]:
        """How far the fit is above (below, when negative) the measured peak."""
        return _error_pct(self.fit_bytes, self.peak_bytes)

    @property
    def proportional_error_pct(self) -> Optional[float]:
        """Likewise of the proportional rule."""
        return _error_pct(self.proportional_bytes, self.peak_bytes)


@dataclass(frozen=True)
class SpeedPoint:
    """What a step took with one batch size, data at hand."""

    batch_size: int
    step_s: float
    error_s: float = 0.0
    """Standard error of it."""


def _error_pct(said: Optional[int], measured: int) -> Optional[float]:
    return None if said is None else 100.0 * (said - measured) / measured
