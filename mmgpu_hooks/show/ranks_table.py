"""The ranks of a run side by side."""

from __future__ import annotations

from mmgpu_hooks.schema import RankRow, RanksSummary
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.gpu_text import describe_imbalance


def describe_ranks(ranks: RanksSummary, most_rows: int) -> str:
    """The slowest rank and why, beside ranks with more and less time of their own.

    Args:
        ranks: What was found.
        most_rows: Ranks to show at most, the one with least time of its own among
            them; at least 2.
    """
    lines = [ranks.why]
    if len(ranks.rows) > 1:
        shown = sorted(ranks.rows, key=lambda row: -row.own_s)
        if len(shown) > most_rows:
            # with the fastest, so that the spread can be seen
            shown = [*shown[: most_rows - 1], shown[-1]]
        lines.append(
            'rank data wait  start-up     hooks     saves    in all      step  '
            'per iteration'
        )
        lines += [_line(row, row.rank == ranks.slowest) for row in shown]
        if len(shown) < len(ranks.rows):
            lines[-1] += f'  fastest of {len(ranks.rows)}'
    lines += [describe_imbalance(cards) for cards in ranks.imbalance]
    return '\n'.join(lines)


def _line(row: RankRow, is_slowest: bool) -> str:
    figures = (row.data_wait_s, row.startup_s, row.hooks_s, row.save_s, row.own_s)
    cells = ''.join(
        f'{format_seconds(figure):>10}' for figure in (*figures, row.step_s)
    )
    return f'{row.rank:>4}{cells}{"  slowest" if is_slowest else ""}'
