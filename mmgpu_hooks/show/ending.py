"""When a training ends, and what a job's limit leaves undone, in words."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from mmgpu_hooks.schema.judged import JobLimit, TrainingEnd

_WEEK_DAYS = 6


def format_hours(hours: float) -> str:
    """``9.1 h``, ``12 min`` or ``40 s``."""
    if hours >= 1:
        return f'{hours:.1f} h'
    seconds = 3600 * hours
    return f'{seconds / 60:.0f} min' if seconds >= 90 else f'{seconds:.0f} s'


def format_moment(moment: datetime, now: datetime) -> str:
    """``14:20``, ``tomorrow 14:20``, ``Mon 14:20`` or ``3 Dec 14:20``."""
    days = (moment.date() - now.date()).days
    day = f'{moment:%d %b}'.lstrip('0')
    if 1 < days <= _WEEK_DAYS:
        day = f'{moment:%a}'
    day = {0: '', 1: 'tomorrow'}.get(days, day)
    return f'{day} {moment:%H:%M}'.strip()


def phrase_ending(ending: TrainingEnd, now: datetime) -> str:
    """``ends tomorrow 14:20 (13:40 to 15:10): training 9.1 h, validation 3.0 h (metric
    2.2 h), saves 12 min``.

    Args:
        ending: What is left.
        now: By the clock of the host.
    """
    end = now + timedelta(hours=ending.hours_left)
    low, high = (
        now + timedelta(hours=hours)
        for hours in (ending.hours_left_low, ending.hours_left_high)
    )
    # the day is said once
    begins = format_moment(low, end if low.date() == end.date() else now)
    until = format_moment(high, low if high.date() == low.date() else now)
    parts = ', '.join(_list_parts(ending))
    return f'ends {format_moment(end, now)} ({begins} to {until}): {parts}'


def _list_parts(ending: TrainingEnd) -> Iterator[str]:
    yield f'training {format_hours(ending.training_hours)}'
    validation, metric = ending.validation_hours, ending.metric_hours
    if validation is None:
        yield 'validation not known yet'
    elif validation:
        of = f' (metric {format_hours(metric)})' if metric else ''
        yield f'validation {format_hours(validation)}{of}'
    if ending.save_hours is None:
        yield 'saves not known yet'
    elif ending.save_hours:
        yield f'saves {format_hours(ending.save_hours)}'


def phrase_limit(limit: JobLimit, end: datetime, now: datetime) -> str:
    """``SLURM ends this job at 08:00: 3 of 12 epochs will be missing; epoch 9 is the
    last that is saved``.

    Args:
        limit: What it leaves undone.
        end: When it ends the job.
        now: By the clock of the host.
    """
    unit, whole = limit.unit, f'{limit.whole:,} {limit.unit}s'
    moment = format_moment(end, now)
    at = moment if ' ' in moment else f'at {moment}'
    saved = 'nothing more will be saved'
    if limit.last_saved is not None:
        saved = f'{unit} {limit.last_saved:,} is the last that is saved'
    return (
        f'SLURM ends this job {at}: {limit.missing:,} of '
        f'{whole} will be missing; {saved}'
    )
