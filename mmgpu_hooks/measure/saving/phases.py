"""Splits what one thread does into phases, and each phase into its waits."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s, thread_cpu_s
from mmgpu_hooks.measure.host.kept_file import KeptFile
from mmgpu_hooks.measure.host.proc import parse_schedstat
from mmgpu_hooks.measure.source_error import SourceError
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
