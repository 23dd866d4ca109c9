"""Phrases the changes of ``tune=True`` for the log, summary and page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.schema.recorded import TunedRecord, TunedSettings
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, listed, phrase, quoted

_SHORT = {
    'gain': phrase('kept'),
    'loss': phrase('taken back'),
    'unclear': phrase('no difference told'),
    'other_load': phrase('unjudged, other programs came or went'),
    'failed': phrase('could not be started'),
}


def phrase_tuned(record: TunedRecord) -> Text:
    """Phrases one loader change by ``tune=True``, or its judgement, for the log."""
    what = phrase_what(record)
    if record.action == 'change':
        return _phrase_change(record, what)
    if record.action == 'keep':
        return _phrase_kept(record, what)
    return _phrase_taken_back(record, what)


def _phrase_change(record: TunedRecord, what: Text) -> Text:
    if record.reason == 'found_before':
        return phrase('{what}, which the run that is resumed had found', what=what)
    if record.loader == 'validation':
        return phrase(
            '{what} from iteration {iteration} on: an iteration of validation takes '
            '{iter_s} and is predicted to take {predicted_iter_s} ({gain})',
            record,
            what=what,
            gain=_phrase_gain(record),
        )
    return phrase(
        '{what} from iteration {iteration} on: an iteration takes {iter_s} and is '
        'predicted to take {predicted_iter_s} ({gain})',
        record,
        what=what,
        gain=_phrase_gain(record),
    )


def _phrase_kept(record: TunedRecord, what: Text) -> Text:
    if record.reason == 'gain' and record.loader == 'validation':
        return phrase(
            '{what} is kept: an iteration of validation took {iter_s} and takes '
            '{measured_iter_s} ({gain})',
            record,
            what=what,
            gain=_phrase_gain(record),
        )
    if record.reason == 'gain':
        return phrase(
            '{what} is kept: an iteration took {iter_s} and takes {measured_iter_s} '
            '({gain})',
            record,
            what=what,
            gain=_phrase_gain(record),
        )
    if record.reason == 'other_load':
        return phrase(
            '{what} is kept, unjudged: other programs used other cores of the host '
            'before',
            what=what,
        )
    return phrase(
        '{what} is kept: no difference can be told ({iter_s} and {measured_iter_s} an '
        'iteration)',
        record,
        what=what,
    )


def _phrase_taken_back(record: TunedRecord, what: Text) -> Text:
    if record.reason == 'failed':
        return phrase('{what}: the new workers could not be started', what=what)
    if record.reason == 'loss' and record.loader == 'validation':
        return phrase(
            '{what}, as before: an iteration of validation took {iter_s} and '
            '{measured_iter_s} since ({gain})',
            record,
            what=what,
            gain=_phrase_gain(record),
        )
    if record.reason == 'loss':
        return phrase(
            '{what}, as before: an iteration took {iter_s} and {measured_iter_s} since '
            '({gain})',
            record,
            what=what,
            gain=_phrase_gain(record),
        )
    return phrase(
        '{what}, as before: no gain can be told ({iter_s} and {measured_iter_s} an '
        'iteration)',
        record,
        what=what,
    )


def phrase_what(record: TunedRecord) -> Text:
    """Phrases the settings that a tuning action alters, with the loader's name.

    The train loader is not named.
    """
    what = phrase_settings(record.old, record.new)
    if record.loader == 'validation':
        return phrase('val_dataloader: {what}', what=what)
    return what


def phrase_settings(old: TunedSettings, new: TunedSettings) -> Text:
    """Phrases the settings that a change alters: ``num_workers 2 -> 5, ...``."""
    changed = [
        phrase(
            '{name} {old} -> {new}',
            name=name,
            old=_spell(getattr(old, name)),
            new=_spell(getattr(new, name)),
        )
        for name in TunedSettings.__struct_fields__
        if getattr(old, name) != getattr(new, name)
    ]
    return listed(changed) if changed else quoted(f'num_workers={new.num_workers}')


def _spell(value: object) -> Text:
    return phrase('default') if value is None else quoted(str(value))


def _phrase_gain(record: TunedRecord) -> Text:
    """Phrases the predicted or measured gain: ``63 % less time, 41 to 80 %``."""
    gain_pct = record.gain_pct
    low_pct, high_pct = record.gain_low_pct, record.gain_high_pct
    if high_pct is not None:
        # nothing saves more than all of the time
        high_pct = min(high_pct, 100.0)
    if gain_pct is None:
        return phrase('unknown')
    if low_pct is None or high_pct is None:
        if gain_pct < 0.0:
            return phrase('{loss_pct} more time', loss_pct=-gain_pct)
        return phrase('{gain_pct} less time', record)
    if gain_pct < 0.0:
        return phrase(
            '{loss_pct} more time, {low_pct:.0f} to {high_pct}',
            loss_pct=-gain_pct,
            low_pct=-high_pct,
            high_pct=-low_pct,
        )
    return phrase(
        '{gain_pct} less time, {low_pct:.0f} to {high_pct}',
        gain_pct=gain_pct,
        low_pct=low_pct,
        high_pct=high_pct,
    )


def list_tuned(evidence: RunEvidence) -> Iterator[Text]:
    """Phrases each change by ``tune=True``: its predicted and measured gain."""
    yield from _list_tuned(evidence.tuned_of('train'))
    yield from _list_tuned(evidence.tuned_of('validation'))


def _list_tuned(tuned: Sequence[TunedRecord]) -> Iterator[Text]:
    """Phrases each change of one loader: its predicted and measured gain."""
    for last, record, after in zip([None, *tuned], tuned, [*tuned[1:], None]):
        if record.reason == 'failed' and last and last.action == 'roll_back':
            # the roll-back was not made, after all
            yield phrase_tuned(record)
        if record.action != 'change':
            continue
        change, results = _phrase_place(record), list[Text]()
        if after is not None and after.action != 'change':
            results = list(_list_results(after))
        if record.gain_pct is not None:
            predicted = phrase('predicted {gain_pct} less time', record)
            yield phrase(
                '{change}: {results:,}', change=change, results=(predicted, *results)
            )
        else:
            yield listed([change, *results])


def _phrase_place(record: TunedRecord) -> Text:
    """Phrases a change by ``tune=True``: settings, iteration, seconds of switching."""
    what = phrase_what(record)
    if record.reason == 'found_before':
        return _phrase_change(record, what)
    if record.loader == 'validation':
        return phrase(
            '{what} at the validation after iteration {iteration}', record, what=what
        )
    if record.is_within and record.switch_s is None:
        return phrase('{what} at iteration {iteration}', record, what=what)
    if record.is_within:
        return phrase(
            '{what} at iteration {iteration} in {switch_s}', record, what=what
        )
    if record.switch_s is None:
        return phrase(
            '{what} between epochs, at iteration {iteration}', record, what=what
        )
    return phrase(
        '{what} between epochs, at iteration {iteration} in {switch_s}',
        record,
        what=what,
    )


def _list_results(after: TunedRecord) -> Iterator[Text]:
    """Phrases a loader change's measured gain, and if it was kept or undone."""
    # beside another load of the host it is no gain of the change
    if after.gain_pct is not None and after.reason != 'other_load':
        yield phrase('measured {gain_pct}', after)
    kept, why = phrase('kept'), _SHORT[after.reason]
    if after.action == 'roll_back':
        kept = phrase('taken back')
    yield kept if why == kept else phrase('{kept} ({why})', kept=kept, why=why)
