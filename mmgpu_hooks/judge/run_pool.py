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
    MemoryRuleRow,
    compare_rules,
    fit_batch_memory,
    fit_step_line,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import FittedRun, NoPrediction

_UNKNOWN_MEMORY = (
    'The memory of the card is unknown ({why}): what a training process takes of the '
    "host's is not it."
)


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
    memory_rules: tuple[MemoryRuleRow, ...] = ()
    notes: tuple[str, ...] = ()
    """Which runs were left out, and why."""


def pool_runs(
    runs: Sequence[Run],
    differences: Mapping[str, str] | None = None,
    uncompared: Mapping[str, str] | None = None,
) -> RunPool:
    """Fit to the newest run and those that train the same on the same host.

    Args:
        runs: At least one.
        differences: By path of the evidence, what of a run's config is not the same as
            in that of the newest, as a clause.
        uncompared: Likewise, why a run's config could not be compared.
    """
    notes: list[str] = []
    ordered = _order(runs, notes)
    newest = next((run for run in ordered if run.workload), ordered[0])
    if newest.workload is None:
        untold = newest.why_no_workload or 'The run tells too little.'
        return RunPool(newest, None, NoPrediction(untold), notes=tuple(notes))
    belonging = [newest]
    for run in ordered:
        if run is newest:
            continue
        path = run.path
        why = _why_left_out(newest, run, differences or {})
        if why is not None:
            # a question is a whole sentence already
            end = '' if why.endswith('?') else '.'
            notes.append(f'{path} is left out: {why}{end}')
            continue
        belonging.append(run)
        if uncompared and path in uncompared:
            notes.append(
                f'The configs of {newest.path} and {path} were not compared '
                f'({uncompared[path]}); they are taken for the same training.'
            )
    points = _memory_points(belonging)
    fitted, workload = _fit(belonging, notes)
    return RunPool(
        newest=newest,
        workload=workload,
        fitted=tuple(_describe(run) for run in fitted),
        memory=points if isinstance(points, NoPrediction) else fit_batch_memory(points),
        memory_rules=() if isinstance(points, NoPrediction) else compare_rules(points),
        notes=tuple(notes),
    )


def find_newest(runs: Sequence[Run]) -> Run:
    """The newest run that tells enough, else the newest."""
    ordered = _order(runs, [])
    return next((run for run in ordered if run.workload), ordered[0])


def _order(runs: Sequence[Run], notes: list[str]) -> list[Run]:
    """Each run once, newest first."""
    by_id: dict[str, Run] = {}
    for run in runs:
        first = by_id.setdefault(run.run.run_id, run)
        if first is not run:
            notes.append(
                f'{run.path} is the same run as {first.path}: it is counted once.'
            )
    return sorted(by_id.values(), key=lambda run: run.run.started_unix_s, reverse=True)


def _why_left_out(newest: Run, run: Run, differences: Mapping[str, str]) -> str | None:
    unlike = find_unlike(newest, run)
    unlike = unlike or differences.get(run.path)
    if unlike is not None:
        return unlike
    if run.workload is None:
        return (run.why_no_workload or 'it tells too little').rstrip('.')
    if run.workload.batch_size is None:
        return 'its batch size is unknown'
    assert newest.workload is not None  # it tells enough
    if newest.workload.batch_size is None:
        return f'the batch size of {newest.path} is unknown'
    return None


def _fit(runs: Sequence[Run], notes: list[str]) -> tuple[Sequence[Run], Workload]:
    """The runs that make the line of the step, and the newest's workload with it."""
    told = [run.workload for run in runs if run.workload]
    newest = told[0]
    if len(runs) == 1:
        return runs, newest
    if len({workload.batch_size for workload in told}) == 1:
        notes.append('All runs have one batch size: the newest is judged by itself.')
        return runs[:1], newest
    line = fit_step_line([(one.batch_size, one.step) for one in told if one.batch_size])
    if isinstance(line, NoPrediction):
        notes.append(f'{line.reason} The newest run is judged by itself.')
        return runs[:1], newest
    return runs, replace(newest, step_line=line)


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
    return NoPrediction(_UNKNOWN_MEMORY.format(why=why))


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
