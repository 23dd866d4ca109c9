"""Judges ranks by their evidence and what their host shows now.

For ``mmgpu why`` and for the watchdog of a training.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import Found, judge_attempt, judge_end
from mmgpu_hooks.judge.why_memory import add_start
from mmgpu_hooks.measure.now import read_host
from mmgpu_hooks.schema.judged import Why
from mmgpu_hooks.schema.run import RunEvidence


def judge_ranks(logs: Found, ranks: Sequence[RunEvidence]) -> Why:
    """Say why a run ended badly or stands still, as `judge_end` does.

    Args:
        logs: What was read of console, MMEngine's log and kernel.
        ranks: Evidence of its ranks; the first is judged.
    """
    return judge_end(logs, [Rank(rank, read_host(rank)) for rank in ranks])


def judge_start(logs: Found, ranks: Sequence[RunEvidence]) -> Why:
    """Say why a run has not begun to train.

    Args:
        logs: What was read of console and MMEngine's log.
        ranks: What its ranks have of their start; some may train already.
    """
    why = judge_attempt(logs, [Rank(rank, read_host(rank)) for rank in ranks])
    return add_start(why, [rank.memory for rank in ranks])
