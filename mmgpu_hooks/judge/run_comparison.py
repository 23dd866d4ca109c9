"""Compares two training runs: differences, with confidence intervals; no I/O.

The intervals of a run are taken for an autoregressive series, since neighbours resemble
each other. One estimate of its coefficient would make intervals of short runs too
short, or endless, so they are averaged over all coefficients.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import asdict

from mmgpu_hooks.judge.columns import Column, Intervals, filled, read_field
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import NATURE, find_unequal
from mmgpu_hooks.model import stats
from mmgpu_hooks.schema.judged import (
    FASTER,
    NO_DIFFERENCE,
    SLOWER,
    Estimate,
    FigureComparison,
    RunComparison,
    SettingTexts,
)
from mmgpu_hooks.schema.recorded import PARTS, RunRecord
from mmgpu_hooks.schema.text import phrase

ITER, RATE = 'iter_s', 'images_per_s'
FIGURES = (ITER, RATE, *(f'{part}_s' for part in PARTS))
"""Names of the measured values that two runs are compared by, in table order."""

_NOTABLE_CORES = 0.5
"""Smallest difference in cores used by other programs that a comparison mentions."""

_SETTINGS = (
    'loop',
    'device',
    'world_size',
    'optim_wrapper',
    'accumulative_counts',
    'start_iteration',
    'gpu.name',
    'gpu.driver_version',
)
_CHANGING = 'host.ram_available_bytes', 'host.shm_free_bytes'
"""Host limits ignored in comparisons, as they differ from run to run: free memory."""


def compare_runs(before: Run, after: Run) -> RunComparison:
    """Compares the speed of one rank's run with that of another run.

    The first interval of each is warm-up and left out. The figures of intervals
    are averaged; their spread gives the confidence intervals, which allow for
    neighbours that resemble each other. What differs from one start of the same
    training to the next is not in them.

    Args:
        before: The run compared with.
        after: The run that may be slower.

    Returns:
        All figures that can be had, with obstacles where speeds must not be compared.
    """
    obstacles = [
        phrase(
            'The {name} is not the same: {before} in the first run, {after} in the '
            'second.',
            name=unequal.name,
            before=str(unequal.before),
            after=str(unequal.after),
        )
        for unequal in find_unequal(
            before, after, {phrase('batch size'): 'meta.loader.batch_size', **NATURE}
        )
    ]
    notes = [*before.notes, *after.notes]
    old_means = summarize_figures(before.steady)
    new_means = summarize_figures(after.steady)
    for which, run, means in (
        (phrase('first'), before, old_means),
        (phrase('second'), after, new_means),
    ):
        iteration, count = means[ITER], len(run.steady)
        if iteration is None or iteration.value <= 0.0:
            more = max(stats.LEAST_VALUES - count, 1) * run.meta.interval_iterations
            obstacles.append(
                phrase(
                    'The {which} run is too short (intervals after the warm-up: '
                    '{steady_intervals:d}); train at least {missing_iterations:d} more '
                    'iterations.',
                    which=which,
                    steady_intervals=count,
                    missing_iterations=more,
                )
            )
        if run.meta.world_size > 1:
            notes.append(
                phrase(
                    'Of the {which} run, rank {rank} of {world_size} is compared.',
                    run.meta,
                    which=which,
                )
            )
    old, new = before.figures.external_cpu_cores, after.figures.external_cpu_cores
    if old is not None and new is not None and abs(old - new) >= _NOTABLE_CORES:
        others = phrase(
            'Others used {before_cores:.1f} cores in the first run and '
            '{after_cores:.1f} in the second: part of the difference may be theirs.',
            before_cores=old,
            after_cores=new,
        )
        notes.insert(0, others)
    figures = {
        name: _compare_figure(name, old_means[name], new_means[name])
        for name in FIGURES
    }
    return RunComparison(
        before=before.path,
        after=after.path,
        verdict=None if obstacles else _judge_change(figures[ITER].difference),
        figures=tuple(figures.values()),
        settings=find_settings(before, after),
        obstacles=tuple(obstacles),
        notes=tuple(notes),
    )


def _judge_change(change: Estimate | None) -> str | None:
    """Judges a time's change as slower or faster if its confidence interval lacks 0."""
    if change is None:
        return None
    if change.low > 0:
        return SLOWER
    return FASTER if change.high < 0 else NO_DIFFERENCE


def find_settings(before: Run, after: Run) -> dict[str, SettingTexts]:
    """Finds the settings, limits of the host and versions in which two runs differ."""
    old, new = _read_settings(before.meta), _read_settings(after.meta)
    return {
        name: SettingTexts(old.get(name), new.get(name))
        for name in {**old, **new}
        if old.get(name) != new.get(name)
    }


def _read_settings(meta: RunRecord) -> dict[str, str]:
    """Reads the known settings, limits of the host and versions of a run, as text."""
    groups = {
        '': {name: read_field(meta, name) for name in _SETTINGS},
        'loader.': asdict(meta.loader),
        'host.': asdict(meta.host),
        'versions.': meta.versions,
    }
    return {
        group + name: str(value)
        for group, values in groups.items()
        for name, value in values.items()
        if value is not None and group + name not in _CHANGING
    }


def summarize_figures(
    intervals: Intervals, least: int = stats.LEAST_VALUES
) -> dict[str, stats.SeriesMean | None]:
    """Computes the mean of each compared value over a run, with its standard error.

    Args:
        intervals: Those that count, warm-up left out.
        least: Intervals that are enough.

    Returns:
        ``None`` for a figure that too few intervals tell.
    """
    counts = intervals.column('iterations')
    figures, found = _read_figures(intervals, counts), {}
    for name, values in figures.items():
        is_known = np.isfinite(values)
        # a rate is of seconds: all images over all the time
        weight = counts * figures[ITER] if name == RATE else counts
        series = values[is_known].tolist(), weight[is_known].tolist()
        found[name] = stats.summarize_series(*series, least)
    return found


@np.errstate(divide='ignore', invalid='ignore', over='ignore')
def _read_figures(intervals: Intervals, counts: Column) -> dict[str, Column]:
    """Reads the compared values of each log interval; NaN and infinity are unknown."""
    # as in a Run: the first wait of an epoch is no steady one
    others = counts - filled(intervals.column('first_waits'))
    first_s = filled(intervals.column('first_wait_s'))
    calm_s = np.maximum(intervals.column('data_wait.total_s') - first_s, 0.0)
    hooks_s = filled(intervals.column('ledger_s', 'hooks'))
    busy_s = intervals.column('step.total_s') + hooks_s
    iter_s = np.where(others > 0, calm_s / others + busy_s / counts, np.nan)
    parts = {f'{part}_s': intervals.column('ledger_s', part) / counts for part in PARTS}
    return {ITER: iter_s, RATE: intervals.column('images') / counts / iter_s, **parts}


def _compare_figure(
    name: str, before: stats.SeriesMean | None, after: stats.SeriesMean | None
) -> FigureComparison:
    return FigureComparison(
        name,
        stats.estimate_mean(before) if before else None,
        stats.estimate_mean(after) if after else None,
        stats.estimate_difference(before, after) if before and after else None,
    )
