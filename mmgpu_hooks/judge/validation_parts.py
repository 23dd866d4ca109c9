"""Time of a run's validations, by part and by metric; no I/O."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.judge.standstill import phrase_validation_part
from mmgpu_hooks.schema.recorded import (
    VALIDATION_PART_NAMES,
    VALIDATION_PARTS,
    ValidationProgressRecord,
    ValidationRecord,
)
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import Text, phrase

_MOST_S = 366 * 86400.0
"""Longest plausible duration of a validation, in seconds: 366 days."""
_WORTH = 0.01
"""Smallest share (0 to 1) of a validation's time at which one of its parts is named."""


@dataclass(frozen=True)
class ValidationCosts:
    """Seconds of a run's timed validations, summed by part and by metric."""

    count: int
    wall_s: float
    parts_s: Mapping[str, float]
    """Seconds of all timed validations by part; the parts add up to ``wall_s``.

    In the order of `VALIDATION_PARTS`.
    """
    metrics_s: Mapping[str, float]
    """Seconds of ``compute_metrics`` in all validations by metric, slowest first."""
    process_s: Mapping[str, float]
    """Seconds of ``process`` in all validations by class of metric, slowest first."""
    batches: int
    """Number of batches in all validations together."""

    def share(self, part: str) -> float:
        """Returns the share (0 to 1) of the validations' time that one part took."""
        return self.parts_s.get(part, 0.0) / self.wall_s


def is_timed(record: ValidationRecord) -> bool:
    """True if a validation's duration is plausible.

    The file may have been edited by hand.
    """
    return 0.0 < record.wall_s < _MOST_S


def sum_costs(records: Sequence[ValidationRecord]) -> ValidationCosts | None:
    """Sums up the seconds of validations by part and by metric.

    Returns:
        ``None`` where none was taken apart.
    """
    known = [record for record in records if record.parts_s and is_timed(record)]
    parts_s, metrics_s, process_s = Counter[str](), Counter[str](), Counter[str]()
    for record in known:
        parts_s.update(record.parts_s or {})
        metrics_s.update(record.metrics_s or {})
        process_s.update(record.process_s or {})
    wall_s = math.fsum(parts_s.values())
    if wall_s <= 0.0:
        return None
    return ValidationCosts(
        count=len(known),
        wall_s=wall_s,
        parts_s={part: parts_s[part] for part in VALIDATION_PARTS if parts_s[part]},
        metrics_s=dict(metrics_s.most_common()),
        process_s=dict(process_s.most_common()),
        batches=sum(record.iterations for record in known),
    )


def find_costs(run: RecordedRun) -> ValidationCosts | None:
    """Sums up seconds of a run's validations by part; ``None`` if not known."""
    return sum_costs(run.validations)


def list_parts(costs: ValidationCosts) -> Iterator[Text]:
    """Lists the notable parts of validations with their seconds, longest first."""
    for part, spent_s in _list_worth(costs.parts_s, costs.wall_s):
        name = VALIDATION_PART_NAMES[part]
        said = phrase('{part} {spent_s:sum}', part=name, spent_s=spent_s)
        yield _add_metrics(costs, part, said)


def list_shares(costs: ValidationCosts) -> Iterator[Text]:
    """Lists the notable parts of validations with their shares of validation time."""
    for part, spent_s in _list_worth(costs.parts_s, costs.wall_s):
        name, spent_pct = VALIDATION_PART_NAMES[part], 100 * spent_s / costs.wall_s
        said = phrase('{part} {spent_pct:exact}', part=name, spent_pct=spent_pct)
        yield _add_metrics(costs, part, said)


def _add_metrics(costs: ValidationCosts, part: str, said: Text) -> Text:
    """Appends to a text on a validation part the names of its slowest metrics."""
    metrics_s = find_metrics(costs, part)
    named = tuple(name for name, _ in _list_worth(metrics_s, costs.wall_s))
    return phrase('{part} ({metrics})', part=said, metrics=named) if named else said


def find_metrics(costs: ValidationCosts, part: str) -> Mapping[str, float]:
    """Returns the seconds of each metric in one part of validation, by metric."""
    return {'metric': costs.metrics_s, 'process': costs.process_s}.get(part, {})


def _list_worth(
    spent_s: Mapping[str, float], wall_s: float
) -> Iterator[tuple[str, float]]:
    """Lists parts or metrics with a notable share of validation time, longest first."""
    for name, seconds in sorted(spent_s.items(), key=lambda spent: -spent[1]):
        if seconds >= _WORTH * wall_s:
            yield name, seconds


def find_unfinished(evidence: RunEvidence) -> ValidationProgressRecord | None:
    """Finds the last progress record of a validation that never ended.

    Returns:
        ``None`` where training went on after it, or it ended.
    """
    noted = evidence.validation_progress[-1:]
    if not noted:
        return None
    (last,) = noted
    done = evidence.intervals[-1].iteration if evidence.intervals else 0
    ended = [record.iteration for record in evidence.validations]
    if last.iteration in ended or last.iteration < done:
        return None
    return last


def phrase_unfinished(record: ValidationProgressRecord) -> Text:
    """Returns a clause on the part in which an unfinished validation was.

    ``validation after iteration 7330: in compute_metrics of CocoMetric in validation
    for 24 s (352 s in all: forward 328 s, metric 24 s (CocoMetric); batch 5000 of
    5000)``
    """
    where = phrase_validation_part(record.part, record.metric)
    spent = phrase('{elapsed_s:sum} in all', record)
    # of calls that are short, the one that runs says less than all of them together
    parts = tuple(list_parts(_sum_unfinished(record)))
    if parts:
        spent = phrase('{elapsed_s:sum} in all: {parts}', record, parts=parts)
    if record.batches_in_all is None:
        return phrase(
            'validation after iteration {iteration}: {where} for {call_s:sum} and more '
            '({spent}; batch {batches:d})',
            record,
            where=where,
            spent=spent,
        )
    return phrase(
        'validation after iteration {iteration}: {where} for {call_s:sum} and more '
        '({spent}; batch {batches:d} of {batches_in_all})',
        record,
        where=where,
        spent=spent,
    )


def _sum_unfinished(record: ValidationProgressRecord) -> ValidationCosts:
    parts_s = {part: record.parts_s.get(part, 0.0) for part in VALIDATION_PARTS}
    return ValidationCosts(
        count=1,
        wall_s=math.fsum(parts_s.values()),
        parts_s={part: spent_s for part, spent_s in parts_s.items() if spent_s},
        metrics_s=record.metrics_s or {},
        process_s=record.process_s or {},
        batches=record.batches,
    )
