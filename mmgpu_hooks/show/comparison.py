"""Renders two runs side by side, for ``mmgpu compare`` and the demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mmgpu_hooks.judge.run_comparison import ITER, RATE
from mmgpu_hooks.schema.figures import format_seconds, format_signed
from mmgpu_hooks.schema.judged import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    Estimate,
    FigureComparison,
    RunComparison,
)
from mmgpu_hooks.schema.recorded import PART_NAMES
from mmgpu_hooks.schema.text import Text, phrase, quoted, sentences
from mmgpu_hooks.show.document import (
    Fact,
    Section,
    TableColumn,
    compose,
    listing,
    tabulate,
)

_NAMES = {
    'iter_s': phrase('iteration'),
    **{f'{part}_s': name for part, name in PART_NAMES.items()},
}
_LEAST_SHARE = 0.0005
"""Smallest share (0 to 1) of iteration time at which ``mmgpu compare`` shows a part."""


class _Figures(NamedTuple):
    """Compared values of two runs: iteration time, images/s, seconds of each part."""

    iteration: FigureComparison
    rate: FigureComparison
    parts: Sequence[FigureComparison]
    """Seconds of each part of an iteration, to be compared, in the ledger's order."""

    @classmethod
    def of(cls, comparison: RunComparison) -> _Figures:
        """Sorts a comparison of two runs into iteration time, rate and parts."""
        named = {figure.name: figure for figure in comparison.figures}
        return cls(named.pop(ITER), named.pop(RATE), tuple(named.values()))


def _show_mean(mean: Estimate | None) -> str:
    return format_seconds(None if mean is None else mean.value)


def _show_interval(difference: Estimate) -> Text:
    return phrase(
        '{low_s:signed} to {high_s:signed}',
        low_s=difference.low,
        high_s=difference.high,
    )


_COLUMNS: Sequence[TableColumn] = (
    TableColumn(phrase('mean per iteration'), 'name', _NAMES.__getitem__),
    TableColumn(phrase('first'), '', lambda figure: _show_mean(figure.before)),
    TableColumn(phrase('second'), '', lambda figure: _show_mean(figure.after)),
    TableColumn(phrase('change'), 'difference.value', format_signed),
    TableColumn(phrase('95 % interval'), 'difference', _show_interval),
)


def describe_compare(comparison: RunComparison) -> list[Section]:
    """Makes sections on two runs: the slower one, slower parts, differing settings."""
    figures = _Figures.of(comparison)
    least_s = _LEAST_SHARE * _largest(figures.iteration)
    notable = [part for part in figures.parts if _largest(part) > least_s]
    facts = [
        Fact(quoted(name), phrase('{before} -> {after}', texts))
        for name, texts in comparison.settings.items()
    ]
    table = tabulate([figures.iteration, *notable], _COLUMNS, texts=1)
    return [
        *compose(_sentences(comparison), table),
        *([Section(phrase('Not the same'), facts=facts)] if facts else []),
        *listing(phrase('Notes'), comparison.notes),
    ]


def describe_whole_training(
    comparison: RunComparison, before: float, after: float
) -> Text:
    """Phrases how much faster or slower the second of two complete trainings was.

    How many times as fast the second one was is said only where its iterations differ
    in the same direction beyond noise.

    Args:
        comparison: Of the same two runs.
        before: Images per second of the first, over everything from start to end.
        after: Of the second.
    """
    facts = {'before_images_per_s': before, 'after_images_per_s': after}
    if (comparison.verdict == FASTER) == (after > before) and comparison.verdict in (
        FASTER,
        SLOWER,
    ):
        return phrase(
            'Whole training, with start-up, saves and validation: '
            '{before_images_per_s:.2f} -> {after_images_per_s:.2f} images/s, '
            '{times:.2f} times as fast.',
            times=after / before,
            **facts,
        )
    rates = phrase(
        'Whole training, with start-up, saves and validation: '
        '{before_images_per_s:.2f} -> {after_images_per_s:.2f} images/s.',
        **facts,
    )
    why = {
        None: phrase('Its iterations cannot be compared.'),
        NO_DIFFERENCE: phrase('Its iterations do not differ beyond noise.'),
        FASTER: phrase('Its iterations are faster; the rest outweighs that.'),
        SLOWER: phrase('Its iterations are slower; the rest outweighs that.'),
    }
    return sentences(rates, why[comparison.verdict])


def _largest(figure: FigureComparison) -> float:
    return max(side.value if side else 0.0 for side in (figure.before, figure.after))


def _sentences(comparison: RunComparison) -> Iterator[Text]:
    figures = _Figures.of(comparison)
    before, change = figures.iteration.before, figures.iteration.difference
    if comparison.verdict is None or before is None or change is None:
        yield phrase('The speeds cannot be compared.')
        yield from comparison.obstacles
        return
    value, low, high = (
        100 * seconds / before.value
        for seconds in (change.value, change.low, change.high)
    )
    change_pct = phrase(
        '{change_pct:+.1f} % ({low_pct:+.1f} to {high_pct:+.1f} %)',
        change_pct=value,
        low_pct=low,
        high_pct=high,
    )
    if comparison.verdict == NO_DIFFERENCE:
        yield phrase(
            'No difference beyond noise: {change} per iteration.', change=change_pct
        )
    elif comparison.verdict == FASTER:
        yield phrase(
            'The second run is faster: {change} per iteration.', change=change_pct
        )
    else:
        yield phrase(
            'The second run is slower: {change} per iteration.', change=change_pct
        )
    rate = figures.rate
    if rate.before and rate.after:
        yield phrase(
            '{before_images_per_s:.2f} -> {after_images_per_s:.2f} images/s while '
            'iterating.',
            before_images_per_s=rate.before.value,
            after_images_per_s=rate.after.value,
        )
    # the parts whose change is beyond noise, the largest first
    known = [
        (
            abs(change.value),
            phrase(
                '{part} {change_s:signed}',
                part=_NAMES[part.name],
                change_s=change.value,
            ),
        )
        for part in figures.parts
        if (change := part.difference) and (change.low > 0 or change.high < 0)
    ]
    if known:
        changes = tuple(text for _, text in sorted(known, reverse=True))
        yield phrase('Per iteration: {changes}.', changes=changes)
