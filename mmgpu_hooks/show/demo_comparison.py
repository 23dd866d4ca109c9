"""The two runs of the demo, side by side."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.console import DEFAULT_WIDTH, render
from mmgpu_hooks.show.figures import format_seconds


def images_per_second(summary: Run) -> float | None:
    """Images over the whole training, worker starts and everything else included."""
    batch = summary.run.loader.batch_size
    if batch is None or summary.duration_s <= 0:
        return None
    return summary.iterations * batch / summary.duration_s


def render_comparison(
    before: Run,
    after: Run,
    *,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """A table of both runs, and the gain in one line.

    Args:
        before: The run with the old settings.
        after: The run with the recommended ones.
        width: Columns to wrap at.
        color: Whether the terminal shows colours.
    """
    table = Table(box=None, pad_edge=False, header_style='bold')
    table.add_column('')
    table.add_column('before', justify='right')
    table.add_column('after', justify='right')
    for label, figures in _rows(before, after):
        table.add_row(label, *figures)
    return render(
        table, '', Text(_gain(before, after), style='bold'), width=width, color=color
    )


def _rows(before: Run, after: Run) -> list[tuple[str, list[str]]]:
    runs = (before, after)
    return [
        (name, [str(getattr(run.run.loader, name)) for run in runs])
        for name in ('num_workers', 'persistent_workers')
    ] + [
        ('iterations', [str(run.iterations) for run in runs]),
        ('training', [format_seconds(run.duration_s) for run in runs]),
        ('iteration, mean', [format_seconds(run.iter_s) for run in runs]),
        ('data wait, mean', [format_seconds(run.data_wait_s) for run in runs]),
        ('step, mean', [format_seconds(run.step_s) for run in runs]),
        ('whole training', [_rate(run) for run in runs]),
    ]


def _rate(run: Run) -> str:
    rate = images_per_second(run)
    return 'unknown' if rate is None else f'{rate:.2f} images/s'


def _gain(before: Run, after: Run) -> str:
    old, new = images_per_second(before), images_per_second(after)
    if not old or not new:
        return 'The gain is unknown: one of the runs could not be measured.'
    return (
        f'Measured: {old:.2f} -> {new:.2f} images/s, {new / old:.2f} times as fast '
        f'(whole training, {before.iterations} and {after.iterations} iterations).'
    )
