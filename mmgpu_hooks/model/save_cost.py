"""What holds a checkpoint save, what it would take otherwise, what that costs the job.

A save is ``wall = cpu + run_delay + blocked`` of the thread that saves. Its delay is
what it took beyond an uncontended save: of the run itself where there are some, else
of its own parts that were not waiting. Meanwhile the loader's workers go on: what they
made ahead is won back after the save, so the job loses less (the *net* delay) than the
save did (the *gross* one).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CALM_RUN_DELAY = 0.1
"""Share of an uncontended save that may be waiting for a core: what a quiet host of two
cores shows."""

USUAL_BLOCKING = 0.5
"""Blocked time over CPU that is no delay: page faults, a write through the page
cache, copies from a card."""

LIKE_SIZE = 1.25
"""Saves whose bytes differ by no more than this factor are compared, per byte."""

LEAST_REFERENCES = 3
"""Uncontended saves whose median is trusted: one odd one, often the first, is none."""

FULL_CORES = 0.75
"""Share of the usable cores that must be in use before whoever used them is the
reason of a wait: the scheduler moves tasks late, and short saves are read coarsely."""

EXPLAINED = 0.7
"""CPU that others used, over a wait for a core: somebody was on that core all the
while, but for what a hypervisor takes and the clock's grain of 10 ms."""

BY_ELIMINATION = 0.25
"""CPU of one suspect over a wait for a core, below which it was the other."""

MAJOR_FAULT_S = 1e-4
"""Least time that a page takes from storage or swap: a fast solid-state disk's."""


@dataclass(frozen=True)
class SaveTimes:
    """One save in figures; all times are of the thread that saves."""

    wall_s: float
    cpu_s: float
    run_delay_s: float
    blocked_s: float
    size: int | None = None
    """Bytes written."""

    @property
    def is_calm(self) -> bool:
        """Whether it hardly waited, so that others can be measured by it."""
        return (
            self.run_delay_s <= CALM_RUN_DELAY * self.wall_s
            and self.blocked_s <= USUAL_BLOCKING * self.cpu_s
        )


def median(values: Sequence[float]) -> float:
    """Median of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def estimate_by_others_s(
    size: int | None, calm: Sequence[SaveTimes]
) -> tuple[float, int] | None:
    """Median of the run's uncontended saves of like size, scaled to its bytes.

    Args:
        size: Bytes of the save in question.
        calm: The run's other uncontended saves.

    Returns:
        Seconds, and how many saves they rest on; ``None`` when fewer than
        :data:`LEAST_REFERENCES` are like it.
    """
    alike = []
    for other in calm:
        if size is None or other.size is None:
            if size is other.size:
                alike.append(other.wall_s)
        elif other.size and 1 / LIKE_SIZE <= size / other.size <= LIKE_SIZE:
            alike.append(other.wall_s * size / other.size)
    if len(alike) < LEAST_REFERENCES:
        return None
    return median(alike), len(alike)


def estimate_by_parts_s(times: SaveTimes) -> float:
    """The save without its wait for a core and without unusual blocking."""
    excess_s = max(times.blocked_s - USUAL_BLOCKING * times.cpu_s, 0.0)
    return min(max(times.wall_s - times.run_delay_s - excess_s, 0.0), times.wall_s)


def split_run_delay(
    times: SaveTimes,
    *,
    workers_cpu_s: float | None,
    strangers_cpu_s: float | None,
    cores: float | None,
) -> tuple[float, float] | None:
    """Whose CPU the wait for a core was: seconds by the workers, by strangers.

    Args:
        times: The save.
        workers_cpu_s: CPU of the loader's workers in that very span.
        strangers_cpu_s: CPU of everybody else, on the usable cores for certain.
        cores: Usable cores.

    Returns:
        Two parts of ``run_delay_s``; ``None`` when it is not proven: the cores were
        not in use enough, or an unknown may have been the reason.
    """
    known_s = (workers_cpu_s or 0.0) + (strangers_cpu_s or 0.0)
    delay_s = times.run_delay_s
    if delay_s <= 0.0 or known_s < EXPLAINED * delay_s:
        return None
    capacity_s = None if cores is None else cores * times.wall_s
    if capacity_s and times.cpu_s + known_s >= FULL_CORES * capacity_s:
        by_workers = (workers_cpu_s or 0.0) / known_s
    elif workers_cpu_s is None or strangers_cpu_s is None:
        return None
    elif strangers_cpu_s < BY_ELIMINATION * delay_s:
        by_workers = 1.0
    elif workers_cpu_s < BY_ELIMINATION * delay_s:
        by_workers = 0.0
    else:
        return None
    return by_workers * delay_s, (1.0 - by_workers) * delay_s


def certain_strangers_s(
    strangers_cpu_s: float | None,
    wall_s: float,
    logical_cpus: int | None,
    cores: float | None,
) -> float | None:
    """CPU of strangers that no other core of the host can have carried.

    Returns:
        ``None`` when it is unknown where they ran.
    """
    if strangers_cpu_s is None or logical_cpus is None or cores is None:
        return None
    return max(strangers_cpu_s - max(logical_cpus - cores, 0.0) * wall_s, 0.0)


def won_back_s(
    *,
    usual_wait_s: float | None,
    waits_s: float,
    iterations: int,
    most_ahead: int | None,
) -> float | None:
    """Waits for data that the job was spared after a save.

    Args:
        usual_wait_s: Mean wait for data elsewhere.
        waits_s: Waits of the iterations after the save.
        iterations: How many those are.
        most_ahead: Batches that can be made ahead, ``prefetch_factor x workers``.

    Returns:
        Never negative; ``None`` when the usual wait is unknown.
    """
    if not iterations:
        return 0.0
    if usual_wait_s is None:
        return None
    spared_s = usual_wait_s * iterations - waits_s
    if most_ahead is not None:
        spared_s = min(spared_s, usual_wait_s * most_ahead)
    return max(spared_s, 0.0)


def net_delay_s(gross_s: float, won_s: float | None) -> float | None:
    """What the job lost: from 0 to the gross delay; ``None`` while unknown."""
    return None if won_s is None else min(max(gross_s - won_s, 0.0), gross_s)
