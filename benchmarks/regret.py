"""What a recommended setting loses of a whole job, beside rules of thumb.

    python -m benchmarks.regret [--trials FILE] [--nulls N] [--output [FILE]]

Planted jobs train with every setting of a grid; epoch starts and saves count. A setting
is recommended from each training with 2 workers, MMDetection's default, and what it
loses over the best of the grid stands beside what fixed numbers of workers lose. Each
setting is trained twice, the faster counts, and a loss within what the best one's two
trainings differ by is none. Some jobs are drawn from a random generator, and the policy
was not tuned to them. Then evidence of loops with nothing to gain is simulated: any
change there is a false alarm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.machine import TrainingsLoad
from benchmarks.overhead_figures import quantile
from benchmarks.regret_judge import (
    Outcome,
    judge_recommended,
    judge_rule,
    keep_whole,
    list_errors,
    read_trials,
)
from benchmarks.regret_measure import REPEATS, list_jobs, measure_all
from benchmarks.regret_nulls import draw_null
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.policy import recommend_settings

MEDIAN_LIMIT, WORST_LIMIT, ALARM_LIMIT = 1.0, 5.0, 1.0
RULES = (0, 1, 2, 4, 8)
TRIALS = Path('work_dirs/bench_regret/trials.jsonl')


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, unless that was done, and judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--trials', type=Path, help='judge these trainings and measure nothing'
    )
    parser.add_argument(
        '--nulls', type=int, default=1000, help='runs with nothing to gain'
    )
    load = TrainingsLoad()
    benchmark = Benchmark('regret', __doc__ or '', argv, parser=parser, load=load)
    path = benchmark.options.trials
    if path is None:
        path = TRIALS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        measure_all(path, list_jobs(), repeats=REPEATS)
    trials = keep_whole(read_trials(path))
    load.shares_pct = [trial.strangers_pct for trial in trials]
    cores = len(os.sched_getaffinity(0))
    recommended = judge_recommended(trials)
    _judge_all(benchmark, recommended)
    rules = {workers: judge_rule(trials, workers) for workers in RULES}
    _compare_rules(benchmark, recommended, rules)
    _show_rules(benchmark, rules, cores)
    _show_jobs(benchmark, recommended, list_errors(trials))
    _judge_nulls(benchmark, benchmark.options.nulls)
    return benchmark.finish()


def _judge_all(benchmark: Benchmark, outcomes: list[Outcome]) -> None:
    """Against the best of all settings that were tried."""
    unseen = {job.name for job in list_jobs() if job.pipeline.is_unseen}
    recipes = {job.name for job in list_jobs() if job.pipeline.recipe}
    parts = {
        'all': outcomes,
        'seen': [one for one in outcomes if one.job not in unseen | recipes],
        'unseen': [one for one in outcomes if one.job in unseen],
        'MMDetection': [one for one in outcomes if one.job in recipes],
    }
    for name, some in parts.items():
        if some:
            lost = [100 * one.lost for one in some]
            note = f'{len(some)} recommendations'
            _add_limited(benchmark, f'{name}: time lost', lost, note)


def _add_limited(
    benchmark: Benchmark, name: str, lost_pct: Sequence[float], note: str
) -> None:
    for what, value, limit in (
        ('median', statistics.median(lost_pct), MEDIAN_LIMIT),
        ('worst', max(lost_pct), WORST_LIMIT),
    ):
        benchmark.add(
            Figure(f'{name}, {what}', value, '%', f'<= {limit:g}', value <= limit, note)
        )


def _compare_rules(
    benchmark: Benchmark, outcomes: list[Outcome], rules: dict[int, list[Outcome]]
) -> None:
    """With fixed numbers of workers, over all jobs that were trained with each.

    Those of MMDetection were not tried with every number.
    """
    done = set.intersection(*({one.job for one in some} for some in rules.values()))
    outcomes = [one for one in outcomes if one.job in done]
    ours_pct = _mean_pct(outcomes)
    best_pct = min(
        _mean_pct([one for one in some if one.job in done]) for some in rules.values()
    )
    benchmark.add(
        Figure(
            'time lost, mean',
            ours_pct,
            '%',
            f'<= {best_pct:.1f}, the best rule',
            ours_pct <= best_pct,
            _describe(outcomes),
        )
    )


def _show_rules(
    benchmark: Benchmark, rules: dict[int, list[Outcome]], cores: int
) -> None:
    names = {cores: 'cores', cores - 1: 'cores - 1'}
    for workers, outcomes in rules.items():
        called = f' ({names[workers]})' if workers in names else ''
        benchmark.add(
            Figure(
                f'always {workers}{called}: time lost, mean',
                _mean_pct(outcomes),
                '%',
                note=_describe(outcomes),
            )
        )


def _mean_pct(outcomes: Sequence[Outcome]) -> float:
    return 100 * statistics.mean(one.lost for one in outcomes)


def _describe(outcomes: Sequence[Outcome]) -> str:
    lost_pct = [100 * one.lost for one in outcomes]
    workers = statistics.mean(one.setting[0] for one in outcomes)
    size = statistics.mean(one.workers_bytes for one in outcomes) / 2**20
    return (
        f'median {statistics.median(lost_pct):.1f}, worst {max(lost_pct):.0f} %; '
        f'{workers:.1f} workers, {size:.0f} MiB'
    )


def _show_jobs(
    benchmark: Benchmark,
    recommended: list[Outcome],
    errors: Mapping[str, list[tuple[int, float]]],
) -> None:
    """What was chosen for each job, what it lost, and how well it was predicted."""
    everything = [abs(off) for some in errors.values() for _, off in some]
    if everything:
        benchmark.add(
            Figure(
                'whole job predicted from 2 workers: error, median',
                100 * statistics.median(everything),
                '%',
                note=f'{len(everything)} predictions, 90th percentile '
                f'{100 * quantile(everything, 0.9):.1f} %',
            )
        )
    for job in dict.fromkeys(one.job for one in recommended):
        some = [one for one in recommended if one.job == job]
        benchmark.add(
            Figure(
                f'{job}: time lost',
                _mean_pct(some),
                '%',
                note=f'workers: {_workers(some)}; predicted from 2: '
                + _word_errors(errors.get(job, [])),
            )
        )


def _word_errors(errors: list[tuple[int, float]]) -> str:
    means = {
        workers: statistics.mean(off for to, off in errors if to == workers)
        for workers in sorted({to for to, _ in errors})
    }
    return ', '.join(f'{n} workers {100 * off:+.0f} %' for n, off in means.items())


def _workers(outcomes: Sequence[Outcome]) -> str:
    return ', '.join(
        f'{one.setting[0]}{"" if one.setting[1] else " (they end)"}' for one in outcomes
    )


def _judge_nulls(benchmark: Benchmark, count: int) -> None:
    if not count:
        return
    alarms = 0
    for seed in range(count):
        evidence = draw_null(seed)
        found = recommend_settings(Run(evidence))
        if found.changes:
            alarms += 1
            keys = {change.key.split('.')[-1]: change.new for change in found.changes}
            print(f'false alarm {seed}: {keys}', file=sys.stderr)
    value = 100 * alarms / count
    benchmark.add(
        Figure(
            'changes where nothing is to gain',
            value,
            '%',
            f'<= {ALARM_LIMIT:g}',
            value <= ALARM_LIMIT,
            f'{count} simulated runs',
        )
    )


if __name__ == '__main__':
    sys.exit(main())
