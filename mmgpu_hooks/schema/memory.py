"""Memory that a training will need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional, Tuple


@dataclass(frozen=True)
class StaticBytes:
    """What does not grow with the batch; exact."""

    parameters: int
    """How many numbers the parameters are."""
    parameter_bytes: int
    gradient_bytes: int
    buffer_bytes: int
    ema_bytes: int
    """Of averaged copies of the model (EMAHook); 0 without one."""
    optimizer: str = 'unknown'
    """The config's."""
    optimizer_state_bytes: Optional[int] = None
    """``None`` where it is not known."""

    @property
    def total_bytes(self) -> Optional[int]:
        """Everything together; ``None`` when the optimizer's state is not known."""
        if self.optimizer_state_bytes is None:
            return None
        model = self.parameter_bytes + self.gradient_bytes + self.buffer_bytes
        return model + self.ema_bytes + self.optimizer_state_bytes


@dataclass(frozen=True)
class ActivationPoint:
    """What one forward pass on the CPU kept for the backward pass."""

    batch_size: int
    height: int
    """Padded, in pixels."""
    width: int
    saved_bytes: int
    """Storage of tensors saved for backward; shared storage once, no parameters."""


@dataclass(frozen=True)
class ActivationFit:
    """Growth of the saved bytes: ``fixed + batch x (image + pixel x pixels + ...)``."""

    fixed_bytes: float
    """Of every batch, whatever its size, such as casts of weights."""
    image_bytes: float
    """Of each image, whatever its size, such as those of 512 proposals."""
    pixel_bytes: float
    """Of each padded pixel."""
    squared_pixel_bytes: float
    """Of each pair of padded pixels of an image: attention."""
    residual_pct: float
    """Largest relative distance of a point from the fit."""
    points: Tuple[ActivationPoint, ...]


@dataclass(frozen=True)
class CardFit:
    """The largest batch sizes that fit a card; 0 where none does."""

    card_bytes: int
    room_bytes: int
    """Of it for a training: less CUDA's context, and less a tenth of the rest."""
    factor: float
    """Peak over estimate that the safe batch size allows for."""
    batch_size: Optional[int]
    """If training takes what is estimated; ``None`` when unknown."""
    safe_batch_size: Optional[int]
    """If the peak is as far above the estimate as the factor says."""


@dataclass(frozen=True)
class MemoryEstimate:
    """What ``mmgpu estimate-memory`` found out."""

    model: str
    """The model's class."""
    static: StaticBytes
    image_size: Optional[Tuple[int, int]] = None
    """Padded height and width that the totals are for."""
    image_size_source: str = ''
    mixed_precision: bool = False
    fit: Optional[ActivationFit] = None
    """``None`` when the model could not be run; a note says why."""
    activation_bytes: Mapping[int, Optional[int]] = field(default_factory=dict)
    """By batch size."""
    peak_factors: Tuple[float, float] = (1.0, 1.0)
    """Least and most that published peaks were of such a total."""
    notes: Tuple[str, ...] = ()
    card: Optional[CardFit] = None
    """``None`` when no card was asked for."""

    def total_bytes(self, batch_size: int) -> Optional[int]:
        """Everything together; ``None`` when a part is unknown."""
        static, activations = self.static.total_bytes, self.activation_bytes[batch_size]
        return None if static is None or activations is None else static + activations
