"""Cuts a run whose pipeline or step changed midway, and keeps its last long part."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.diagnosis.thresholds import MIN_ITERATIONS
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.modeling.segments import find_last_change
from mmgpu_hooks.schema import IntervalRecord, RunEvidence, RunSummary

Segment = tuple[RunSummary, Sequence[IntervalRecord], str]


NEWEST = 1000
"""Intervals that are looked at: of 10,000 iterations and more, further ones would not
make a prediction surer."""


def cut_segment(
    summary: RunSummary, intervals: Sequence[IntervalRecord]
) -> Segment | None:
    """The last long part of a run that changed midway, or that is very long.

    Args:
        summary: Of the whole run.
        intervals: All of the run.

    Returns:
        The part's own figures, its intervals and a sentence; ``None`` when nothing
        changed, or the part after the change is too short to tell anything.
    """
    newest = tuple(intervals[-NEWEST:])
    found = (_find_cut(newest, 'occupancy'), _find_cut(newest, 'step'))
    for cut in sorted({cut for cut in found if cut is not None}, reverse=True):
        part = newest[cut:]
        # the first interval of a part counts as its warm-up
        if sum(record.iterations for record in part[1:]) >= MIN_ITERATIONS:
            return _fold_part(
                summary,
                part,
                'The pipeline or the step changed during the run: only what was '
                f'measured from iteration {part[0].iteration} on is used.',
            )
    if len(newest) < len(intervals):
        return _fold_part(
            summary,
            newest,
            f'Only what was measured from iteration {newest[0].iteration} on is used.',
        )
    return None


def _fold_part(
    summary: RunSummary, part: tuple[IntervalRecord, ...], note: str
) -> Segment:
    evidence = RunEvidence(
        path='',
        run=summary.run,
        intervals=part,
        save_records=summary.save_records,
        validations=summary.validations,
    )
    return fold_run(evidence), part, note


def _find_cut(intervals: Sequence[IntervalRecord], what: str) -> int | None:
    known = [
        (index, value)
        for index, record in enumerate(intervals)
        # the first holds lazy initialisation
        if index and (value := _value(record, what)) is not None
    ]
    change = find_last_change([value for _, value in known])
    return None if change is None else known[change][0]


def _value(record: IntervalRecord, what: str) -> float | None:
    if what == 'step':
        return record.step.p50_s
    workers = record.workers
    if workers is None or workers.occupancy is None:
        return None
    return workers.occupancy.mean_s
