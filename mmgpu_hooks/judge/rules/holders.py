"""Rules about what holds the host's memory."""

from __future__ import annotations

from mmgpu_hooks.judge.holders import find_shares
from mmgpu_hooks.judge.rules.rule import notice, problem, rule
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.judged import Finding
from mmgpu_hooks.schema.text import phrase

_FATAL = 1.0
"""Share of a run's time counted as lost if the run ends too early: 1, all of it."""


@rule('MG409', "The host's memory was nearly full", 'memory_bound')
def judge_holders(run: Run) -> Finding | None:
    """Host memory was under 5 % free, or under 20 % and would be full within 30 s.

    The sentence says who held it when it was fullest. Pages that several processes
    share count once: a part of each in every one (PSS), where the kernel shows it;
    shared memory is named by itself: ``/dev/shm``, and in a control group any other
    tmpfs with it. Page cache is free memory. The bound is the host's memory, or the
    limit of a control group (a job, a container), whichever has less left.

    "With 4 workers it would have held" counts what samples leave in the workers whole,
    for fewer workers load as many, until training ends, or until the epoch does that
    ends the workers. ``mmgpu recommend`` takes that number. Nothing is promised where
    anything else rose at the end: how far it would have risen is unknown. What grows
    and is in none of the parts shows with ``memray run --follow-fork tools/train.py
    CONFIG``.
    """
    shares = find_shares(run)
    if shares is None or not shares.record.is_low:
        return None
    detail = phrase('Of {shares}.', shares)
    return notice(detail) if run.status == 'completed' else problem(detail, _FATAL)
