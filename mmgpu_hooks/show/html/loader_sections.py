"""Inside the loader: its workers, its transforms, its slowest samples."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_lines,
    render_section,
    render_table,
)
from mmgpu_hooks.show.loader_text import describe_loader
from mmgpu_hooks.show.markup import Markup, join
from mmgpu_hooks.show.pictures.loader_charts import chart_slowest, chart_transforms
from mmgpu_hooks.show.reported_run import ReportedRun


def render_loader(runs: Sequence[ReportedRun]) -> Markup:
    """What making a batch costs."""
    return render_section('loader', 'Inside the loader', each_run(runs, _of_run))


def _of_run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    return join(
        render_lines(describe_loader(summary)),
        render_chart(chart_transforms(summary), _transform_table(summary)),
        render_chart(chart_slowest(summary), _sample_table(summary)),
    )


def _transform_table(summary: Run) -> Markup | None:
    if summary.loader is None or not summary.loader.transforms:
        return None
    rows = [
        (cost.name, format_seconds(cost.image_s), cost.calls)
        for cost in summary.loader.transforms
    ]
    caption = f'Time per image, {summary.loader.timed_samples} timed samples'
    return render_table(caption, ['transform', 'per image', 'calls timed'], rows)


def _sample_table(summary: Run) -> Markup | None:
    if summary.loader is None or not summary.loader.slowest:
        return None
    rows = [
        (str(sample.index), sample.image or 'unknown', format_seconds(sample.seconds))
        for sample in summary.loader.slowest
    ]
    head = ['index in the data set', 'image', 'time to make']
    return render_table('Slowest samples seen', head, rows, texts=2)
