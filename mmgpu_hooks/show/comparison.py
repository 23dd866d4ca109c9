"""Two runs side by side: ``mmgpu compare`` and the end of the demo."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Estimate, FigureComparison, RunComparison
from mmgpu_hooks.show.document import Section, Table, listing
from mmgpu_hooks.show.figures import PART_NAMES, format_seconds
from mmgpu_hooks.show.run_sections import images_per_second
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

_RATE = 'images_per_s'
_ITER = 'iter_s'
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
    body = {
        'version': JSON_VERSION,
        'before': answer.before,
        'after': answer.after,
        **asdict(answer.comparison),
        'max_regression': answer.max_regression,
        'is_regression': answer.is_regression,
    }
    return json.dumps(body, indent=2)


def render_compare_text(
    answer: CompareAnswer, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal: the sentence, the parts, what else differs.

    Args:
        answer: What to say.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    comparison = answer.comparison
    title, *more = _sentences(answer)
    sections = [Section(title, sentences=more)]
    head = ['mean per iteration', 'first', 'second', 'change', '95 % interval']
    rows = [
        _row(figure)
        for figure in comparison.figures
        if _is_worth_a_line(figure, comparison)
    ]
    if any(figure.before or figure.after for figure in comparison.figures):
        sections.append(Section(table=Table(head, rows)))
    if comparison.settings:
        facts = [
            (one.name, f'{_known(one.before)} -> {_known(one.after)}')
            for one in comparison.settings
        ]
        sections.append(Section('Not the same', facts=facts))
    sections += listing('Notes', comparison.notes)
    return render(sections, width=width, color=color)


def _sentences(answer: CompareAnswer) -> list[str]:
    comparison, ratio = answer.comparison, answer.comparison.iter_ratio
    if comparison.obstacles:
        return ['The speeds cannot be compared.', *comparison.obstacles]
    if ratio is None:
        return ['The speeds cannot be compared: an iteration is too uncertain.']
    said = [_verdict(ratio), *_cause(comparison)]
    if answer.max_regression is not None:
        word = 'exceeded' if answer.is_regression else 'not exceeded'
        limit = 100 * answer.max_regression
        said.append(f'The limit of {limit:g} % more per iteration is {word}.')
    return said


def _verdict(ratio: Estimate) -> str:
    figures = _change(ratio)
    if ratio.low > 1:
        return f'The second run is slower: {figures} per iteration.'
    if ratio.high < 1:
        return f'The second run is faster: {figures} per iteration.'
    return f'No difference beyond noise: {figures} per iteration.'


def _cause(comparison: RunComparison) -> list[str]:
    """The parts whose change is beyond noise, the largest first."""
    certain = [
        (figure.name.removesuffix('_s'), figure.difference)
        for figure in comparison.figures
        if figure.name not in (_ITER, _RATE) and figure.difference is not None
    ]
    known = [
        (PART_NAMES[part], change)
        for part, change in certain
        if change.low > 0 or change.high < 0
    ]
    known.sort(key=lambda item: -abs(item[1].value))
    if not known:
        return []
    words = ', '.join(f'{name} {_signed(change.value)}' for name, change in known)
    return [f'Per iteration: {words}.']


def _is_worth_a_line(figure: FigureComparison, comparison: RunComparison) -> bool:
    whole = comparison.figures[0]
    if figure.name in (_ITER, _RATE):
        return True
    return any(
        side is not None and abs(side.value) > _LEAST_SHARE * (all_of.value)
        for side, all_of in ((figure.before, whole.before), (figure.after, whole.after))
        if all_of is not None
    )


def _row(figure: FigureComparison) -> list[str]:
    is_rate = figure.name == _RATE
    name = {_ITER: 'iteration', _RATE: 'images/s'}.get(figure.name)
    name = name or PART_NAMES[figure.name.removesuffix('_s')]
    sides = [
        'unknown'
        if side is None
        else f'{side.value:.2f}'
        if is_rate
        else format_seconds(side.value)
        for side in (figure.before, figure.after)
    ]
    change = figure.difference
    if change is None:
        return [name, *sides, 'unknown', '']
    write = (lambda value: f'{value:+.2f}') if is_rate else _signed
    return [
        name,
        *sides,
        write(change.value),
        f'{write(change.low)} to {write(change.high)}',
    ]


def _known(value: str | None) -> str:
    return 'unknown' if value is None else value


def _change(ratio: Estimate) -> str:
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    return f'{100 * (ratio.value - 1):+.1f} % ({low:+.1f} to {high:+.1f} %)'


def _signed(seconds: float) -> str:
    return ('-' if seconds < 0 else '+') + format_seconds(abs(seconds))


def render_demo(
    before: Run, after: Run, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """Both runs of the demo in a table, below the gain.

    Args:
        before: The run with the old settings.
        after: The run with the recommended ones.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    runs = (before, after)
    rates = [images_per_second(run) for run in runs]
    rows: list[tuple[object, ...]] = [
        (name, *(getattr(run.run.loader, name) for run in runs))
        for name in ('num_workers', 'persistent_workers')
    ]
    rows += [
        ('iterations', *(run.iterations for run in runs)),
        ('training', *(format_seconds(run.duration_s) for run in runs)),
        ('iteration', *(format_seconds(run.iter_s) for run in runs)),
        ('data wait', *(format_seconds(run.data_wait_s) for run in runs)),
        ('step', *(format_seconds(run.step_s) for run in runs)),
        ('whole training', *(f'{rate or 0.0:.2f} images/s' for rate in rates)),
    ]
    title = 'The gain is unknown: one of the runs could not be measured.'
    if rates[0] and rates[1]:
        title = (
            f'Measured: {rates[0]:.2f} -> {rates[1]:.2f} images/s, '
            f'{rates[1] / rates[0]:.2f} times as fast over the whole training.'
        )
    section = Section(title, table=Table(['', 'before', 'after'], rows))
    return render([section], width=width, color=color)
