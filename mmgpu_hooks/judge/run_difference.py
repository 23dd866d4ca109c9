"""What of two runs is not the same, apart from their speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import RunRecord, SettingComparison

_RUN = (
    'loop',
    'device',
    'world_size',
    'optim_wrapper',
    'accumulative_counts',
    'start_iteration',
)
_HOST = (
    'logical_cpus',
    'affinity_cpus',
    'cgroup_cpu_cores',
    'slurm_cpus',
    'ranks_on_host',
    'usable_cores',
    'ram_total_bytes',
    'cgroup_memory_bytes',
    'shm_total_bytes',
    'open_files_soft',
)
"""Limits that stay; what is free at the moment differs from run to run."""


def find_obstacles(before: Run, after: Run) -> list[str]:
    """Why the speeds of two runs say nothing about each other, in sentences.

    What is unknown of either is no obstacle.
    """
    sides = [
        {'batch size': run.run.loader.batch_size, **_read_nature(run)}
        for run in (before, after)
    ]
    return [
        f'The {what} is not the same: {old} in the first run, {new} in the second.'
        for what, old, new in _find_unequal(*sides)
    ]


def find_unlike(run: Run, other: Run) -> str | None:
    """Why two runs do not train the same on the same host: a clause, or ``None``.

    They may differ in the settings of the train loader, batch size included. What is
    unknown of either is no difference.
    """
    sides = [{**_read_nature(one), **_read_conditions(one)} for one in (run, other)]
    for what, here, there in _find_unequal(*sides):
        return f'the {what} is {there} there, and {here} in {run.path}'
    return None


def _find_unequal(
    old: Mapping[str, Any], new: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for what, value in old.items():
        if value is not None and new[what] is not None and value != new[what]:
            yield what, value, new[what]


def _read_nature(judged: Run) -> dict[str, Any]:
    """What makes a training another one, by how a sentence calls it."""
    run = judged.run
    return {
        'number of ranks': run.world_size,
        'device': run.device,
        'GPU': _gpu_name(run),
        'number of CPUs of the host': run.host.logical_cpus,
        'number of parameters of the model': (
            judged.model.parameters if judged.model else None
        ),
    }


def _read_conditions(judged: Run) -> dict[str, Any]:
    """What else costs depend on, by how a sentence calls it."""
    run, host = judged.run, judged.run.host
    return {
        'number of usable cores': host.cores_had,
        'number of ranks on the host': host.ranks_on_host,
        'memory of the GPU': run.gpu.memory_total_bytes if run.gpu else None,
        'optimizer wrapper': run.optim_wrapper,
        'number of steps whose gradients are added up': run.accumulative_counts,
        'number of images in the data set': run.loader.dataset_length,
        'start method of the workers': run.loader.start_method,
        'nice value of the workers': run.worker_nice or 0,
        'version of torch': run.versions.get('torch'),
    }


def find_settings(before: Run, after: Run) -> tuple[SettingComparison, ...]:
    """Settings, limits of the host and versions that differ, by dotted name."""
    old, new = dict(_read_all(before.run)), dict(_read_all(after.run))
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        SettingComparison(name, _text(old.get(name)), _text(new.get(name)))
        for name in names
        if old.get(name) != new.get(name)
    )


def _read_all(run: RunRecord) -> Iterator[tuple[str, Any]]:
    for name, value in asdict(run.loader).items():
        yield f'loader.{name}', value
    for name in _RUN:
        yield name, getattr(run, name)
    for name in _HOST:
        yield f'host.{name}', getattr(run.host, name)
    yield 'gpu', _gpu_name(run)
    yield 'gpu_driver', run.gpu.driver_version if run.gpu else None
    for package, version in run.versions.items():
        yield f'versions.{package}', version


def _gpu_name(run: RunRecord) -> str | None:
    return run.gpu.name if run.gpu else None


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
