"""Fits several runs of one workload together. Pure.

Several numbers of workers make the model surer; several batch sizes tell how the step
and the memory grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmgpu_hooks.diagnosis.facts import Facts
from mmgpu_hooks.diagnosis.run_difference import find_unlike
from mmgpu_hooks.diagnosis.static_memory import fold_static_bytes
from mmgpu_hooks.modeling.batch_memory import compare_rules, fit_batch_memory
from mmgpu_hooks.modeling.batch_speed import fit_step_line
from mmgpu_hooks.modeling.scene import at_batch_size
from mmgpu_hooks.records import (
    FittedRun,
    LoaderWorkload,
    MemoryFit,
    MemoryPoint,
    MemoryRuleRow,
    NoPrediction,
    RunEvidence,
    SpeedPoint,
)

_UNKNOWN_MEMORY = (
    'The memory of the card is unknown ({why}): what a training process takes of the '
    "host's is not it."
)


@dataclass(frozen=True)
class PooledRun:
    """One run that may be fitted together with others."""

    evidence: RunEvidence
    facts: Facts
    rank_peaks: tuple[tuple[int, int | None], ...] = ()
    """Of the run's other ranks, peak of the CUDA allocator and padded pixels of the
    largest batch: any rank can run out of memory."""


@dataclass(frozen=True)
class RunPool:
    """What belongs together, and what follows from all of it."""

    newest: PooledRun
    """The newest that tells enough: it is the one that is judged."""
    workload: LoaderWorkload | None
    """Of all runs together; ``None`` when none tells enough."""
    memory: MemoryFit | NoPrediction
    fitted: tuple[FittedRun, ...] = ()
    """The newest first."""
    memory_rules: tuple[MemoryRuleRow, ...] = ()
    notes: tuple[str, ...] = ()
    """Which runs were left out, and why."""


def pool_runs(
    runs: Sequence[PooledRun], differences: Mapping[str, str] | None = None
) -> RunPool:
    """Fit those runs together that train what the newest trains, on the same host.

    Args:
        runs: At least one.
        differences: By path of the evidence, what of a run's config is not the same as
            in that of the newest, as a clause.
    """
    notes: list[str] = []
    ordered = _order(runs, notes)
    newest = next((run for run in ordered if run.facts.workload), ordered[0])
    if newest.facts.workload is None:
        untold = newest.facts.untold or 'The run tells too little.'
        return RunPool(newest, None, NoPrediction(untold), notes=tuple(notes))
    belonging = [newest]
    for run in ordered:
        if run is newest:
            continue
        why = _why_left_out(newest, run, differences or {})
        if why is None:
            belonging.append(run)
        else:
            notes.append(f'{run.evidence.path} is left out: {why}.')
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


def find_newest(runs: Sequence[PooledRun]) -> PooledRun:
    """The newest run that tells enough, else the newest."""
    ordered = _order(runs, [])
    return next((run for run in ordered if run.facts.workload), ordered[0])


def _order(runs: Sequence[PooledRun], notes: list[str]) -> list[PooledRun]:
    """Each run once, newest first."""
    by_id: dict[str, PooledRun] = {}
    for run in runs:
        first = by_id.setdefault(run.evidence.run.run_id, run)
        if first is not run:
            notes.append(
                f'{run.evidence.path} is the same run as {first.evidence.path}: it is '
                'counted once.'
            )
    return sorted(
        by_id.values(), key=lambda run: run.evidence.run.started_unix_s, reverse=True
    )


def _why_left_out(
    newest: PooledRun, run: PooledRun, differences: Mapping[str, str]
) -> str | None:
    unlike = find_unlike(newest.evidence, run.evidence)
    unlike = unlike or differences.get(run.evidence.path)
    if unlike is not None:
        return unlike
    if run.facts.workload is None:
        return (run.facts.untold or 'it tells too little').rstrip('.')
    return None


def _fit(
    runs: Sequence[PooledRun], notes: list[str]
) -> tuple[list[PooledRun], LoaderWorkload]:
    """The runs whose times go together, and the newest's workload with the others."""
    told = [(run, run.facts.workload) for run in runs if run.facts.workload]
    newest = told[0][1]
    sizes = {workload.batch_size for _, workload in told}
    line = None
    if len(sizes) > 1:
        points = [
            SpeedPoint(one.batch_size, one.step.mean_s, one.step.error_s)
            for _, one in told
            if one.batch_size
        ]
        found = fit_step_line(points)
        if isinstance(found, NoPrediction):
            notes.append(
                f'{found.reason} Only runs with a batch size of {newest.batch_size} '
                'are fitted together.'
            )
        else:
            line = found
    scaled = [
        (run, at_batch_size(replace(one, step_line=line), newest.batch_size))
        for run, one in told
        if line is not None or one.batch_size == newest.batch_size
    ]
    kept = [(run, one) for run, one in scaled if one is not None]
    others = tuple(one for _, one in kept[1:])
    return [run for run, _ in kept], replace(newest, step_line=line, others=others)


def _memory_points(runs: Sequence[PooledRun]) -> list[MemoryPoint] | NoPrediction:
    points: list[MemoryPoint] = []
    for run in runs:
        summary = run.facts.summary
        batch, peak = summary.run.loader.batch_size, summary.gpu_mem_peak_bytes
        if peak is None or batch is None:
            continue
        static, gradients = fold_static_bytes(summary)
        points += [
            MemoryPoint(
                batch_size=batch,
                peak_bytes=rank_peak,
                pixels=pixels,
                static_bytes=static,
                gradient_bytes=gradients,
            )
            for rank_peak, pixels in (
                (peak, summary.largest_batch_pixels),
                *run.rank_peaks,
            )
        ]
    if points:
        return points
    why = 'its peak was not recorded'
    if runs[0].evidence.run.device != 'cuda':
        why = 'the runs trained on the CPU'
    return NoPrediction(_UNKNOWN_MEMORY.format(why=why))


def _describe(run: PooledRun) -> FittedRun:
    workload = run.facts.workload
    assert workload is not None  # else it had been left out
    return FittedRun(
        path=run.evidence.path,
        num_workers=workload.num_workers,
        prefetch_factor=workload.prefetch_factor if workload.num_workers else None,
        batch_size=workload.batch_size,
        iterations=workload.iterations,
        iter_time_s=workload.iter_time.mean_s,
        gpu_mem_peak_bytes=run.facts.summary.gpu_mem_peak_bytes,
    )
