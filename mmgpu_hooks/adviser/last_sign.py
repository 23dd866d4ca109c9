"""Finds a running training's newest record, and the end of its SLURM job."""

from __future__ import annotations

from datetime import datetime

from mmgpu_hooks.judge.ending import read_forecaster
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import local_time, seconds_until
from mmgpu_hooks.schema.judged import JobEnd, TrainingEnd

_FRESH_S = 3600.0
"""Largest age of the newest record, in seconds, at which a run counts as running."""


def find_last_sign(run: Run, ending: TrainingEnd | None) -> datetime | None:
    """Returns the local time of the newest log interval of a running training.

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
    """Returns the time at which SLURM ends a run's job, if the run recorded that.

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
    """Returns the Unix time of the newest log interval, by the run's host's clock."""
    return run.meta.started_unix_s + 3600 * (ending.whole_hours - ending.hours_left)
