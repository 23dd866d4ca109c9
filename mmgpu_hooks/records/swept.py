"""Settings of one config that were trained one after another, to be compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional, Tuple

from mmgpu_hooks.records.compared import Estimate
from mmgpu_hooks.records.predicted import Prediction

MEMORY_SOURCES: Mapping[str, str] = {
    'cuda_allocator': "CUDA's allocator",
    'process_rss': 'the training process in the RAM (resident), as there is no CUDA',
}
"""What a peak of memory can be of, and how a sentence calls it."""


@dataclass(frozen=True)
class SweepSetting:
    """What one trial of the sweep is trained with; ``None`` keeps the config's own."""

    num_workers: int
    batch_size: Optional[int] = None
    prefetch_factor: Optional[int] = None
    """Also ``None`` without workers."""
    pin_memory: Optional[bool] = None
    amp: Optional[bool] = None

    @property
    def name(self) -> str:
        """``4 workers, batch 3, prefetch 2, pinned, mixed precision``."""
        words = [f'{self.num_workers} worker{"" if self.num_workers == 1 else "s"}']
        if self.batch_size is not None:
            words.append(f'batch {self.batch_size}')
        if self.prefetch_factor is not None:
            words.append(f'prefetch {self.prefetch_factor}')
        if self.pin_memory is not None:
            words.append('pinned' if self.pin_memory else 'not pinned')
        if self.amp is not None:
            words.append('mixed precision' if self.amp else 'full precision')
        return ', '.join(words)

    @property
    def loads(self) -> Tuple[Optional[int], Optional[bool], Optional[bool]]:
        """What a prediction cannot change: batch size, pinned memory, precision."""
        return self.batch_size, self.pin_memory, self.amp


@dataclass(frozen=True)
class SweepRow:
    """One trial; a figure is ``None`` where it was not measured."""

    setting: SweepSetting
    status: str
    """One of :data:`TRIAL_STATUSES`."""
    error: Optional[str] = None
    """The decisive line; ``None`` when it completed."""
    seconds: float = 0.0
    """Of the whole trial, its start included."""
    iterations: int = 0
    """Measured ones, warm-up left out."""
    iter_s: Optional[Estimate] = None
    """A steady iteration, saves and first waits of epochs left out."""
    is_settled: bool = False
    """Whether its interval became narrow, and the trial ended by that."""
    data_wait_s: Optional[float] = None
    """Part of ``iter_s``."""
    images_per_s: Optional[float] = None
    gpu_util_pct: Optional[float] = None
    gpu_zero_pct: Optional[float] = None
    """Share of the time at 0 %."""
    gpu_swing_pct: Optional[float] = None
    """Standard deviation of the utilisation over time, in points."""
    memory_peak_bytes: Optional[int] = None
    memory_source: Optional[str] = None
    """What the peak is of: one of :data:`MEMORY_SOURCES`."""
    static_bytes: Optional[int] = None
    """Parameters, gradients, optimizer state, buffers and averaged copies, as they were
    counted after the first step; ``None`` when they were not."""
    gradient_bytes: Optional[int] = None
    """Part of ``static_bytes``."""
    card_bytes: Optional[int] = None
    """Memory of the card; ``None`` without one, or when it is unknown."""
    card_beside_bytes: Optional[int] = None
    """Of it, held by the CUDA context and by other processes."""
    largest_batch_pixels: Optional[int] = None
    """Images x padded height x padded width of the largest batch."""
    batches_per_epoch: Optional[int] = None
    cpu_cores: Optional[float] = None
    """In use by the training process and its workers, mean."""
    external_cpu_cores: Optional[float] = None
    """In use by others meanwhile."""
    saves: int = 0
    """Saves that ``save_s`` is the median of."""
    save_s: Optional[float] = None
    is_loss_finite: Optional[bool] = None
    """Whether every loss was a number; ``None`` where the loss is not logged."""
    most_workers: Optional[int] = None
    """The most that this host carries with this setting; ``None`` is unknown."""
    most_workers_reason: Optional[str] = None
    evidence: Optional[str] = None
    """Its evidence, as seen from the sweep's folder."""
    warm_up: int = 0
    """First intervals of the evidence that no figure is taken over."""
    predicted: Optional[Prediction] = None
    """What the model of one run had said of it."""
    unpredicted: Optional[str] = None
    """Why there is no prediction: a sentence."""
    is_calibration: bool = False
    """Whether that one run was this trial."""
    is_reused: bool = False
    """Whether an earlier start of the sweep had measured it."""

    @property
    def is_measured(self) -> bool:
        """Whether it can be compared; what a trial did before it failed cannot be."""
        return self.iter_s is not None and self.status in ('completed', 'timed_out')

    @property
    def prediction_error(self) -> Optional[float]:
        """Predicted over measured iteration less one; ``None`` without either."""
        if self.predicted is None or self.iter_s is None:
            return None
        if self.is_calibration or not self.is_measured:
            return None
        return self.predicted.iter_time_s / self.iter_s.value - 1


@dataclass(frozen=True)
class Sweep:
    """All trials of a config on this host."""

    rows: Tuple[SweepRow, ...]
    """By precision, pinned memory, batch size, prefetch factor and workers."""
    asked: int = 0
    """Settings that were asked for; fewer rows when it was stopped."""
    best: Tuple[SweepSetting, ...] = ()
    """The fastest that the host carries, one of each batch size and precision; the
    fastest of all first."""
    seed: int = 0
    """Of the order in which the trials were trained."""
    seconds: float = 0.0
    """Of this start of the sweep."""
    is_interrupted: bool = False
    ranks: int = 1
    """Processes that train together in each trial; figures are those of rank 0, images
    per second those of all."""
    notes: Tuple[str, ...] = ()
