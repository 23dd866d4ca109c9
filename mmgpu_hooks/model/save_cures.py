"""What saves would take with other workers, and how much less often they must come."""

from __future__ import annotations

import math

NICE_WEIGHT = 1.25
"""Each step of nice makes a task's share of a core this much smaller (Linux,
``sched_prio_to_weight``)."""


def crowding(busy: float, cores: float, strangers: float = 0.0, nice: int = 0) -> float:
    """Wait for a core over CPU of a thread that shares its cores fairly.

    ``busy`` tasks and one thread on C cores give it ``C / (1 + busy)`` of a core at
    most one. Against 8, 4 and 2 busy workers on 2 cores a save of 0.26 s took 1.48,
    0.66 and 0.37 s; this gives 1.17, 0.65 and 0.39 s.

    Args:
        busy: Workers that want a core.
        cores: Usable cores.
        strangers: Others that want one.
        nice: Nice value of the workers.
    """
    if cores <= 0.0:
        return math.inf
    rivals = max(busy, 0.0) * NICE_WEIGHT**-nice + max(strangers, 0.0)
    return max((1.0 + rivals) / cores - 1.0, 0.0)


def rescale_delay_s(delay_s: float, now: float, then: float) -> float | None:
    """A wait for a core under another crowding.

    Args:
        delay_s: As it was measured.
        now: :func:`crowding` of then.
        then: :func:`crowding` of the setting in question.

    Returns:
        ``None`` where the model expects no wait now: it has nothing to scale.
    """
    if not 0.0 < now < math.inf:
        return None
    return delay_s * then / now


def times_less_often(saves_s: float, run_s: float, share: float) -> int:
    """How many times longer the interval must be for saves to take ``share`` of a run.

    Args:
        saves_s: Seconds in saves now.
        run_s: Seconds of the run, saves included.
        share: From 0 to 1, both excluded.
    """
    allowed_s = share / (1.0 - share) * max(run_s - saves_s, 0.0)
    return math.ceil(saves_s / allowed_s) if allowed_s > 0.0 else 1
