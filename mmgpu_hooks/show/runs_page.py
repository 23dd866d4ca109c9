"""Many runs as sections of a page: totals, hours by verdict over time, the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, NamedTuple

from mmgpu_hooks.schema.figures import format_pct, plural
from mmgpu_hooks.schema.many_runs import ManyRuns, RunRow, find_start_day
from mmgpu_hooks.show.charts import LIGHT, WIDTH, Chart
from mmgpu_hooks.show.document import KeyFigure, Section, listing
from mmgpu_hooks.show.many_runs import list_notes, tabulate_runs, title_runs


class _Family(NamedTuple):
    """Verdicts that share a colour."""

    label: str
    role: str
    """Role of its colour."""
    verdicts: tuple[str, ...]


_FAMILIES = (
    _Family('compute-bound', 'step', ('compute_bound',)),
    _Family(
        'data-bound',
        'data_wait',
        (
            'data_bound',
            'data_bound_workers',
            'data_bound_cpu',
            'data_bound_storage',
            'affinity_collapsed',
            'thread_thrash',
        ),
    ),
    _Family('CPU', 'notice', ('quota_throttled', 'cpu_oversubscribed')),
    _Family('memory', 'problem', ('memory_bound',)),
    _Family('saves', 'checkpoint_save', ('save_bound',)),
    _Family('validation', 'validation', ('validation_bound',)),
    _Family('hooks', 'hooks', ('hook_bound',)),
    _Family('starts', 'startup', ('startup_bound',)),
)
_REST = _Family('not judged', 'other', ())
_BY_VERDICT = {name: family for family in _FAMILIES for name in family.verdicts}


class _Period(NamedTuple):
    """A length of the bars."""

    name: str
    most_days: float
    """Longest span of time that is shown in such bars."""
    begin: Callable[[date], date]
    """First day of the period of a day."""


_PERIODS = (
    _Period('day', 45, lambda day: day),
    _Period('week', 400, lambda day: day - timedelta(days=day.weekday())),
    _Period('month', float('inf'), lambda day: day.replace(day=1)),
)


def describe_runs_page(answer: ManyRuns) -> list[Section]:
    """The totals with their figures in large print first."""
    totals = answer.totals
    verdict = Section(title_runs(totals), 'verdict', figures=list(_figures(answer)))
    table = replace(tabulate_runs(totals, answer.rows), is_sortable=True)
    chart = chart_verdicts(answer.rows, is_gpu=totals.gpu_hours > 0)
    said = 'By the start of each run, in hours of training.'
    if totals.gpu_hours:
        said = 'By the start of each run, in GPU hours.'
    if chart is None:
        said = 'Unknown: no run has hours and a start.'
    return [
        verdict,
        Section('Hours by verdict over time', 'over-time', [said], chart=chart),
        Section('Runs', 'runs', ['A click on a heading sorts the rows.'], table=table),
        *listing('Notes', list_notes(answer), 'notes'),
    ]


def _figures(answer: ManyRuns) -> Iterator[KeyFigure]:
    totals = answer.totals
    yield KeyFigure('Runs', f'{totals.runs:,}', f'{totals.judged:,} with a verdict')
    spent, lost, unit = totals.gpu_hours, totals.saved_gpu_hours, 'GPU hours'
    if not spent:
        spent, lost, unit = totals.training_hours, totals.saved_hours, 'hours'
    if spent:
        share = format_pct(100 * max(lost, 0.0) / spent)
        yield KeyFigure('Spent', f'{spent:,.0f} {unit}', 'of the runs where known')
        yield KeyFigure('Lost', f'{lost:,.0f} {unit}', f'{share}, predicted')


def chart_verdicts(rows: Sequence[RunRow], *, is_gpu: bool) -> Chart | None:
    """Stacked bars: hours of the runs that began in a period, by verdict; ``None``
    without any.

    Args:
        rows: Of the runs.
        is_gpu: True for GPU hours, else hours of training.
    """
    known = [
        (day, hours, row.verdict)
        for row in rows
        if (day := find_start_day(row)) is not None
        and (hours := row.gpu_hours if is_gpu else row.training_hours)
    ]
    if not known:
        return None
    days = [day for day, _, _ in known]
    span = (max(days) - min(days)).days
    period = next(period for period in _PERIODS if span <= period.most_days)
    hours_by: dict[_Family, dict[date, float]] = defaultdict(lambda: defaultdict(float))
    for day, hours, verdict in known:
        hours_by[_BY_VERDICT.get(verdict or '', _REST)][period.begin(day)] += hours
    begins = _list_begins(min(days), max(days), period)
    unit = 'GPU hours' if is_gpu else 'hours'

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 2.8)
        axes = figure.subplots()
        axes.set_title(f'{unit} a {period.name}', loc='left', fontsize=9.5, pad=9)
        axes.grid(axis='y', color=LIGHT['rule'], lw=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(axis='y', length=0)
        _stack(axes, hours_by, begins)
        step = max(len(begins) // 8, 1)
        axes.set_xticks(range(0, len(begins), step), list(map(str, begins[::step])))
        axes.margins(x=0.01)
        place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1.1), 'borderaxespad': 0.2}
        axes.legend(ncols=5, handlelength=0.8, handleheight=0.8, **place)

    sums = (
        f'{family.label} {sum(hours_by[family].values()):,.0f}'
        for family in (*_FAMILIES, _REST)
        if family in hours_by
    )
    count = plural(len(begins), period.name)
    return Chart(f'{unit} by verdict over {count}: {", ".join(sums)}.', paint)


def _list_begins(first: date, last: date, period: _Period) -> list[date]:
    days = range((last - first).days + 1)
    return sorted({period.begin(first + timedelta(days=day)) for day in days})


def _stack(
    axes: Any,
    hours_by: Mapping[_Family, Mapping[date, float]],
    begins: Sequence[date],
) -> None:
    """Draw the families above each other, in the order of their table."""
    bottom = [0.0] * len(begins)
    for family in (*_FAMILIES, _REST):
        if family not in hours_by:
            continue
        heights = [hours_by[family].get(begin, 0.0) for begin in begins]
        style = {'color': LIGHT[family.role], 'label': family.label}
        edge = {'edgecolor': LIGHT['paper'], 'lw': 0.6}
        axes.bar(range(len(begins)), heights, 0.86, bottom, **style, **edge)
        bottom = [low + height for low, height in zip(bottom, heights)]
