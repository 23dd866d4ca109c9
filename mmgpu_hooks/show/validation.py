"""What validations were spent on, in words: log line, summary, table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from mmgpu_hooks.judge.validation_parts import ValidationCosts, sum_costs
from mmgpu_hooks.schema.figures import format_pct, format_sum, plural
from mmgpu_hooks.schema.recorded import VALIDATION_PART_NAMES, ValidationRecord
from mmgpu_hooks.show.document import Section, Table

_WORTH = 0.01
"""Share of a validation below which a part is not named."""


def phrase_validation(record: ValidationRecord, loop: str = 'validation') -> str | None:
    """``validation took 40.8 s: data wait 30.6 s, forward 10.0 s, process 0.120 s``.

    Args:
        record: What it took.
        loop: What it is called.

    Returns:
        ``None`` where it was not taken apart.
    """
    costs = sum_costs([record])
    if costs is None:
        return None
    parts = ', '.join(list_parts(costs, format_sum))
    return f'{loop} took {format_sum(record.wall_s)}: {parts}'


def summarize_validations(costs: ValidationCosts) -> str:
    """``2 took 40.8 s each: data wait 75 %, forward 24 %, metric 1.0 %``."""
    each = format_sum(costs.wall_s / costs.count)
    took = f'1 took {each}' if costs.count == 1 else f'{costs.count} took {each} each'
    shares = list_parts(costs, lambda seconds: format_pct(100 * seconds / costs.wall_s))
    return f'{took}: {", ".join(shares)}'


def list_parts(costs: ValidationCosts, phrase: Callable[[float], str]) -> Iterator[str]:
    """Parts that are worth a word, the longest first, each with its figure.

    Args:
        costs: Of one validation, or of several.
        phrase: Words for seconds of all of them.
    """
    by_length = sorted(costs.parts_s.items(), key=lambda part: -part[1])
    for part, seconds in by_length:
        if seconds < _WORTH * costs.wall_s:
            continue
        text = f'{VALIDATION_PART_NAMES[part]} {phrase(seconds)}'
        metrics = {'metric': costs.metrics_s, 'process': costs.process_s}.get(part, {})
        named = ', '.join(_list_worth(metrics, costs.wall_s))
        yield f'{text} ({named})' if named else text


def _list_worth(metrics_s: Mapping[str, float], wall_s: float) -> Iterator[str]:
    for name, seconds in metrics_s.items():
        if seconds >= _WORTH * wall_s:
            yield name


def describe_validations(costs: ValidationCosts | None) -> list[Section]:
    """A table of the parts; nothing where they are not known."""
    if costs is None:
        return []
    count, rows = costs.count, list[tuple[str, ...]]()
    for part, seconds in sorted(costs.parts_s.items(), key=lambda part: -part[1]):
        metrics = {'metric': costs.metrics_s, 'process': costs.process_s}.get(part, {})
        named = ', '.join(
            f'{name} {format_sum(spent_s / count)}' for name, spent_s in metrics.items()
        )
        share = format_pct(100 * seconds / costs.wall_s)
        each = format_sum(seconds / count)
        rows.append((VALIDATION_PART_NAMES[part], each, share, named))
    each = format_sum(costs.wall_s / count)
    rows.append(('all', each, format_pct(100.0), ''))
    table = Table(['part', 'each', 'share', ''], rows, plural(count, 'validation'))
    return [Section('Validation', 'validation', table=table)]
