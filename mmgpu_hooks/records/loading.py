"""What is measured of the loader's workers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional, Tuple

from mmgpu_hooks.records.measured import DurationStats


@dataclass(frozen=True)
class TransformCost:
    """One transform of the pipeline, over the batches that were timed."""

    calls: int
    total_s: float
    """Wall clock inside it, transforms that it calls itself left out."""


@dataclass(frozen=True)
class SlowSample:
    """One sample that took long to make."""

    seconds: float
    index: int
    """Its index in the dataset."""
    image: Optional[str] = None
    """Image id and path, as far as the sample tells them."""


@dataclass(frozen=True)
class WorkersWindow:
    """The loader's worker processes over the iterations of one interval."""

    count: int
    """Most workers at one time that could be read."""
    window_s: float
    iterations: int
    """Batches the loop took meanwhile."""
    cpu_s: float
    run_delay_s: float
    fresh: bool = False
    """The workers started in it: batches they made ahead are in ``cpu_s``."""
    source: str = 'outside'
    """``inside``: figures per batch were taken in the workers themselves; ``outside``:
    they are estimated from what the scheduler tells."""
    blocked_s: Optional[float] = None
    """Neither on a core nor waiting for one, summed over the workers: waiting for
    storage, or for the loop to take a batch."""
    occupancy: Optional[DurationStats] = None
    """How long a worker was busy with one batch. ``None`` from outside: there only a
    mean could be estimated (workers x ``window_s`` / ``iterations``, while the queue is
    empty), and no percentile of it."""
    occupancy_std_s: Optional[float] = None
    batch_cpu: Optional[DurationStats] = None
    """CPU of the worker for one batch, all its threads; ``None`` from outside."""
    worker_batches: Tuple[int, ...] = ()
    """Batches each worker made, by worker id; empty from outside."""
    worker_cpu_s: Tuple[float, ...] = ()
    """CPU of each worker, by worker id."""
    worker_run_delay_s: Tuple[float, ...] = ()
    """What of ``run_delay_s`` each waited, by worker id. Empty, as the two below, where
    one could not be read, of more than 64 workers and in older evidence."""
    worker_blocked_s: Tuple[float, ...] = ()
    worker_affinity_cpus: Tuple[int, ...] = ()
    """CPUs that each may run on, by worker id."""
    ready_mean: Optional[float] = None
    """Batches that stood ready when the loop asked, mean."""
    ready_zero_pct: Optional[float] = None
    """Share of the asks at which none stood ready."""
    asks: int = 0
    """Times it was looked at how many batches stood ready."""
    out_of_order: Optional[int] = None
    """Batches that came before their turn, in the waits looked at, and had to wait for
    an earlier one."""
    affinity_cpus: Optional[int] = None
    """CPUs that the most confined worker may run on; asked when workers start and
    every 30 seconds."""
    pss_bytes: Optional[int] = None
    """Memory of all workers, shared pages counted in part; looked at once per start
    of workers and every 30 seconds."""
    worker_pss_bytes: Tuple[int, ...] = ()
    """Of each, by worker id; of more than 16 workers, of which some are read, empty."""
    transforms: Mapping[str, TransformCost] = field(default_factory=dict)
    """By class name, over the batches that were timed."""
    timed_samples: int = 0
    """Samples those batches had."""
    slowest: Tuple[SlowSample, ...] = ()
    """Slowest samples of the interval, slowest first."""
