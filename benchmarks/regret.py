"""What a recommended setting loses of a whole job, beside rules of thumb.

    python -m benchmarks.regret [--trials FILE] [--nulls N] [--output [FILE]]

Planted jobs train with every setting of a grid; epoch starts and saves count. A setting
is recommended from each training with 2 workers, MMDetection's default, and what it
loses over the best of the grid stands beside what fixed numbers of workers lose. As
recommended numbers never exceed the cores, the best that they are judged by does not
either; with --beyond-cores it is the best of all. Some jobs are drawn from a random
generator, and the policy was not tuned to them. Then evidence of loops with nothing to
gain is simulated: any change there is a false alarm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Callable

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
from mmgpu_hooks.diagnosis.facts import fold_facts
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommendation.policy import recommend_settings

MEDIAN_LIMIT, WORST_LIMIT, ALARM_LIMIT = 2.0, 5.0, 1.0
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
    recommended = judge_recommended(trials, cores)
    beyond = judge_recommended(trials, cores, beyond_cores=True)
    _judge_all(benchmark, recommended, f'up to {cores} workers', _lost_within)
    _judge_all(benchmark, beyond, '--beyond-cores', _lost)
    rules = {workers: judge_rule(trials, workers, cores) for workers in RULES}
    few = {workers: some for workers, some in rules.items() if workers <= cores}
    _compare_rules(benchmark, f'up to {cores} workers', recommended, few)
    _compare_rules(benchmark, '--beyond-cores', beyond, rules)
    _show_rules(benchmark, rules, cores)
    errors = list_errors(trials)
    _show_jobs(benchmark, recommended, beyond, errors)
    _judge_nulls(benchmark, benchmark.options.nulls)
    return benchmark.finish()


def _lost(outcome: Outcome) -> float:
    return 100 * outcome.lost


def _lost_within(outcome: Outcome) -> float:
    return 100 * outcome.lost_within


def _judge_all(
    benchmark: Benchmark,
    outcomes: list[Outcome],
    policy: str,
    lost_pct: Callable[[Outcome], float],
) -> None:
    """Against the best of the settings that the policy may choose from."""
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
            lost = [lost_pct(one) for one in some]
            note = f'{len(some)} recommendations'
            _add_limited(benchmark, f'{policy}, {name}: time lost', lost, note)


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
    benchmark: Benchmark,
    policy: str,
    outcomes: list[Outcome],
    rules: dict[int, list[Outcome]],
) -> None:
    """With rules that keep to the same settings, over all jobs that they can do.

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
            f'{policy}: time lost over the best of all, mean',
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
    beyond: list[Outcome],
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
        more = [one for one in beyond if one.job == job]
        benchmark.add(
            Figure(
                f'{job}: time lost within the cores',
                statistics.mean(map(_lost_within, some)),
                '%',
                note=f'workers: {_workers(some)}; --beyond-cores {_workers(more)}: '
                f'{_mean_pct(more):.1f} % over the best of all; predicted from 2: '
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
        found = recommend_settings(fold_facts(Run(evidence)))
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
