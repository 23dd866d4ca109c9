"""Two runs side by side: ``mmgpu compare`` and the end of the demo."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.figures import format_seconds, format_signed
from mmgpu_hooks.schema.judged import FigureComparison, RunComparison
from mmgpu_hooks.schema.parts import PART_NAMES
from mmgpu_hooks.show.document import (
    Column,
    Section,
    Table,
    compose,
    listing,
    tabulate,
    to_json,
)

_NAMES = {
    'iter_s': 'iteration',
    'images_per_s': 'images/s',
    **{f'{part}_s': name for part, name in PART_NAMES.items()},
}
_LEAST_SHARE = 0.0005
"""Of an iteration: a part below it in both runs is not worth a line."""


@dataclass(frozen=True)
class CompareAnswer:
    """Two runs, and whether the second passes the gate."""

    before: str
    """Evidence file of the first."""
    after: str
    comparison: RunComparison
    max_regression: float | None = None
    """Share by which an iteration may be longer; ``None`` is no gate."""

    @property
    def is_regression(self) -> bool | None:
        """Whether the whole interval is past the limit; ``None`` without a gate, or
        where the runs cannot be compared."""
        ratio = self.comparison.iter_ratio
        if self.max_regression is None or self.comparison.obstacles or ratio is None:
            return None
        return ratio.low - 1 > self.max_regression


def render_compare_json(answer: CompareAnswer) -> str:
    """The answer as one JSON object; see ``docs/en/compare.md``."""
    return to_json(
        before=answer.before,
        after=answer.after,
        **vars(answer.comparison),
        max_regression=answer.max_regression,
        is_regression=answer.is_regression,
    )


def describe_compare(answer: CompareAnswer) -> list[Section]:
    """Which run is slower and by how much, part by part; what else differs."""
    comparison = answer.comparison
    head = ['mean per iteration', 'first', 'second', 'change', '95 % interval']
    whole_s = max(map(_largest, comparison.figures[:1]), default=0.0)
    rows = [
        _row(one)
        for one in comparison.figures
        if _largest(one) > _LEAST_SHARE * whole_s
    ]
    facts = [
        (one.name, f'{one.before or "unknown"} -> {one.after or "unknown"}')
        for one in comparison.settings
    ]
    differ = [Section('Not the same', facts=facts)] if facts else []
    notes = listing('Notes', comparison.notes)
    return [*compose(_sentences(answer), Table(head, rows)), *differ, *notes]


def _sentences(answer: CompareAnswer) -> Iterator[str]:
    comparison, ratio = answer.comparison, answer.comparison.iter_ratio
    if comparison.obstacles or ratio is None:
        yield 'The speeds cannot be compared.'
        yield from comparison.obstacles or ['An iteration is too uncertain.']
        return
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    words = 'No difference beyond noise'
    if ratio.low > 1 or ratio.high < 1:
        words = f'The second run is {"slower" if ratio.low > 1 else "faster"}'
    figures = f'{100 * (ratio.value - 1):+.1f} % ({low:+.1f} to {high:+.1f} %)'
    yield f'{words}: {figures} per iteration.'
    # the parts whose change is beyond noise, the largest first
    known = [
        (abs(change.value), f'{_NAMES[figure.name]} {format_signed(change.value)}')
        for figure in comparison.figures[2:]
        if (change := figure.difference) and (change.low > 0 or change.high < 0)
    ]
    if known:
        parts = ', '.join(text for _, text in sorted(known, reverse=True))
        yield f'Per iteration: {parts}.'
    if answer.max_regression is not None:
        word = 'exceeded' if answer.is_regression else 'not exceeded'
        limit = 100 * answer.max_regression
        yield f'The limit of {limit:g} % more per iteration is {word}.'


def _largest(figure: FigureComparison) -> float:
    return max(side.value if side else 0.0 for side in (figure.before, figure.after))


def _row(figure: FigureComparison) -> list[str]:
    is_rate, change = figure.name == 'images_per_s', figure.difference
    plain = '{:.2f}'.format if is_rate else format_seconds
    signed = '{:+.2f}'.format if is_rate else format_signed
    sides = (figure.before, figure.after)
    cells = ['unknown' if one is None else plain(one.value) for one in sides]
    if change is None:
        return [_NAMES[figure.name], *cells, 'unknown', '']
    interval = f'{signed(change.low)} to {signed(change.high)}'
    return [_NAMES[figure.name], *cells, signed(change.value), interval]


def images_per_second(run: Run) -> float | None:
    """Over the whole training, everything between iterations included."""
    batch = run.run.loader.batch_size
    if batch is None or run.duration_s <= 0:
        return None
    return run.iterations * batch / run.duration_s


_DEMO_COLUMNS: Sequence[Column] = (
    ('num_workers', 'run.loader.num_workers', str),
    ('persistent', 'run.loader.persistent_workers', str),
    ('iteration', 'iter_s', format_seconds),
    ('data wait', 'data_wait_s', format_seconds),
    ('step', 'step_s', format_seconds),
    ('training', 'duration_s', format_seconds),
)


def describe_demo(before: Run, after: Run) -> list[Section]:
    """The gain, then a line for each run of the demo."""
    runs = (before, after)
    rates = [images_per_second(run) or 0.0 for run in runs]
    title = 'The gain is unknown: one of the runs could not be measured.'
    if all(rates):
        title = (
            f'Measured: {rates[0]:.2f} -> {rates[1]:.2f} images/s, '
            f'{rates[1] / rates[0]:.2f} times as fast over the whole training.'
        )
    return [Section(title, table=tabulate(runs, _DEMO_COLUMNS))]
