"""What the loader's workers did while something else took its time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple


class WorkerTimes(NamedTuple):
    """Where a worker's times stood at one moment."""

    cpu_s: float | None
    """All its threads; ``None`` where the platform does not tell."""
    wanting_s: float | None
    """How long its main thread was on a core or waited for one; ``None`` where the
    kernel does not tell."""


WorkersMark = Mapping[int, WorkerTimes]
"""The workers that are alive, by process id."""


@dataclass(frozen=True)
class WorkersMeanwhile:
    """The workers between two marks; what one of them hides is ``None``."""

    count: int
    """Alive at both."""
    busy: float | None
    """How many of them were on a core or waited for one, mean."""
    cpu_s: float | None


def fold_workers_meanwhile(
    before: WorkersMark, after: WorkersMark, wall_s: float
) -> WorkersMeanwhile:
    """What the workers did between two marks.

    Those that started or ended in between are left out. A worker that waits for a
    core when it is looked at is credited with that wait only when it is over.

    Args:
        before: The first mark.
        after: The second.
        wall_s: Seconds between them; above 0.
    """
    both = [(before[pid], after[pid]) for pid in before if pid in after]
    busy_s = cpu_s = 0.0
    is_busy_known, is_cpu_known = True, before.keys() == after.keys()
    for begin, end in both:
        if begin.wanting_s is None or end.wanting_s is None:
            is_busy_known = False
        else:
            busy_s += min(max(end.wanting_s - begin.wanting_s, 0.0), wall_s)
        if begin.cpu_s is None or end.cpu_s is None:
            is_cpu_known = False
        else:
            cpu_s += max(end.cpu_s - begin.cpu_s, 0.0)
    return WorkersMeanwhile(
        count=len(both),
        busy=busy_s / wall_s if is_busy_known else None,
        cpu_s=cpu_s if is_cpu_known else None,
    )
