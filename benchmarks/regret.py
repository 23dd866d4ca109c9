"""What a recommended setting loses of a whole job, beside rules of thumb.

    python -m benchmarks.regret [--trials FILE] [--nulls N] [--output [FILE]]

Planted jobs train with every setting of a grid; epoch starts and saves count. A setting
is recommended from each training with 2 workers, MMDetection's default, and what it
loses over the best of the grid stands beside what fixed numbers of workers lose. Some
jobs are drawn from a random generator, and the policy was not tuned to them. Then
evidence of loops with nothing to gain is simulated: any change there is a false alarm.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Benchmark, Figure
from benchmarks.machine import StrangerLoad
from benchmarks.regret_judge import (
    Outcome,
    judge_recommended,
    judge_rule,
    keep_whole,
    read_trials,
)
from benchmarks.regret_measure import list_jobs, measure_all
from benchmarks.regret_nulls import draw_null
from mmgpu_hooks.diagnosis.facts import fold_facts
from mmgpu_hooks.evidence.summary import fold_run
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
    load = _TrainingsLoad()
    benchmark = Benchmark('regret', __doc__ or '', argv, parser=parser, load=load)
    path = benchmark.options.trials
    if path is None:
        path = TRIALS
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        measure_all(path, list_jobs(), repeats=(0, 1))
    trials = keep_whole(read_trials(path))
    load.shares_pct = [trial.strangers_pct for trial in trials]
    cores = len(os.sched_getaffinity(0))
    recommended = judge_recommended(trials, cores)
    _judge_all(benchmark, recommended, cores)
    rules = {workers: judge_rule(trials, workers, cores) for workers in RULES}
    _compare_rules(benchmark, recommended, rules, cores)
    _show_jobs(benchmark, recommended)
    _judge_nulls(benchmark, benchmark.options.nulls)
    return benchmark.finish()


class _TrainingsLoad(StrangerLoad):
    """What strangers used while the trainings ran that are judged, mean."""

    def __init__(self) -> None:
        super().__init__()
        self.shares_pct: list[float] = []

    def read_pct(self) -> float:
        return sum(self.shares_pct) / max(len(self.shares_pct), 1)


def _judge_all(benchmark: Benchmark, outcomes: list[Outcome], cores: int) -> None:
    unseen = {job.name for job in list_jobs() if job.pipeline.is_unseen}
    recipes = {job.name for job in list_jobs() if job.pipeline.recipe}
    parts = {
        'all': outcomes,
        'seen': [one for one in outcomes if one.job not in unseen | recipes],
        'unseen': [one for one in outcomes if one.job in unseen],
        'MMDetection': [one for one in outcomes if one.job in recipes],
    }
    for name, some in parts.items():
        if not some:
            continue
        whole = [100 * one.lost for one in some]
        within = [100 * one.lost_within for one in some]
        note = f'{len(some)} recommendations'
        _add_limited(benchmark, f'{name}: time lost', whole, note)
        _add_limited(
            benchmark, f'{name}: time lost, up to {cores} workers', within, note
        )


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
    recommended: list[Outcome],
    rules: dict[int, list[Outcome]],
    cores: int,
) -> None:
    """Over the same jobs: those of MMDetection were not tried with all numbers."""
    ours_pct = _mean_pct(recommended)
    best_pct = min(_mean_pct(outcomes) for outcomes in rules.values())
    benchmark.add(
        Figure(
            'recommended: time lost, mean',
            ours_pct,
            '%',
            f'<= {best_pct:.1f}, the best rule',
            ours_pct <= best_pct,
            _describe(recommended),
        )
    )
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


def _show_jobs(benchmark: Benchmark, outcomes: Sequence[Outcome]) -> None:
    by_job: dict[str, list[Outcome]] = {}
    for one in outcomes:
        by_job.setdefault(one.job, []).append(one)
    for job, some in by_job.items():
        chosen = ', '.join(
            f'{one.setting[0]}{"" if one.setting[1] else " (they end)"}' for one in some
        )
        within = 100 * statistics.mean(one.lost_within for one in some)
        benchmark.add(
            Figure(
                f'{job}: time lost',
                _mean_pct(some),
                '%',
                note=f'workers: {chosen}; within the cores {within:.1f} %',
            )
        )


def _judge_nulls(benchmark: Benchmark, count: int) -> None:
    if not count:
        return
    alarms = 0
    for seed in range(count):
        evidence = draw_null(seed)
        found = recommend_settings(fold_facts(fold_run(evidence), evidence.intervals))
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
