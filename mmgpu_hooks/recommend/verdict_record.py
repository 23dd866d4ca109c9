"""Turns the verdict on a run into a record of the evidence file; no I/O."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.recommendation import recommend_settings, with_save_cures
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.schema.judged import Diagnosis, Recommendation
from mmgpu_hooks.schema.recorded import RecommendedChange, VerdictRecord

_HOUR_S = 3600.0
_NICE_KEY = BY_NAME['worker_nice'].key()


def judge_as_record(run: Run, diagnosis: Diagnosis, *, is_final: bool) -> VerdictRecord:
    """Makes the verdict record of a run, its recommendation included.

    Args:
        run: The rank that is judged.
        diagnosis: Of that run.
        is_final: True if training has ended.
    """
    found = with_save_cures(limit_to_memory(recommend_settings(run), run), run)
    return make_verdict_record(run, diagnosis, found, is_final=is_final)


def make_verdict_record(
    run: Run, diagnosis: Diagnosis, found: Recommendation, *, is_final: bool
) -> VerdictRecord:
    """Makes the verdict record of a run from its diagnosis and recommendation.

    Args:
        run: The rank that is judged.
        diagnosis: Of that run.
        found: What is recommended for it, cures of saves included.
        is_final: True if training has ended.
    """
    figures, meta = run.figures, run.meta
    hours = figures.duration_s / _HOUR_S
    saved = _predict_saved(run, found) if found.changes else None
    return VerdictRecord(
        verdict=diagnosis.verdict.name,
        confidence=diagnosis.verdict.confidence,
        is_final=is_final,
        judged_rank=meta.rank,
        iterations=figures.iterations,
        training_hours=hours,
        gpu_hours=0.0 if meta.device == 'cpu' else hours * max(meta.world_size, 1),
        ledger_pct={
            part: 100 * figures.run_share(seconds)
            for part, seconds in figures.ledger_s.items()
        },
        changes=tuple(
            RecommendedChange(key=change.key, old=change.old, new=change.new)
            for change in found.changes
        ),
        saved_hours=saved.share * hours if saved else None,
        saved_low_hours=saved.low * hours if saved else None,
        saved_high_hours=saved.high * hours if saved else None,
        slurm_job_id=meta.slurm_job_id,
    )


class _Saved(NamedTuple):
    """Predicted share (0 to 1) of run time that all recommended changes save."""

    share: float
    low: float
    """Lower end of the interval that holds the true share saved 9 times in 10."""
    high: float


def _predict_saved(run: Run, found: Recommendation) -> _Saved | None:
    """Predicts the share (0 to 1) of run time that all recommended changes save."""
    parts = [*_list_saved(run, found)]
    if not parts:
        return None
    return _Saved(*(sum(each) for each in zip(*parts)))


def _list_saved(run: Run, found: Recommendation) -> Iterator[_Saved]:
    # each predicted change of the train loader has the figures of all together
    for change in found.changes:
        gain = change.predicted_gain_pct
        low, high = change.predicted_gain_low_pct, change.predicted_gain_high_pct
        if gain is not None and low is not None and high is not None:
            yield _Saved(gain / 100, low / 100, high / 100)
            break
    validation = found.validation
    if validation is not None and validation.run_gain_pct is not None:
        share = validation.run_gain_pct / 100
        yield _Saved(share, share, share)
    if any(change.key == _NICE_KEY for change in found.changes):
        for cure in found.save_cures:
            if cure.run_net_s is not None:
                share = run.figures.run_share(cure.run_net_s)
                yield _Saved(share, share, share)
