"""Fits step time and GPU memory against batch size to several runs; no I/O.

Everything else is that of the newest run alone, which is the one that is judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from mmgpu_hooks.judge.columns import median, read_field
from mmgpu_hooks.judge.figures import find_fullest_bytes
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.batches import (
    CardMemory,
    StepPoint,
    fit_batch_memory,
    fit_step_line,
)
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.memory import MeasuredPeak
from mmgpu_hooks.schema.text import Text, phrase, sentences

NATURE: dict[str, str] = {
    phrase('number of ranks'): 'meta.world_size',
    phrase('device'): 'meta.device',
    phrase('GPU'): 'meta.gpu.name',
    phrase('number of CPUs of the host'): 'meta.host.logical_cpus',
    phrase('number of parameters of the model'): 'meta.parameters',
}
"""Record fields that must be equal in runs of one training, by display name."""

_CONDITIONS: dict[str, str] = {
    phrase('number of usable cores'): 'meta.host.cores_had',
    phrase('optimizer wrapper'): 'meta.optim_wrapper',
    phrase('number of steps whose gradients are added up'): 'meta.accumulative_counts',
    phrase('number of images in the data set'): 'meta.loader.dataset_length',
}
"""Record fields that affect the times of a training, by display name."""

_LARGER = 1.5
"""Ratio of bytes per image from which images count as different in size."""


@dataclass(frozen=True)
class RunPool:
    """Comparable runs of one training, with step time and memory fitted to all."""

    newest: Run
    """Newest run with enough measurements to predict from: the run that is judged."""
    workload: Workload | None
    """Loading times of the newest run, with the step time fitted over all runs.

    ``None`` when none has enough evidence.
    """
    memory: CardMemory
    fitted: Mapping[str, int | None] = field(default_factory=dict)
    """Batch size of each run with fitted times, by evidence file, newest first."""
    notes: tuple[Text, ...] = ()
    """Sentences on the runs that step time and memory were not fitted to."""


def pool_runs(runs: Sequence[Run]) -> RunPool:
    """Fits step time and memory to the newest run and the runs comparable to it.

    Args:
        runs: At least one.
    """
    runs = sorted(runs, key=lambda run: run.meta.started_unix_s, reverse=True)
    newest = next((run for run in runs if run.workload), runs[0])
    if newest.workload is None:
        return RunPool(newest, None, CardMemory(None, newest.why_no_workload))
    fitted, notes = [newest], list[Text]()
    for run in runs:
        why = _why_left_out(newest, run)
        if why is not None:
            left_out = phrase('{path} is left out.', path=str(run.path))
            notes.append(sentences(left_out, why))
        elif run is not newest:
            fitted.append(run)
    memory, workload = _fit_memory(fitted), newest.workload
    if len(fitted) > 1:
        loads = [run.workload for run in fitted if run.workload]
        points = [
            StepPoint(load.batch_size, load.step) for load in loads if load.batch_size
        ]
        try:
            workload = replace(workload, step_line=fit_step_line(points))
        except NoPredictionError as error:
            alone = phrase('The newest run is judged by itself.')
            notes.append(sentences(error.said, alone))
            fitted = fitted[:1]
    sizes = {run.path: run.meta.loader.batch_size for run in fitted}
    return RunPool(newest, workload, memory, sizes, tuple(notes))


def _why_left_out(newest: Run, run: Run) -> Text | None:
    """Returns why a run is not fitted together with the newest; ``None`` if it is.

    The two may differ in the settings of the train loader, batch size included.
    """
    for unequal in find_unequal(newest, run, {**NATURE, **_CONDITIONS}):
        return phrase(
            'The {name} is {after} there, and {before} in {path}.',
            name=unequal.name,
            after=str(unequal.after),
            before=str(unequal.before),
            path=str(newest.path),
        )
    here, there = _measure_image(newest), _measure_image(run)
    if here and there and max(here, there) > _LARGER * min(here, there):
        return phrase(
            'Its images have another size: {there_image_mib:.2f} MiB each, and '
            '{here_image_mib:.2f} MiB in {path}.',
            there_image_mib=there / 2**20,
            here_image_mib=here / 2**20,
            path=str(newest.path),
        )
    return run.why_no_workload or None


def _measure_image(run: Run) -> float | None:
    """Computes the bytes of one image's tensors, from the median bytes of a batch."""
    size, batch_bytes = run.meta.loader.batch_size, median(run.column('batch_bytes'))
    return batch_bytes / size if size and batch_bytes else None


class Unequal(NamedTuple):
    """Field of the run record whose known values differ between two runs."""

    name: str
    before: Any
    after: Any


def find_unequal(old: Run, new: Run, fields: Mapping[str, str]) -> Iterator[Unequal]:
    """Finds the record fields whose values are known in both runs and differ.

    Args:
        old: The first run.
        new: The second one.
        fields: Dotted paths from a run on, by how a sentence calls them.
    """
    for name, path in fields.items():
        before, after = read_field(old, path), read_field(new, path)
        if before is not None and after is not None and before != after:
            yield Unequal(name, before, after)


def _fit_memory(runs: Sequence[Run]) -> CardMemory:
    """Fits GPU memory against batch size to each run's largest peak over its ranks."""
    points = []
    for run in runs:
        batch_size, peak_bytes = run.meta.loader.batch_size, find_fullest_bytes(run)
        if batch_size and peak_bytes:
            points.append(MeasuredPeak(batch_size, peak_bytes))
    if not points:
        why = phrase(
            'The memory of the card is unknown: its peak was not recorded, as in a '
            'training on the CPU.'
        )
        return CardMemory(None, why)
    try:
        return CardMemory(fit_batch_memory(points))
    except NoPredictionError as error:
        return CardMemory(None, error.said)
