"""What is said of each save of a run, as the benchmark counts it."""

from __future__ import annotations

from collections import Counter

from mmgpu_hooks.judge.saves import judge_saves
from mmgpu_hooks.schema import RunEvidence, SaveJudgement, SaveRecord

Judged = list[tuple[SaveRecord, SaveJudgement]]


def judge_run(evidence: RunEvidence) -> Judged:
    """Each save with its judgement, as the hook and ``recommend`` make it."""
    judged = judge_saves(
        evidence.save_records,
        evidence.save_aftermaths,
        evidence.run.host,
        evidence.run.loader,
    )
    return list(zip(evidence.save_records, judged))


def name_cause(judgement: SaveJudgement) -> str:
    """The cause, or why there is none."""
    if not judgement.is_slow:
        return 'healthy'
    return judgement.cause or 'slow, no cause'


def render_causes(named: Counter[str]) -> str:
    """How often each was named."""
    return ', '.join(f'{count} {name}' for name, count in named.most_common())


def closing_error(save: SaveRecord) -> float:
    """How far the parts of the saving thread are off the wall clock, a share."""
    parts = (save.cpu_s, save.run_delay_s, save.blocked_s)
    if None in parts:
        return 1.0
    return abs(sum(parts) / save.wall_s - 1)
