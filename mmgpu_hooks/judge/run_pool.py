"""Fits the step and the memory over the batch size to several runs. Pure.

Everything else is that of the newest run alone, which is the one that is judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmgpu_hooks.judge.memory import fold_static_bytes
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import find_unlike
from mmgpu_hooks.model.batches import (
    MemoryFit,
    MemoryPoint,
    fit_batch_memory,
    fit_step_line,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import FittedRun, NoPrediction


@dataclass(frozen=True)
class RunPool:
    """What belongs together, and what follows from all of it."""

    newest: Run
    """The newest that tells enough: it is the one that is judged."""
    workload: Workload | None
    """Of the newest, with the line that all runs make; ``None`` when none tells
    enough."""
    memory: MemoryFit | NoPrediction
    fitted: tuple[FittedRun, ...] = ()
    """The newest first."""
    notes: tuple[str, ...] = ()
    """Which runs were left out, and why."""


def pool_runs(
    runs: Sequence[Run],
    differences: Mapping[str, str] | None = None,
) -> RunPool:
    """Fit to the newest run and those that train the same on the same host.

    Args:
        runs: At least one.
        differences: By path of the evidence, what of a run's config is not the same as
            in that of the newest, as a clause.
    """
    newest, notes = find_newest(runs), list[str]()
    if newest.workload is None:
        reason = newest.why_no_workload or 'The run tells too little.'
        return RunPool(newest, None, NoPrediction(reason))
    belonging, ids = [newest], {newest.run.run_id}
    for run in _by_age(runs):
        if run is newest:
            continue
        path = run.path
        why = 'it is the same run as another' if run.run.run_id in ids else None
        why = why or _why_left_out(newest, run) or (differences or {}).get(path)
        ids.add(run.run.run_id)
        if why is not None:
            # a question is a whole sentence already
            notes.append(f'{path} is left out: {why}{"" if why[-1] == "?" else "."}')
            continue
        belonging.append(run)
    points = _memory_points(belonging)
    workload, fitted = newest.workload, belonging
    costs = [(one.batch_size, one.step) for run in belonging if (one := run.workload)]
    if len(belonging) > 1:
        line = fit_step_line([(size, step) for size, step in costs if size])
        if isinstance(line, NoPrediction):
            notes.append(f'{line.reason} The newest run is judged by itself.')
            fitted = [newest]
        else:
            workload = replace(workload, step_line=line)
    return RunPool(
        newest=newest,
        workload=workload,
        fitted=tuple(_describe(run) for run in fitted),
        memory=points if isinstance(points, NoPrediction) else fit_batch_memory(points),
        notes=tuple(notes),
    )


def find_newest(runs: Sequence[Run]) -> Run:
    """The newest run that tells enough, else the newest."""
    ordered = _by_age(runs)
    return next((run for run in ordered if run.workload), ordered[0])


def _by_age(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.run.started_unix_s, reverse=True)


def _why_left_out(newest: Run, run: Run) -> str | None:
    unlike = find_unlike(newest, run)
    if unlike is not None:
        return unlike
    if run.workload is None:
        return (run.why_no_workload or 'it tells too little').rstrip('.')
    for one in (newest, run):
        if one.workload is None or one.workload.batch_size is None:
            return f'the batch size of {one.path} is unknown'
    return None


def _memory_points(runs: Sequence[Run]) -> list[MemoryPoint] | NoPrediction:
    points: list[MemoryPoint] = []
    for run in runs:
        batch = run.run.loader.batch_size
        if run.gpu_mem_peak_bytes is None or batch is None:
            continue
        static, gradients = fold_static_bytes(run)
        points += [
            MemoryPoint(
                batch_size=batch,
                peak_bytes=rank.gpu_mem_peak_bytes,
                pixels=rank.largest_batch_pixels,
                static_bytes=static,
                gradient_bytes=gradients,
            )
            # any rank can run out of memory
            for rank in (run, *run.other_ranks)
            if rank.gpu_mem_peak_bytes is not None
        ]
    if points:
        return points
    why = 'its peak was not recorded'
    if runs[0].run.device != 'cuda':
        why = 'the runs trained on the CPU'
    return NoPrediction(
        f'The memory of the card is unknown ({why}): what a training process takes of '
        "the host's is not it."
    )


def _describe(run: Run) -> FittedRun:
    workload = run.workload
    assert workload is not None  # else it had been left out
    return FittedRun(
        path=run.path,
        num_workers=workload.num_workers,
        prefetch_factor=workload.prefetch_factor if workload.num_workers else None,
        batch_size=workload.batch_size,
        iterations=workload.iterations,
        iter_time_s=workload.iter_time.mean_s,
        gpu_mem_peak_bytes=run.gpu_mem_peak_bytes,
    )
