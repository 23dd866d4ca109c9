"""Which runs were fitted together, as rows."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.schema import FittedRun
from mmgpu_hooks.show.figures import format_seconds


def describe_fitted(fitted: Sequence[FittedRun]) -> list[tuple[str, str]]:
    """A row for each of the runs."""
    return [
        (
            'fitted' if number == 0 else '',
            f'{format_seconds(run.iter_time_s)} per iteration over {run.iterations}, '
            f'num_workers={run.num_workers}, batch_size={run.batch_size} ({run.path})',
        )
        for number, run in enumerate(fitted)
    ]
