"""What ``mmgpu verify`` answers, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mmgpu_hooks.schema import Estimate, Verification
from mmgpu_hooks.show.document import Section, Table, listing
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""


@dataclass(frozen=True)
class VerifyAnswer:
    """Everything there is to say about one verification."""

    verification: Verification
    before: Mapping[str, Any]
    """Settings by dotted key; of two configs, ``config`` alone."""
    after: Mapping[str, Any]
    folder: str
    """Logs of the trainings."""
    batches_per_epoch: int | None = None


def render_verify_json(answer: VerifyAnswer) -> str:
    """The answer as one JSON object; see ``docs/en/verify.md``."""
    measured = asdict(answer.verification)
    body = {
        'version': JSON_VERSION,
        'before': dict(answer.before),
        'after': dict(answer.after),
        **measured,
        'notes': list(answer.verification.notes),
        'folder': answer.folder,
    }
    return json.dumps(body, indent=2)


def render_verify_text(
    answer: VerifyAnswer, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal.

    Args:
        answer: What to say.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    measured = answer.verification
    said = [
        f'{measured.pairs} pairs of blocks in turns, {measured.iterations} measured '
        f'iterations of each, {format_seconds(measured.seconds)} in all; '
        f'{measured.ending}.'
    ]
    if measured.external_cpu_cores is not None:
        cores = f'{measured.external_cpu_cores:.1f}'
        said.append(f'Other programs used {cores} cores of the host meanwhile.')
    title = _sentence(measured.gain)
    sections = [
        Section(title, sentences=[_predicted(measured), *_describe_starts(answer)]),
        Section(table=_table(answer)),
        Section(sentences=said),
        *listing('Notes', measured.notes),
    ]
    return render(sections, width=width, color=color)


def format_gain(gain: float) -> str:
    """``+31.2 %``."""
    return f'{100 * gain:+.1f} %'


def format_estimate(gain: Estimate) -> str:
    """``+31.2 % (+29.8 to +32.7 %)``."""
    low, high = 100 * gain.low, 100 * gain.high
    return f'{format_gain(gain.value)} ({low:+.1f} to {high:+.1f} %)'


def _sentence(gain: Estimate) -> str:
    figures = format_estimate(gain)
    if gain.low > 0:
        return f'Measured: {figures} images/s; the second setting is faster.'
    if gain.high < 0:
        return f'Measured: {figures} images/s; the second setting is slower.'
    return f'Measured: {figures} images/s; no difference beyond noise.'


def _predicted(verification: Verification) -> str:
    predicted, gain = verification.predicted_gain, verification.gain
    if predicted is None:
        return 'Nothing was predicted of it.'
    words = 'inside' if gain.low <= predicted <= gain.high else 'outside'
    return f'Predicted: {format_gain(predicted)}, {words} the measured interval.'


def _describe_starts(answer: VerifyAnswer) -> list[str]:
    """The gain over whole epochs, where their starts were measured."""
    measured, batches = answer.verification, answer.batches_per_epoch
    before_s, after_s = measured.before_start_s, measured.after_start_s
    if not batches or before_s is None or after_s is None:
        return []
    starts = 1 + before_s / batches / measured.before_s
    starts /= 1 + after_s / batches / measured.after_s
    gain = (1 + measured.gain.value) * starts - 1
    return [
        f'Over whole epochs of {batches} iterations, their starts included: about '
        f'{format_gain(gain)}.'
    ]


def _table(answer: VerifyAnswer) -> Table:
    sides = (answer.before, answer.after)
    rows: list[tuple[object, ...]] = [
        (key.rpartition('.')[2], *(side.get(key, '-') for side in sides))
        for key in {**answer.before, **answer.after}
    ]
    measured = answer.verification
    for label, seconds in (
        ('iteration, mean', (measured.before_s, measured.after_s)),
        ('an epoch start adds', (measured.before_start_s, measured.after_start_s)),
    ):
        rows.append((label, *map(_seconds, seconds)))
    return Table(['', 'first', 'second'], rows)


def _seconds(seconds: float | None) -> str:
    # an epoch's first batch can be there sooner than others
    if seconds is not None and seconds < 0:
        return f'-{format_seconds(-seconds)}'
    return format_seconds(seconds)
