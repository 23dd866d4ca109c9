"""Two runs side by side: ``mmgpu compare``, and the end of the demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.schema.figures import format_seconds, format_signed
from mmgpu_hooks.schema.judged import FigureComparison, RunComparison
from mmgpu_hooks.schema.recorded import PART_NAMES
from mmgpu_hooks.show.document import Column, Section, compose, listing, tabulate

_NAMES = {
    'iter_s': 'iteration',
    **{f'{part}_s': name for part, name in PART_NAMES.items()},
}
_LEAST_SHARE = 0.0005
"""Of an iteration: a part below it in both runs is not worth a line."""

_FIGURES: Sequence[Column] = (
    ('mean per iteration', 'name', _NAMES.__getitem__),
    ('first', '', lambda one: format_seconds(one.before and one.before.value)),
    ('second', '', lambda one: format_seconds(one.after and one.after.value)),
    ('change', 'difference.value', format_signed),
    (
        '95 % interval',
        'difference',
        lambda one: f'{format_signed(one.low)} to {format_signed(one.high)}',
    ),
)


def describe_compare(comparison: RunComparison) -> list[Section]:
    """Which run is slower and by how much, part by part; what else differs."""
    iteration, _, *parts = comparison.figures
    least_s = _LEAST_SHARE * _largest(iteration)
    rows = [iteration, *(one for one in parts if _largest(one) > least_s)]
    facts = [
        (name, f'{old or "unknown"} -> {new or "unknown"}')
        for name, (old, new) in comparison.settings.items()
    ]
    return [
        *compose(_sentences(comparison), tabulate(rows, _FIGURES, texts=1)),
        *([Section('Not the same', facts=facts)] if facts else []),
        *listing('Notes', comparison.notes),
    ]


def _largest(figure: FigureComparison) -> float:
    return max(side.value if side else 0.0 for side in (figure.before, figure.after))


def _sentences(comparison: RunComparison) -> Iterator[str]:
    iteration, rate, *parts = comparison.figures
    before, change = iteration.before, iteration.difference
    if comparison.obstacles or before is None or change is None:
        yield 'The speeds cannot be compared.'
        yield from comparison.obstacles
        return
    words = 'No difference beyond noise'
    if change.low > 0 or change.high < 0:
        words = f'The second run is {"slower" if change.low > 0 else "faster"}'
    value, low, high = (
        100 * seconds / before.value
        for seconds in (change.value, change.low, change.high)
    )
    yield f'{words}: {value:+.1f} % ({low:+.1f} to {high:+.1f} %) per iteration.'
    if rate.before and rate.after:
        yield f'{rate.before.value:.2f} -> {rate.after.value:.2f} images/s.'
    # the parts whose change is beyond noise, the largest first
    known = [
        (abs(change.value), f'{_NAMES[part.name]} {format_signed(change.value)}')
        for part in parts
        if (change := part.difference) and (change.low > 0 or change.high < 0)
    ]
    if known:
        changes = ', '.join(text for _, text in sorted(known, reverse=True))
        yield f'Per iteration: {changes}.'
