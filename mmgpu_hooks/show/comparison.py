"""Two runs side by side: ``mmgpu compare`` and the end of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Estimate, FigureComparison, RunComparison
from mmgpu_hooks.show.document import Section, Table, listing, to_json
from mmgpu_hooks.show.figures import PART_NAMES, format_seconds, format_signed
from mmgpu_hooks.show.run_sections import images_per_second
from mmgpu_hooks.show.terminal import render

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


def render_compare_text(answer: CompareAnswer, **layout: Any) -> str:
    """The answer for a terminal: the sentence, the parts, what else differs.

    Args:
        answer: What to say.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    comparison = answer.comparison
    title, *more = _sentences(answer)
    sections = [Section(title, sentences=more)]
    head = ['mean per iteration', 'first', 'second', 'change', '95 % interval']
    figures = comparison.figures
    if any(figure.before or figure.after for figure in figures):
        rows = [_row(one) for one in figures if _is_worth_a_line(one, figures[0])]
        sections.append(Section(table=Table(head, rows)))
    facts = [
        (one.name, f'{one.before or "unknown"} -> {one.after or "unknown"}')
        for one in comparison.settings
    ]
    if facts:
        sections.append(Section('Not the same', facts=facts))
    sections += listing('Notes', comparison.notes)
    return render(sections, **layout)


def _sentences(answer: CompareAnswer) -> list[str]:
    comparison, ratio = answer.comparison, answer.comparison.iter_ratio
    if comparison.obstacles:
        return ['The speeds cannot be compared.', *comparison.obstacles]
    if ratio is None:
        return ['The speeds cannot be compared: an iteration is too uncertain.']
    said = [_verdict(ratio)]
    # the parts whose change is beyond noise, the largest first
    changes = {
        _NAMES[figure.name]: figure.difference
        for figure in comparison.figures[2:]
        if figure.difference
        and (figure.difference.low > 0 or figure.difference.high < 0)
    }
    known = sorted(changes.items(), key=lambda item: -abs(item[1].value))
    if known:
        words = ', '.join(
            f'{name} {format_signed(change.value)}' for name, change in known
        )
        said.append(f'Per iteration: {words}.')
    if answer.max_regression is not None:
        word = 'exceeded' if answer.is_regression else 'not exceeded'
        limit = 100 * answer.max_regression
        said.append(f'The limit of {limit:g} % more per iteration is {word}.')
    return said


def _verdict(ratio: Estimate) -> str:
    low, high = 100 * (ratio.low - 1), 100 * (ratio.high - 1)
    figures = f'{100 * (ratio.value - 1):+.1f} % ({low:+.1f} to {high:+.1f} %)'
    if ratio.low > 1 or ratio.high < 1:
        word = 'slower' if ratio.low > 1 else 'faster'
        return f'The second run is {word}: {figures} per iteration.'
    return f'No difference beyond noise: {figures} per iteration.'


def _is_worth_a_line(figure: FigureComparison, whole: FigureComparison) -> bool:
    sides = ((figure.before, whole.before), (figure.after, whole.after))
    return any(
        side is not None and abs(side.value) > _LEAST_SHARE * all_of.value
        for side, all_of in sides
        if all_of is not None
    )


def _row(figure: FigureComparison) -> list[str]:
    is_rate, change = figure.name == 'images_per_s', figure.difference
    plain = '{:.2f}'.format if is_rate else format_seconds
    signed = '{:+.2f}'.format if is_rate else format_signed
    cells = [
        'unknown' if side is None else plain(side.value)
        for side in (figure.before, figure.after)
    ]
    if change is None:
        return [_NAMES[figure.name], *cells, 'unknown', '']
    interval = f'{signed(change.low)} to {signed(change.high)}'
    return [_NAMES[figure.name], *cells, signed(change.value), interval]


def render_demo(before: Run, after: Run, **layout: Any) -> str:
    """Both runs of the demo in a table, below the gain.

    Args:
        before: The run with the old settings.
        after: The run with the recommended ones.
        **layout: As :func:`~mmgpu_hooks.show.terminal.render` takes it.
    """
    runs = (before, after)
    rates = [images_per_second(run) or 0.0 for run in runs]
    rows = [
        *(
            (name, *(getattr(run.run.loader, name) for run in runs))
            for name in ('num_workers', 'persistent_workers')
        ),
        *(
            (name, *(format_seconds(getattr(run, field)) for run in runs))
            for name, field in (
                ('training', 'duration_s'),
                ('iteration', 'iter_s'),
                ('data wait', 'data_wait_s'),
                ('step', 'step_s'),
            )
        ),
        ('whole training', *(f'{rate:.2f} images/s' for rate in rates)),
    ]
    title = 'The gain is unknown: one of the runs could not be measured.'
    if all(rates):
        title = (
            f'Measured: {rates[0]:.2f} -> {rates[1]:.2f} images/s, '
            f'{rates[1] / rates[0]:.2f} times as fast over the whole training.'
        )
    return render(
        [Section(title, table=Table(['', 'before', 'after'], rows))], **layout
    )
