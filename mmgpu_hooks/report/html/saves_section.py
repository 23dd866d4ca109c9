"""Saves by phase and by what they waited for."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.records import SaveRecord
from mmgpu_hooks.report.figures import format_bytes, format_seconds
from mmgpu_hooks.report.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_section,
    render_table,
)
from mmgpu_hooks.report.markup import Markup, join
from mmgpu_hooks.report.pictures.chart import NoChart
from mmgpu_hooks.report.pictures.save_charts import (
    chart_save_causes,
    chart_save_phases,
    longest_saves,
    name_save,
)
from mmgpu_hooks.report.reported_run import ReportedRun

_HEAD = [
    *('save', 'occasion', 'iteration', 'took', 'on a core', 'waiting for a core'),
    *('blocked', 'size', 'workers', 'CPU of workers'),
]


def render_saves(runs: Sequence[ReportedRun]) -> Markup:
    """Why saves took as long as they did."""
    return render_section('saves', 'Checkpoint saves', each_run(runs, _of_run))


def _of_run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    phases, causes = chart_save_phases(summary), chart_save_causes(summary)
    if isinstance(phases, NoChart) and isinstance(causes, NoChart):
        return render_empty(phases.reason)
    rows = [_row(save) for save in longest_saves(summary)]
    caption = f'The {len(rows)} longest of {len(summary.save_records)} save(s)'
    table = render_table(caption, _HEAD, rows, texts=2)
    return join(render_chart(phases), render_chart(causes, table))


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
