"""Phrases the parts of validations for the log, summary and table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mmgpu_hooks.judge.validation_parts import ValidationCosts, sum_costs
from mmgpu_hooks.schema.figures import format_pct, format_sum
from mmgpu_hooks.schema.recorded import VALIDATION_PART_NAMES, ValidationRecord
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.document import BLANK, Section, Table

_WORTH = 0.01
"""Smallest share (0 to 1) of a validation's time at which one of its parts is named."""

_VALIDATION = phrase('validation')


def phrase_validation(
    record: ValidationRecord, loop: Text = _VALIDATION
) -> Text | None:
    """Clause for the log: ``validation took 40.8 s: data wait 30.6 s, ...``.

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
    """Text on all validations: ``2 took 40.8 s each: data wait 75 %, metric 1 %``."""
    each_s, shares = costs.wall_s / costs.count, tuple(list_shares(costs))
    if costs.count == 1:
        return phrase('1 took {each_s:sum}: {shares}', each_s=each_s, shares=shares)
    return phrase(
        '{validations:d} took {each_s:sum} each: {shares}',
        validations=costs.count,
        each_s=each_s,
        shares=shares,
    )


def list_parts(costs: ValidationCosts) -> Iterator[Text]:
    """Texts on the notable parts of validations with their seconds, longest first."""
    for part, spent_s in _list_worth(costs.parts_s, costs.wall_s):
        yield _add_metrics(
            costs,
            part,
            phrase(
                '{part} {spent_s:sum}',
                part=VALIDATION_PART_NAMES[part],
                spent_s=spent_s,
            ),
        )


def list_shares(costs: ValidationCosts) -> Iterator[Text]:
    """Texts on the notable parts of validations with their share of the time."""
    for part, spent_s in _list_worth(costs.parts_s, costs.wall_s):
        yield _add_metrics(
            costs,
            part,
            phrase(
                '{part} {spent_pct:exact}',
                part=VALIDATION_PART_NAMES[part],
                spent_pct=100 * spent_s / costs.wall_s,
            ),
        )


def _add_metrics(costs: ValidationCosts, part: str, said: Text) -> Text:
    """Appends to a text on a validation part the names of its slowest metrics."""
    metrics_s = _find_metrics(costs, part)
    named = tuple(name for name, _ in _list_worth(metrics_s, costs.wall_s))
    return phrase('{part} ({metrics})', part=said, metrics=named) if named else said


def _find_metrics(costs: ValidationCosts, part: str) -> Mapping[str, float]:
    """Seconds that each metric took in one part of validation, by metric."""
    return {'metric': costs.metrics_s, 'process': costs.process_s}.get(part, {})


def _list_worth(
    spent_s: Mapping[str, float], wall_s: float
) -> Iterator[tuple[str, float]]:
    for name, seconds in sorted(spent_s.items(), key=lambda spent: -spent[1]):
        if seconds >= _WORTH * wall_s:
            yield name, seconds


def describe_validations(costs: ValidationCosts | None) -> list[Section]:
    """Section with a table of validation's parts; none if the parts are unknown."""
    if costs is None:
        return []
    count, rows = costs.count, list[tuple[str, ...]]()
    for part, seconds in sorted(costs.parts_s.items(), key=lambda part: -part[1]):
        named = ', '.join(
            f'{name} {format_sum(spent_s / count)}'
            for name, spent_s in _find_metrics(costs, part).items()
        )
        share = format_pct(100 * seconds / costs.wall_s)
        each = format_sum(seconds / count)
        rows.append((VALIDATION_PART_NAMES[part], each, share, named))
    each = format_sum(costs.wall_s / count)
    rows.append((phrase('all'), each, format_pct(100.0), ''))
    head = [phrase('part'), phrase('each'), phrase('share'), BLANK]
    table = Table(head, rows, phrase('{validations}', validations=count))
    return [Section(phrase('Validation'), 'validation', table=table)]
