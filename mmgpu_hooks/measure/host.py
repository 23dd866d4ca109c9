"""Reads the host's CPU and memory limits, CPU use, and free memory.

The host is read every five seconds at most, the CPU of the training process in each
interval.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, NamedTuple

import psutil
from msgspec import structs

from mmgpu_hooks.measure.cgroup import (
    find_cpu_groups,
    find_memory_groups,
    read_cgroup_folders,
    read_throttled_s,
)
from mmgpu_hooks.measure.clock import Clock, grown, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.manager import find_manager
from mmgpu_hooks.measure.proc import read_affinity, read_begin, read_schedstat_s
from mmgpu_hooks.measure.slurm import SlurmTask, parse_job_id, parse_slurm_task
from mmgpu_hooks.schema.checkup import OpenFiles
from mmgpu_hooks.schema.recorded import HostLimits, HostWindow

VARIABLES = ('OMP_PROC_BIND', 'OMP_PLACES', 'GOMP_CPU_AFFINITY', 'KMP_AFFINITY')


def list_binding_variables(environ: Mapping[str, str]) -> list[str]:
    """Lists the set environment variables that make OpenMP bind threads to cores."""
    asked = {name: environ.get(name, '').lower() for name in VARIABLES}
    if asked['OMP_PROC_BIND'] == 'false':  # libgomp heeds none of the others then
        return []
    return [
        name
        for name, value in asked.items()
        if value and not {'none', 'disabled'} & set(value.split(','))
    ]


@dataclass(frozen=True)
class CpuBinding:
    """Number of CPUs a process had before it was bound to fewer, and what bound it."""

    unbound_cpus: int | None = None
    """Number of CPUs before the process was bound; ``None`` if it was not bound."""
    bound_by: str | None = None
    """Environment variables that asked to bind the process's threads."""
    wider_thread_cpus: int | None = None
    """Number of CPUs that the process's least confined thread may use."""


def find_binding(
    own: int,
    environ: Mapping[str, str],
    library: int | None = None,
    thread: int | None = None,
    ancestor: int | None = None,
) -> CpuBinding:
    """Decides if a process was bound to fewer CPUs after it started; no I/O.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        library: CPUs that libgomp counted when it was loaded, with torch; ``None`` is
            unknown, as below.
        thread: CPUs of the widest thread of the process.
        ancestor: CPUs of the process that started the launcher, where the launcher has
            no more than ``own``.

    Returns:
        Who bound it is named only where that is proven, and CPUs that only another
        thread has prove nothing: it may have widened itself (a driver's or NCCL's
        does).
    """
    names = list_binding_variables(environ)
    # torchrun may have bound itself before it started us
    is_launched = 'TORCHELASTIC_RUN_ID' in environ
    bound_by = ', '.join(names) or None
    if names and library is not None and library > own:
        return CpuBinding(library, bound_by)
    wider_thread = thread if thread is not None and thread > own else None
    # another OpenMP runtime than libgomp, which cannot be asked
    is_other = library is None or 'KMP_AFFINITY' in names
    if names and wider_thread is not None and is_other:
        return CpuBinding(wider_thread, bound_by)
    if names and is_launched and ancestor is not None and ancestor > own:
        return CpuBinding(ancestor, bound_by)
    return CpuBinding(wider_thread_cpus=wider_thread)


def read_binding(
    own: int, environ: Mapping[str, str], proc: Path = Path('/proc')
) -> CpuBinding:
    """Detects if this process was bound to fewer CPUs after it started; takes 1 ms.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        proc: Root of the proc file system.

    Returns:
        As :func:`find_binding`.
    """
    asked = any(name in environ for name in VARIABLES)
    # unasked, it counts what the thread has now
    library = max(_count_by_libgomp(proc), default=None) if asked else None
    thread = max(_count_by_thread(proc), default=None)
    return find_binding(own, environ, library, thread, _count_before_launcher(own))


def _count_by_libgomp(proc: Path) -> Iterator[int]:
    # not of LLVM's or Intel's runtime, which may bind us on this very call
    with contextlib.suppress(OSError):
        maps = (proc / 'self' / 'maps').read_text(errors='replace')
        for path in set(re.findall(r'/.*/libgomp\b.*\.so.*', maps)):
            with contextlib.suppress(OSError, AttributeError):
                library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
                yield library.omp_get_num_procs()


def _count_by_thread(proc: Path) -> Iterator[int]:
    with contextlib.suppress(OSError):
        for thread in os.listdir(proc / 'self' / 'task'):
            yield len(read_affinity(int(thread)) or ())


def _count_before_launcher(own: int) -> int | None:
    # one further up was narrowed by who started it: srun, or taskset of a script
    try:
        parents = psutil.Process().parents()[:2]
    except psutil.Error:  # a host may hide processes of others (hidepid=1)
        return None
    if len(parents) < 2:
        return None
    launcher, before = (read_affinity(parent.pid) or () for parent in parents)
    return len(before) if before and len(launcher) <= own else None


_LOAD = """
import ctypes, os, sys
before = len(os.sched_getaffinity(0))
ctypes.CDLL(sys.argv[1])
print(before, len(os.sched_getaffinity(0)))
"""


class ProbedBinding(NamedTuple):
    """Number of CPUs the main thread may use before and after it loads OpenMP."""

    before_cpus: int
    after_cpus: int


def run_binding_probe(
    library: Path, environ: Mapping[str, str]
) -> ProbedBinding | None:
    """Loads an OpenMP library in a child process, to see if it binds the main thread.

    Args:
        library: GNU's, which binds the thread that loads it; 50 ms.
        environ: Of that process.

    Returns:
        ``None`` where that failed.
    """
    command = [sys.executable, '-I', '-S', '-c', _LOAD, str(library)]
    try:
        done = subprocess.run(
            command, env=dict(environ), capture_output=True, text=True, timeout=10
        )
        before, after = map(int, done.stdout.split())
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return ProbedBinding(before, after)


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
    """Reads the host's limits on CPUs, memory and open files; ``None`` if unreadable.

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
    """
    affinity_cpus = len(affinity() or ()) or None
    quotas = [group.cores for group in find_cpu_groups(proc, sys)]
    memory_limits = [group.limit_bytes for group in find_memory_groups(proc, sys)]
    memory = psutil.virtual_memory()
    shared_memory = read_file_system(shm)
    binding = CpuBinding()
    if affinity_cpus:
        binding = read_binding(affinity_cpus, environ, proc)
    task = parse_slurm_task(environ)
    limits = HostLimits(
        logical_cpus=cpu_count(),
        affinity_cpus=affinity_cpus,
        unbound_cpus=binding.unbound_cpus,
        bound_by=binding.bound_by,
        wider_thread_cpus=binding.wider_thread_cpus,
        manager=find_manager(environ, proc.parent),
        cgroup_cpu_cores=min(quotas, default=None),
        slurm_cpus=task.requested_cpus,
        slurm_bound_cpus=task.bound_cpus,
        slurm_task_ranks=(
            task.count_ranks(ranks_on_host) if parse_job_id(environ) else None
        ),
        slurm_memory_bytes=task.memory_bytes,
        ranks_on_host=ranks_on_host,
        ram_total_bytes=memory.total,
        ram_available_bytes=memory.available,
        cgroup_memory_bytes=min(memory_limits, default=None),
        shm_total_bytes=shared_memory.total_bytes,
        shm_free_bytes=shared_memory.free_bytes,
        open_files_soft=read_open_files().soft,
    )
    usable = compute_usable_cores(limits, task)
    return _add_mended(structs.replace(limits, usable_cores=usable), task)


def _add_mended(found: HostLimits, task: SlurmTask) -> HostLimits:
    """Adds to host limits the cores usable if srun bound the task to all CPUs given."""
    if not task.is_narrow(found.unbound_cpus or found.affinity_cpus):
        return found
    given = task.given_cpus
    wide = structs.replace(found, affinity_cpus=given, unbound_cpus=None)
    return structs.replace(
        found,
        slurm_given_cpus=given,
        slurm_tasks=task.tasks,
        mended_cores=compute_usable_cores(wide, task.mend()),
    )


def compute_usable_cores(found: HostLimits, task: SlurmTask) -> float | None:
    """Computes the cores that one rank may use: smallest limit, divided among ranks.

    Limits of the whole host are divided by the ranks on it. SLURM's figures are per
    task and are divided only when one task holds all ranks (``torchrun`` under
    ``srun``). CPUs that SLURM gave to this task alone are not divided among tasks, and
    no request limits them: an exclusive job has more. Nor is an affinity divided that
    is smaller than what SLURM gives to all ranks together.

    Args:
        found: All other limits; what counts is the affinity before anything bound it.
        task: What SLURM says of this process.

    Returns:
        Cores, not rounded; ``None`` when no limit at all is known.
    """
    ranks, affinity = found.ranks_on_host, found.unbound_cpus or found.affinity_cpus
    # what belongs to a task belongs to a rank, where each rank is one
    own = 1 if task.is_rank else ranks
    limits: list[tuple[float | None, int]] = [
        (found.logical_cpus, ranks),
        (found.cgroup_cpu_cores, ranks),
    ]
    if task.has_own_mask(affinity, ranks):
        limits.append((affinity, ranks if task.tasks is None else own))
    else:
        given = task.given_cpus
        is_bound = task.is_rank and (affinity or 0) < (given or 0) * ranks
        limits += [(given, own), (affinity, 1 if is_bound else ranks)]
    shares = [limit / sharers for limit, sharers in limits if limit is not None]
    return float(min(shares)) if shares else None


class FileSystem(NamedTuple):
    """Total and free bytes of a file system; ``None`` if it cannot be read."""

    total_bytes: int | None = None
    free_bytes: int | None = None


def read_file_system(folder: str | Path) -> FileSystem:
    """Reads total and free bytes of the file system that holds a folder; takes 2 us."""
    try:
        usage = psutil.disk_usage(str(folder))
    except OSError:
        return FileSystem()
    return FileSystem(int(usage.total), int(usage.free))


def read_open_files() -> OpenFiles:
    """Reads this process's limits on the number of open files; unknown on Windows."""
    try:
        import resource
    except ImportError:
        return OpenFiles()
    soft, hard = (
        None if limit == resource.RLIM_INFINITY else limit
        for limit in resource.getrlimit(resource.RLIMIT_NOFILE)
    )
    return OpenFiles(soft, hard)


_NO_WORK = {'idle', 'iowait', 'guest', 'guest_nice'}
"""Fields of ``/proc/stat`` that are idle time, or contained in another field.

Linux has guest time inside ``user`` and ``nice``.
"""


def read_busy_s() -> float:
    """Returns the seconds since boot in which CPUs of the host worked, over all CPUs.

    What a hypervisor took from this host (``steal``) is work, though not its own.
    """
    times = psutil.cpu_times()._asdict()
    return float(sum(times[kind] for kind in times.keys() - _NO_WORK))


def read_run_delay_s(proc: Path = Path('/proc')) -> float | None:
    """Reads seconds that this process's main thread waited for a core, if known.

    Args:
        proc: Root of the proc file system.
    """
    times = read_schedstat_s(f'{proc}/self/schedstat')
    return None if times is None else times.run_delay_s


def read_pressure_s(path: Path) -> float:
    """Reads the seconds since boot in which a task waited for a resource (PSI file).

    Linux has it from 4.20 on.

    ``some`` counts the time in which at least one task waited, in microseconds
    since boot; ``full`` the time in which all did::

        some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0

    The running averages lag by ten seconds and more: the difference of two totals
    is the truth of a window.

    Returns:
        The total of ``some``, in seconds.

    Raises:
        OSError: If the kernel keeps no such figures.
        ValueError: If the text is not of this form.
    """
    text = read_begin(str(path), 256)
    found = re.match(rb'some .*total=(\d+)', text)
    if found is None:
        raise ValueError(f'expected a line "some ... total=<us>", found {text[:80]!r}')
    return int(found[1]) / 1e6


SELDOM_S = 5.0
"""Longest time in seconds between two readings of the host's CPU use and free memory.

Intervals between them lack its figures.
"""


def pause_s(elapsed_s: float) -> float:
    """Returns seconds until CPU and memory use are read again; fewer at first."""
    return min(SELDOM_S, elapsed_s / 2)


class HostFigures(NamedTuple):
    """CPU and memory use of this process and its host between two readings."""

    process_cpu_s: float
    process_run_delay_s: float | None
    system_cpu_pct: float | None = None
    """Busy time of the host's CPUs, in per cent of the time of all CPUs.

    ``None``, as ``host``, where the window is too new.
    """
    host: HostWindow | None = None


class HostMeter:
    """Reads CPU and memory use of this process and its host since the last reading.

    Windows of the host span 5 seconds, less at first (`pause_s`). Its CPU is the host's
    even inside a container, as ``/proc/stat`` is. A figure whose file is missing,
    hidden, vanished or garbage is ``None`` from then on, with a reason in
    :attr:`unknown`. A control group that gets its quota in mid-run is not seen.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        shm: Folder through whose file system loader workers hand over batches.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        proc: Path = Path('/proc'),
        sys: Path = Path('/sys'),
        shm: Path = Path('/dev/shm'),
        clock: Clock = monotonic_s,
    ) -> None:
        self.unknown: dict[str, str] = {}
        """Reasons why values of the host are missing, by the value's name."""
        self._proc, self._shm, self._clock = proc, shm, clock
        self._quotas = [group.folder for group in find_cpu_groups(proc, sys)]
        if not self._quotas and not read_cgroup_folders('cpu', proc, sys):
            self.unknown['throttled_s'] = 'no control group is in sight'
        self._last_cpu_s = process_cpu_s()
        self._last_run_delay_s = read_run_delay_s(proc)
        self._due_s = self._begun_s = clock()
        psutil.cpu_percent()
        self._throttled_s = self._read_throttled_s()

    def _read_throttled_s(self) -> float | None:
        """Reads the seconds that CPU quotas throttled tasks; ``None`` if unknown."""
        if not self._quotas or self.unknown:
            return None
        try:
            return sum(map(read_throttled_s, self._quotas))
        except (OSError, ValueError) as error:
            self.unknown['throttled_s'] = f'it is not shown: {error}'
            return None

    def read(self) -> HostFigures:
        """Reads CPU and memory use of this process and its host since the last call.

        The first call reads since construction.
        """
        cpu_s, run_delay_s = process_cpu_s(), read_run_delay_s(self._proc)
        figures = HostFigures(
            process_cpu_s=cpu_s - self._last_cpu_s,
            process_run_delay_s=grown(self._last_run_delay_s, run_delay_s),
        )
        self._last_cpu_s, self._last_run_delay_s = cpu_s, run_delay_s
        now_s = self._clock()
        if now_s < self._due_s:
            return figures
        self._due_s = now_s + pause_s(now_s - self._begun_s)
        return figures._replace(
            system_cpu_pct=psutil.cpu_percent(), host=self._read_window()
        )

    def _read_window(self) -> HostWindow:
        before, self._throttled_s = self._throttled_s, self._read_throttled_s()
        return HostWindow(
            throttled_s=grown(before, self._throttled_s),
            ram_available_bytes=psutil.virtual_memory().available,
            shm_free_bytes=read_file_system(self._shm).free_bytes,
        )
