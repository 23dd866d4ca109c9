"""Builds the page of many runs: totals, hours by verdict over time, and a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, timedelta
from typing import Any, NamedTuple

from mmgpu_hooks.schema.many_runs import ManyRuns, RunRow, find_start_day
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.charts import LIGHT, WIDTH, Chart
from mmgpu_hooks.show.document import KeyFigure, Section, listing
from mmgpu_hooks.show.many_runs import (
    list_notes,
    round_hours,
    tabulate_runs,
    title_runs,
)
from mmgpu_hooks.show.words import say


class _Family(NamedTuple):
    """Group of verdicts that share one colour in the chart of hours by verdict."""

    label: Text
    role: str
    """Key of the verdict group's colour in ``COLORS`` of `charts`."""
    verdicts: tuple[str, ...]


_FAMILIES = (
    _Family(phrase('compute-bound'), 'step', ('compute_bound',)),
    _Family(
        phrase('data-bound'),
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
    _Family(phrase('CPU'), 'notice', ('quota_throttled', 'cpu_oversubscribed')),
    _Family(phrase('memory'), 'problem', ('memory_bound',)),
    _Family(phrase('saves'), 'checkpoint_save', ('save_bound',)),
    _Family(phrase('validation'), 'validation', ('validation_bound',)),
    _Family(phrase('hooks'), 'hooks', ('hook_bound',)),
    _Family(phrase('starts'), 'startup', ('startup_bound', 'start_bound')),
)
_REST = _Family(phrase('not judged'), 'other', ())
_BY_VERDICT = {name: family for family in _FAMILIES for name in family.verdicts}


class _Period(NamedTuple):
    """Length of time that a bar of hours by verdict covers: a day, week or month."""

    phrase_count: Callable[[int], Text]
    """Function that writes a number of periods in words, such as ``3 weeks``."""
    title: Text
    gpu_title: Text
    most_days: float
    """Longest span of all bars, in days, for which this period is used."""
    begin: Callable[[date], date]
    """Function that returns the first day of the period in which a date lies."""


_PERIODS = (
    _Period(
        lambda count: phrase('{days}', days=count),
        phrase('hours a day'),
        phrase('GPU hours a day'),
        45,
        lambda day: day,
    ),
    _Period(
        lambda count: phrase('{weeks}', weeks=count),
        phrase('hours a week'),
        phrase('GPU hours a week'),
        400,
        lambda day: day - timedelta(days=day.weekday()),
    ),
    _Period(
        lambda count: phrase('{months}', months=count),
        phrase('hours a month'),
        phrase('GPU hours a month'),
        float('inf'),
        lambda day: day.replace(day=1),
    ),
)


def describe_runs_page(answer: ManyRuns) -> list[Section]:
    """Makes the sections of many runs' page, beginning with totals in large print."""
    totals = answer.totals
    verdict = Section(title_runs(totals), 'verdict', figures=list(_figures(answer)))
    table = replace(tabulate_runs(totals, answer.rows), is_sortable=True)
    chart = chart_verdicts(answer.rows, is_gpu=totals.gpu_hours > 0)
    said = phrase('By the start of each run, in hours of training.')
    if totals.gpu_hours:
        said = phrase('By the start of each run, in GPU hours.')
    if chart is None:
        said = phrase('Unknown: no run has hours and a start.')
    sort = phrase('A click on a heading sorts the rows.')
    return [
        verdict,
        Section(phrase('Hours by verdict over time'), 'over-time', [said], chart=chart),
        Section(phrase('Runs'), 'runs', [sort], table=table),
        *listing(phrase('Notes'), list_notes(answer), 'notes'),
    ]


def _figures(answer: ManyRuns) -> Iterator[KeyFigure]:
    totals = answer.totals
    judged = phrase('{judged_runs:,} with a verdict', judged_runs=totals.judged)
    yield KeyFigure(phrase('Runs'), f'{totals.runs:,}', judged)
    spent, lost = totals.gpu_hours, totals.saved_gpu_hours
    if not spent:
        spent, lost = totals.training_hours, totals.saved_hours
    if not spent:
        return
    spent_h = phrase('{spent} hours', spent=round_hours(spent))
    lost_h = phrase('{lost} hours', lost=round_hours(lost))
    if totals.gpu_hours:
        spent_h = phrase('{spent} GPU hours', spent=round_hours(spent))
        lost_h = phrase('{lost} GPU hours', lost=round_hours(lost))
    share = phrase('{lost_pct:exact}, predicted', lost_pct=100 * max(lost, 0.0) / spent)
    yield KeyFigure(phrase('Spent'), spent_h, phrase('of the runs where known'))
    yield KeyFigure(phrase('Lost'), lost_h, share)


def chart_verdicts(rows: Sequence[RunRow], *, is_gpu: bool) -> Chart | None:
    """Charts training or GPU hours by verdict and date as bars; ``None`` without hours.

    Args:
        rows: The runs.
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
    title = period.gpu_title if is_gpu else period.title

    def paint(figure: Any) -> None:
        figure.set_size_inches(WIDTH, 2.8)
        axes = figure.subplots()
        axes.set_title(say(title), loc='left', fontsize=9.5, pad=9)
        axes.grid(axis='y', color=LIGHT['rule'], lw=0.7)
        axes.set_axisbelow(True)
        axes.tick_params(axis='y', length=0)
        _stack(axes, hours_by, begins)
        step = max(len(begins) // 8, 1)
        axes.set_xticks(range(0, len(begins), step), list(map(str, begins[::step])))
        axes.margins(x=0.01)
        place = {'loc': 'lower left', 'bbox_to_anchor': (0, 1.1), 'borderaxespad': 0.2}
        axes.legend(ncols=5, handlelength=0.8, handleheight=0.8, **place)

    sums = tuple(
        phrase(
            '{family} {hours:,.0f}',
            family=family.label,
            hours=sum(hours_by[family].values()),
        )
        for family in (*_FAMILIES, _REST)
        if family in hours_by
    )
    facts = {'time': period.phrase_count(len(begins)), 'sums': sums}
    if is_gpu:
        return Chart(
            phrase('GPU hours by verdict over {time}: {sums}.', **facts), paint
        )
    return Chart(phrase('hours by verdict over {time}: {sums}.', **facts), paint)


def _list_begins(first: date, last: date, period: _Period) -> list[date]:
    days = range((last - first).days + 1)
    return sorted({period.begin(first + timedelta(days=day)) for day in days})


def _stack(
    axes: Any,
    hours_by: Mapping[_Family, Mapping[date, float]],
    begins: Sequence[date],
) -> None:
    """Draws a stacked bar per period, with a segment for each verdict group."""
    bottom = [0.0] * len(begins)
    for family in (*_FAMILIES, _REST):
        if family not in hours_by:
            continue
        heights = [hours_by[family].get(begin, 0.0) for begin in begins]
        style = {'color': LIGHT[family.role], 'label': say(family.label)}
        edge = {'edgecolor': LIGHT['paper'], 'lw': 0.6}
        axes.bar(range(len(begins)), heights, 0.86, bottom, **style, **edge)
        bottom = [low + height for low, height in zip(bottom, heights)]
