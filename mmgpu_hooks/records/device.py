"""What is measured of the GPU and its memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional


@dataclass(frozen=True)
class GpuDevice:
    """The one GPU that this rank trains on."""

    name: Optional[str] = None
    uuid: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    driver_version: Optional[str] = None


@dataclass(frozen=True)
class GpuWindow:
    """GPU samples of one interval, weighted by the time each stood for."""

    samples: int = 0
    util_pct: Optional[float] = None
    """Time-weighted NVML utilisation."""
    zero_pct: Optional[float] = None
    """Share of the sampled time at 0 %."""
    util_std_pct: Optional[float] = None
    """Time-weighted standard deviation: how much it swings."""
    mem_used_bytes: Optional[int] = None
    """Largest device memory in use, by anyone, as the driver sees it."""
    source: Optional[str] = None
    """``buffer`` (the driver keeps utilisation samples itself) or ``polled``."""
    sm_clock_mhz: Optional[float] = None
    """Mean over the looks, as are the other figures without a word on it."""
    mem_clock_mhz: Optional[float] = None
    temperature_c: Optional[float] = None
    """Largest."""
    power_w: Optional[float] = None
    throttled_pct: Optional[float] = None
    """Share of the looks at which something but idleness held the clocks down."""
    throttle_reasons_pct: Mapping[str, float] = field(default_factory=dict)
    """That share by reason, such as ``power_cap`` or ``thermal``."""
    own_util_pct: Optional[float] = None
    """Utilisation by this very process; ``None`` where the driver does not tell."""
    others_util_pct: Optional[float] = None
    """Utilisation by other processes on the same card."""
    others_mem_bytes: Optional[int] = None
    """Largest device memory of other processes on the same card."""
    sm_active_pct: Optional[float] = None
    """Share of multiprocessors with work (GPM, Hopper and later)."""
    sm_occupancy_pct: Optional[float] = None
    """Warps resident over the most there could be (GPM)."""
    tensor_active_pct: Optional[float] = None
    """Share of the time the tensor cores worked (GPM)."""
    dram_active_pct: Optional[float] = None
    """Share of device memory bandwidth in use (GPM)."""
    pcie_rx_bytes_per_s: Optional[float] = None
    """Into the card."""
    pcie_tx_bytes_per_s: Optional[float] = None
    """Out of the card."""
    sampled_s: Optional[float] = None
    """Seconds that the utilisation stands for; ``None`` in older evidence too."""


@dataclass(frozen=True)
class CardWindow:
    """One card of the host, seen by the first rank on it, ours or not."""

    index: int
    """NVML's index on this host."""
    samples: int = 0
    util_pct: Optional[float] = None
    """Time-weighted NVML utilisation."""
    zero_pct: Optional[float] = None
    """Share of the sampled time at 0 %."""
    mem_used_bytes: Optional[int] = None
    """Largest."""
    sm_clock_mhz: Optional[float] = None
    sampled_s: Optional[float] = None
    """Seconds that the utilisation stands for; ``None`` in older evidence too."""


@dataclass(frozen=True)
class CardState:
    """One card of the host, or one slice of a card (MIG), as it is at a moment."""

    index: int
    """NVML's index of the card on this host, the one of ``nvidia-smi``."""
    slice_index: Optional[int] = None
    """Index of the slice on its card; ``None`` for a whole card."""
    uuid: Optional[str] = None
    """Such as ``GPU-...`` or ``MIG-...``; ``None`` for a card that may not be read."""
    card_uuid: Optional[str] = None
    """Of the card that a slice is part of; the same as ``uuid`` for a whole card."""
    name: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    memory_free_bytes: Optional[int] = None
    util_pct: Optional[float] = None
    """Mean over what the driver keeps (some 20 s), else over its last period."""
    is_sliced: bool = False
    """Whether it is a card that is cut into slices."""
    reason: Optional[str] = None
    """Why nothing may run on it; ``None`` when it may."""

    @property
    def label(self) -> str:
        """``2``, or ``2:0`` for the first slice of that card."""
        if self.slice_index is None:
            return str(self.index)
        return f'{self.index}:{self.slice_index}'


@dataclass(frozen=True)
class CudaMemoryWindow:
    """What the CUDA allocator went through in one interval."""

    allocated_bytes: Optional[int] = None
    """Bytes of live tensors when the interval ended: creep shows here."""
    retries: Optional[int] = None
    """Allocations that failed at first: the cache was emptied and they were retried."""
    ooms: Optional[int] = None
    """Out-of-memory errors thrown."""
    inactive_bytes: Optional[int] = None
    """Held in split blocks that nothing uses (fragmentation), when it ended."""


@dataclass(frozen=True)
class ModelBytesRecord:
    """The static part of training memory, counted once after the first step."""

    iteration: int
    """Iterations done when it was counted."""
    parameters: Optional[int] = None
    """How many numbers the parameters are."""
    parameter_bytes: Optional[int] = None
    trainable_bytes: Optional[int] = None
    """Bytes of the parameters that are trained."""
    gradient_bytes: Optional[int] = None
    """Of the gradients that were there when the optimizer stepped."""
    optimizer_state_bytes: Optional[int] = None
    buffer_bytes: Optional[int] = None
    ema_bytes: Optional[int] = None
    """Of averaged copies of the model (EMAHook); 0 without one."""
