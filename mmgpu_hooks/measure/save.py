"""Reads CPU time, run delay and host load before and after a checkpoint save.

A save's CPU is the thread's clock, its run delay the scheduler's: ``schedstat`` adds
running time only at the next tick, and has waits that are over exactly. Blocked is what
remains.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.measure.clock import grown, monotonic_s, process_cpu_s, thread_cpu_s
from mmgpu_hooks.measure.host import read_busy_s, read_pressure_s
from mmgpu_hooks.measure.proc import read_major_faults, read_schedstat_s
from mmgpu_hooks.schema.recorded import SAVE_PHASES, SavePhase

_PROC = Path('/proc')


class ThreadTimes(NamedTuple):
    """Readings of a thread's wall clock, CPU time and run delay, all in seconds."""

    wall_s: float
    cpu_s: float
    run_delay_s: float | None
    """Seconds so far that the thread waited for a core; ``None`` if not counted."""


def read_thread_times(proc: Path = _PROC) -> ThreadTimes:
    """Reads wall clock, CPU time and run delay of the calling thread; takes 10 us.

    The CPU is the thread's own clock, because ``schedstat`` counts what runs only at
    the next tick; it is right about waits that are over.

    Args:
        proc: Root of the proc file system.
    """
    thread = str(threading.get_native_id())
    times = read_schedstat_s(os.path.join(proc, 'self', 'task', thread, 'schedstat'))
    # a kernel that counts nothing writes zeros
    delay_s = times.run_delay_s if times is not None and times.on_core_s else None
    return ThreadTimes(monotonic_s(), thread_cpu_s(), delay_s)


def count_history_bytes(hub: Any) -> int | None:
    """Counts the bytes of scalar histories that MMEngine adds to a checkpoint.

    Args:
        hub: The live hub; nothing is copied.

    Returns:
        ``None`` where it is of another form.
    """
    try:
        resumed = hub._resumed_keys  # nothing public says it
        return sum(
            int(array.nbytes)
            for name, history in hub.log_scalars.items()
            if resumed.get(name)
            for array in history.data
        )
    except (AttributeError, TypeError):
        return None


class PhaseStamp(NamedTuple):
    """Phase of a checkpoint save, with the thread's clock readings at its start."""

    phase: str
    """Name of the phase of a checkpoint save, one of :data:`SAVE_PHASES`."""
    times: ThreadTimes


class SaveSplit(NamedTuple):
    """Seconds of a checkpoint save (wall, CPU, run delay, blocked), also by phase."""

    whole: SavePhase
    phases: dict[str, SavePhase]
    """Seconds of each phase of the save, in the order of :data:`SAVE_PHASES`."""


def split_phases(stamps: Sequence[PhaseStamp], end: ThreadTimes) -> SaveSplit:
    """Splits the seconds of a checkpoint save by phase, from stamps at phase starts.

    ``blocked = wall - cpu - run_delay``: what was neither spent on a core nor in
    waiting for one. The three clocks are read one after the other, so it may come out
    a few microseconds below zero, which is none.

    Args:
        stamps: In order; a phase may run several times.
        end: When the last one ended.
    """
    spans: dict[str, list[SavePhase]] = {name: [] for name in SAVE_PHASES}
    ends = [*(stamp.times for stamp in stamps[1:]), end]
    for stamp, until in zip(stamps, ends):
        begin = stamp.times
        delay_s = blocked_s = None
        wall_s, cpu_s = until.wall_s - begin.wall_s, until.cpu_s - begin.cpu_s
        if begin.run_delay_s is not None and until.run_delay_s is not None:
            delay_s = until.run_delay_s - begin.run_delay_s
            blocked_s = max(wall_s - cpu_s - delay_s, 0.0)
        span = SavePhase(
            wall_s=wall_s, cpu_s=cpu_s, run_delay_s=delay_s, blocked_s=blocked_s
        )
        spans[stamp.phase].append(span)
    phases = {name: _add(parts) for name, parts in spans.items() if parts}
    return SaveSplit(_add([*phases.values()]), phases)


def _add(parts: Sequence[SavePhase]) -> SavePhase:
    """Sums up seconds (wall, CPU, ...) of save phases; ``None`` if one is unknown."""
    sums: dict[str, Any] = {}
    for name in SavePhase.__struct_fields__:
        seconds = [getattr(part, name) for part in parts]
        sums[name] = None if None in seconds else sum(seconds)
    return SavePhase(**sums)


class SurroundingsChange(NamedTuple):
    """Other processes' CPU seconds and memory pressure between two readings."""

    memory_pressure_pct: float | None
    """Percent of the time between the readings in which some task waited for memory."""
    major_faults: int | None
    """Number of this process's page faults that read from storage or swap."""
    other_cpu_s: float | None
    """CPU seconds of all processes except this one and the loader's workers."""


class Surroundings(NamedTuple):
    """Readings at one time of CPU and memory counters of this process and its host."""

    clock_s: float
    own_cpu_s: float
    """CPU seconds of this process so far."""
    memory_waited_s: float | None
    busy_s: float | None
    """Busy seconds of the host's CPUs since boot, summed over the CPUs."""
    major_faults: int | None

    @classmethod
    def read(cls, proc: Path = _PROC) -> Surroundings:
        """Reads the CPU and memory counters of process and host; takes 0.1 ms."""
        waited_s = busy_s = None
        # a kernel may keep no pressure: page faults alone then prove a lack of memory
        with contextlib.suppress(OSError, RuntimeError, ValueError):
            busy_s = read_busy_s()
            waited_s = read_pressure_s(proc / 'pressure' / 'memory')
        faults = read_major_faults()
        return cls(monotonic_s(), process_cpu_s(), waited_s, busy_s, faults)

    def since(
        self, before: Surroundings, workers_cpu_s: float | None
    ) -> SurroundingsChange:
        """Returns other processes' CPU seconds, and memory pressure, since a reading.

        Args:
            before: An earlier reading.
            workers_cpu_s: CPU of the loader's workers meanwhile, so that they are not
                counted as others; ``None`` when it is not known.
        """
        wall_s = grown(before.clock_s, self.clock_s)
        own_s = grown(before.own_cpu_s, self.own_cpu_s)
        waited_s = grown(before.memory_waited_s, self.memory_waited_s)
        busy_s = grown(before.busy_s, self.busy_s)
        faults = grown(before.major_faults, self.major_faults)
        pressure_pct = other_s = None
        if waited_s is not None and wall_s:
            pressure_pct = min(100.0 * waited_s / wall_s, 100.0)
        if busy_s is not None and own_s is not None and workers_cpu_s is not None:
            # the host counts in ticks of 10 ms, we in nanoseconds
            other_s = max(busy_s - own_s - workers_cpu_s, 0.0)
        return SurroundingsChange(
            memory_pressure_pct=pressure_pct,
            major_faults=None if faults is None else int(faults),
            other_cpu_s=other_s,
        )
