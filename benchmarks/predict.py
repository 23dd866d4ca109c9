"""Do predictions from one run hold? Planted pipelines against real trainings.

    python -m benchmarks.predict [--trials FILE] [--output]

Each pipeline is trained with a grid of settings: real DataLoader workers under a real
MMEngine training with the hook. From each of these trainings alone all the others are
predicted; the error of the closed bound from the same training stands beside. Half the
pipelines were drawn from a random generator and looked at by nobody while the model was
built. Pairs of trainings are fitted together too, beside each of the two alone.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.machine import TrainingsLoad
from benchmarks.predict_judge import (
    Case,
    judge_trials,
    median,
    quantile,
    read_trials,
    time_grid,
)
from benchmarks.predict_measure import SECONDS, measure_all

MEDIAN_LIMIT, P90_LIMIT, COVERAGE_LIMIT = 5.0, 12.0, 90.0
GRID_LIMIT_S = 2.0
TRIALS = Path('work_dirs/bench_predict/trials.jsonl')


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, unless that was done, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--trials', type=Path, help='judge these trainings and measure nothing'
    )
    parser.add_argument(
        '--seconds', type=float, default=SECONDS, help='of each training, about'
    )
    load = TrainingsLoad()
    benchmark = Benchmark('predict', __doc__ or '', argv, parser=parser, load=load)
    warnings.filterwarnings('ignore')
    trials_path = benchmark.options.trials
    if trials_path is None:
        trials_path = TRIALS
        trials_path.parent.mkdir(parents=True, exist_ok=True)
        trials_path.unlink(missing_ok=True)
        measure_all(trials_path, benchmark.options.seconds)
    trials, busy = read_trials(trials_path)
    load.shares_pct = [trial.strangers_pct for trial in trials]
    cases, refused = judge_trials(trials)
    for sentence in refused:
        print(f'not predicted from: {sentence}', file=sys.stderr)
    _judge_all(benchmark, cases)
    _show_by(benchmark, cases, 'pipeline', lambda case: case.pipeline.name)
    _show_by(benchmark, cases, 'from', lambda case: _setting(case.run))
    _show_by(benchmark, cases, 'to', lambda case: _setting(case.setting))
    benchmark.add(
        Figure(
            'trainings', len(trials), '', note=f'{busy} left out: the machine was busy'
        )
    )
    benchmark.add(Figure('trainings not predicted from', len(refused)))
    return benchmark.finish()


def _judge_all(benchmark: Benchmark, cases: Sequence[Case]) -> None:
    planted = [case for case in cases if case.pipeline.recipe is None]
    parts = {
        'all planted': planted,
        'seen': [case for case in planted if not case.pipeline.is_unseen],
        'unseen': [case for case in planted if case.pipeline.is_unseen],
        'MMDetection': [case for case in cases if case.pipeline.recipe is not None],
    }
    for name, some in parts.items():
        if some:
            _judge(benchmark, name, some)
    seconds = time_grid()
    benchmark.add(
        Figure(
            'a grid of 40 settings',
            seconds,
            's of CPU',
            f'< {GRID_LIMIT_S:g}',
            seconds < GRID_LIMIT_S,
        )
    )


def _judge(benchmark: Benchmark, name: str, cases: Sequence[Case]) -> None:
    errors = [100 * abs(case.error) for case in cases]
    bounds = [100 * abs(case.bound_error) for case in cases]
    covered = 100 * sum(case.is_covered for case in cases) / len(cases)
    middle, high = median(errors), quantile(errors, 0.9)
    benchmark.add(
        Figure(
            f'{name}: error, median',
            middle,
            '%',
            f'<= {MEDIAN_LIMIT:g}',
            middle <= MEDIAN_LIMIT,
            f'{len(cases)} predictions; closed bound {median(bounds):.1f} %',
        )
    )
    benchmark.add(
        Figure(
            f'{name}: error, 90th percentile',
            high,
            '%',
            f'<= {P90_LIMIT:g}',
            high <= P90_LIMIT,
            f'worst {max(errors):.0f} %; closed bound {quantile(bounds, 0.9):.0f} %',
        )
    )
    widths = [100 * (case.high_s - case.low_s) / 2 / case.predicted_s for case in cases]
    benchmark.add(
        Figure(
            f'{name}: intervals that hold the truth',
            covered,
            '%',
            f'>= {COVERAGE_LIMIT:g}',
            covered >= COVERAGE_LIMIT,
            f'median half width {median(widths):.0f} %',
        )
    )


def _show_by(
    benchmark: Benchmark,
    cases: Sequence[Case],
    title: str,
    key: Callable[[Case], str],
) -> None:
    for name in dict.fromkeys(key(case) for case in cases):
        some = [case for case in cases if key(case) == name]
        errors = [100 * abs(case.error) for case in some]
        bounds = [100 * abs(case.bound_error) for case in some]
        covered = 100 * sum(case.is_covered for case in some) / len(some)
        benchmark.add(
            Figure(
                f'{title} {name}: error, median',
                median(errors),
                '%',
                note=f'90th percentile {quantile(errors, 0.9):.1f} %, covered '
                f'{covered:.0f} %; closed bound {median(bounds):.1f} %',
            )
        )


def _setting(setting: tuple[int, int]) -> str:
    workers, prefetch = setting
    return f'{workers} workers, prefetch {prefetch}' if workers else 'no workers'


if __name__ == '__main__':
    sys.exit(main())
