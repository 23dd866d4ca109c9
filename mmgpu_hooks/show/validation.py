"""Phrases the parts of validations for the log, summary and table."""

from __future__ import annotations

from mmgpu_hooks.judge.validation_parts import (
    ValidationCosts,
    find_metrics,
    list_parts,
    list_shares,
    sum_costs,
)
from mmgpu_hooks.schema.figures import format_pct, format_sum
from mmgpu_hooks.schema.recorded import VALIDATION_PART_NAMES, ValidationRecord
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.document import BLANK, Section, Table

_VALIDATION = phrase('validation')


def phrase_validation(
    record: ValidationRecord, loop: Text = _VALIDATION
) -> Text | None:
    """Phrases a validation for the log: ``validation took 40.8 s: data wait ...``.

    Args:
        record: What it took.
        loop: What it is called.

    Returns:
        ``None`` where it was not taken apart.
    """
    costs = sum_costs([record])
    if costs is None:
        return None
    return phrase(
        '{loop} took {wall_s:sum}: {parts}',
        record,
        loop=loop,
        parts=tuple(list_parts(costs)),
    )


def summarize_validations(costs: ValidationCosts) -> Text:
    """Phrases all validations: ``2 took 40.8 s each: data wait 75 %, metric 1 %``."""
    each_s, shares = costs.wall_s / costs.count, tuple(list_shares(costs))
    if costs.count == 1:
        return phrase('1 took {each_s:sum}: {shares}', each_s=each_s, shares=shares)
    return phrase(
        '{validations:d} took {each_s:sum} each: {shares}',
        validations=costs.count,
        each_s=each_s,
        shares=shares,
    )


def describe_validations(costs: ValidationCosts | None) -> list[Section]:
    """Makes a section tabulating validation's parts; none if the parts are unknown."""
    if costs is None:
        return []
    count, rows = costs.count, list[tuple[str, ...]]()
    for part, seconds in sorted(costs.parts_s.items(), key=lambda part: -part[1]):
        named = ', '.join(
            f'{name} {format_sum(spent_s / count)}'
            for name, spent_s in find_metrics(costs, part).items()
        )
        share = format_pct(100 * seconds / costs.wall_s)
        each = format_sum(seconds / count)
        rows.append((VALIDATION_PART_NAMES[part], each, share, named))
    each = format_sum(costs.wall_s / count)
    rows.append((phrase('all'), each, format_pct(100.0), ''))
    head = [phrase('part'), phrase('each'), phrase('share'), BLANK]
    table = Table(head, rows, phrase('{validations}', validations=count))
    return [Section(phrase('Validation'), 'validation', table=table)]
