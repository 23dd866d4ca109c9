"""Records of the GPU memory that a training is estimated to need, in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional, Tuple


class ImageSize(NamedTuple):
    """Height and width of an image, in pixels."""

    height: int
    width: int

    @property
    def pixels(self) -> int:
        """Number of pixels: height times width."""
        return self.height * self.width


class PeakFactors(NamedTuple):
    """Range of the ratio of MMDetection's published memory peaks to our estimates."""

    least: float
    most: float


@dataclass(frozen=True)
class StaticBytes:
    """Bytes for parameters, gradients, optimizer and EMA, whatever the batch size."""

    parameters: int
    """Number of values in the model's parameters."""
    parameter_bytes: int
    gradient_bytes: int
    buffer_bytes: int
    ema_bytes: int
    """Bytes of averaged copies of the model (EMAHook); 0 without EMA."""
    optimizer: str = 'unknown'
    """Class of the optimizer that the config names."""
    optimizer_state_bytes: Optional[int] = None
    """Bytes of the optimizer's state; ``None`` if it is not known."""

    @property
    def total_bytes(self) -> Optional[int]:
        """Bytes of weights, gradients, optimizer, EMA; ``None`` if partly unknown."""
        if self.optimizer_state_bytes is None:
            return None
        model = self.parameter_bytes + self.gradient_bytes + self.buffer_bytes
        return model + self.ema_bytes + self.optimizer_state_bytes


@dataclass(frozen=True)
class ActivationPoint:
    """Bytes that a forward pass on the CPU kept for backward, and its input's size."""

    batch_size: int
    height: int
    """Padded height of the images, in pixels."""
    width: int
    saved_bytes: int
    """Bytes of non-parameter tensors saved for backward; shared storage counts once."""


@dataclass(frozen=True)
class ActivationFit:
    """Fit of activation bytes: ``fixed + batch x (image + pixel x pixels ...)``."""

    fixed_bytes: float
    """Activation bytes of every batch, whatever its size, such as casts of weights."""
    image_bytes: float
    """Activation bytes of each image, whatever its size, such as for 512 proposals."""
    pixel_bytes: float
    """Activation bytes of each padded pixel."""
    squared_pixel_bytes: float
    """Activation bytes per pair of pixels of a padded image, as attention needs."""
    residual_pct: float
    """Largest distance of measured activation bytes from the fit, in per cent."""
    points: Tuple[ActivationPoint, ...]


class MeasuredPeak(NamedTuple):
    """Peak bytes of the CUDA allocator in a training, with its batch size."""

    batch_size: int
    peak_bytes: int


@dataclass(frozen=True)
class CardFit:
    """Largest batch sizes that fit the memory of a GPU; 0 if none does."""

    card_bytes: int
    room_bytes: int
    """Bytes of the GPU's memory that a training may use.

    Less CUDA's context, and less a tenth of the rest."""
    factor: float
    """Ratio of memory peak to estimate that the safe batch size allows for."""
    batch_size: Optional[int]
    """Largest batch size that fits if training takes the estimated memory.

    ``None`` when unknown."""
    safe_batch_size: Optional[int]
    """Largest batch size that fits if peak memory is ``factor`` times the estimate."""


@dataclass(frozen=True)
class MemoryEstimate:
    """Answer of ``mmgpu estimate-memory``: bytes by use and by batch size."""

    model: str
    """Class of the model whose training is estimated."""
    static: StaticBytes
    image_size: Optional[ImageSize] = None
    """Padded height and width of the images that the estimate is for."""
    image_size_source: str = ''
    mixed_precision: bool = False
    fit: Optional[ActivationFit] = None
    """Fit of activation bytes to batch and image size; ``None``: the model cannot run.

    A note says why."""
    activation_bytes: Mapping[int, Optional[int]] = field(default_factory=dict)
    """Bytes saved for the backward pass, by batch size."""
    peak_factors: PeakFactors = field(default=PeakFactors(1.0, 1.0))
    """Range of the ratio of MMDetection's published memory peaks to our estimates."""
    notes: Tuple[str, ...] = ()
    card: Optional[CardFit] = None
    """Largest batch sizes for a GPU; ``None`` when no GPU was asked for."""

    def total_bytes(self, batch_size: int) -> Optional[int]:
        """Returns estimated bytes of training with a batch size; ``None``: unknown."""
        static, activations = self.static.total_bytes, self.activation_bytes[batch_size]
        return None if static is None or activations is None else static + activations
