"""Reads several runs' folders that are to be fitted together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, find_newest, pool_runs
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder


class _Read(Protocol):
    @property
    def files(self) -> RunFiles: ...

    @property
    def run(self) -> Run: ...


Read = TypeVar('Read', bound=_Read)


def read_each(
    folders: Sequence[Path], read: Callable[[RunFiles], Read]
) -> tuple[list[Read], list[str]]:
    """Read what can be read, and say what was left out.

    Args:
        folders: Of several runs.
        read: Reads the evidence of one, which is there.

    Raises:
        EvidenceError: If a folder is missing, or none holds evidence.
    """
    runs, left_out = [], []
    for folder in folders:
        try:
            files = read_run_folder(folder)
            if files.evidence is None:
                left_out.append(
                    f"{folder} is left out: it holds MMEngine's log, and no evidence "
                    'of GPUEfficiencyHook.'
                )
                continue
            runs.append(read(files))
        except EvidenceError as error:
            if not folder.exists():
                raise
            left_out.append(f'Left out: {error}')
    if not runs:
        raise EvidenceError(
            f'expected evidence of GPUEfficiencyHook, found none. {" ".join(left_out)}'
        )
    return runs, left_out


def pool_read_runs(runs: Sequence[Read]) -> tuple[Read, RunPool]:
    """Fit together what belongs together.

    Args:
        runs: Of :func:`read_each`.

    Returns:
        The run that is judged, and the pool.
    """
    by_path = {run.run.path: run for run in runs}
    pooled = [run.run for run in runs]
    newest = by_path[find_newest(pooled).path]
    return newest, pool_runs(pooled, *_compare_configs(newest, runs))


def _compare_configs(
    newest: Read, runs: Sequence[Read]
) -> tuple[dict[str, str], dict[str, str]]:
    """What of each run's config is another one, and why others are not known.

    Both by path of its evidence, as clauses.
    """
    # late: MMEngine takes long to import, and one run has nothing to compare with
    from mmgpu_hooks.config.drift import read_workload_drift
    from mmgpu_hooks.config.loading import LoadError, NoMMEngineError

    found: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for run in runs:
        if run is newest:
            continue
        path = run.run.path
        mine, other = newest.files.config_copy, run.files.config_copy
        if mine is None or other is None:
            bare = newest.run.path if mine is None else path
            unknown[path] = f"MMEngine's copy of the config is not beside {bare}"
            continue
        try:
            why = read_workload_drift(mine, other)
        except NoMMEngineError as error:
            unknown[path] = f'MMEngine cannot be imported: {error}'
            continue
        except LoadError as error:
            # what the evidence tells of the runs is compared anyway
            unknown[path] = f'one of them does not load: {error}'
            continue
        if why is not None:
            found[path] = why
    return found, unknown
