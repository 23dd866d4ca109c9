"""Programs of child processes that judge a run.

That of the end writes one config, too; that of every hour the job's comment.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from mmgpu_hooks.adviser.job_comment import comment_on_job
from mmgpu_hooks.adviser.ranks import choose_rank
from mmgpu_hooks.config.recommended import NICE_KEY, write_beside_run
from mmgpu_hooks.experiment.children import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.recommendation import recommend_settings, with_save_cures
from mmgpu_hooks.recommend.validation import leave_out
from mmgpu_hooks.recommend.verdict_record import judge_as_record, make_verdict_record
from mmgpu_hooks.schema.judged import Recommendation, RunAdvice
from mmgpu_hooks.schema.run_folder import read_run_folder
from mmgpu_hooks.schema.text import Text, encode_text, phrase


def main(evidence: str, parent: int) -> None:
    """Judges a finished run by its evidence file; prints a `RunAdvice` as JSON.

    Args:
        evidence: Of rank 0.
        parent: Process id of the training; this process ends with it.
    """
    # of what a config imports, no compiled files are left behind
    sys.dont_write_bytecode = True
    # what a config prints, or leaves to its children, is no part of the answer
    answer = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    die_with_parent(parent)
    adopt_orphans()
    try:
        with os.fdopen(answer, 'wb') as stream:
            advice = advise_on_run(Path(evidence))
            stream.write(msgspec.json.encode(advice, enc_hook=encode_text))
    finally:
        # a config is a program, and what it started is of no use to anybody
        end_descendants()


def judge_while_training(evidence: str, parent: int, is_commented: bool) -> None:
    """Judges what slows a run that still trains; prints the verdict record as JSON.

    Args:
        evidence: Of rank 0.
        parent: Process id of the training; this process ends with it.
        is_commented: True if the verdict also goes into the comment of SLURM's job.
    """
    die_with_parent(parent)
    path = Path(evidence)
    run = choose_rank(path, Run.read(path)).run
    record = judge_as_record(run, diagnose_run(run), is_final=False)
    with os.fdopen(os.dup(1), 'wb') as stream:
        stream.write(msgspec.json.encode(record))
    if is_commented:
        # at the training's end the hook says what is in the way
        with contextlib.suppress(SourceError):
            comment_on_job(record)


def advise_on_run(evidence: Path) -> RunAdvice:
    """Judges a finished run and writes the recommended config into its folder.

    The config goes into the folder of the run, and nothing is written where nothing
    is to be changed.

    Args:
        evidence: Of rank 0.

    Raises:
        EvidenceError: If it cannot be read.
    """
    run = choose_rank(evidence, Run.read(evidence)).run
    found = with_save_cures(limit_to_memory(recommend_settings(run), run), run)
    advice = _write_advised(evidence, run, found)
    verdict = make_verdict_record(run, diagnose_run(run), found, is_final=True)
    return replace(advice, verdict=verdict)


def _write_advised(evidence: Path, run: Run, found: Recommendation) -> RunAdvice:
    nice: int | None = None
    if run.meta.hook_added_by is not None:
        # the hook is in no config: that command takes its arguments
        values = (change.new for change in found.changes if change.key == NICE_KEY)
        nice = next(values, None)
        found = leave_out(found, (NICE_KEY,), Text(''))
    if not found.changes:
        return RunAdvice(found, worker_nice=nice)
    files = read_run_folder(evidence)
    applied = write_beside_run(found, run.meta.config_path, files)
    outcome, kept = applied.outcome, applied.recommendation
    taken = {change.key for change in kept.changes}
    left_out = [change.key for change in found.changes if change.key not in taken]
    if outcome.status == 'rewritten':
        return RunAdvice(kept, str(outcome.target), None, tuple(left_out), nice)
    reason = phrase('the config has the recommended settings')
    if outcome.reason is not None:
        # the place is the config's, which is named anyway
        reason = outcome.reason.facts.get('refusal', outcome.reason)
    if left_out:
        reason = phrase(
            '{names:&} cannot be set in this config',
            names=tuple(key.rpartition('.')[2] for key in left_out),
        )
    return RunAdvice(kept, reason=reason, worker_nice=nice)
