"""Computes when a running training last wrote a record, and when SLURM ends its job."""

from __future__ import annotations

from datetime import datetime

from mmgpu_hooks.judge.ending import read_forecaster
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import local_time, seconds_until
from mmgpu_hooks.schema.judged import JobEnd, TrainingEnd

_FRESH_S = 3600.0
"""Seconds without a new log interval after which a run counts as not running."""


def find_last_sign(run: Run, ending: TrainingEnd | None) -> datetime | None:
    """Returns when a running training's newest log interval ended, in local time.

    Args:
        run: One rank's.
        ending: What is left of it.

    Returns:
        ``None`` of a run that ended, whose end is unknown, or that was silent for an
        hour.
    """
    if ending is None or run.end is not None:
        return None
    ahead_s = seconds_until(_find_last_unix_s(run, ending))
    return local_time(ahead_s) if -ahead_s < _FRESH_S else None


def find_job_end(run: Run, ending: TrainingEnd | None) -> JobEnd | None:
    """Returns when SLURM ends a run's job, if that is before the training would end.

    Args:
        run: One rank's.
        ending: What is left of it.

    Returns:
        ``None`` where the run is expected to end before, too.
    """
    end_unix_s = run.meta.slurm_end_unix_s
    if ending is None or end_unix_s is None:
        return None
    left_s = end_unix_s - _find_last_unix_s(run, ending)
    limit = read_forecaster(run).find_limit(left_s)
    if limit is None:
        return None
    return JobEnd(local_time(seconds_until(end_unix_s)), limit)


def _find_last_unix_s(run: Run, ending: TrainingEnd) -> float:
    """Returns when a run's newest log interval ended, in seconds since 1970."""
    return run.meta.started_unix_s + 3600 * (ending.whole_hours - ending.hours_left)
