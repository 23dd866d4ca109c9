"""What a checkpoint save costs the thread that makes it, and what goes on meanwhile."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s, thread_cpu_s
from mmgpu_hooks.measure.host import fold_busy_s, read_system_cpu_times
from mmgpu_hooks.measure.proc import (
    KeptFile,
    fold_pressure_pct,
    page_size_bytes,
    parse_pressure,
    parse_schedstat,
    parse_swapped_pages,
    parse_unwritten_bytes,
    read_major_faults,
    read_process_rss_bytes,
)
from mmgpu_hooks.schema import SAVE_PHASES, SavePhase

_ONE_MOMENT_S = 0.0002
_MOST_LOOKS = 4


class ThreadTimes(NamedTuple):
    """Where a thread's clocks stood at one moment, in seconds."""

    wall_s: float
    cpu_s: float
    run_delay_s: float | None
    """``None`` where the scheduler does not tell."""


class ThreadClock:
    """Clocks of the thread that makes it: wall, CPU and waiting for a core.

    A read costs 3 us. The CPU is the thread's own clock, because ``schedstat`` counts
    what runs only at the next tick; it is right about waits that are over.

    Args:
        proc: Root of the proc file system.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of the calling thread.
    """

    def __init__(
        self,
        proc: Path = Path('/proc'),
        clock: Clock = monotonic_s,
        cpu_clock: Clock = thread_cpu_s,
    ) -> None:
        self.thread = threading.get_native_id()
        """The only one that may read."""
        self.unknown: str | None = None
        """Why the scheduler's figure is missing."""
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._file: KeptFile | None = None
        path = proc / 'self' / 'task' / str(self.thread) / 'schedstat'
        try:
            self._file = KeptFile(path)
        except OSError as error:
            self._give_up(f'the kernel does not show schedstat: {error}')

    def read(self) -> ThreadTimes:
        """Read all three, as of one moment."""
        for _ in range(_MOST_LOOKS):
            wall_s = self._clock()
            times = ThreadTimes(wall_s, self._cpu_clock(), self._read_run_delay())
            # one that lost its core in between has figures of two moments
            if self._clock() - wall_s < _ONE_MOMENT_S:
                break
        return times

    def _read_run_delay(self) -> float | None:
        if self._file is None:
            return None
        try:
            on_core_ns, waiting_ns = parse_schedstat(self._file.read())
        except (OSError, SourceError) as error:
            self._give_up(f'the kernel does not show schedstat: {error}')
            return None
        if not on_core_ns:
            # the file is there, but nobody counts (a kernel without sched_info)
            self._give_up('the kernel counts nothing in schedstat')
            return None
        return waiting_ns / 1e9

    def _give_up(self, reason: str) -> None:
        self.unknown = reason
        self.close()

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        file, self._file = self._file, None
        if file is not None:
            file.close()


class PhaseClock:
    """At any moment of a save exactly one of its phases is running.

    Args:
        clock: Of the thread that saves.
    """

    def __init__(self, clock: ThreadClock) -> None:
        self._clock = clock
        self._spent: dict[str, SavePhase] = {}
        self._phase = 'rest'
        self._began = self._since = clock.read()

    def switch(self, phase: str) -> None:
        """End the phase that runs and begin ``phase``, which may have run before."""
        now = self._clock.read()
        spent = fold_phase(self._since, now)
        before = self._spent.get(self._phase)
        self._spent[self._phase] = (
            spent if before is None else _add_phases(before, spent)
        )
        self._phase, self._since = phase, now

    def rename(self, phase: str) -> None:
        """Book what the running phase took since it last began as ``phase``."""
        self._phase = phase

    def end(self) -> tuple[SavePhase, Mapping[str, SavePhase]]:
        """End the last phase.

        Returns:
            What was spent in all, and in each phase that ran, in the order of their
            kinds.
        """
        self.switch('rest')
        spent = self._spent
        phases = {name: spent[name] for name in SAVE_PHASES if name in spent}
        return fold_phase(self._began, self._since), phases


def fold_phase(begin: ThreadTimes, end: ThreadTimes) -> SavePhase:
    """What a thread did between two readings of its clocks.

    ``blocked = wall - cpu - run_delay``: what was neither spent on a core nor in
    waiting for one. The three clocks are read one after the other, so it may come out
    a few microseconds below zero, which is none.
    """
    wall_s = end.wall_s - begin.wall_s
    cpu_s = end.cpu_s - begin.cpu_s
    if begin.run_delay_s is None or end.run_delay_s is None:
        return SavePhase(wall_s=wall_s, cpu_s=cpu_s)
    run_delay_s = end.run_delay_s - begin.run_delay_s
    return SavePhase(
        wall_s=wall_s,
        cpu_s=cpu_s,
        run_delay_s=run_delay_s,
        blocked_s=max(wall_s - cpu_s - run_delay_s, 0.0),
    )


def _add_phases(one: SavePhase, other: SavePhase) -> SavePhase:
    """Add up; what one does not tell, the sum does not."""
    return SavePhase(
        wall_s=one.wall_s + other.wall_s,
        cpu_s=_add(one.cpu_s, other.cpu_s),
        run_delay_s=_add(one.run_delay_s, other.run_delay_s),
        blocked_s=_add(one.blocked_s, other.blocked_s),
    )


def _add(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


_MOST_FILES = 4096
"""Of a folder; a sharded checkpoint has a few per rank."""


def count_tensor_bytes(state: Any) -> int:
    """Bytes of all tensors and arrays in nested dicts, lists and tuples.

    0.6 us per tensor. A tensor that is in it twice counts twice.

    Args:
        state: Such as the state dict of an optimizer.
    """
    total = 0
    pending = [state]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, (list, tuple)):
            # thousands of parameter numbers are in the groups of an optimizer
            if one and not isinstance(one[0], (int, float, str)):
                pending.extend(one)
        else:
            total += _nbytes(one)
    return total


def _nbytes(value: Any) -> int:
    size = getattr(value, 'nbytes', None)
    return size if isinstance(size, int) else 0


def count_history_bytes(hub: Any) -> int | None:
    """Bytes of the histories in the state of MMEngine's message hub.

    Args:
        hub: What ``MessageHub.state_dict()`` gave.

    Returns:
        The bytes of their arrays; ``None`` when it is of another form.
    """
    scalars = hub.get('log_scalars') if isinstance(hub, Mapping) else None
    if not isinstance(scalars, Mapping):
        return None
    # HistoryBuffer.data: the values and the counts behind them
    return sum(
        _nbytes(array)
        for history in scalars.values()
        for array in getattr(history, 'data', ())
    )


def read_size_bytes(path: str) -> int | None:
    """Bytes of a file, or of all files in a folder.

    Returns:
        ``None`` when there is neither, or when a folder holds more than 4096 files.
    """
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        total = count = 0
        for folder, _, names in os.walk(path):
            count += len(names)
            if count > _MOST_FILES:
                return None
            total += sum(os.stat(os.path.join(folder, name)).st_size for name in names)
        return total
    except OSError:
        return None


_PRESSURES = ('cpu_pressure_pct', 'io_pressure_pct', 'memory_pressure_pct')
_SWAPPED = 'swap_in_bytes, swap_out_bytes'
_UNWRITTEN = 'dirty_bytes, writeback_bytes'
_FILES: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    'cpu_pressure_pct': ('pressure/cpu', parse_pressure),
    'io_pressure_pct': ('pressure/io', parse_pressure),
    'memory_pressure_pct': ('pressure/memory', parse_pressure),
    _SWAPPED: ('vmstat', parse_swapped_pages),
    _UNWRITTEN: ('meminfo', parse_unwritten_bytes),
}
"""Where figures come from; two out of one file go by both names."""


class _Look(NamedTuple):
    clock_s: float
    files: Mapping[str, Any]
    cpu_times: Mapping[str, float] | None
    own_cpu_s: float
    major_faults: int | None


class Surroundings:
    """Figures beside the saving thread's own, between :meth:`begin` and :meth:`end`.

    Both together cost 0.2 ms on 2 CPUs. Files are opened once. What the host does not
    tell is ``None``, with a reason.

    Args:
        proc: Root of the proc file system.
        clock: Monotonic seconds.
        read_cpu_times: Returns a named tuple of seconds since boot, by kind.
        own_cpu: Clock of this process's CPU time.
        read_rss_bytes: Returns the memory that this process holds.
    """

    def __init__(
        self,
        proc: Path = Path('/proc'),
        clock: Clock = monotonic_s,
        read_cpu_times: Callable[[], Any] = read_system_cpu_times,
        own_cpu: Clock = process_cpu_s,
        read_rss_bytes: Callable[[], int | None] = read_process_rss_bytes,
    ) -> None:
        self._clock = clock
        self._read_cpu_times = read_cpu_times
        self._own_cpu = own_cpu
        self._read_rss_bytes = read_rss_bytes
        self._unknown: dict[str, str] = {}
        self._files: dict[str, KeptFile] = {}
        for names, (path, _) in _FILES.items():
            try:
                self._files[names] = KeptFile(proc / path)
            except OSError as error:
                self._give_up(names, error)
        self._page_bytes = page_size_bytes()
        self._before = self._look()
        self._rss_bytes = self._most_rss_bytes = self._read_rss_bytes()

    def _give_up(self, names: str, error: Exception) -> None:
        self._unknown[names] = f'the host does not tell: {error}'
        file = self._files.pop(names, None)
        if file is not None:
            file.close()

    def _look(self) -> _Look:
        figures = {}
        for names, file in list(self._files.items()):
            try:
                figures[names] = _FILES[names][1](file.read())
            except (OSError, ValueError) as error:
                self._give_up(names, error)
        return _Look(
            self._clock(),
            figures,
            self._try_cpu_times(),
            self._own_cpu(),
            read_major_faults(),
        )

    def _try_cpu_times(self) -> Mapping[str, float] | None:
        try:
            times: Mapping[str, float] = self._read_cpu_times()._asdict()
        except ImportError:
            reason = 'psutil is not installed: pip install psutil'
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            reason = f'the host does not tell its CPU times: {error}'
        else:
            return times
        self._unknown['strangers_cpu_s'] = reason
        return None

    def begin(self) -> None:
        """A save is about to begin."""
        self._before = self._look()
        self._rss_bytes = self._most_rss_bytes = self._read_rss_bytes()

    def look_at_memory(self) -> None:
        """Much memory may be held at this moment of the save; 10 us."""
        rss_bytes = self._read_rss_bytes()
        if rss_bytes is not None and self._most_rss_bytes is not None:
            self._most_rss_bytes = max(self._most_rss_bytes, rss_bytes)

    def end(self, workers_cpu_s: float | None) -> tuple[dict[str, Any], dict[str, str]]:
        """A save is over.

        Args:
            workers_cpu_s: CPU of the loader's workers since :meth:`begin`, so that
                they are not counted as others; ``None`` when it is not known.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.SaveRecord`, and why one of them
            is missing. Memory held is what was resident at the looks beyond what was
            when it began: what the allocator had kept from before is not in it.
        """
        before, after = self._before, self._look()
        figures: dict[str, Any] = {}
        for name in _PRESSURES:
            if name in before.files and name in after.files:
                figures[name] = fold_pressure_pct(
                    before.files[name],
                    after.files[name],
                    after.clock_s - before.clock_s,
                )
        if _SWAPPED in before.files and _SWAPPED in after.files:
            pages = [
                now - then
                for now, then in zip(after.files[_SWAPPED], before.files[_SWAPPED])
            ]
            figures['swap_in_bytes'] = pages[0] * self._page_bytes
            figures['swap_out_bytes'] = pages[1] * self._page_bytes
        if _UNWRITTEN in after.files:
            figures['dirty_bytes'], figures['writeback_bytes'] = after.files[_UNWRITTEN]
        if before.major_faults is not None and after.major_faults is not None:
            figures['major_faults'] = after.major_faults - before.major_faults
        if self._rss_bytes is not None and self._most_rss_bytes is not None:
            figures['held_bytes'] = self._most_rss_bytes - self._rss_bytes
        unknown = dict(self._unknown)
        if before.cpu_times is not None and after.cpu_times is not None:
            if workers_cpu_s is None:
                unknown['strangers_cpu_s'] = "the workers' CPU is not known"
            else:
                ours_s = after.own_cpu_s - before.own_cpu_s + workers_cpu_s
                busy_s = fold_busy_s(before.cpu_times, after.cpu_times)
                # the host counts in ticks of 10 ms, we in nanoseconds
                figures['strangers_cpu_s'] = max(busy_s - ours_s, 0.0)
        return figures, unknown

    def close(self) -> None:
        """Close every file; a second call does nothing."""
        while self._files:
            self._files.popitem()[1].close()
