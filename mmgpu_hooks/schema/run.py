"""One run as it is read back, and what its evidence and its ranks come to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional, Tuple

from mmgpu_hooks.schema.recorded import (
    CardWindow,
    EndRecord,
    GpuWindow,
    IntervalRecord,
    ModelBytesRecord,
    RunRecord,
    SaveAftermathRecord,
    SaveRecord,
    SlowSample,
    SourceOffRecord,
    ValidationRecord,
)


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


@dataclass(frozen=True)
class RunEvidence:
    """One rank's evidence, read back."""

    path: str
    run: RunRecord
    intervals: Sequence[IntervalRecord]
    end: Optional[EndRecord] = None
    sources_off: Tuple[SourceOffRecord, ...] = ()
    model: Optional[ModelBytesRecord] = None
    save_records: Tuple[SaveRecord, ...] = ()
    save_aftermaths: Tuple[SaveAftermathRecord, ...] = ()
    validations: Tuple[ValidationRecord, ...] = ()
    notes: Tuple[str, ...] = ()
    """Sentences about what was odd in the file, for the user."""


@dataclass(frozen=True)
class RunSummary:
    """One rank's whole run in figures; ``steady`` ones leave the warm-up out."""

    run: RunRecord
    iterations: int
    duration_s: float
    ledger_s: Mapping[str, float]
    """Seconds of the whole run, by part of the time ledger."""
    status: str
    """``completed``, ``interrupted``, ``failed``, or ``killed`` (no end record)."""
    steady_iterations: int = 0
    """Iterations the steady figures are taken over; 0 leaves them unknown."""
    data_wait_s: Optional[float] = None
    """Steady mean per iteration, first waits of epochs left out."""
    data_wait_p95_s: Optional[float] = None
    """95th percentile of the steady iterations' waits, from those of the intervals."""
    data_wait_usual_p95_s: Optional[float] = None
    """Median over intervals of their 95th percentiles: that of a usual interval."""
    step_s: Optional[float] = None
    hooks_s: Optional[float] = None
    iter_s: Optional[float] = None
    """``data_wait_s + step_s + hooks_s``."""
    iter_p50_s: Optional[float] = None
    """Median over intervals of their medians."""
    iter_p95_s: Optional[float] = None
    """95th percentile of the steady iterations, from those of the intervals."""
    images_per_s: Optional[float] = None
    epoch_starts: int = 0
    startup_s: float = 0.0
    """First waits of epochs beyond a normal wait, summed over the run."""
    data_wait_cpu_share: Optional[float] = None
    """CPU of the training thread inside its waits, over the waits."""
    main_cpu_s: Optional[float] = None
    """CPU of the training process per iteration, its waits' part left out."""
    main_run_delay_s: Optional[float] = None
    """What its main thread waited for a core, per iteration."""
    worker_cpu_s: Optional[float] = None
    """CPU of all workers per batch."""
    worker_run_delay_s: Optional[float] = None
    """Time workers waited for a core, per batch."""
    worker_count: Optional[int] = None
    process_cpu_cores: Optional[float] = None
    system_cpu_pct: Optional[float] = None
    cpu_aside_pct: Optional[float] = None
    """Share of the seconds behind the figures of CPU that are saves and validations,
    whose own CPU is not known; ``None`` where they are not in the figures."""
    external_cpu_cores: Optional[float] = None
    """Cores of the host that others used meanwhile; ``None`` with several ranks on it,
    because theirs cannot be told from a stranger's."""
    process_rss_bytes: Optional[int] = None
    batch_bytes: Optional[int] = None
    batch_tensors: Optional[int] = None
    gpu: Optional[GpuWindow] = None
    gpu_mem_peak_bytes: Optional[int] = None
    gpu_mem_reserved_bytes: Optional[int] = None
    saves: int = 0
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is missing, by source."""
    notes: Tuple[str, ...] = ()
    hooks: Mapping[str, HookCost] = field(default_factory=dict)
    """By class, most expensive first; what is left of ``ledger_s['hooks']`` is
    MMEngine's own calling."""
    loader: Optional[LoaderSummary] = None
    """``None`` without workers that could be read."""
    host: Optional[HostSummary] = None
    gpu_idle_pct: Optional[float] = None
    """Share of the timed steady iterations in which the GPU had nothing to do."""
    gpu_idle_iterations: int = 0
    cards: Mapping[str, CardWindow] = field(default_factory=dict)
    """Every card of the host by UUID; of the first rank on it only."""
    card_imbalance: Optional[CardImbalance] = None
    """``None`` unless the run trains on all cards of the host, more than one."""
    cuda_memory: Optional[CudaMemorySummary] = None
    model: Optional[ModelBytesRecord] = None
    largest_batch_pixels: Optional[int] = None
    most_boxes: Optional[int] = None
    save_records: Tuple[SaveRecord, ...] = ()
    """Each save taken apart."""
    save_aftermaths: Tuple[SaveAftermathRecord, ...] = ()
    validations: Tuple[ValidationRecord, ...] = ()

    @property
    def why_no_gpu_util(self) -> str:
        """The reason of the whole card, else of this figure alone."""
        reasons = (self.unknown.get(source) for source in ('GPU', 'GPU util_pct'))
        return next(filter(None, reasons), 'no sample was taken')


@dataclass(frozen=True)
class PlainRun:
    """What MMEngine's own ``scalars.json`` tells of a run without our hook."""

    path: str
    iterations: int
    """Last iteration logged."""
    lines: int
    """Log lines that carried both ``time`` and ``data_time``."""
    time_s: float
    """Median of the logged ``time``."""
    data_time_s: float
    """Median of the logged ``data_time``."""
    config_copy: Optional[str] = None
    notes: Tuple[str, ...] = ()
