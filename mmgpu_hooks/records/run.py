"""One run: the lines of its evidence file."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from mmgpu_hooks.records.device import (
    CardWindow,
    CudaMemoryWindow,
    GpuDevice,
    GpuWindow,
    ModelBytesRecord,
)
from mmgpu_hooks.records.loading import WorkersWindow
from mmgpu_hooks.records.measured import (
    DurationStats,
    HostLimits,
    HostWindow,
    LoaderSettings,
)
from mmgpu_hooks.records.saving import SaveAftermathRecord, SaveRecord
from mmgpu_hooks.records.validating import ValidationRecord

SCHEMA_VERSION = 1
"""Version of the evidence file; a reader refuses only newer ones."""


@dataclass(frozen=True)
class RunRecord:
    """First line of an evidence file: all that analysis needs to know later."""

    run_id: str
    """Random, so that two runs in one file are noticed."""
    started_unix_s: float
    """Wall clock; a label, never used for durations."""
    rank: int = 0
    world_size: int = 1
    work_dir: Optional[str] = None
    config_path: Optional[str] = None
    """The file the user trains with, absolute."""
    config_copy: Optional[str] = None
    """The run's own flattened copy, absolute."""
    loop: Optional[str] = None
    """``epoch``, ``iter`` or the class name of a custom loop."""
    max_epochs: Optional[int] = None
    max_iters: Optional[int] = None
    start_iteration: int = 0
    """Iterations done before this run: above zero when it was resumed."""
    interval_iterations: int = 0
    accumulative_counts: Optional[int] = None
    optim_wrapper: Optional[str] = None
    device: str = 'cpu'
    loader: LoaderSettings = field(default_factory=LoaderSettings)
    worker_nice: Optional[int] = None
    """What the hook set the nice value of the loader's workers to; ``None`` when it
    left it alone."""
    host: HostLimits = field(default_factory=HostLimits)
    gpu: Optional[GpuDevice] = None
    versions: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    """Why a figure is missing, by source."""
    schema: int = SCHEMA_VERSION


@dataclass(frozen=True)
class IntervalRecord:
    """Everything measured over one interval of training iterations."""

    iteration: int
    """Last iteration in it, 1-based, counted over the whole training."""
    epoch: int
    """1-based."""
    iterations: int
    elapsed_s: float
    """Since training began, monotonic."""
    duration_s: float
    """Wall clock covered; equals the sum of the parts in ``ledger_s``."""
    data_wait: DurationStats
    step: DurationStats
    iter: DurationStats
    """``data_wait`` + step + hooks of an iteration; saves and validation out."""
    ledger_s: Mapping[str, float]
    """Seconds by part of the time ledger."""
    hooks_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds in ``hooks`` by class of hook; the rest is MMEngine's own calling.

    ``(not told apart)`` is what hooks took of which nobody knows which one did."""
    data_wait_cpu_s: Optional[float] = None
    """CPU of the training thread inside ``data_wait``."""
    first_waits: int = 0
    """How many of the waits were the first of an epoch."""
    first_wait_s: float = 0.0
    """Their sum, with what of it is booked as ``worker_startup``."""
    images: Optional[int] = None
    """Images trained on by this rank."""
    batch_bytes: Optional[int] = None
    """Bytes of the tensors in the interval's last batch."""
    batch_tensors: Optional[int] = None
    """How many tensors those are: each needs a file descriptor in flight."""
    saves: int = 0
    process_rss_bytes: Optional[int] = None
    """Resident memory of the training process."""
    process_cpu_s: Optional[float] = None
    """CPU of the training process, all threads, workers excluded."""
    process_run_delay_s: Optional[float] = None
    """Its main thread was ready to run and waited for a core."""
    system_cpu_pct: Optional[float] = None
    """Busy share of all logical CPUs of the host."""
    largest_batch_pixels: Optional[int] = None
    """Images x padded height x padded width of the interval's largest batch."""
    most_boxes: Optional[int] = None
    """Annotated boxes of the batch that had most."""
    host: Optional[HostWindow] = None
    workers: Optional[WorkersWindow] = None
    gpu: Optional[GpuWindow] = None
    gpu_idle_pct: Optional[float] = None
    """Share of the timed iterations in which the GPU had nothing to do."""
    gpu_idle_iterations: int = 0
    """Iterations that share is taken over; 0 leaves it unknown."""
    cards: Mapping[str, CardWindow] = field(default_factory=dict)
    """Every card of the host by UUID; recorded by the first rank on it."""
    gpu_mem_peak_bytes: Optional[int] = None
    """Largest allocator peak since the last interval."""
    gpu_mem_reserved_bytes: Optional[int] = None
    """Largest bytes the allocator held since the last interval."""
    cuda_memory: Optional[CudaMemoryWindow] = None
    wall_unix_s: Optional[float] = None
    stored_pixel_ratio: Optional[float] = None
    """Pixels of the last batch's images as stored, over those they are trained at."""


@dataclass(frozen=True)
class SourceOffRecord:
    """A source failed and was switched off; training went on."""

    source: str
    reason: str
    iteration: Optional[int] = None


@dataclass(frozen=True)
class UnknownRecord:
    """A figure that this run does not tell, which showed only while it was on."""

    source: str
    reason: str
    iteration: Optional[int] = None


@dataclass(frozen=True)
class EndRecord:
    """Last line, written when training ended in any way but a kill."""

    status: str
    """``completed``, ``interrupted`` or ``failed``."""
    iterations: int
    duration_s: Optional[float]
    """``None`` when the ledger had been switched off."""
    ledger_s: Mapping[str, float]
    """Of the whole run; empty when the ledger had been switched off."""
    hooks_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds in ``hooks`` of the whole run, by class of hook."""
    saves: int = 0
    """Of the whole run, those after the last iteration included."""
    error: Optional[str] = None
    """Type of the exception that ended it."""


@dataclass(frozen=True)
class RunEvidence:
    """One rank's evidence, read back."""

    path: str
    run: RunRecord
    intervals: Tuple[IntervalRecord, ...]
    end: Optional[EndRecord] = None
    sources_off: Tuple[SourceOffRecord, ...] = ()
    model: Optional[ModelBytesRecord] = None
    save_records: Tuple[SaveRecord, ...] = ()
    save_aftermaths: Tuple[SaveAftermathRecord, ...] = ()
    validations: Tuple[ValidationRecord, ...] = ()
    notes: Tuple[str, ...] = ()
    """Sentences about what was odd in the file, for the user."""


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
