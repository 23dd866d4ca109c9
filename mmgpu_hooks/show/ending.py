"""Phrases when a training ends, and what a job's time limit cuts off."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from mmgpu_hooks.schema.judged import JobLimit, TrainingEnd
from mmgpu_hooks.schema.text import Text, phrase, quoted

_WEEK_DAYS = 6


def format_moment(moment: datetime, now: datetime) -> Text:
    """Formats a time of day as ``14:20``, ``tomorrow 14:20`` or ``3 Dec 14:20``."""
    days, time = (moment.date() - now.date()).days, f'{moment:%H:%M}'
    if days == 0:
        return quoted(time)
    if days == 1:
        return phrase('tomorrow {time}', time=time)
    day = f'{moment:%a}' if 1 < days <= _WEEK_DAYS else f'{moment:%d %b}'.lstrip('0')
    return quoted(f'{day} {time}')


def phrase_ending(ending: TrainingEnd, now: datetime) -> Text:
    """Phrases when a training is predicted to end, with the hours left by part.

    ``ends tomorrow 14:20 (13:40 to 15:10): training 9.1 h, validation 3.0 h (metric
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
    return phrase(
        'ends {end} ({low} to {high}): {parts}',
        end=format_moment(end, now),
        low=begins,
        high=until,
        parts=tuple(_list_parts(ending)),
    )


def _list_parts(ending: TrainingEnd) -> Iterator[Text]:
    yield phrase('training {training_hours}', ending)
    if ending.validation_hours is None:
        yield phrase('validation not known yet')
    elif ending.validation_hours and ending.metric_hours:
        yield phrase('validation {validation_hours} (metric {metric_hours})', ending)
    elif ending.validation_hours:
        yield phrase('validation {validation_hours}', ending)
    if ending.save_hours is None:
        yield phrase('saves not known yet')
    elif ending.save_hours:
        yield phrase('saves {save_hours}', ending)


def phrase_limit(limit: JobLimit, end: datetime, now: datetime) -> Text:
    """Phrases when SLURM ends the job, and how many epochs will be missing.

    ``SLURM ends this job at 08:00: 3 of 12 epochs will be missing; epoch 9 is the
    last that is saved``.

    Args:
        limit: What it leaves undone.
        end: When it ends the job.
        now: By the clock of the host.
    """
    moment = format_moment(end, now)
    if ' ' not in moment:
        moment = phrase('at {time}', time=moment)
    if limit.unit == 'epoch':
        missing = phrase(
            '{missing_epochs:,} of {whole_epochs:,} epochs will be missing',
            missing_epochs=limit.missing,
            whole_epochs=limit.whole,
        )
        saved = phrase(
            'epoch {last_epoch:,} is the last that is saved',
            last_epoch=limit.last_saved,
        )
    else:
        missing = phrase(
            '{missing_iterations:,} of {whole_iterations:,} iterations will be missing',
            missing_iterations=limit.missing,
            whole_iterations=limit.whole,
        )
        saved = phrase(
            'iteration {last_iteration:,} is the last that is saved',
            last_iteration=limit.last_saved,
        )
    if limit.last_saved is None:
        saved = phrase('nothing more will be saved')
    return phrase(
        'SLURM ends this job {moment}: {missing}; {saved}',
        moment=moment,
        missing=missing,
        saved=saved,
    )
