"""Time of day at which a run that goes on has recorded something last."""

from __future__ import annotations

from datetime import datetime

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import local_time, seconds_until
from mmgpu_hooks.schema.judged import Ending

_FRESH_S = 3600.0
"""A run whose evidence ends less long ago is taken to go on."""


def find_last_sign(run: Run, ending: Ending | None) -> datetime | None:
    """The time of the newest interval, by this host's clock.

    Args:
        run: One rank's.
        ending: What is left of it.

    Returns:
        ``None`` of a run that ended, whose end is unknown, or that was silent for an
        hour.
    """
    if ending is None or run.end is not None:
        return None
    passed_s = 3600 * (ending.whole_hours - ending.hours_left)
    ahead_s = seconds_until(run.meta.started_unix_s + passed_s)
    return local_time(ahead_s) if -ahead_s < _FRESH_S else None
