"""Saves by phase and by what they waited for, and what is judged of the slow ones."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.schema import SaveJudgement, SaveRecord
from mmgpu_hooks.show.figures import format_bytes, format_seconds
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_lines,
    render_section,
    render_table,
    words,
)
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.pictures.chart import NoChart
from mmgpu_hooks.show.pictures.save_charts import (
    SAVES_SHOWN,
    chart_save_causes,
    chart_save_phases,
    longest_saves,
    name_save,
)
from mmgpu_hooks.show.pictures.slow_saves_chart import (
    chart_slow_saves,
    list_slow_saves,
)
from mmgpu_hooks.show.reported_run import ReportedRun
from mmgpu_hooks.show.saves_text import CAUSE_NAMES, describe_saves

_HEAD = [
    *('save', 'occasion', 'iteration', 'took', 'on a core', 'waiting for a core'),
    *('blocked', 'size', 'workers', 'CPU of workers'),
]
_SLOW_HEAD = [
    *('save', 'cause', 'iteration', 'took', 'uncontended', 'longer (gross)'),
    'lost to the job (net)',
]


def render_saves(runs: Sequence[ReportedRun]) -> Markup:
    """Why saves took as long as they did."""
    return render_section('saves', 'Checkpoint saves', each_run(runs, _of_run))


def _of_run(run: ReportedRun) -> Markup:
    summary, judged = run.answer.summary, run.answer.diagnosis.saves
    if summary is None:
        return render_empty(run.why_no_evidence)
    phases, causes = chart_save_phases(summary), chart_save_causes(summary)
    if isinstance(phases, NoChart) and isinstance(causes, NoChart):
        return render_empty(phases.reason)
    rows = [_row(save) for save in longest_saves(summary)]
    caption = f'The {len(rows)} longest of {len(summary.save_records)} save(s)'
    table = render_table(caption, _HEAD, rows, texts=2)
    slow = list_slow_saves(summary, judged)
    return join(
        render_lines(describe_saves(summary, judged)),
        render_chart(chart_slow_saves(summary, judged), _tabulate_slow(slow)),
        _explain_slow(slow),
        render_chart(phases),
        render_chart(causes, table),
    )


def _tabulate_slow(slow: Sequence[tuple[SaveRecord, SaveJudgement]]) -> Markup:
    shown = slow[:SAVES_SHOWN]
    caption = f'The {len(shown)} of {len(slow)} slow save(s) that were held longest'
    rows = [
        (
            name_save(save),
            CAUSE_NAMES[judged.cause],
            save.iteration,
            format_seconds(save.wall_s),
            format_seconds(judged.uncontended_s),
            format_seconds(judged.gross_delay_s),
            format_seconds(judged.net_delay_s),
        )
        for save, judged in shown
    ]
    return render_table(caption, _SLOW_HEAD, rows, texts=2)


def _explain_slow(
    slow: Sequence[tuple[SaveRecord, SaveJudgement]],
) -> Markup | None:
    """The paragraph of each, with its numbers and what to do."""
    if not slow:
        return None
    items = [tag('li', words(judged.sentence)) for _, judged in slow[:SAVES_SHOWN]]
    return tag(
        'details',
        tag('summary', 'What held each slow save, and what helps'),
        tag('ul', *items, class_='notes'),
    )


def _row(save: SaveRecord) -> tuple[object, ...]:
    return (
        name_save(save),
        save.occasion,
        save.iteration,
        format_seconds(save.wall_s),
        format_seconds(save.cpu_s),
        format_seconds(save.run_delay_s),
        format_seconds(save.blocked_s),
        format_bytes(save.bytes),
        'unknown' if save.workers is None else save.workers,
        format_seconds(save.workers_cpu_s),
    )
