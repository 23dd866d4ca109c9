"""Turns decided values of a training's settings into changes and sentences; no I/O."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import judge_confidence
from mmgpu_hooks.recommend.job import Decision
from mmgpu_hooks.schema.judged import Change
from mmgpu_hooks.schema.text import Text, phrase

AT_HAND = phrase('In steady iterations data is at hand when it is needed.')
STALLS = phrase('The waits are not those of a loader that cannot keep up.')
_UNSURE = phrase('What is predicted to help is not sure enough to be written.')


def list_changes(decision: Decision) -> Iterator[Change]:
    """Yields a `Change` for each changed setting, each with the gain of all changes."""
    job, gain = decision.job, decision.gain
    for setting in decision.changed:
        assert gain is not None  # something changes
        is_sure = not setting.is_recipe and gain.low >= 0.0
        yield Change(
            key=setting.key(job.loader),
            old=decision.old[setting.name],
            new=decision.new[setting.name],
            reason=setting.why(decision),
            confidence=limit_confidence(job.run, is_sure),
            rules=setting.cite(decision),
            predicted_iter_s=job.at(decision.new).iter_s,
            predicted_gain_pct=100 * gain.share,
            predicted_gain_low_pct=100 * gain.low,
            predicted_gain_high_pct=100 * gain.high,
        )


def limit_confidence(run: Run, is_sure: bool) -> str:
    """Returns the confidence in a change: at most ``medium`` if its gain is unsure.

    So it is where the change may be a loss, or changes the recipe.
    """
    confidence = judge_confidence(run)
    return 'medium' if confidence == 'high' and not is_sure else confidence


def phrase_doubt(decision: Decision) -> Text | None:
    """Phrases which changes are not recommended because their predicted gain is unsure.

    ``num_workers 2 -> 5 would save 9 % of the time (...): too unsure to be written.``

    Returns:
        ``None`` where nothing is, or it is not worth a word.
    """
    asked = {
        setting.name
        for setting in decision.job.settings
        if setting.is_asked(decision.job)
    }
    for name, rejected in decision.rejected.items():
        # of what the user asked for it is said elsewhere
        if rejected.gain.share < thresholds.WORTHWHILE_GAIN or name in asked:
            continue
        old, new = decision.old, rejected.choice
        # what is left to the default follows from the others
        changed = tuple(
            f'{key} {old[key]} -> {value}'
            for key, value in new.items()
            if old[key] != value and value is not None
        )
        if rejected.alone == rejected.gain:
            return phrase(
                '{changes} would save {gain}: too unsure to be written.',
                changes=changed,
                gain=rejected.gain.phrase,
            )
        return phrase(
            '{changes} would save {gain}, {alone} without the other programs on this '
            'host: too unsure to be written.',
            changes=changed,
            gain=rejected.gain.phrase,
            alone=rejected.alone.phrase,
        )
    return None


def why_nothing(decision: Decision) -> Text:
    """Returns a sentence on why no change of a setting is recommended."""
    run = decision.job.run
    if phrase_doubt(decision) is not None:
        return _UNSURE
    if not run.is_data_bound:
        return AT_HAND
    if run.is_cpu_the_wall:
        return phrase(
            'The CPU is the wall: no setting is faster than {cpu_floor_s} per '
            'iteration.',
            cpu_floor_s=run.cpu_floor_s,
        )
    return phrase(
        'No other safe setting is predicted to be {least_share} faster (at most '
        '{workers}: {reason}).',
        decision.job.cap(decision.old),
        least_share=thresholds.WORTHWHILE_GAIN,
    )
