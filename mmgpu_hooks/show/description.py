"""What was measured of a run, in rows of a label and some lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import RanksSummary, SaveJudgement
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.gpu_text import (
    describe_gpu,
    describe_memory,
)
from mmgpu_hooks.show.host_text import describe_host
from mmgpu_hooks.show.ledger_table import format_ledger
from mmgpu_hooks.show.loader_text import describe_loader
from mmgpu_hooks.show.ranks_table import describe_ranks
from mmgpu_hooks.show.saves_text import describe_saves


def describe_run(
    summary: Run,
    ranks: RanksSummary | None = None,
    most_ranks: int = 8,
    saves: Sequence[SaveJudgement] = (),
) -> list[tuple[str, str]]:
    """A label each, and lines of text; those of tables have at most 87 columns.

    Args:
        summary: One rank's figures.
        ranks: All ranks, when there is more than one.
        most_ranks: Ranks to show at most.
        saves: What is judged of the summary's saves.
    """
    rows = [
        ('time', format_ledger(summary)),
        ('iteration', _iteration(summary)),
        ('loader', describe_loader(summary)),
        ('CPU', describe_host(summary)),
        ('GPU', describe_gpu(summary)),
        ('memory', describe_memory(summary)),
    ]
    if summary.save_records:
        rows.append(('saves', describe_saves(summary, saves)))
    if ranks is not None and ranks.world_size > 1:
        rows.append(('ranks', describe_ranks(ranks, most_ranks)))
    return rows


def _iteration(summary: Run) -> str:
    if summary.iter_s is None:
        return 'no iteration was measured'
    rate = summary.images_per_s
    images = f', {rate:.1f} images/s' if rate is not None else ''
    return (
        f'{format_seconds(summary.iter_s)} mean, {format_seconds(summary.iter_p50_s)} '
        f'median, {format_seconds(summary.iter_p95_s)} p95 over '
        f'{summary.steady_iterations} steady iterations{images}'
    )
