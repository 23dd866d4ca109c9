"""The ranks of a run side by side."""

from __future__ import annotations

from mmgpu_hooks.schema import RankRow, RanksSummary
from mmgpu_hooks.show.figures import PART_NAMES, format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars

RANKS_SHOWN = 16
_FIELDS = (
    ('data_wait', 'data_wait_s'),
    ('startup', 'startup_s'),
    ('hooks', 'hooks_s'),
    ('checkpoint_save', 'save_s'),
    ('step', 'step_s'),
)


def shown_ranks(ranks: RanksSummary) -> list[RankRow]:
    """Those with most time of their own, and the one with least, by rank."""
    rows = sorted(ranks.rows, key=lambda row: -row.own_s)
    if len(rows) > RANKS_SHOWN:
        rows = [*rows[: RANKS_SHOWN - 1], rows[-1]]
    return sorted(rows, key=lambda row: row.rank)


def chart_ranks(ranks: RanksSummary | None) -> Chart | NoChart:
    """One bar a rank: an iteration by part."""
    name, title = 'ranks', 'Ranks'
    if ranks is None or ranks.world_size < 2:
        return NoChart(name, title, 'The run has one rank: there is none to compare.')
    if not ranks.rows:
        return NoChart(name, title, ranks.why)
    bars = [
        Bar(
            f'rank {row.rank}{", slowest" if row.rank == ranks.slowest else ""}',
            tuple(
                Segment(
                    PART_NAMES[part],
                    getattr(row, field),
                    format_seconds(getattr(row, field)),
                    part,
                )
                for part, field in _FIELDS
            ),
            format_seconds(row.own_s + row.step_s),
        )
        for row in shown_ranks(ranks)
    ]
    return chart_bars(name, title, f'Per iteration. {ranks.why}', bars)
