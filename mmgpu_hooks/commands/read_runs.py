"""Reads and judges folders' newest runs; fits step time and memory to batch size."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.adviser.last_sign import find_job_end, find_last_sign
from mmgpu_hooks.experiment.profile import find_profile
from mmgpu_hooks.judge.ranks import read_ranks
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, pool_runs
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.host_overhead import with_host_overhead
from mmgpu_hooks.recommend.hours import forecast_end, list_saved_hours
from mmgpu_hooks.recommend.next_job import recommend_next_job
from mmgpu_hooks.recommend.other_start import (
    expect_cores,
    recommend_mended,
    with_cores,
)
from mmgpu_hooks.recommend.recommendation import recommend_settings, with_save_cures
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run import RanksSummary, read_evidence
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.text import short_path


@dataclass(frozen=True)
class ReadRun:
    """Newest run of a folder: its files, the rank to judge, and all ranks compared."""

    files: RunFiles
    run: Run
    """Data recorded by the rank to judge, along with the other ranks' data."""
    ranks: RanksSummary | None
    """Comparison of the run's ranks; ``None`` for a run with one rank."""

    @property
    def notes(self) -> Iterator[Text]:
        """Sentences on what the run's data lack, such as ranks or an end record."""
        yield from self.run.notes
        if self.ranks is not None:
            yield from self.ranks.notes
        if older := len(self.files.older_runs):
            if older == 1:
                yield phrase('The newest run was read, and not 1 older one.')
            else:
                yield phrase(
                    'The newest run was read, and not {older} older ones.', older=older
                )
        if attempt := self.files.newer_attempt:
            yield phrase(
                'A newer attempt, {attempt}, left no evidence: it ended before its '
                'first iteration, or is still starting. Ask "mmgpu why" with its '
                'folder.',
                attempt=attempt.folder.name,
            )
        evidence = self.run.evidence
        for off in evidence.sources_off:
            yield phrase(
                '{source} was switched off after iteration {iteration}: {reason}', off
            )
        if evidence.end is None:
            yield phrase(
                'The run has no end record: it is still training, or was killed. Ask '
                '"mmgpu why" with its folder.'
            )
        elif evidence.end.error is not None:
            yield phrase(
                'Training ended with {error}. "mmgpu why" says why.', evidence.end
            )


class FoundRun(NamedTuple):
    """Newest run of a folder: its files, and the data that rank 0 recorded."""

    files: RunFiles
    run: Run
    """Data that rank 0 of the folder's newest run recorded in its evidence file."""


class PooledRuns(NamedTuple):
    """Newest runs of some folders, with step time and memory fitted to batch size."""

    newest: ReadRun
    """Latest of the folders' newest runs; no other run is judged."""
    pool: RunPool
    """Comparable runs of the training, with step time and memory fitted to batch size.
    """
    notes: tuple[str, ...]
    """Sentences on the latest run, the fit, and runs that the fit left out."""


class JudgedRun(NamedTuple):
    """Verdict and recommendation for ``mmgpu recommend``, with the run's files."""

    answer: Answer
    files: RunFiles


def find_run(folder: Path) -> FoundRun:
    """Finds the newest run of a folder, and reads the evidence file of its rank 0.

    Raises:
        EvidenceError: If it has no evidence.
    """
    files = read_run_folder(folder)
    if files.evidence is None:
        older = next((path for path in files.older_runs if path.is_file()), None)
        missing = phrase(
            "expected evidence of GPUEfficiencyHook, found only MMEngine's log; train "
            'with the hook: mmgpu run tools/train.py CONFIG (or mmgpu enable CONFIG).'
        )
        if older:
            missing = phrase(
                'expected evidence of GPUEfficiencyHook, found only '
                "MMEngine's log; train with the hook: mmgpu run tools/train.py CONFIG "
                '(or mmgpu enable CONFIG); an older run has it: {older}.',
                older=older,
            )
        raise EvidenceError(files.folder, missing)
    evidence = read_evidence(files.evidence)
    # a folder may have been moved since
    folders = (evidence.run.work_dir, files.run_folder.parent)
    profiles = (find_profile(Path(folder)) for folder in folders if folder)
    profile = next(filter(None, profiles), None)
    return FoundRun(files, Run(replace(evidence, profile=profile)))


def read_run(folder: Path) -> ReadRun:
    """Reads all ranks of the newest run of a folder.

    The rank that the others wait for is judged; without one, the rank that waits most.

    Raises:
        EvidenceError: If it has no evidence.
    """
    files, run = find_run(folder)
    judged = read_ranks(run, files.other_ranks)
    return ReadRun(files, judged.run, judged.ranks)


def read_runs(folders: Sequence[Path]) -> PooledRuns:
    """Reads folders' newest runs; fits step time and memory to batch size from them.

    Raises:
        EvidenceError: If one of them holds no evidence.
    """
    runs = [read_run(folder) for folder in folders]
    pool = pool_runs([read.run for read in runs])
    newest = next(read for read in runs if read.run is pool.newest)
    return PooledRuns(newest, pool, (*newest.notes, *pool.notes))


def judge_runs(
    folders: Sequence[Path],
    *,
    allow_batch_size: bool = False,
    cores: float | None = None,
) -> JudgedRun:
    """Judges the latest of some folders' runs; recommends settings from all of them.

    The settings rest on all of the runs that train the same.

    Args:
        folders: What :func:`read_run_folder` takes, each.
        allow_batch_size: True if another batch size may be recommended.
        cores: Usable cores that each rank will have on its next start; ``None`` is a
            start as it was.

    Raises:
        EvidenceError: If there is nothing that can be judged.
        UserError: If the evidence says nothing of so many cores.
    """
    read = read_runs(folders)
    newest, pool, notes = read.newest, read.pool, read.notes
    run = together = pooled = newest.run
    # a single run keeps what was worked out of it
    if pool.workload is not run.workload:
        together = pooled = run.replaced(workload=pool.workload)
    mended = recommend_mended(together) if cores is None else None
    if cores is not None:
        expect_cores(run, cores)
        together = with_cores(together, cores)
        planned = phrase(
            'The settings are for a start with {cores:g} usable cores for each rank '
            '(--cores); the run had {had_cores:g}.',
            cores=cores,
            had_cores=run.meta.host.usable_cores or 0,
        )
        notes = (planned, *notes)
    memory = pool.memory if allow_batch_size else None
    found = limit_to_memory(recommend_settings(together, memory), run)
    found = with_host_overhead(with_save_cures(found, run), together)
    ending = forecast_end(run)
    answer = Answer(
        run_path=run.path,
        diagnosis=diagnose_run(run),
        recommendation=found,
        summary=run,
        mended=mended,
        next_job=recommend_next_job(pooled) if cores is None else None,
        ending=ending,
        last_sign=find_last_sign(run, ending),
        job_end=find_job_end(run, ending),
        saved_hours=list_saved_hours(run, found, ending),
        ranks=newest.ranks,
        notes=notes,
        fitted=pool.fitted if len(folders) > 1 else {},
    )
    return JudgedRun(answer, newest.files)


def find_config(run: Run, copy: Path | None) -> Path:
    """Returns the path of a run's config, or of the run's copy if the config is gone.

    Raises:
        UserError: If neither is there.
    """
    path, reason = run.meta.config_path, ''
    if path:
        try:
            # os.path.isfile does not say that a folder may not be entered
            if stat.S_ISREG(os.stat(path).st_mode):
                return Path(short_path(path) or path)
        except (OSError, ValueError) as error:
            reason = (error.strerror or '') if isinstance(error, OSError) else ''
    if copy is None:
        named: str = path or phrase('its path')
        if reason:
            named = phrase('{path} ({reason})', path=named, reason=reason)
        raise UserError(
            phrase(
                'expected the config of the run, found neither {path} nor a copy in '
                "the run's folder; name it with --config.",
                path=named,
            )
        )
    return copy
