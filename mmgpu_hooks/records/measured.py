"""What is measured of durations, the loader's settings and the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional


@dataclass(frozen=True)
class DurationStats:
    """How long something took, over ``count`` occurrences."""

    count: int
    """Occurrences the figures are taken over."""
    total_s: float
    """Sum of all of them."""
    mean_s: float
    p50_s: float
    """Median."""
    p95_s: float
    """95th percentile, linearly interpolated."""
    max_s: float


@dataclass(frozen=True)
class LoaderSettings:
    """The live attributes of a ``DataLoader``, not what some file says."""

    num_workers: Optional[int] = None
    persistent_workers: Optional[bool] = None
    prefetch_factor: Optional[int] = None
    """Batches in flight per worker; ``None`` without workers."""
    pin_memory: Optional[bool] = None
    batch_size: Optional[int] = None
    """Per rank, read from the batch sampler."""
    batches_per_epoch: Optional[int] = None
    dataset_length: Optional[int] = None
    start_method: Optional[str] = None
    """How workers start (``fork``, ``spawn``, ``forkserver``)."""
    image_decoder: Optional[str] = None
    """``imdecode_backend`` of the pipeline (``cv2``, ``turbojpeg``, ``pillow``);
    ``None`` where no transform has one."""


@dataclass(frozen=True)
class HostLimits:
    """What this host allows one process of the training to use."""

    logical_cpus: Optional[int] = None
    affinity_cpus: Optional[int] = None
    """CPUs that the scheduler lets this process run on."""
    unbound_cpus: Optional[int] = None
    """The same before a library, or code of the training, bound the process to
    ``affinity_cpus``; ``None`` when nothing did."""
    bound_by: Optional[str] = None
    """Environment variables that asked for it; ``None`` when it has none of them."""
    cpuset_cpus: Optional[int] = None
    """CPUs of the control group's cpuset; ``None`` when unknown."""
    cgroup_cpu_cores: Optional[float] = None
    """Smallest CPU quota over all cgroup ancestors; ``None`` is no quota."""
    slurm_cpus: Optional[int] = None
    """``SLURM_CPUS_PER_TASK`` when SLURM started the process."""
    ranks_on_host: int = 1
    usable_cores: Optional[float] = None
    """Smallest of the above, of ``unbound_cpus`` where the process is bound, divided by
    the ranks on the host."""
    ram_total_bytes: Optional[int] = None
    ram_available_bytes: Optional[int] = None
    cgroup_memory_bytes: Optional[int] = None
    """Smallest memory limit over all cgroup ancestors."""
    shm_total_bytes: Optional[int] = None
    """Size of ``/dev/shm``, through which workers hand over batches."""
    shm_free_bytes: Optional[int] = None
    open_files_soft: Optional[int] = None
    """Soft limit on open files of this process."""

    @property
    def cores_had(self) -> Optional[float]:
        """Usable cores as the run had them: no more than it was bound to."""
        usable, bound = self.usable_cores, self.affinity_cpus
        if usable is None or bound is None or self.unbound_cpus is None:
            return usable
        return min(usable, bound)


@dataclass(frozen=True)
class HostWindow:
    """What the host did to everybody on it during one interval."""

    cpu_pressure_pct: Optional[float] = None
    """Share of the time that some task waited for a core (PSI ``some``)."""
    io_pressure_pct: Optional[float] = None
    """Share of the time that some task waited for storage."""
    memory_pressure_pct: Optional[float] = None
    """Share of the time that some task waited for memory."""
    throttled_s: Optional[float] = None
    """Time that this control group's CPU quota held its tasks back, added up over the
    CPUs: it can exceed the interval."""
    swap_in_bytes: Optional[int] = None
    swap_out_bytes: Optional[int] = None
    ram_available_bytes: Optional[int] = None
    """At the end of the interval."""
    swap_used_bytes: Optional[int] = None
    """At the end of the interval."""
    shm_free_bytes: Optional[int] = None
    """At the end of the interval."""
    open_files: Optional[int] = None
    """Open descriptors of the training process, looked at now and then."""
