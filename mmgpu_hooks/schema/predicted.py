"""What another setting of the loader, and another batch size, would give."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple


@dataclass(frozen=True)
class NoPrediction:
    """Why nothing is predicted."""

    reason: str
    """One sentence: what is missing or absurd, and what helps."""


@dataclass(frozen=True)
class Cost:
    """How long something takes: a mean, how it varies, and how well it is known."""

    mean_s: float
    std_s: float = 0.0
    """Spread from one occurrence to the next."""
    error_s: float = 0.0
    """Standard error of the mean."""
    count: int = 0
    """Occurrences it is taken over."""

    @property
    def variation(self) -> float:
        """``std_s`` over ``mean_s``; 0 for what takes no time."""
        return self.std_s / self.mean_s if self.mean_s > 0 else 0.0

    @property
    def relative_error(self) -> float:
        """``error_s`` over ``mean_s``; 0 for what takes no time."""
        return self.error_s / self.mean_s if self.mean_s > 0 else 0.0


@dataclass(frozen=True)
class BatchLine:
    """A step against its batch size: ``constant_s + image_s x batch_size``."""

    constant_s: float
    image_s: float
    image_error_s: float = 0.0
    """Standard error of ``image_s``."""
    batch_sizes: Tuple[int, ...] = ()
    """Those that it was fitted to."""


@dataclass(frozen=True)
class LoaderWorkload:
    """What one run tells of its loader and its loop, each on a core of its own.

    Seconds per iteration or batch. Waiting for a core is left out everywhere: a
    prediction adds what its own setting causes.
    """

    num_workers: int
    """Of the run it is taken from, as are the next three."""
    prefetch_factor: int
    persistent_workers: bool
    batch_size: Optional[int]
    iterations: int
    """Iterations the figures are taken over."""
    iter_time: Cost
    """As it was measured, with its waits."""
    occupancy: Cost
    """S: a worker's time from one batch to the next."""
    batch_cpu: Cost
    """P: the CPU part of it."""
    step: Cost
    """G: the step and its hooks, once data is at hand."""
    step_cpu_s: float
    """m: CPU of the training process per iteration, waits for data left out."""
    fetch_s: float
    """f: what fetching a ready batch takes, CPU of either side: for each tensor the
    training process asks the worker that made it."""
    fetch_busy_s: float
    """What it takes longer when no core is free."""
    usable_cores: float
    """C: cores that this rank may use."""
    host_cores: float
    """Logical CPUs of the host."""
    stranger_tasks: float = 0.0
    """Tasks of others that want a core at any time, mean."""
    spin_s: float = 0.0
    """Part of ``step_cpu_s`` spent spinning for the GPU: it takes a core from the
    workers, but the step does not get longer when they take it back."""
    step_power: float = 1.0
    """How a step on several threads suffers when cores are crowded: when each thread
    gets a share r of a core, the step goes on at r to this power. 1 where the threads
    do not wait for each other, more where they do."""
    is_storage_bound: bool = False
    """Whether loading mostly waits while the host waits for storage."""
    handover_s: float = 0.0
    """Part of ``occupancy`` that handing a batch over takes: without workers there is
    none."""
    handover_cpu_s: float = 0.0
    """Part of ``batch_cpu`` that handing a batch over takes."""
    worker_start_s: float = 0.0
    """What one worker adds to the start of an epoch."""
    step_line: Optional[BatchLine] = None
    """``None`` until several batch sizes were seen: none other is predicted then."""
    measured_batch_size: Optional[int] = None
    """The run's, where the figures were scaled to another ``batch_size``."""
    is_handover_known: bool = True
    """Whether workers were measured that handed batches over."""
    is_occupancy_known: bool = True
    """Whether the occupancy was measured, and not just bounded."""
    held_up_s: float = 0.0
    """What workers made the measured step longer by taking cores from it."""
    is_step_power_known: bool = True
    """Whether workers were seen to delay the step, where it has several threads."""
    notes: Tuple[str, ...] = ()
    """Sentences about what was left out or assumed, for the user."""


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
    worker_utilisation: Optional[float]
    """Share of the time that a worker is busy with a batch; ``None`` without any."""
    limit: str
    """What keeps it from being faster: a member of
    :data:`mmgpu_hooks.model.prediction.LIMITS`."""


@dataclass(frozen=True)
class JobPlan:
    """A training from first to last iteration."""

    iterations: int
    """Of one epoch."""
    epochs: int = 1
    saves: int = 0
    """Checkpoint saves of the whole job."""
    save_cpu_s: float = 0.0
    """CPU of one save."""
    save_wait_s: float = 0.0
    """What one save waits for anything but a core."""


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


def _error_pct(said: Optional[int], measured: int) -> Optional[float]:
    return None if said is None else 100.0 * (said - measured) / measured
