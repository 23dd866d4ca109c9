"""Memory by part."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.show.figures import format_bytes
from mmgpu_hooks.show.gpu_text import describe_memory
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_empty,
    render_lines,
    render_section,
    render_table,
)
from mmgpu_hooks.show.markup import Markup, join
from mmgpu_hooks.show.pictures.memory_chart import chart_memory, split_memory
from mmgpu_hooks.show.reported_run import ReportedRun


def render_memory(runs: Sequence[ReportedRun]) -> Markup:
    """Parameters to activations, and what the allocator went through."""
    return render_section('memory', 'Memory', each_run(runs, _of_run))


def _of_run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    rows = [
        (
            part.name,
            part.reason or ('peak - static' if part.name == 'activations' else 'exact'),
            format_bytes(part.size),
        )
        for part in split_memory(summary)
    ]
    head = ['part', 'how it is known', 'size']
    table = render_table('Memory by part', head, rows, texts=2)
    return join(
        render_lines(describe_memory(summary)),
        render_chart(chart_memory(summary), table if rows else None),
    )
