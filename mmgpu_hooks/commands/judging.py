"""Judges the newest run of a folder: what ``recommend`` and ``report`` begin with."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmgpu_hooks.commands.pooling import pool_read_runs, read_each
from mmgpu_hooks.evidence.plain_reader import read_plain_run
from mmgpu_hooks.judge.facts import Facts, fold_facts
from mmgpu_hooks.judge.ranks import fold_ranks, with_saves_of
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_diagnosis import diagnose_plain_run, diagnose_run
from mmgpu_hooks.judge.run_pool import PooledRun, pool_runs, rank_peaks
from mmgpu_hooks.recommend.policy import recommend_settings
from mmgpu_hooks.recommend.save_cures import with_save_cures
from mmgpu_hooks.schema import (
    PlainRun,
    RanksSummary,
    Recommendation,
    RunEvidence,
)
from mmgpu_hooks.schema.reader import read_other_ranks
from mmgpu_hooks.schema.run_folder import RunFiles, read_run_folder
from mmgpu_hooks.show.recommendation import Answer


@dataclass(frozen=True)
class JudgedRun:
    """A run with what is said of it; it has evidence or a plain log, never both."""

    answer: Answer
    """Without a rewrite."""
    facts: Facts | None = None
    """Of the rank that was judged."""
    plain: PlainRun | None = None
    run_config: Path | None = None
    """The config that the run was started with, there or not."""
    config_copy: Path | None = None
    """The flattened copy that MMEngine left."""


@dataclass(frozen=True)
class ReadRun:
    """One run, read and folded."""

    files: RunFiles
    run: PooledRun
    """The rank that is judged."""
    ranks: RanksSummary | None = None
    """``None`` when it has one."""


def judge_run_folder(folder: Path) -> JudgedRun:
    """Read, judge and recommend; writes nothing.

    Args:
        folder: What :func:`read_run_folder` takes.

    Raises:
        EvidenceError: If there is nothing that can be judged.
    """
    return judge_run_folders([folder])


def judge_run_folders(
    folders: Sequence[Path],
    *,
    allow_batch_size: bool = False,
    load: bool = True,
) -> JudgedRun:
    """Judge the newest run, and recommend by all that belong together.

    Args:
        folders: What :func:`read_run_folder` takes, each.
        allow_batch_size: Whether another batch size may be recommended.
        load: Whether the configs of several runs may be loaded, to compare them.

    Raises:
        EvidenceError: If there is nothing that can be judged.
    """
    left_out: list[str] = []
    if len(folders) == 1:
        files = read_run_folder(folders[0])
        if files.evidence is None:
            return _judge_plain(files)
        newest = _read(files)
        pool = pool_runs([newest.run])
    else:
        runs, left_out = read_each(folders, _read)
        newest, pool = pool_read_runs(runs, load=load)
    facts = newest.run.facts
    run = facts.summary
    together = replace(facts, workload=pool.workload)
    recommendation = recommend_settings(
        together, pool.memory if allow_batch_size else None
    )
    answer = Answer(
        run_path=run.path,
        diagnosis=diagnose_run(facts),
        recommendation=with_save_cures(recommendation, facts),
        summary=run,
        ranks=newest.ranks,
        notes=(
            *run.notes,
            *(newest.ranks.notes if newest.ranks else ()),
            *_passed_over(newest.files),
            *_incomplete(run.evidence),
            *left_out,
            *pool.notes,
        ),
        fitted=pool.fitted if len(folders) > 1 else (),
    )
    path = run.run.config_path
    return JudgedRun(
        answer,
        facts=facts,
        run_config=Path(path) if path else None,
        config_copy=newest.files.config_copy,
    )


def _read(files: RunFiles) -> ReadRun:
    assert files.evidence is not None
    with _collector_paused():
        judged, ranks, others = _read_ranks(files.evidence, files.other_ranks)
    return ReadRun(files, PooledRun(fold_facts(judged), rank_peaks(others)), ranks)


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Without garbage collection, which takes long and finds nothing in records."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_ranks(
    first: Path, others: tuple[Path, ...]
) -> tuple[Run, RanksSummary | None, list[Run]]:
    """The rank that is judged, how it compares, and the other ranks.

    It is the rank that the others wait for; without one, the rank that waits most.
    """
    run = Run.read(first)
    evidence, notes = read_other_ranks(others)
    found = [Run(one) for one in evidence]
    ranks = fold_ranks(run, found, notes)
    if ranks is None or not ranks.rows:
        return run, ranks, []
    judged = ranks.slowest
    why = 'holds the others up'
    if judged is None:
        judged = max(ranks.rows, key=lambda row: row.data_wait_s).rank
        why = 'waits most for data'
    joined = {row.rank for row in ranks.rows}
    same = [rank for rank in (run, *found) if rank.run.rank in joined]
    same.sort(key=lambda rank: rank.run.rank != judged)
    note = f'Rank {judged} of {ranks.world_size} {why} and is judged.'
    ranks = replace(ranks, notes=(*ranks.notes, note))
    return with_saves_of(same[0], run), ranks, same[1:]


def _judge_plain(files: RunFiles) -> JudgedRun:
    assert files.plain is not None
    plain = read_plain_run(files.plain, files.config_copy)
    notes = [
        'This run has no evidence of GPUEfficiencyHook, only the log of MMEngine; add '
        "default_hooks=dict(gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))"
        ' to the config for a judgement with numbers behind it.'
    ]
    if files.older_evidence is not None:
        notes.append(f'An older run has evidence: {files.older_evidence}')
    answer = Answer(
        run_path=str(files.plain),
        diagnosis=diagnose_plain_run(plain),
        recommendation=Recommendation(
            reason="MMEngine's log tells neither live settings nor the host's limits."
        ),
        notes=(*plain.notes, *notes),
    )
    return JudgedRun(answer, plain=plain, config_copy=files.config_copy)


def _passed_over(files: RunFiles) -> list[str]:
    if not files.older_runs:
        return []
    return [f'The newest run was read; {files.older_runs} older one(s) were not.']


def _incomplete(evidence: RunEvidence) -> list[str]:
    notes = [
        f'{off.source} was switched off after iteration {off.iteration}: {off.reason}'
        for off in evidence.sources_off
    ]
    if evidence.end is None:
        notes.append(
            'The run has no end record: it is still training, or was killed. Ask '
            '"mmgpu why" with its folder.'
        )
    elif evidence.end.error is not None:
        notes.append(f'Training ended with {evidence.end.error}. "mmgpu why" says why.')
    return notes
