"""Words for what ``tune=True`` changed: for the log, the summary and the page."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.schema.figures import format_seconds
from mmgpu_hooks.schema.recorded import TunedRecord, TunedSettings
from mmgpu_hooks.schema.run import RunEvidence

_CHANGED = {
    'predicted': '{what} from iteration {iteration} on: an iteration takes {before} '
    'and is predicted to take {predicted} ({gain})',
    'found_before': '{what}, which the run that is resumed had found',
}
_JUDGED = {
    'gain': '{what} is kept: an iteration took {before} and takes {after} ({gain})',
    'unclear': '{what} is kept: no difference can be told ({before} and {after} an '
    'iteration)',
    'other_load': '{what} is kept, unjudged: other programs used other cores of the '
    'host before',
}
_TAKEN_BACK = {
    'failed': '{what}, as before: the new workers could not be started',
    'loss': '{what}, as before: an iteration took {before} and {after} since ({gain})',
    'unclear': '{what}, as before: no gain can be told ({before} and {after} an '
    'iteration)',
}
_WORDS = {'change': _CHANGED, 'keep': _JUDGED, 'roll_back': _TAKEN_BACK}
_SHORT = {
    'gain': 'kept',
    'loss': 'taken back',
    'unclear': 'no difference told',
    'other_load': 'unjudged, other programs came or went',
    'failed': 'could not be started',
}


def phrase_tuned(record: TunedRecord) -> str:
    """One change, or what it gave, as a clause for the log."""
    text = _WORDS[record.action][record.reason]
    return text.format(
        what=phrase_settings(record.old, record.new),
        iteration=record.iteration,
        before=format_seconds(record.iter_s),
        predicted=format_seconds(record.predicted_iter_s),
        after=format_seconds(record.measured_iter_s),
        gain=_phrase_gain(record),
    )


def phrase_settings(old: TunedSettings, new: TunedSettings) -> str:
    """The settings that differ, or how many workers there are where none does."""
    changed = [
        f'{name} {_spell(getattr(old, name))} -> {_spell(getattr(new, name))}'
        for name in TunedSettings.__struct_fields__
        if getattr(old, name) != getattr(new, name)
    ]
    return ', '.join(changed) or f'num_workers={new.num_workers}'


def _spell(value: object) -> str:
    return 'default' if value is None else str(value)


def _phrase_gain(record: TunedRecord) -> str:
    """``63 % less time, 41 to 80 %``; of a loss how much more."""
    share = record.gain_pct
    if share is None:
        return 'unknown'
    low, high = record.gain_low_pct, record.gain_high_pct
    text = f'{abs(share):.0f} % {"more" if share < 0.0 else "less"} time'
    if low is None or high is None:
        return text
    ends = (low, high) if share >= 0.0 else (-high, -low)
    return '{}, {:.0f} to {:.0f} %'.format(text, *ends)


def list_tuned(evidence: RunEvidence) -> Iterator[str]:
    """Each change with what was predicted and measured of it, for the summary."""
    tuned = evidence.tuned
    for record, after in zip(tuned, [*tuned[1:], None]):
        if record.action != 'change':
            continue
        what = phrase_settings(record.old, record.new)
        where = '' if record.is_within else 'between epochs, '
        text = f'{what} {where}at iteration {record.iteration}'
        if record.switch_s is not None:
            text += f' in {format_seconds(record.switch_s)}'
        if record.gain_pct is not None:
            text += f': predicted {record.gain_pct:.0f} % less time'
        if after is not None and after.action != 'change':
            measured = after.gain_pct
            if measured is not None:
                text += f', measured {measured:.0f} %'
            kept = 'taken back' if after.action == 'roll_back' else 'kept'
            said = _SHORT[after.reason]
            text += f', {kept}' if said == kept else f', {kept} ({said})'
        yield text
