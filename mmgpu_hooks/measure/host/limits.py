"""What this host allows one process of the training to use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Callable, Optional

from mmgpu_hooks.measure.host.binding import read_binding
from mmgpu_hooks.measure.host.cgroup import count_cpuset_cpus, read_cgroup_limits
from mmgpu_hooks.measure.host.proc import read_affinity
from mmgpu_hooks.schema import HostLimits

Memory = tuple[Optional[int], Optional[int]]
"""Total and available bytes of RAM."""


def read_host_limits(
    *,
    ranks_on_host: int,
    proc: Path = Path('/proc'),
    sys: Path = Path('/sys'),
    shm: Path = Path('/dev/shm'),
    environ: Mapping[str, str] = os.environ,
    affinity: Callable[[], frozenset[int] | None] = read_affinity,
    cpu_count: Callable[[], int | None] = os.cpu_count,
) -> HostLimits:
    """Read every limit there is; what the platform does not tell is ``None``.

    Args:
        ranks_on_host: Training processes that share this host, at least 1.
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        shm: Folder through whose file system loader workers hand over batches.
        environ: Environment, for SLURM's variables.
        affinity: Returns the CPUs this process may run on, or ``None``.
        cpu_count: Returns the host's logical CPUs, or ``None``.

    Returns:
        The limits. Never raises for anything that is missing.

    Raises:
        ValueError: If ``ranks_on_host`` is below 1.
    """
    if ranks_on_host < 1:
        raise ValueError(f'ranks_on_host must be at least 1, found {ranks_on_host}')
    affinity_cpus = len(affinity() or ()) or None
    bound = affinity_cpus and read_binding(affinity_cpus, environ, proc)
    groups = read_cgroup_limits(proc, sys)
    logical_cpus = cpu_count()
    slurm_cpus = parse_slurm_cpus(environ)
    total, available = read_memory(proc)
    shm_total, shm_free = read_file_system(shm)
    return HostLimits(
        logical_cpus=logical_cpus,
        affinity_cpus=affinity_cpus,
        unbound_cpus=bound.cpus if bound else None,
        bound_by=bound.by if bound else None,
        cpuset_cpus=count_cpuset_cpus(proc, sys),
        cgroup_cpu_cores=groups.cpu_cores,
        slurm_cpus=slurm_cpus,
        ranks_on_host=ranks_on_host,
        usable_cores=fold_usable_cores(
            logical_cpus=logical_cpus,
            affinity_cpus=bound.cpus if bound else affinity_cpus,
            cgroup_cpu_cores=groups.cpu_cores,
            slurm_cpus=slurm_cpus,
            ranks_on_host=ranks_on_host,
            rank_is_slurm_task=parse_rank_is_slurm_task(environ),
        ),
        ram_total_bytes=total,
        ram_available_bytes=available,
        cgroup_memory_bytes=groups.memory_bytes,
        shm_total_bytes=shm_total,
        shm_free_bytes=shm_free,
        open_files_soft=_read_open_files_soft(),
    )


def fold_usable_cores(
    *,
    logical_cpus: int | None,
    affinity_cpus: int | None,
    cgroup_cpu_cores: float | None,
    slurm_cpus: int | None,
    ranks_on_host: int,
    rank_is_slurm_task: bool = True,
) -> float | None:
    """Cores that one rank may count on: the smallest limit, shared fairly.

    Limits of the whole host are divided by the ranks on it. SLURM's figure is
    per task and is divided only when one task holds all ranks (``torchrun``
    under ``srun``). An affinity smaller than what SLURM gives to all ranks
    together belongs to this task alone and is not divided either.

    Args:
        logical_cpus: Logical CPUs of the host.
        affinity_cpus: CPUs this process may run on, before anything bound it.
        cgroup_cpu_cores: CPU quota of the control groups.
        slurm_cpus: ``SLURM_CPUS_PER_TASK``.
        ranks_on_host: Training processes that share this host.
        rank_is_slurm_task: SLURM started this very process as one task.

    Returns:
        Cores, not rounded; ``None`` when no limit at all is known.
    """
    own_task = slurm_cpus is not None and rank_is_slurm_task
    shares: list[float] = []
    if logical_cpus is not None:
        shares.append(logical_cpus / ranks_on_host)
    if cgroup_cpu_cores is not None:
        shares.append(cgroup_cpu_cores / ranks_on_host)
    if slurm_cpus is not None:
        shares.append(slurm_cpus if own_task else slurm_cpus / ranks_on_host)
    if affinity_cpus is not None:
        bound = own_task and affinity_cpus < (slurm_cpus or 0) * ranks_on_host
        shares.append(affinity_cpus if bound else affinity_cpus / ranks_on_host)
    return float(min(shares)) if shares else None


def parse_slurm_cpus(environ: Mapping[str, str]) -> int | None:
    """``SLURM_CPUS_PER_TASK`` where it is set and positive."""
    try:
        cpus = int(environ.get('SLURM_CPUS_PER_TASK', ''))
    except ValueError:
        return None
    return cpus if cpus > 0 else None


def parse_rank_is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Whether SLURM started each rank itself, so that its figures are per rank.

    A launcher under ``srun`` starts more ranks than there are tasks; ``torchrun``
    says so by its own variable too.
    """
    if 'TORCHELASTIC_RUN_ID' in environ:
        return False
    ranks, tasks = environ.get('WORLD_SIZE'), environ.get('SLURM_NTASKS')
    return ranks is None or tasks is None or ranks == tasks


def parse_meminfo(text: str) -> Memory:
    """Parse total and available bytes out of ``/proc/meminfo``.

    Available is what new work can take without swapping, not free memory::

        MemTotal:       24668432 kB
        MemAvailable:   22118804 kB
    """
    kilobytes = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[1].isdigit() and words[2] == 'kB':
            kilobytes[words[0]] = int(words[1]) * 1024
    return kilobytes.get('MemTotal:'), kilobytes.get('MemAvailable:')


def read_memory(proc: Path = Path('/proc')) -> Memory:
    """Total and available RAM in bytes: ``/proc/meminfo``, else psutil."""
    try:
        return parse_meminfo((proc / 'meminfo').read_text(errors='replace'))
    except OSError:
        return _read_memory_psutil()


def _read_memory_psutil() -> Memory:
    try:
        import psutil

        memory = psutil.virtual_memory()
    except (ImportError, OSError, RuntimeError):
        return None, None
    return int(memory.total), int(memory.available)


def read_file_system(folder: str | Path) -> Memory:
    """Total and free bytes of a file system, for 1 us; Windows has no ``statvfs``."""
    statvfs = getattr(os, 'statvfs', None)
    if statvfs is None:
        return None, None
    try:
        stat = statvfs(folder)
    except OSError:
        return None, None
    return stat.f_frsize * stat.f_blocks, stat.f_frsize * stat.f_bavail


def _read_open_files_soft() -> int | None:
    """Soft limit on open files; ``None`` when unlimited or on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft
