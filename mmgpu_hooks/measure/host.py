"""The host: its limits, its CPU, and what went on there between two reads."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional

import psutil

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.cgroup import (
    count_cpuset_cpus,
    read_cgroup_folders,
    read_cgroup_limits,
    read_throttled_s,
    states_no_quota,
)
from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.proc import parse_schedstat, read_affinity, read_begin
from mmgpu_hooks.schema.recorded import HostLimits, HostWindow

VARIABLES = ('OMP_PROC_BIND', 'OMP_PLACES', 'GOMP_CPU_AFFINITY', 'KMP_AFFINITY')


class Binding(NamedTuple):
    """A mask that is narrower than the process was started with."""

    cpus: int
    """CPUs of the mask before."""
    by: str | None
    """The environment variables that asked for it; ``None`` if none is set."""


def find_binding(
    own: int,
    environ: Mapping[str, str],
    *,
    library: int | None = None,
    thread: int | None = None,
    ancestor: int | None = None,
) -> Binding | None:
    """Decide whether the process was bound after its start. Pure.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        library: CPUs that libgomp counted when it was loaded.
        thread: CPUs of the widest thread of the process.
        ancestor: CPUs of the process that started the launcher, where the launcher has
            no more than ``own``.
    """
    asked = {name: environ.get(name, '').lower() for name in VARIABLES}
    if asked['OMP_PROC_BIND'] == 'false':  # libgomp heeds none of the others then
        asked.clear()
    names = [
        name
        for name, value in asked.items()
        if value and not {'none', 'disabled'} & set(value.split(','))
    ]
    by = ', '.join(names) or None
    if by and library is not None and library > own:
        return Binding(library, by)
    if thread is not None and thread > own:
        return Binding(thread, by)
    # torchrun bound itself before it started us
    is_launched = by and 'TORCHELASTIC_RUN_ID' in environ
    if is_launched and ancestor is not None and ancestor > own:
        return Binding(ancestor, by)
    return None


def read_binding(
    own: int, environ: Mapping[str, str], proc: Path = Path('/proc')
) -> Binding | None:
    """Find out whether this process was bound after its start; 1 ms.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        proc: Root of the proc file system.
    """
    asked = any(name in environ for name in VARIABLES)
    return find_binding(
        own,
        environ,
        library=max(_count_by_libgomp(proc), default=None) if asked else None,
        thread=max(_count_by_thread(proc), default=None),
        ancestor=_count_before_launcher(own, proc),
    )


def _count_by_libgomp(proc: Path) -> Iterator[int]:
    # not of LLVM's or Intel's runtime, which may bind us on this very call
    for path in set(re.findall(r'/.*/libgomp\b.*\.so.*', _read(proc / 'self/maps'))):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            yield library.omp_get_num_procs()
        except (OSError, AttributeError):
            continue


def _count_by_thread(proc: Path) -> Iterator[int]:
    try:
        threads = os.listdir(proc / 'self/task')
    except OSError:
        return
    for thread in threads:
        yield len(read_affinity(int(thread)) or ())


def _count_before_launcher(own: int, proc: Path) -> int | None:
    # one further up was narrowed by who started it: srun, or taskset of a script
    launcher = os.getppid()
    found = re.search(r'^PPid:\s*(\d+)', _read(proc / f'{launcher}/status'), re.M)
    if found is None or len(read_affinity(launcher) or ()) > own:
        return None
    return len(read_affinity(int(found[1])) or ())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''


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
    total, available = read_memory()
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
        usable_cores=compute_usable_cores(
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


def compute_usable_cores(
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


def read_memory() -> Memory:
    """Total and available RAM: what new work can take without swapping."""
    memory = psutil.virtual_memory()
    return int(memory.total), int(memory.available)


def read_file_system(folder: str | Path) -> Memory:
    """Total and free bytes of a file system, for 2 us."""
    try:
        usage = psutil.disk_usage(str(folder))
    except OSError:
        return None, None
    return int(usage.total), int(usage.free)


def _read_open_files_soft() -> int | None:
    """Soft limit on open files; ``None`` when unlimited or on Windows."""
    try:
        import resource
    except ImportError:
        return None
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if soft == resource.RLIM_INFINITY else soft


_IDLE = ('idle', 'iowait')
_COUNTED_TWICE = ('guest', 'guest_nice')
"""Linux has guest time inside ``user`` and ``nice`` already."""


def read_run_delay_s(proc: Path = Path('/proc')) -> float | None:
    """Seconds that our main thread has waited for a core; ``None`` when unknown.

    Args:
        proc: Root of the proc file system.
    """
    try:
        text = read_begin(os.path.join(proc, 'self', 'schedstat'), 128)
        return parse_schedstat(text)[1] / 1e9
    except (OSError, SourceError):
        return None


SELDOM_S = 5.0
"""What is of the host is read so often, at most; between, an interval lacks it."""


def pause_s(elapsed_s: float) -> float:
    """From one reading of the host to the next; short runs are known well, too."""
    return min(SELDOM_S, elapsed_s / 2)


class CpuMeter:
    """Reads CPU use in windows that follow each other without a gap.

    The host's share covers the host even inside a container, as ``/proc/stat`` does. It
    is read every 5 seconds, more often at first.

    Args:
        read_cpu_times: Returns a named tuple of seconds since boot, by kind.
        process_cpu: Clock of this process's CPU time.
        run_delay: What the main thread has waited for a core, in seconds.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        read_cpu_times: Callable[[], Any] = psutil.cpu_times,
        process_cpu: Clock = process_cpu_s,
        run_delay: Callable[[], float | None] = read_run_delay_s,
        clock: Clock = monotonic_s,
    ) -> None:
        self._read_cpu_times = read_cpu_times
        self._process_cpu = process_cpu
        self._run_delay = run_delay
        self._clock = clock
        self._last = process_cpu(), run_delay()
        self._times: Mapping[str, float] = read_cpu_times()._asdict()
        self._due_s = self._begun_s = clock()

    def read(self) -> dict[str, Any]:
        """Fields of an interval record since the last read, or since construction."""
        before, self._last = self._last, (self._process_cpu(), self._run_delay())
        delay_s = None
        if before[1] is not None and self._last[1] is not None:
            delay_s = max(self._last[1] - before[1], 0.0)
        figures: dict[str, Any] = {
            'process_cpu_s': self._last[0] - before[0],
            'process_run_delay_s': delay_s,
        }
        now_s = self._clock()
        if now_s >= self._due_s:
            self._due_s = now_s + pause_s(now_s - self._begun_s)
            times_before, self._times = self._times, self._read_cpu_times()._asdict()
            figures['system_cpu_pct'] = compute_busy_pct(times_before, self._times)
        return figures


def compute_busy_pct(
    before: Mapping[str, float], after: Mapping[str, float]
) -> float | None:
    """Busy share of all CPUs between two readings of their times.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.

    Returns:
        Per cent, 0 to 100; ``None`` when no time passed.
    """
    busy_s = compute_busy_s(before, after)
    whole_s = busy_s + compute_busy_s(before, after, of=_IDLE)
    return 100.0 * busy_s / whole_s if whole_s > 0.0 else None


def compute_busy_s(
    before: Mapping[str, float],
    after: Mapping[str, float],
    of: Collection[str] | None = None,
) -> float:
    """Seconds that all CPUs worked between two readings of their times, added up.

    What a hypervisor took from this host (``steal``) is work, though not its own.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.
        of: The kinds that count. Defaults to those that are work.
    """
    kinds = of or set(before) - {*_IDLE, *_COUNTED_TWICE}
    # the kernel may take back a little idle or iowait time: never negative
    return sum(max(after[k] - before[k], 0.0) for k in kinds if k in before)


def parse_pressure(text: bytes) -> float:
    """Parse one file of ``/proc/pressure`` (Linux 4.20 and later).

    ``some`` counts the time in which at least one task waited, in microseconds
    since boot; ``full`` the time in which all did::

        some avg10=0.07 avg60=0.31 avg300=15.13 total=329505311
        full avg10=0.00 avg60=0.00 avg300=0.00 total=0

    The running averages lag by ten seconds and more: the difference of two totals
    is the truth of a window.

    Args:
        text: The whole file.

    Returns:
        The total of ``some``, in seconds.

    Raises:
        ValueError: If the text is not of this form.
    """
    found = re.match(rb'some .*total=(\d+)', text)
    if found is None:
        raise ValueError(f'expected a line "some ... total=<us>", found {text[:80]!r}')
    return int(found[1]) / 1e6


def compute_pressure_pct(
    before_s: float, after_s: float, duration_s: float
) -> float | None:
    """Share of a window in which some task waited; ``None`` where a total fell.

    Args:
        before_s: Total of ``some`` when it began.
        after_s: The same when it ended.
        duration_s: Its length.
    """
    if after_s < before_s or duration_s <= 0.0:
        return None
    # the clocks are read one after the other
    return min(100.0 * (after_s - before_s) / duration_s, 100.0)


_NO_PRESSURE = (
    'the kernel keeps no pressure figures (Linux 4.20 and later do, unless it was '
    'started with psi=0 or has it compiled out)'
)


class HostWindowMeter:
    """Reads the host in windows that follow each other without a gap.

    A window spans 5 seconds, less at first (`pause_s`). The meter never raises: a
    figure whose file is missing, hidden, vanished or garbage is ``None`` from then on,
    with a reason in :attr:`unknown`. A counter that falls, because the process was
    moved to another host, makes its figure ``None`` for that one window. A control
    group that gets its quota in mid-run is not seen.

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
        """Why a figure is missing, by its name."""
        self._pressures = {
            f'{kind}_pressure_pct': str(proc / 'pressure' / kind)
            for kind in ('cpu', 'io', 'memory')
        }
        self._shm = shm
        self._clock = clock
        groups = read_cgroup_folders('cpu', proc, sys)
        self._groups = [one for one in groups if not states_no_quota(one[1], one[0])]
        if not groups:
            self.unknown['throttled_s'] = 'no control group in sight counts throttling'
        self._due_s = self._begun_s = clock()
        self._last = self._read_counters()

    def _read_counters(self) -> tuple[float, dict[str, list[float]]]:
        """The time, and seconds by figure: of ``throttled_s`` one for each group."""
        counters = {}
        for figure in (*self._pressures, 'throttled_s'):
            path = self._pressures.get(figure)
            try:
                if figure in self.unknown:
                    continue
                if path is None:
                    counters[figure] = read_throttled_s(self._groups)
                else:
                    counters[figure] = [parse_pressure(read_begin(path, 256))]
            except (OSError, ValueError) as error:
                hint = _NO_PRESSURE if path else 'the host does not show it'
                self.unknown[figure] = f'{hint}: {error}'
        return self._clock(), counters

    def read(self) -> HostWindow | None:
        """What happened since the last window, or since construction.

        Returns:
            ``None`` where the last window is too new for that.
        """
        now_s = self._clock()
        if now_s < self._due_s:
            return None
        self._due_s = now_s + pause_s(now_s - self._begun_s)
        (then_s, before), self._last = self._last, self._read_counters()
        fields: dict[str, float | None] = {}
        for figure, waited_s in self._last[1].items():
            if figure in self._pressures:
                fields[figure] = compute_pressure_pct(
                    before[figure][0], waited_s[0], self._last[0] - then_s
                )
                continue
            held_back_s = [now - then for now, then in zip(waited_s, before[figure])]
            if min(held_back_s, default=0.0) >= 0.0:
                fields[figure] = max(held_back_s, default=0.0)
        return HostWindow(
            ram_available_bytes=read_memory()[1],
            shm_free_bytes=read_file_system(self._shm)[1],
            **fields,
        )
