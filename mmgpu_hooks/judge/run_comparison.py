"""Sets two runs against each other: what changed, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec.structs import asdict

from mmgpu_hooks.judge.columns import Column, Intervals, filled
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.model.stats import (
    LEAST_VALUES,
    SeriesMean,
    fold_difference,
    fold_mean,
    fold_ratio,
    fold_series,
)
from mmgpu_hooks.schema import (
    FigureComparison,
    RunComparison,
    RunRecord,
    SettingComparison,
)
from mmgpu_hooks.schema.parts import PARTS

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


ITER, RATE = 'iter_s', 'images_per_s'
FIGURES = (ITER, RATE, *(f'{part}_s' for part in PARTS))
"""Names of the figures that are compared, in their order."""

_NOTABLE_CORES = 0.5
"""Cores used by others that make a run a different one."""


def compare_runs(before: Run, after: Run) -> RunComparison:
    """Compare one rank's run with another run.

    The first interval of each is warm-up and left out. What an interval tells is
    averaged over intervals; their spread, with what neighbours have in common, gives
    the intervals of confidence. What differs from one start of the same training to
    the next is not in them.

    Args:
        before: The run compared with.
        after: The run that may be slower.

    Returns:
        All figures that can be had, with obstacles where speeds must not be compared.
    """
    means = [fold_figures(run.steady) for run in (before, after)]
    obstacles = find_obstacles(before, after)
    for name, run, mean in zip(('first', 'second'), (before, after), means):
        iteration = mean[ITER]
        if iteration is None or iteration.is_drift:
            obstacles.append(_too_short(name, run))
    return RunComparison(
        figures=tuple(
            _compare_figure(name, means[0][name], means[1][name]) for name in FIGURES
        ),
        settings=find_settings(before, after),
        obstacles=tuple(obstacles),
        notes=tuple(_note(before, after)),
    )


def fold_figures(
    intervals: Intervals, least: int = LEAST_VALUES
) -> dict[str, SeriesMean | None]:
    """The mean of each of :data:`FIGURES` over a run's intervals, with its error.

    Args:
        intervals: Those that count, warm-up left out.
        least: Intervals that are enough.

    Returns:
        ``None`` for a figure that too few intervals tell.
    """
    counts = intervals.column('iterations')
    found: dict[str, SeriesMean | None] = {}
    for name, values in _read_figures(intervals, counts).items():
        known = ~np.isnan(values)
        found[name] = fold_series(values[known].tolist(), counts[known].tolist(), least)
    return found


@np.errstate(divide='ignore', invalid='ignore', over='ignore')
def _read_figures(intervals: Intervals, counts: Column) -> dict[str, Column]:
    """Means per iteration of each interval; NaN is unknown."""
    # as in a Run: the first wait of an epoch is no steady one
    others = counts - filled(intervals.column('first_waits'))
    first_s = filled(intervals.column('first_wait_s'))
    calm_s = np.maximum(intervals.column('data_wait.total_s') - first_s, 0.0)
    hooks_s = filled(intervals.column('ledger_s', 'hooks'))
    busy_s = intervals.column('step.total_s') + hooks_s
    iter_s = np.where(others > 0, calm_s / others + busy_s / counts, np.nan)
    figures = {ITER: iter_s, RATE: intervals.column('images') / counts / iter_s}
    for part in PARTS:
        figures[f'{part}_s'] = intervals.column('ledger_s', part) / counts
    # nothing took place, or in no time
    return {n: np.where(np.isfinite(one), one, np.nan) for n, one in figures.items()}


def _compare_figure(
    name: str, before: SeriesMean | None, after: SeriesMean | None
) -> FigureComparison:
    if before is None or after is None:
        sides = [fold_mean(side) if side else None for side in (before, after)]
        return FigureComparison(name, sides[0], sides[1], None, None)
    return FigureComparison(
        name=name,
        before=fold_mean(before),
        after=fold_mean(after),
        difference=fold_difference(before, after),
        ratio=fold_ratio(before, after),
    )


def _too_short(name: str, run: Run) -> str:
    intervals = len(run.steady)
    if intervals < LEAST_VALUES:
        more = (LEAST_VALUES - intervals) * run.run.interval_iterations
        found = f'{intervals} intervals after the warm-up, {LEAST_VALUES} needed'
        longer = f' (about {more} iterations more)' if more else ''
        return f'The {name} run is too short: {found}{longer}.'
    return (
        f'The {name} run is too short for how much it drifts: its {intervals} '
        'intervals count for less than two independent ones.'
    )


def _note(before: Run, after: Run) -> Iterator[str]:
    cores = [run.external_cpu_cores for run in (before, after)]
    known = [used for used in cores if used is not None]
    if len(known) == 2 and abs(known[0] - known[1]) >= _NOTABLE_CORES:
        yield (
            f'Others used {known[0]:.1f} cores of the host during the first run and '
            f'{known[1]:.1f} during the second: a part of the difference may be theirs.'
        )
    for name, run in (('first', before), ('second', after)):
        if run.run.world_size > 1:
            yield (
                f'Of the {name} run, rank {run.run.rank} of {run.run.world_size} is '
                'compared.'
            )
        yield from run.notes
