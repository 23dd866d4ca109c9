"""Records of the memory that a training will need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Tuple


class ImageSize(NamedTuple):
    """Size of an image in pixels."""

    height: int
    width: int

    @property
    def pixels(self) -> int:
        """Number of pixels: height times width."""
        return self.height * self.width


class PeakFactors(NamedTuple):
    """Range of published peaks over an estimated total."""

    least: float
    most: float


@dataclass(frozen=True)
class StaticBytes:
    """Memory that does not grow with the batch; exact."""

    parameters: int
    """Number of values in the parameters."""
    parameter_bytes: int
    gradient_bytes: int
    buffer_bytes: int
    ema_bytes: int
    """Bytes of averaged copies of the model (EMAHook); 0 without one."""
    optimizer: str = 'unknown'
    """Optimizer that the config names."""
    optimizer_state_bytes: Optional[int] = None
    """Bytes of the optimizer's state; ``None`` where it is not known."""

    @property
    def total_bytes(self) -> Optional[int]:
        """Sum of all parts; ``None`` when the optimizer's state is not known."""
        if self.optimizer_state_bytes is None:
            return None
        model = self.parameter_bytes + self.gradient_bytes + self.buffer_bytes
        return model + self.ema_bytes + self.optimizer_state_bytes


@dataclass(frozen=True)
class ActivationPoint:
    """Memory that one forward pass on the CPU kept for the backward pass."""

    batch_size: int
    height: int
    """Padded height, in pixels."""
    width: int
    saved_bytes: int
    """Storage of tensors saved for backward; shared storage once, no parameters."""


@dataclass(frozen=True)
class ActivationFit:
    """Growth of the saved bytes: ``fixed + batch x (image + pixel x pixels + ...)``."""

    fixed_bytes: float
    """Bytes that every batch takes, whatever its size, such as casts of weights."""
    image_bytes: float
    """Bytes of each image, whatever its size, such as those of 512 proposals."""
    pixel_bytes: float
    """Bytes of each padded pixel."""
    squared_pixel_bytes: float
    """Bytes of each pair of padded pixels of an image: attention."""
    residual_pct: float
    """Largest relative distance of a point from the fit."""
    points: Tuple[ActivationPoint, ...]


class MeasuredPeak(NamedTuple):
    """Peak of the CUDA allocator in a training."""

    batch_size: int
    peak_bytes: int


@dataclass(frozen=True)
class CardFit:
    """The largest batch sizes that fit a card; 0 where none does."""

    card_bytes: int
    room_bytes: int
    """Bytes of the card for a training: less CUDA's context, and less a tenth of the
    rest."""
    factor: float
    """Ratio of peak to estimate that the safe batch size allows for."""
    batch_size: Optional[int]
    """Largest batch size that fits if training takes what is estimated; ``None`` when
    unknown."""
    safe_batch_size: Optional[int]
    """Largest batch size that fits if the peak is as far above the estimate as
    ``factor`` says."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Answer of ``mmgpu estimate-memory``."""

    model: str
    """Class of the model."""
    static: StaticBytes
    image_size: Optional[ImageSize] = None
    """Padded size of the images that the totals are for."""
    image_size_source: str = ''
    mixed_precision: bool = False
    fit: Optional[ActivationFit] = None
    """Growth of the saved bytes; ``None`` when the model could not be run; a note says
    why."""
    activation_bytes: Mapping[int, Optional[int]] = field(default_factory=dict)
    """Bytes saved for the backward pass, by batch size."""
    peak_factors: PeakFactors = field(default=PeakFactors(1.0, 1.0))
    """Range of published peaks over such a total."""
    notes: Tuple[str, ...] = ()
    card: Optional[CardFit] = None
    """Largest batch sizes for a card; ``None`` when no card was asked for."""

    def total_bytes(self, batch_size: int) -> Optional[int]:
        """Sum of all parts; ``None`` when a part is unknown."""
        static, activations = self.static.total_bytes, self.activation_bytes[batch_size]
        return None if static is None or activations is None else static + activations
