"""Two runs side by side: ``mmgpu compare``, and the end of the demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.schema.figures import format_seconds, format_signed
from mmgpu_hooks.schema.judged import (
    FASTER,
    NO_DIFFERENCE,
    Estimate,
    FigureComparison,
    RunComparison,
)
from mmgpu_hooks.schema.recorded import PART_NAMES
from mmgpu_hooks.show.document import (
    Fact,
    Section,
    TableColumn,
    compose,
    listing,
    tabulate,
)

_NAMES = {
    'iter_s': 'iteration',
    **{f'{part}_s': name for part, name in PART_NAMES.items()},
}
_LEAST_SHARE = 0.0005
"""Share of an iteration: a part below it in both runs is not worth a line."""


def _show_mean(mean: Estimate | None) -> str:
    return format_seconds(None if mean is None else mean.value)


def _show_interval(difference: Estimate) -> str:
    return f'{format_signed(difference.low)} to {format_signed(difference.high)}'


_FIGURES: Sequence[TableColumn] = (
    TableColumn('mean per iteration', 'name', _NAMES.__getitem__),
    TableColumn('first', '', lambda figure: _show_mean(figure.before)),
    TableColumn('second', '', lambda figure: _show_mean(figure.after)),
    TableColumn('change', 'difference.value', format_signed),
    TableColumn('95 % interval', 'difference', _show_interval),
)


def describe_compare(comparison: RunComparison) -> list[Section]:
    """Sections that say which run is slower, part by part, and what else differs."""
    iteration, _, *parts = comparison.figures
    least_s = _LEAST_SHARE * _largest(iteration)
    notable = [part for part in parts if _largest(part) > least_s]
    facts = [
        Fact(name, f'{texts.before or "unknown"} -> {texts.after or "unknown"}')
        for name, texts in comparison.settings.items()
    ]
    table = tabulate([iteration, *notable], _FIGURES, texts=1)
    return [
        *compose(_sentences(comparison), table),
        *([Section('Not the same', facts=facts)] if facts else []),
        *listing('Notes', comparison.notes),
    ]


def describe_whole_training(
    comparison: RunComparison, before: float, after: float
) -> str:
    """The speeds of two whole trainings, in a sentence that fits the comparison.

    How many times as fast the second one was is said only where its iterations differ
    in the same direction beyond noise.

    Args:
        comparison: Of the same two runs.
        before: Images per second of the first, over everything from start to end.
        after: Of the second.
    """
    rates = (
        'Whole training, with start-up, saves and validation: '
        f'{before:.2f} -> {after:.2f} images/s'
    )
    if comparison.verdict is None:
        return f'{rates}. Its iterations cannot be compared.'
    if comparison.verdict == NO_DIFFERENCE:
        return f'{rates}. Its iterations do not differ beyond noise.'
    if (comparison.verdict == FASTER) == (after > before):
        return f'{rates}, {after / before:.2f} times as fast.'
    return f'{rates}. Its iterations are {comparison.verdict}; the rest outweighs that.'


def _largest(figure: FigureComparison) -> float:
    return max(side.value if side else 0.0 for side in (figure.before, figure.after))


def _sentences(comparison: RunComparison) -> Iterator[str]:
    iteration, rate, *parts = comparison.figures
    before, change = iteration.before, iteration.difference
    if comparison.verdict is None or before is None or change is None:
        yield 'The speeds cannot be compared.'
        yield from comparison.obstacles
        return
    words = f'The second run is {comparison.verdict}'
    if comparison.verdict == NO_DIFFERENCE:
        words = 'No difference beyond noise'
    value, low, high = (
        100 * seconds / before.value
        for seconds in (change.value, change.low, change.high)
    )
    yield f'{words}: {value:+.1f} % ({low:+.1f} to {high:+.1f} %) per iteration.'
    if rate.before and rate.after:
        rates = f'{rate.before.value:.2f} -> {rate.after.value:.2f} images/s'
        yield f'{rates} while iterating.'
    # the parts whose change is beyond noise, the largest first
    known = [
        (abs(change.value), f'{_NAMES[part.name]} {format_signed(change.value)}')
        for part in parts
        if (change := part.difference) and (change.low > 0 or change.high < 0)
    ]
    if known:
        changes = ', '.join(text for _, text in sorted(known, reverse=True))
        yield f'Per iteration: {changes}.'
