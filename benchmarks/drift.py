"""Benchmark of ``mmgpu compare``: coverage of confidence intervals on drifting runs.

Pairs of runs are simulated whose intervals resemble their neighbours (AR(1)), by how
much is unknown, some with a linear drift or a level shift on top. The difference of
their means is planted, and its 95 % interval, as `mmgpu compare` states it, must hold
it: that is the coverage. Its width is set beside the interval of somebody who knows the
correlation. The truth of a run that drifts or shifts is its mean from start to end.
Then runs like those of the demo are compared. About 5 minutes.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.harness import (
    Benchmark,
    Figure,
    ask,
    at_least,
    at_most,
    exactly,
    say,
)
from benchmarks.markdown import render_table
from mmgpu_hooks.model.stats import estimate_difference, student_t, summarize_series
from mmgpu_hooks.schema.judged import FASTER, Estimate

LENGTHS = (10, 18, 30, 60, 100, 200)
CORRELATIONS = (0.0, 0.2, 0.4, 0.6, 0.8)
BEYOND = 0.95
"""Highest simulated autocorrelation, for which confidence intervals are not judged."""
PAIRS, TREND_PAIRS, QUICK_PAIRS = 1000, 300, 50
"""Numbers of simulated run pairs per grid cell: by default, with trend, if quick."""
LEAST_COVERAGE_PCT = 93.0
MOST_WIDTHS = {30: 2.0, 100: 1.4}
"""Largest allowed ratio of confidence interval width to the ideal, by series length."""
DEMO_LENGTH = 18
LEAST_SIGNS_PCT = 99.0
GOLDEN = Path(__file__).resolve().parents[1] / 'tests/golden'

"""Folder of recorded trainings for tests, including two trainings of the demo."""

Array = npt.NDArray[np.float64]
Lots = np.random.Generator


@dataclass(frozen=True)
class Pairs:
    """Simulated series of two runs to compare, as arrays with one pair of runs per row.

    Attributes:
        before: Values of the first runs.
        after: Values of the second runs.
        weights: Of the values, the same for both.
        correlations: Of neighbours in the first and in the second run.
        differences: Planted, ``after - before``.
    """

    before: Array
    after: Array
    weights: Array
    correlations: tuple[float, float]
    differences: Array


def correlate(length: int, correlation: float) -> Array:
    """Returns the correlation matrix of an AR(1) series."""
    places = np.arange(length)
    return np.asarray(correlation ** np.abs(places[:, None] - places), float)


def draw_series(lots: Lots, pairs: int, length: int, correlation: float) -> Array:
    """Draws stationary AR(1) series with mean 0 and variance 1, one per row."""
    factor = np.linalg.cholesky(correlate(length, correlation))
    return np.asarray(lots.standard_normal((pairs, length)) @ factor.T)


def simulate_equal(lots: Lots, pairs: int, length: int, correlation: float) -> Pairs:
    """Simulates pairs of runs with equal mean, spread and autocorrelation."""
    before, after = (draw_series(lots, pairs, length, correlation) for _ in range(2))
    both = correlation, correlation
    return Pairs(before, after, np.ones(length), both, np.zeros(pairs))


def simulate_weighted(lots: Lots, pairs: int, length: int, correlation: float) -> Pairs:
    """Simulates pairs of equal runs with 5 to 50 iterations per log interval."""
    runs = simulate_equal(lots, pairs, length, correlation)
    weights = lots.integers(5, 51, length).astype(float)
    return Pairs(runs.before, runs.after, weights, runs.correlations, runs.differences)


def simulate_unlike(lots: Lots, pairs: int, length: int, correlation: float) -> Pairs:
    """Simulates pairs whose second run has three times the standard deviation."""
    before = draw_series(lots, pairs, length, 0.0)
    after = 3 * draw_series(lots, pairs, length, correlation)
    return Pairs(before, after, np.ones(length), (0.0, correlation), np.zeros(pairs))


def simulate_drift(lots: Lots, pairs: int, length: int, correlation: float) -> Pairs:
    """Simulates pairs whose second run drifts by up to 3 standard deviations."""
    runs = simulate_equal(lots, pairs, length, correlation)
    drift = lots.uniform(-3, 3, (pairs, 1)) * np.linspace(0, 1, length)
    after = runs.after + drift
    return Pairs(
        runs.before, after, runs.weights, runs.correlations, drift.mean(axis=1)
    )


def simulate_shift(lots: Lots, pairs: int, length: int, correlation: float) -> Pairs:
    """Simulates pairs whose second run jumps once, by up to 3 standard deviations."""
    runs = simulate_equal(lots, pairs, length, correlation)
    is_late = np.arange(length) >= lots.integers(1, length, (pairs, 1))
    shift = lots.uniform(-3, 3, (pairs, 1)) * is_late
    after = runs.after + shift
    return Pairs(
        runs.before, after, runs.weights, runs.correlations, shift.mean(axis=1)
    )


Simulate = Callable[[Lots, int, int, float], Pairs]
KINDS: dict[str, Simulate] = {
    'equal weights': simulate_equal,
    'unequal weights': simulate_weighted,
    'linear drift': simulate_drift,
    'level shift': simulate_shift,
    'unlike runs': simulate_unlike,
}
WITHOUT_TREND = ('equal weights', 'unequal weights', 'unlike runs')
"""Names of simulations without drift or jump, for which ideal intervals are known."""


@dataclass(frozen=True)
class Cell:
    """Cell of the benchmark's grid: kind of simulation, series length, correlation.

    Attributes:
        kind: Of :data:`KINDS`.
        length: Intervals of each run.
        correlation: Of neighbours.
        pairs: Simulated.
    """

    kind: str
    length: int
    correlation: float
    pairs: int


@dataclass(frozen=True)
class Outcome:
    """Coverage and width of the confidence intervals in one cell of the grid.

    Attributes:
        cell: The cell.
        coverage_pct: Share of the intervals that hold the planted difference.
        width: Mean width over that with the correlation known.
    """

    cell: Cell
    coverage_pct: float
    width: float


def judge_cell(cell: Cell) -> Outcome:
    """Simulates pairs of runs for a cell; computes coverage and interval widths."""
    kind = list(KINDS).index(cell.kind)
    lots = np.random.default_rng([kind, cell.length, round(100 * cell.correlation)])
    runs = KINDS[cell.kind](lots, cell.pairs, cell.length, cell.correlation)
    held, widths = [], []
    for before, after, difference in zip(runs.before, runs.after, runs.differences):
        estimate = compare_series(before, after, runs.weights)
        held.append(estimate.low <= difference <= estimate.high)
        widths.append(estimate.half_width)
    known = float(np.mean(list(find_known_half_widths(runs))))
    return Outcome(cell, 100 * float(np.mean(held)), float(np.mean(widths)) / known)


def compare_series(before: Array, after: Array, weights: Array) -> Estimate:
    """Estimates the mean difference of two series as ``mmgpu compare`` does."""
    first, second = (
        summarize_series(run.tolist(), weights.tolist()) for run in (before, after)
    )
    assert first is not None and second is not None
    return estimate_difference(first, second)


def find_known_half_widths(runs: Pairs) -> Iterator[float]:
    """Yields ideal half widths of confidence intervals, from known autocorrelations."""
    degrees = runs.before.shape[1] - 1
    first, second = (
        find_known_variances(values, runs.weights, correlation)
        for values, correlation in zip((runs.before, runs.after), runs.correlations)
    )
    for old, new in zip(first, second):
        both = (old + new) ** 2 / (old**2 / degrees + new**2 / degrees)
        yield student_t(0.975, both) * (old + new) ** 0.5


def find_known_variances(values: Array, weights: Array, correlation: float) -> Array:
    """Computes the variance of the mean of each series by generalised least squares."""
    matrix = correlate(values.shape[1], correlation)
    inverse = np.linalg.inv(matrix)
    means = values @ inverse.sum(axis=0) / inverse.sum()
    away = values - means[:, None]
    squares = np.einsum('ij,jk,ik->i', away, inverse, away)
    variance = weights @ matrix @ weights / weights.sum() ** 2
    return np.asarray(squares / (values.shape[1] - 1) * variance)


@dataclass(frozen=True)
class Demo:
    """Range (seconds) and autocorrelation of the iteration times in one demo training.

    Attributes:
        low_s: The shortest interval's mean.
        high_s: The longest interval's mean.
        correlation: Of neighbours, as estimated from the series itself.
    """

    low_s: float
    high_s: float
    correlation: float


DEMO_BEFORE = Demo(0.594, 0.790, 0.68)
DEMO_AFTER = Demo(0.293, 0.443, 0.54)


def simulate_demo(lots: Lots, demo: Demo) -> Array:
    """Simulates iteration seconds with about a demo run's range and autocorrelation."""
    while True:
        (series,) = draw_series(lots, 1, DEMO_LENGTH, demo.correlation)
        away = series - series.mean()
        if abs(away[:-1] @ away[1:] / (away @ away) - demo.correlation) < 0.05:
            share = (series - series.min()) / np.ptp(series)
            return np.asarray(demo.low_s + share * (demo.high_s - demo.low_s))


def judge_demo(pairs: int) -> list[Figure]:
    """Returns figures on how often ``mmgpu compare`` finds the faster demo run."""
    lots, weights = np.random.default_rng(18), np.ones(DEMO_LENGTH)
    signs = [
        compare_series(
            simulate_demo(lots, DEMO_BEFORE), simulate_demo(lots, DEMO_AFTER), weights
        ).high
        < 0
        for _ in range(pairs)
    ]
    folders = [str(GOLDEN / name / 'run') for name in ('rtmdet_before', 'rtmdet_after')]
    verdict = ask('compare', *folders)['verdict']
    return [
        exactly('recorded demo: called faster', int(verdict == FASTER), 1),
        at_least(
            'demos that drift: called faster',
            100 * float(np.mean(signs)),
            LEAST_SIGNS_PCT,
            '%',
            f'{pairs} simulated pairs, lag-1 correlations {DEMO_BEFORE.correlation:g} '
            f'and {DEMO_AFTER.correlation:g}',
        ),
    ]


def judge_coverage(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Returns figures on the lowest coverage of ``mmgpu compare``'s 95 % intervals."""
    for kind in KINDS:
        mine = [
            outcome
            for outcome in outcomes
            if outcome.cell.kind == kind and outcome.cell.correlation != BEYOND
        ]
        if mine:
            lowest = min(mine, key=lambda outcome: outcome.coverage_pct)
            yield at_least(
                f'{kind}: coverage, lowest',
                lowest.coverage_pct,
                LEAST_COVERAGE_PCT,
                '%',
                _locate(lowest.cell),
            )
    beyond = [outcome for outcome in outcomes if outcome.cell.correlation == BEYOND]
    if beyond:
        lowest = min(beyond, key=lambda outcome: outcome.coverage_pct)
        name = f'correlation {BEYOND:g}: coverage, lowest'
        yield Figure(
            name, lowest.coverage_pct, '%', note=f'no target; {_locate(lowest.cell)}'
        )


def judge_widths(outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Returns figures on the widest 95 % confidence intervals of ``mmgpu compare``."""
    for kind, (length, limit) in product(WITHOUT_TREND, MOST_WIDTHS.items()):
        mine = [
            outcome
            for outcome in outcomes
            if outcome.cell.kind == kind
            and outcome.cell.length >= length
            and outcome.cell.correlation != BEYOND
        ]
        if mine:
            widest = max(mine, key=lambda outcome: outcome.width)
            yield at_most(
                f'{kind}: width, {length} intervals on',
                widest.width,
                limit,
                'times',
                _locate(widest.cell),
            )


def _locate(cell: Cell) -> str:
    return (
        f'length {cell.length}, correlation {cell.correlation:g}, {cell.pairs:,} pairs'
    )


def render_outcomes(outcomes: Sequence[Outcome]) -> str:
    """Renders tables of coverage and width of ``mmgpu compare``'s 95 % intervals."""
    correlations = (*CORRELATIONS, BEYOND)
    header = ('intervals', *(f'correlation {value:g}' for value in correlations))
    parts = []
    for kind in KINDS:
        found = {
            (outcome.cell.length, outcome.cell.correlation): _show(outcome)
            for outcome in outcomes
            if outcome.cell.kind == kind
        }
        lengths = sorted({length for length, _ in found})
        rows = [
            (str(length), *(found.get((length, value), '') for value in correlations))
            for length in lengths
        ]
        if rows:
            parts += [_title(kind), render_table(header, rows)]
    return '\n\n'.join(parts)


def _title(kind: str) -> str:
    described = (KINDS[kind].__doc__ or '').rstrip('.')
    widths = ', width in units of that with the correlation known'
    return f'{kind.capitalize()} ({described[0].lower()}{described[1:]}): coverage' + (
        f'{widths}:' if kind in WITHOUT_TREND else ':'
    )


def _show(outcome: Outcome) -> str:
    coverage = f'{outcome.coverage_pct:.1f} %'
    if outcome.cell.kind not in WITHOUT_TREND:
        return coverage
    return f'{coverage}, {outcome.width:.2f}'


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark: compares simulated runs in parallel, judges the intervals."""
    benchmark = Benchmark('drift', __doc__ or '', argv, is_timed=False)
    pairs, trend_pairs = PAIRS, TREND_PAIRS
    if benchmark.is_quick:
        pairs = trend_pairs = QUICK_PAIRS
    cells = [
        Cell(kind, length, correlation, pairs if kind in WITHOUT_TREND else trend_pairs)
        for kind, length, correlation in product(KINDS, LENGTHS, CORRELATIONS)
    ]
    cells += [Cell('equal weights', length, BEYOND, pairs) for length in LENGTHS]
    outcomes = []
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as executor:
        for outcome in executor.map(judge_cell, cells):
            outcomes.append(outcome)
            if outcome.cell.correlation == CORRELATIONS[-1]:
                say(f'{outcome.cell.kind}, {outcome.cell.length} intervals: done')
    benchmark.add(*judge_coverage(outcomes), *judge_widths(outcomes))
    benchmark.add(*judge_demo(pairs))
    return benchmark.finish(render_outcomes(outcomes))


if __name__ == '__main__':
    sys.exit(main())
