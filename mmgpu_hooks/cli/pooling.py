"""Reads several runs' folders that are to be fitted together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from mmgpu_hooks.diagnosis.run_pool import PooledRun, RunPool, find_newest, pool_runs
from mmgpu_hooks.evidence.run_folder import EvidenceError, RunFiles, read_run_folder


class _Read(Protocol):
    @property
    def files(self) -> RunFiles: ...

    @property
    def run(self) -> PooledRun: ...


Run = TypeVar('Run', bound=_Read)


def read_each(
    folders: Sequence[Path], read: Callable[[RunFiles], Run]
) -> tuple[list[Run], list[str]]:
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


def pool_read_runs(runs: Sequence[Run], *, load: bool = True) -> tuple[Run, RunPool]:
    """Fit together what belongs together.

    Args:
        runs: Of :func:`read_each`.
        load: Whether the runs' own copies of their configs may be loaded, to compare
            them.

    Returns:
        The run that is judged, and the pool.
    """
    by_path = {run.run.evidence.path: run for run in runs}
    pooled = [run.run for run in runs]
    newest = by_path[find_newest(pooled).evidence.path]
    differences = _compare_configs(newest, runs) if load else {}
    return newest, pool_runs(pooled, differences)


def _compare_configs(newest: Run, runs: Sequence[Run]) -> dict[str, str]:
    """What of each run's config is another one, by path of its evidence."""
    # late: MMEngine takes long to import, and one run has nothing to compare with
    from mmgpu_hooks.configfile.loading import LoadError
    from mmgpu_hooks.configfile.workload_drift import read_workload_drift

    found = {}
    for run in runs:
        copies = newest.files.config_copy, run.files.config_copy
        if run is newest or copies[0] is None or copies[1] is None:
            continue
        try:
            why = read_workload_drift(copies[0], copies[1])
        except LoadError:
            # what the evidence tells of the runs is compared anyway
            continue
        if why is not None:
            found[run.run.evidence.path] = why
    return found
