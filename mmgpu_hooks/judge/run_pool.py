"""Fits the step and the memory over the batch size to several runs. Pure.

Everything else is that of the newest run alone, which is the one that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mmgpu_hooks.judge.columns import read_field
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.batches import (
    MemoryFit,
    MemoryPoint,
    fit_batch_memory,
    fit_step_line,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import FittedRun, NoPrediction

NATURE = {
    'number of ranks': 'run.world_size',
    'device': 'run.device',
    'GPU': 'run.gpu.name',
    'number of CPUs of the host': 'run.host.logical_cpus',
    'number of parameters of the model': 'model.parameters',
}
"""What makes a training another one, by how a sentence calls it."""

_CONDITIONS = {
    'number of usable cores': 'run.host.cores_had',
    'number of ranks on the host': 'run.host.ranks_on_host',
    'memory of the GPU': 'run.gpu.memory_total_bytes',
    'optimizer wrapper': 'run.optim_wrapper',
    'number of steps whose gradients are added up': 'run.accumulative_counts',
    'number of images in the data set': 'run.loader.dataset_length',
    'start method of the workers': 'run.loader.start_method',
    'nice value of the workers': 'run.worker_nice',
    'version of torch': 'run.versions.torch',
}
"""What else costs depend on."""


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
        return RunPool(newest, None, NoPrediction(newest.why_no_workload))
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
        memory=_fit_memory(belonging),
        notes=tuple(notes),
    )


def find_newest(runs: Sequence[Run]) -> Run:
    """The newest run that tells enough, else the newest."""
    ordered = _by_age(runs)
    return next((run for run in ordered if run.workload), ordered[0])


def _by_age(runs: Sequence[Run]) -> list[Run]:
    return sorted(runs, key=lambda run: run.run.started_unix_s, reverse=True)


def _why_left_out(newest: Run, run: Run) -> str | None:
    """Why two runs do not train the same on the same host: a clause, or ``None``.

    They may differ in the settings of the train loader, batch size included. What is
    unknown of either is no difference.
    """
    for what, here, there in find_unequal(newest, run, {**NATURE, **_CONDITIONS}):
        return f'the {what} is {there} there, and {here} in {newest.path}'
    if run.workload is None:
        return run.why_no_workload.rstrip('.')
    for one in (newest, run):
        if one.workload is None or one.workload.batch_size is None:
            return f'the batch size of {one.path} is unknown'
    return None


def find_unequal(
    old: Run, new: Run, fields: dict[str, str]
) -> Iterator[tuple[str, Any, Any]]:
    """What is known of both runs and not the same: its name, and both."""
    for what, field in fields.items():
        before, after = read_field(old, field), read_field(new, field)
        if field.endswith('worker_nice'):
            # the hook left it alone
            before, after = before or 0, after or 0
        if before is not None and after is not None and before != after:
            yield what, before, after


def _memory_points(runs: Sequence[Run]) -> list[MemoryPoint]:
    """The peak of each rank beside what is always there, as far as that was counted."""
    names = ('parameter', 'gradient', 'optimizer_state', 'buffer', 'ema')
    points = []
    for run in runs:
        batch = run.run.loader.batch_size
        parts = [getattr(run.model, f'{name}_bytes', None) for name in names]
        counted = [part for part in parts if part is not None]
        static = sum(counted) if len(counted) == len(parts) else None
        # any rank can run out of memory
        for rank in (run, *run.other_ranks) if run.gpu_mem_peak_bytes else ():
            if batch is not None and rank.gpu_mem_peak_bytes is not None:
                points.append(
                    MemoryPoint(
                        batch_size=batch,
                        peak_bytes=rank.gpu_mem_peak_bytes,
                        pixels=rank.largest_batch_pixels,
                        static_bytes=static,
                        gradient_bytes=parts[1] or 0,
                    )
                )
    return points


def _fit_memory(runs: Sequence[Run]) -> MemoryFit | NoPrediction:
    points = _memory_points(runs)
    if points:
        return fit_batch_memory(points)
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
