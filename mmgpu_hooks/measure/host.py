"""The host: its limits, its CPU, and what went on there between two reads."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple, Optional, TypeVar

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.cgroup import (
    ThrottleMeter,
    count_cpuset_cpus,
    read_cgroup_limits,
)
from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.proc import (
    KeptFile,
    OpenFiles,
    OpenSchedStat,
    fold_pressure_pct,
    page_size_bytes,
    parse_memory_bytes,
    parse_pressure,
    parse_swapped_pages,
    read_affinity,
)
from mmgpu_hooks.schema import HostLimits, HostWindow

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


_IDLE = ('idle', 'iowait')
_COUNTED_TWICE = ('guest', 'guest_nice')
"""Linux has guest time inside ``user`` and ``nice`` already."""


class CpuReading(NamedTuple):
    """What was used since the read before."""

    process_cpu_s: float
    """CPU seconds of this process, all threads, loader workers excluded."""
    system_cpu_pct: float | None
    """Busy share of all logical CPUs of the host, 0 to 100."""
    process_run_delay_s: float | None = None
    """The main thread was ready to run and waited for a core."""


def read_system_cpu_times() -> Any:
    """Seconds of all CPUs since boot, by kind, as a named tuple."""
    import psutil

    return psutil.cpu_times()


def read_run_delay_s(proc: Path = Path('/proc')) -> float | None:
    """Seconds that our main thread has waited for a core; ``None`` when untold.

    Args:
        proc: Root of the proc file system.
    """
    try:
        times = OpenSchedStat(os.getpid(), proc, most_files=0).read()
    except SourceError:
        return None
    return None if times is None else times.main_run_delay_s


class CpuMeter:
    """Reads CPU use in windows that follow each other without a gap.

    The host's share covers the host even inside a container, as ``/proc/stat``
    does. Linux counts in ticks of
    10 ms, so a window should span at least half a second.

    Args:
        read_cpu_times: Returns a named tuple of seconds since boot, by kind.
        process_cpu: Clock of this process's CPU time.
        run_delay: What the main thread has waited for a core, in seconds.
    """

    def __init__(
        self,
        read_cpu_times: Callable[[], Any] = read_system_cpu_times,
        process_cpu: Clock = process_cpu_s,
        run_delay: Callable[[], float | None] = read_run_delay_s,
    ) -> None:
        self.unknown: dict[str, str] = {}
        """Why a figure is missing, by its name."""
        self._read_cpu_times = read_cpu_times
        self._process_cpu = process_cpu
        self._run_delay = run_delay
        self._last_process_s = process_cpu()
        self._last_delay_s = run_delay()
        self._last_times = self._times()

    def read(self) -> CpuReading:
        """Return what was used since the last read, or since construction."""
        process_s, times = self._process_cpu(), self._times()
        before_s, self._last_delay_s = self._last_delay_s, self._run_delay()
        before = self._last_times
        reading = CpuReading(
            process_s - self._last_process_s,
            None if before is None or times is None else fold_busy_pct(before, times),
            _difference(before_s, self._last_delay_s),
        )
        self._last_process_s, self._last_times = process_s, times
        return reading

    def _times(self) -> Mapping[str, float] | None:
        if self.unknown:
            return None
        try:
            found: Mapping[str, float] = self._read_cpu_times()._asdict()
            return found
        except ImportError:
            reason = 'psutil is not installed: pip install psutil'
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            reason = f'the host does not tell its CPU times: {error}'
        self.unknown['system_cpu_pct'] = reason
        return None


def _difference(before_s: float | None, after_s: float | None) -> float | None:
    if before_s is None or after_s is None:
        return None
    return max(after_s - before_s, 0.0)


def fold_busy_pct(
    before: Mapping[str, float], after: Mapping[str, float]
) -> float | None:
    """Busy share of all CPUs between two readings of their times.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.

    Returns:
        Per cent, 0 to 100; ``None`` when no time passed or nothing is known.
    """
    spent = _fold_spent(before, after)
    total = sum(spent.values())
    return 100.0 * _fold_busy(spent) / total if total > 0.0 else None


def fold_busy_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds that all CPUs worked between two readings of their times, added up.

    What a hypervisor took from this host (``steal``) is work, though not its own.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.
    """
    return _fold_busy(_fold_spent(before, after))


def _fold_spent(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    # the kernel may take back a little idle or iowait time: never negative
    return {
        kind: max(0.0, after[kind] - before[kind])
        for kind in after
        if kind in before and kind not in _COUNTED_TWICE
    }


def _fold_busy(spent: Mapping[str, float]) -> float:
    return sum(seconds for kind, seconds in spent.items() if kind not in _IDLE)


_T = TypeVar('_T')

_PRESSURES = {f'{kind}_pressure_pct': kind for kind in ('cpu', 'io', 'memory')}
_NO_PRESSURE = (
    'the kernel keeps no pressure figures (Linux 4.20 and later do, unless it was '
    'started with psi=0 or has it compiled out)'
)
_PRESSURE_BYTES = 256
"""More than the first line, which is all that is parsed."""
_SELDOM_S = 1.0
"""What is of the host's memory and files is looked at so often, at most."""
_SWAPPED = 'swap_in_bytes, swap_out_bytes'
_MEMORY = 'ram_available_bytes'


class HostWindowMeter:
    """Reads the host in windows that follow each other without a gap.

    Files are opened once. The kernel adds up pressure over the CPUs, so a read costs
    more on larger hosts. Windows shorter than a second are told the memory and the open
    files as they were found last, and no swapping: the next look counts it all. A host
    without swap space, now and at the look before, has swapped nothing.

    It never raises: a figure whose file is missing, hidden, vanished or garbage is
    ``None`` from then on, with a reason in :attr:`unknown`. A counter that falls,
    because the process was moved to another host, makes its figure ``None`` for that
    one window. Open files are looked at each time since Linux 6.2, else every 30 s.

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
        """Why a figure is missing, by its name; by both, of two out of one file."""
        self._shm = os.fspath(shm)
        self._clock = clock
        self._files: dict[str, KeptFile] = {}
        for figure, kind in _PRESSURES.items():
            self._open(figure, proc / 'pressure' / kind, _NO_PRESSURE)
        self._open(_SWAPPED, proc / 'vmstat')
        self._open(_MEMORY, proc / 'meminfo')
        self._throttling = ThrottleMeter(proc, sys, clock)
        if self._throttling.is_empty:
            self.unknown['throttled_s'] = 'no control group in sight counts throttling'
        files = self._try('open_files', lambda: OpenFiles(proc, clock))
        self._count_open_files = _unknown if files is None else files.count
        self._page_bytes = page_size_bytes()
        self._since_s = clock()
        self._waited_s = self._read_pressures()
        self._swapped = self._parse(_SWAPPED, parse_swapped_pages)
        self._swap_bytes: int | None = None
        """All swap space of the host, at the last look."""
        self._looked_s: float | None = None
        self._gauges: dict[str, int | None] = {}

    def _open(self, figure: str, path: Path, hint: str = '') -> None:
        file = self._try(figure, lambda: KeptFile(path), hint)
        if file is not None:
            self._files[figure] = file

    def _try(self, figure: str, read: Callable[[], _T], hint: str = '') -> _T | None:
        if figure in self.unknown:
            return None
        try:
            return read()
        except (OSError, ValueError) as error:
            self._give_up(figure, f'{hint or "the host does not tell"}: {error}')
            return None

    def _give_up(self, figure: str, reason: str) -> None:
        self.unknown[figure] = reason
        file = self._files.pop(figure, None)
        if file is not None:
            file.close()

    def _parse(self, figure: str, parse: Callable[[bytes], _T]) -> _T | None:
        file = self._files.get(figure)
        if file is None:  # given up
            return None
        try:
            return parse(file.read())
        except (OSError, ValueError) as error:
            self._give_up(figure, f'the host does not tell: {error}')
            return None

    def read(self) -> HostWindow:
        """Return what happened since the last read, or since construction."""
        now_s, before_s = self._clock(), self._waited_s
        duration_s, self._since_s = now_s - self._since_s, now_s
        self._waited_s = waited_s = self._read_pressures()
        fields: dict[str, Any] = {
            figure: fold_pressure_pct(before_s[figure], total_s, duration_s)
            for figure, total_s in waited_s.items()
        }
        swapped: tuple[int | None, int | None] = (None, None)
        if self._looked_s is None or now_s - self._looked_s >= _SELDOM_S:
            self._looked_s = now_s
            had_swap, self._gauges = self._swap_bytes != 0, self._read_gauges()
            swapped = 0, 0
            # all of vmstat takes as long as three other files
            if had_swap or self._swap_bytes != 0 or _SWAPPED in self.unknown:
                swapped = self._read_swapped()
        fields['throttled_s'] = self._try('throttled_s', self._throttling.read)
        fields['swap_in_bytes'], fields['swap_out_bytes'] = swapped
        fields.update(self._gauges)
        return HostWindow(**fields)

    def _read_gauges(self) -> dict[str, int | None]:
        memory = self._parse(_MEMORY, parse_memory_bytes) or (None, None)
        self._swap_bytes = memory[1]
        return {
            'ram_available_bytes': memory[0],
            'shm_free_bytes': self._try('shm_free_bytes', self._read_shm_free),
            'open_files': self._try('open_files', self._count_open_files),
        }

    def _read_pressures(self) -> dict[str, float]:
        totals_s, files = {}, self._files
        for figure in _PRESSURES:
            if figure in files:
                try:
                    # as _parse does, without two calls for each
                    text = files[figure].read_begin(_PRESSURE_BYTES)
                    totals_s[figure] = parse_pressure(text)
                except (OSError, ValueError) as error:
                    self._give_up(figure, f'{_NO_PRESSURE}: {error}')
        return totals_s

    def _read_swapped(self) -> tuple[int | None, int | None]:
        before, self._swapped = (
            self._swapped,
            self._parse(_SWAPPED, parse_swapped_pages),
        )
        if before is None or self._swapped is None:
            return None, None
        pages = [now - then for now, then in zip(self._swapped, before)]
        if min(pages) < 0:
            return None, None
        return pages[0] * self._page_bytes, pages[1] * self._page_bytes

    def _read_shm_free(self) -> int:
        free = read_file_system(self._shm)[1]
        if free is None:
            raise ValueError(f'{self._shm} cannot be looked at')
        return free

    def close(self) -> None:
        """Close every file; a second call does nothing."""
        for figure in list(self._files):
            self._give_up(figure, 'the meter is closed')
        self._throttling.close()


def _unknown() -> None:
    return None
