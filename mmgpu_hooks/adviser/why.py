"""Judges why ranks failed or hang, by evidence files and processes of this host.

For ``mmgpu why`` and for the watchdog of a training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.judge.flight_record import add_flight_record
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import NamedLog, judge_attempt, judge_end
from mmgpu_hooks.judge.why_memory import add_start
from mmgpu_hooks.judge.why_start import add_start_parts
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.flight_recorder import read_flight_record
from mmgpu_hooks.measure.now import read_host
from mmgpu_hooks.schema.judged import Why
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import phrase


def judge_ranks(logs: Sequence[NamedLog], ranks: Sequence[RunEvidence]) -> Why:
    """Judges why a run failed or hangs, by logs, evidence files and live processes.

    As `judge_end` does.

    Args:
        logs: What was read of console, MMEngine's log and kernel.
        ranks: Evidence of its ranks; the first is judged.
    """
    return judge_end(logs, [Rank(rank, read_host(rank)) for rank in ranks])


def judge_run(logs: Sequence[NamedLog], ranks: Sequence[RunEvidence]) -> Why:
    """Judges why a run failed or hangs, also by dumps of NCCL's flight recorder."""
    return _add_dumps(judge_ranks(logs, ranks), ranks)


def _add_dumps(why: Why, ranks: Sequence[RunEvidence]) -> Why:
    try:
        record = read_flight_record([rank.run for rank in ranks])
    except SourceError as error:
        said = phrase('{error}.', error=error)
        return replace(why, notes=(*why.notes, said))
    return why if record is None else add_flight_record(why, record)


def judge_start(logs: Sequence[NamedLog], ranks: Sequence[RunEvidence]) -> Why:
    """Judges why a run has not begun to train, by logs and what its ranks recorded.

    Args:
        logs: What was read of console and MMEngine's log.
        ranks: What its ranks have of their start; some may train already.
    """
    why = judge_attempt(logs, [Rank(rank, read_host(rank)) for rank in ranks])
    why = add_start(why, [rank.memory for rank in ranks])
    return _add_dumps(add_start_parts(why, ranks), ranks)
