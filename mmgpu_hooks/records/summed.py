"""What a whole run, and all its ranks, come to; grouped by what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from mmgpu_hooks.records.loading import SlowSample


@dataclass(frozen=True)
class HookCost:
    """One class of hook over the whole run."""

    seconds: float
    iteration_s: Optional[float] = None
    """Steady mean per iteration."""


@dataclass(frozen=True)
class TransformSummary:
    """One transform of the pipeline, over the samples that were timed."""

    name: str
    calls: int
    total_s: float
    image_s: Optional[float] = None
    """``total_s`` over the samples timed, those that skipped it included."""


@dataclass(frozen=True)
class OddWorker:
    """One worker of the loader that stands out of the others."""

    worker: int
    """Its id, from 0."""
    figure: str
    """``affinity_cpus``: CPUs it may run on; ``run_delay_pct``: share of its time that
    it waited for a core; ``batch_cpu_s``: its CPU for a batch."""
    own: float
    others: float
    """Median of the others."""


@dataclass(frozen=True)
class LoaderSummary:
    """The loader's workers over the steady intervals of a run.

    Where a figure has none there (an epoch whose batches were all made in the first
    interval), that interval is taken too.
    """

    source: str
    """``inside``, ``outside``, or ``mixed`` when intervals differ."""
    batches: int = 0
    """Batches the occupancy is taken over."""
    occupancy_s: Optional[float] = None
    """How long a worker was busy with one batch, mean; ``None`` from outside."""
    occupancy_std_s: Optional[float] = None
    """Its standard deviation over all batches, not the mean over intervals."""
    occupancy_p95_s: Optional[float] = None
    """95th percentile of all batches, from those of the intervals."""
    batch_cpu_s: Optional[float] = None
    """CPU of the worker for one batch, mean; ``None`` from outside."""
    asks: int = 0
    """Iterations at which it was looked at how many batches stood ready."""
    ready_mean: Optional[float] = None
    ready_zero_pct: Optional[float] = None
    """Share of the asks at which none stood ready."""
    out_of_order: Optional[int] = None
    """Batches that came before their turn, over the asks."""
    share_min_pct: Optional[float] = None
    """Share of the batches made by the worker that made fewest."""
    share_max_pct: Optional[float] = None
    """Share of the batches made by the worker that made most."""
    affinity_cpus: Optional[int] = None
    """CPUs that the most confined worker may run on, smallest of the run."""
    odd_worker: Optional[OddWorker] = None
    """One that is confined or starved far more than the others."""
    blocked_pct: Optional[float] = None
    """Share of the workers' time neither on a core nor waiting for one."""
    pss_bytes: Optional[int] = None
    """Memory of all workers, largest of the run."""
    timed_samples: int = 0
    """Samples whose transforms were timed."""
    transforms: Tuple[TransformSummary, ...] = ()
    """Most expensive first."""
    slowest: Tuple[SlowSample, ...] = ()
    """Slowest samples, slowest first, each dataset index once."""


@dataclass(frozen=True)
class HostSummary:
    """What the host did to everybody on it; sums and extremes are of the whole run."""

    seconds: float
    """Steady seconds that the pressure is taken over."""
    cpu_pressure_pct: Optional[float] = None
    io_pressure_pct: Optional[float] = None
    memory_pressure_pct: Optional[float] = None
    throttled_s: Optional[float] = None
    """Over the intervals that tell it, as are the other sums."""
    throttled_pct: Optional[float] = None
    """``throttled_s`` over the seconds of those intervals."""
    swap_in_bytes: Optional[int] = None
    swap_out_bytes: Optional[int] = None
    swap_used_bytes: Optional[int] = None
    """Most at the end of an interval."""
    ram_available_bytes: Optional[int] = None
    """Least at the end of an interval."""
    shm_free_bytes: Optional[int] = None
    """Least at the end of an interval."""
    open_files: Optional[int] = None
    """Most that were seen."""


@dataclass(frozen=True)
class CudaMemorySummary:
    """What the CUDA allocator went through over the whole run."""

    retries: Optional[int] = None
    ooms: Optional[int] = None
    inactive_bytes: Optional[int] = None
    """Most at the end of an interval (fragmentation)."""
    creep_bytes_per_1000: Optional[float] = None
    """Growth of live tensors per 1000 iterations over the run's second half; ``None``
    when it does not stand out of the noise, or there are too few intervals."""


@dataclass(frozen=True)
class CardImbalance:
    """The cards of one host that the run trains on, compared."""

    cards: int
    samples: int
    util_min_pct: float
    util_max_pct: float
    least_index: int
    """NVML's index of the card with the lowest utilisation."""
    most_index: int
    clock_min_mhz: Optional[float] = None
    """Lowest of the cards' mean clocks; ``None`` unless all are known."""
    clock_max_mhz: Optional[float] = None
    slow_clock_index: Optional[int] = None


@dataclass(frozen=True)
class RankRow:
    """One rank over the iterations that all ranks recorded; seconds per iteration."""

    rank: int
    data_wait_s: float
    startup_s: float
    hooks_s: float
    """Hooks that wait for other ranks left out."""
    save_s: float
    own_s: float
    """All of the above: what the others wait for, when it is most."""
    step_s: float
    """Holds the wait for the slowest rank."""
    last_iteration: int
    """Last one in its file, compared or not."""
    is_over: bool
    """Whether its file has an end record."""
    gpu_util_pct: Optional[float] = None


@dataclass(frozen=True)
class RanksSummary:
    """The ranks of one run side by side."""

    world_size: int
    why: str
    """Which rank is slowest and why, or why that cannot be said: a sentence."""
    rows: Tuple[RankRow, ...] = ()
    """By rank."""
    iterations: int = 0
    """Iterations compared, the warm-up left out."""
    first_iteration: Optional[int] = None
    last_iteration: Optional[int] = None
    slowest: Optional[int] = None
    """Rank; ``None`` when they differ by less than noise, or it cannot be told."""
    part: Optional[str] = None
    """``data_wait``, ``worker_startup``, ``hooks`` or ``checkpoint_save``."""
    lost_s: Optional[float] = None
    """What the slowest costs per iteration: its own time beyond the median of the
    others'."""
    noise_s: Optional[float] = None
    """What a difference must exceed to be one."""
    imbalance: Tuple[CardImbalance, ...] = ()
    """One for each host whose cards were recorded."""
    notes: Tuple[str, ...] = ()
    """Files left out, ranks missing, files cut short."""
