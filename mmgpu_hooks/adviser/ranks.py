"""Chooses the rank whose evidence file is judged, in a run of several ranks.

Verdicts during training and at its end read no more than that takes a second or two,
and judge the same rank.
"""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.judge.ranks import JudgedRank, read_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.run_folder import find_other_ranks

_MOST_BYTES = 64 * 2**20
"""Maximum total bytes of other ranks' evidence files to read to choose a rank."""


def choose_rank(evidence: Path, first: Run) -> JudgedRank:
    """Chooses which rank of a run to judge, after comparing all ranks' evidence files.

    As :func:`mmgpu_hooks.judge.ranks.choose_judged` does.

    Args:
        evidence: Of rank 0.
        first: Its run.

    Returns:
        The rank that is judged, all ranks, where there are several, and rank 0. Rank 0
        alone, where the others left more than can be read now.
    """
    paths = find_other_ranks(evidence)
    if sum(path.stat().st_size for path in paths) > _MOST_BYTES:
        return JudgedRank(first, None, first)
    return read_ranks(first, paths)
