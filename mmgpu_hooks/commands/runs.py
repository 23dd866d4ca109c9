"""Reads the newest run of each folder; judges one, fits all that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmgpu_hooks.config.drift import read_workload_drift
from mmgpu_hooks.config.loading import LoadError
from mmgpu_hooks.judge.other_logs import read_plain_run
from mmgpu_hooks.judge.ranks import fold_ranks, with_saves_of
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, find_newest, pool_runs
from mmgpu_hooks.judge.verdict import diagnose_plain_run, diagnose_run
from mmgpu_hooks.recommend.policy import recommend_settings
from mmgpu_hooks.recommend.save_cures import with_save_cures
from mmgpu_hooks.schema import PlainRun, RanksSummary, Recommendation
from mmgpu_hooks.schema.reader import read_other_ranks
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.show.recommendation import Answer


@dataclass(frozen=True)
class ReadRun:
    """One run with the evidence of our hook."""

    files: RunFiles
    run: Run
    """The rank that is judged, which has the others."""
    ranks: RanksSummary | None
    """``None`` when it has one."""

    @property
    def notes(self) -> Iterator[str]:
        """What was not read, and how the run ended: sentences."""
        yield from self.run.notes
        if self.ranks is not None:
            yield from self.ranks.notes
        if self.files.older_runs:
            older = self.files.older_runs
            yield f'The newest run was read; {older} older one(s) were not.'
        evidence = self.run.evidence
        for off in evidence.sources_off:
            since = f'was switched off after iteration {off.iteration}'
            yield f'{off.source} {since}: {off.reason}'
        if evidence.end is None:
            yield (
                'The run has no end record: it is still training, or was killed. Ask '
                '"mmgpu why" with its folder.'
            )
        elif evidence.end.error is not None:
            error = evidence.end.error
            yield f'Training ended with {error}. "mmgpu why" says why.'


@dataclass(frozen=True)
class ReadRuns:
    """Runs that were read together."""

    newest: ReadRun
    """The one that is judged."""
    pool: RunPool
    """The fit to all that belong together."""
    notes: tuple[str, ...]
    """Of all of it, what was left out included."""


@dataclass(frozen=True)
class JudgedRun:
    """A run with what is said of it; it has evidence or a plain log, never both."""

    answer: Answer
    """Without a rewrite."""
    files: RunFiles
    plain: PlainRun | None = None


def find_evidence(folder: Path) -> Path:
    """Rank 0's evidence of the newest run of a folder.

    Raises:
        EvidenceError: If there is none.
    """
    return _with_evidence(read_run_folder(folder))


def _with_evidence(files: RunFiles) -> Path:
    if files.evidence is None:
        raise EvidenceError(
            f'{files.plain}: expected evidence of GPUEfficiencyHook, found only '
            "MMEngine's log; train with the hook: mmgpu enable CONFIG."
        )
    return files.evidence


def read_run(folder: Path) -> ReadRun:
    """Read all ranks of the newest run of a folder.

    The rank that the others wait for is judged; without one, the rank that waits most.

    Raises:
        EvidenceError: If it has no evidence.
    """
    files = read_run_folder(folder)
    run = Run.read(_with_evidence(files))
    evidence, notes = read_other_ranks(files.other_ranks)
    found = [Run(one) for one in evidence]
    ranks = fold_ranks(run, found, notes)
    if ranks is None or not ranks.rows:
        return ReadRun(files, run, ranks)
    judged, why = ranks.slowest, 'holds the others up'
    if judged is None:
        judged = max(ranks.rows, key=lambda row: row.data_wait_s).rank
        why = 'waits most for data'
    joined = {row.rank for row in ranks.rows}
    same = [rank for rank in (run, *found) if rank.run.rank in joined]
    same.sort(key=lambda rank: rank.run.rank != judged)
    note = f'Rank {judged} of {ranks.world_size} {why} and is judged.'
    chosen = with_saves_of(same[0], run)
    chosen.other_ranks = same[1:]
    return ReadRun(files, chosen, replace(ranks, notes=(*ranks.notes, note)))


def read_runs(folders: Sequence[Path]) -> ReadRuns:
    """Read the newest run of each folder, and fit those that belong together.

    Raises:
        EvidenceError: If a folder is missing, or none holds evidence.
    """
    runs, left_out = [], []
    for folder in folders:
        try:
            runs.append(read_run(folder))
        except EvidenceError as error:
            if len(folders) == 1 or not folder.exists():
                raise
            left_out.append(f'Left out: {error}')
    if not runs:
        raise EvidenceError(
            f'expected evidence of GPUEfficiencyHook, found none. {" ".join(left_out)}'
        )
    newest = find_newest([one.run for one in runs])
    judged = next(one for one in runs if one.run is newest)
    differences: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for one in runs:
        try:
            drift = None if one is judged else _compare_configs(judged, one)
        except LoadError as error:
            unknown[one.run.path] = str(error)
        else:
            differences |= {one.run.path: drift} if drift else {}
    pool = pool_runs([one.run for one in runs], differences)
    fitted = {one.path for one in pool.fitted}
    uncompared = [
        f'The configs of {newest.path} and {path} were not compared ({why}); they are '
        'taken for the same training.'
        for path, why in unknown.items()
        if path in fitted
    ]
    notes = (*judged.notes, *left_out, *pool.notes, *uncompared)
    return ReadRuns(judged, pool, notes)


def _compare_configs(judged: ReadRun, other: ReadRun) -> str | None:
    """What of the other's config is not the same, as a clause."""
    copies = []
    for one in (judged, other):
        if one.files.config_copy is None:
            raise LoadError(f"MMEngine's copy is not beside {one.run.path}")
        copies.append(one.files.config_copy)
    return read_workload_drift(*copies)


def judge_runs(folders: Sequence[Path], *, allow_batch_size: bool = False) -> JudgedRun:
    """Judge the newest run, and recommend by all that belong together.

    Args:
        folders: What :func:`read_run_folder` takes, each.
        allow_batch_size: Whether another batch size may be recommended.

    Raises:
        EvidenceError: If there is nothing that can be judged.
    """
    if len(folders) == 1:
        files = read_run_folder(folders[0])
        if files.evidence is None:
            return _judge_plain(files)
    read = read_runs(folders)
    run, pool = read.newest.run, read.pool
    together = run.altered(workload=pool.workload)
    memory = pool.memory if allow_batch_size else None
    answer = Answer(
        run_path=run.path,
        diagnosis=diagnose_run(run),
        recommendation=with_save_cures(recommend_settings(together, memory), run),
        summary=run,
        ranks=read.newest.ranks,
        notes=read.notes,
        fitted=pool.fitted if len(folders) > 1 else (),
    )
    return JudgedRun(answer, read.newest.files)


def _judge_plain(files: RunFiles) -> JudgedRun:
    assert files.plain is not None
    plain = read_plain_run(files.plain)
    notes = [
        'This run has no evidence of GPUEfficiencyHook, only the log of MMEngine; '
        'train with the hook for a judgement with numbers behind it: mmgpu enable '
        'CONFIG.'
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
    return JudgedRun(answer, files, plain)
