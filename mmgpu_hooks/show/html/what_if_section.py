"""What other numbers of workers would give."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_chart,
    render_section,
    render_table,
)
from mmgpu_hooks.show.markup import Markup
from mmgpu_hooks.show.pictures.what_if_chart import (
    chart_what_if,
    marked_workers,
    pick_points,
)
from mmgpu_hooks.show.reported_run import ReportedRun


def render_what_if(runs: Sequence[ReportedRun]) -> Markup:
    """The predicted time of an iteration, with its interval."""
    return render_section(
        'what-if', 'Other numbers of workers', each_run(runs, _of_run)
    )


def _of_run(run: ReportedRun) -> Markup:
    marked = marked_workers(run)
    rows = [
        (
            str(point.num_workers),
            marked.get(point.num_workers, ''),
            'none' if point.prefetch_factor is None else str(point.prefetch_factor),
            format_seconds(point.iter_time_s),
            f'{format_seconds(point.iter_time_low_s)} to '
            f'{format_seconds(point.iter_time_high_s)}',
            'unknown'
            if point.images_per_s is None
            else f'{point.images_per_s:.1f} images/s',
        )
        for point in pick_points(run.predictions)
    ]
    head = [
        *('num_workers', 'which', 'prefetch_factor', 'iteration'),
        *('9 times in 10', 'speed'),
    ]
    table = render_table('Predicted with other settings', head, rows, texts=2)
    return render_chart(chart_what_if(run), table if rows else None, title=False)
