"""Sets two runs against each other: what changed, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.diagnosis.run_difference import find_obstacles, find_settings
from mmgpu_hooks.evidence.interval_table import IntervalTable
from mmgpu_hooks.evidence.ledger_parts import PARTS
from mmgpu_hooks.evidence.summary import fold_run, steady_intervals
from mmgpu_hooks.evidence.tabulation import tabulate
from mmgpu_hooks.modeling.series import (
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
    RunEvidence,
)

ITER, RATE = 'iter_s', 'images_per_s'
FIGURES = (ITER, RATE, *(f'{part}_s' for part in PARTS))
"""Names of the figures that are compared, in their order."""

_NOTABLE_CORES = 0.5
"""Cores used by others that make a run a different one."""


def compare_runs(before: RunEvidence, after: RunEvidence) -> RunComparison:
    """Compare one rank's evidence with that of another run.

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
    means = [
        fold_figures(steady_intervals(tabulate(evidence.intervals)))
        for evidence in (before, after)
    ]
    obstacles = find_obstacles(before, after)
    for name, evidence, mean in zip(('first', 'second'), (before, after), means):
        iteration = mean[ITER]
        if iteration is None or iteration.is_drift:
            obstacles.append(_too_short(name, evidence))
    return RunComparison(
        figures=tuple(
            _compare_figure(name, means[0][name], means[1][name]) for name in FIGURES
        ),
        settings=find_settings(before, after),
        obstacles=tuple(obstacles),
        notes=tuple(_note(before, after)),
    )


def fold_figures(
    table: IntervalTable, least: int = LEAST_VALUES
) -> dict[str, SeriesMean | None]:
    """The mean of each of :data:`FIGURES` over a run's intervals, with its error.

    Args:
        table: The intervals that count, warm-up left out.
        least: Intervals that are enough.

    Returns:
        ``None`` for a figure that too few intervals tell.
    """
    counts = [count or 0 for count in table.ints('iterations')]
    folded: dict[str, SeriesMean | None] = {}
    for name, values in _read_figures(table, counts).items():
        known = [(v, float(w)) for v, w in zip(values, counts) if v is not None]
        folded[name] = fold_series([v for v, _ in known], [w for _, w in known], least)
    return folded


def _read_figures(
    table: IntervalTable, counts: Sequence[int]
) -> dict[str, list[float | None]]:
    """Means per iteration of each interval; ``None`` is unknown."""
    iter_s = [
        _steady_iter_s(*row)
        for row in zip(
            counts,
            table.ints('first_waits'),
            table.floats('first_wait_s'),
            table.floats('data_wait', 'total_s'),
            table.floats('step', 'total_s'),
            table.floats('ledger_s', 'hooks'),
        )
    ]
    images = [
        _per(images, count) for images, count in zip(table.ints('images'), counts)
    ]
    figures = {
        ITER: iter_s,
        RATE: [_per(number, seconds) for number, seconds in zip(images, iter_s)],
    }
    for part in PARTS:
        column = table.floats('ledger_s', part)
        figures[f'{part}_s'] = [_per(s, count) for s, count in zip(column, counts)]
    return figures


def _per(value: float | None, whole: float | None) -> float | None:
    return value / whole if value is not None and whole else None


def _steady_iter_s(
    count: int,
    first_waits: int | None,
    first_wait_s: float | None,
    waits_s: float | None,
    step_s: float | None,
    hooks_s: float | None,
) -> float | None:
    """As in RunSummary: the first wait of an epoch is no steady one."""
    others = count - (first_waits or 0)
    if others <= 0 or waits_s is None or step_s is None:
        return None
    calm_s = max(waits_s - (first_wait_s or 0.0), 0.0)
    return calm_s / others + (step_s + (hooks_s or 0.0)) / count


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


def _too_short(name: str, evidence: RunEvidence) -> str:
    intervals = len(steady_intervals(tabulate(evidence.intervals)))
    if intervals < LEAST_VALUES:
        more = (LEAST_VALUES - intervals) * evidence.run.interval_iterations
        found = f'{intervals} intervals after the warm-up, {LEAST_VALUES} needed'
        longer = f' (about {more} iterations more)' if more else ''
        return f'The {name} run is too short: {found}{longer}.'
    return (
        f'The {name} run is too short for how much it drifts: its {intervals} '
        'intervals count for less than two independent ones.'
    )


def _note(before: RunEvidence, after: RunEvidence) -> Iterator[str]:
    cores = [fold_run(evidence).external_cpu_cores for evidence in (before, after)]
    known = [used for used in cores if used is not None]
    if len(known) == 2 and abs(known[0] - known[1]) >= _NOTABLE_CORES:
        yield (
            f'Others used {known[0]:.1f} cores of the host during the first run and '
            f'{known[1]:.1f} during the second: a part of the difference may be theirs.'
        )
    for name, evidence in (('first', before), ('second', after)):
        if evidence.run.world_size > 1:
            yield (
                f'Of the {name} run, rank {evidence.run.rank} of '
                f'{evidence.run.world_size} is compared.'
            )
        yield from evidence.notes
