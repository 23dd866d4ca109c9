"""What ``mmgpu verify`` answers, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.schema import Estimate, Verification
from mmgpu_hooks.show.document import Section, Table, listing, to_json
from mmgpu_hooks.show.figures import format_seconds, format_signed
from mmgpu_hooks.show.terminal import render


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
    return to_json(
        before=answer.before,
        after=answer.after,
        **vars(answer.verification),
        folder=answer.folder,
    )


def render_verify_text(answer: VerifyAnswer, **layout: Any) -> str:
    """The answer for a terminal.

    Args:
        answer: What to say.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
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
    sections = [
        Section(_sentence(measured.gain), sentences=list(_compare(answer))),
        Section(table=_table(answer)),
        Section(sentences=said),
        *listing('Notes', measured.notes),
    ]
    return render(sections, **layout)


def format_gain(gain: float) -> str:
    """``+31.2 %``."""
    return f'{100 * gain:+.1f} %'


def format_estimate(gain: Estimate) -> str:
    """``+31.2 % (+29.8 to +32.7 %)``."""
    low, high = 100 * gain.low, 100 * gain.high
    return f'{format_gain(gain.value)} ({low:+.1f} to {high:+.1f} %)'


def _sentence(gain: Estimate) -> str:
    words = 'no difference beyond noise'
    if gain.low > 0 or gain.high < 0:
        words = f'the second setting is {"faster" if gain.low > 0 else "slower"}'
    return f'Measured: {format_estimate(gain)} images/s; {words}.'


def _compare(answer: VerifyAnswer) -> Iterator[str]:
    """What was predicted; the gain over whole epochs, where starts were measured."""
    measured, batches = answer.verification, answer.batches_per_epoch
    predicted, gain = measured.predicted_gain, measured.gain
    if predicted is not None:
        words = 'inside' if gain.low <= predicted <= gain.high else 'outside'
        yield f'Predicted: {format_gain(predicted)}, {words} the measured interval.'
    before_s, after_s = measured.before_start_s, measured.after_start_s
    if batches and before_s is not None and after_s is not None:
        starts = 1 + before_s / batches / measured.before_s
        starts /= 1 + after_s / batches / measured.after_s
        whole = format_gain((1 + gain.value) * starts - 1)
        yield f'Over whole epochs of {batches} iterations, with their starts: {whole}.'


def _table(answer: VerifyAnswer) -> Table:
    sides, measured = (answer.before, answer.after), answer.verification
    starts = (measured.before_start_s, measured.after_start_s)
    rows: list[tuple[object, ...]] = [
        (key.rpartition('.')[2], *(side.get(key, '-') for side in sides))
        for key in {**answer.before, **answer.after}
    ]
    rows.append(
        ('iteration, mean', *map(format_seconds, (measured.before_s, measured.after_s)))
    )
    cells = ['unknown' if one is None else format_signed(one) for one in starts]
    rows.append(('an epoch start adds', *cells))
    return Table(['', 'first', 'second'], rows)
