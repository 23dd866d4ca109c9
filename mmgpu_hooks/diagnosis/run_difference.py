"""What of two runs is not the same, apart from their speed. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from mmgpu_hooks.records import RunEvidence, RunRecord, SettingComparison

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


def find_obstacles(before: RunEvidence, after: RunEvidence) -> list[str]:
    """Why the speeds of two runs say nothing about each other, in sentences.

    What is unknown of either is no obstacle.
    """
    pairs: list[tuple[str, Any, Any]] = [
        ('batch size', before.run.loader.batch_size, after.run.loader.batch_size),
        ('number of ranks', before.run.world_size, after.run.world_size),
        ('device', before.run.device, after.run.device),
        ('GPU', _gpu_name(before.run), _gpu_name(after.run)),
        (
            'number of CPUs of the host',
            before.run.host.logical_cpus,
            after.run.host.logical_cpus,
        ),
        (
            'number of parameters of the model',
            before.model.parameters if before.model else None,
            after.model.parameters if after.model else None,
        ),
    ]
    return [
        f'The {what} is not the same: {old} in the first run, {new} in the second.'
        for what, old, new in pairs
        if old is not None and new is not None and old != new
    ]


def find_settings(
    before: RunEvidence, after: RunEvidence
) -> tuple[SettingComparison, ...]:
    """Settings, limits of the host and versions that differ, by dotted name."""
    old, new = dict(_read_all(before.run)), dict(_read_all(after.run))
    names = [*old, *(name for name in new if name not in old)]
    return tuple(
        SettingComparison(name, _text(old.get(name)), _text(new.get(name)))
        for name in names
        if old.get(name) != new.get(name)
    )


def _read_all(run: RunRecord) -> Iterator[tuple[str, Any]]:
    for field in fields(run.loader):
        yield f'loader.{field.name}', getattr(run.loader, field.name)
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
