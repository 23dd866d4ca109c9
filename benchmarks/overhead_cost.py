"""Part one: what the hook costs the thread that trains, and in threads of its own."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from mmengine.hooks import Hook

from benchmarks.accounting import CostAccount, EmptyHook, ShamHook, ThreadCosts
from benchmarks.harness import Figure
from benchmarks.overhead_figures import Spent, join, quantile, split_ends
from benchmarks.overhead_loop import (
    INTERVAL,
    BareLoop,
    FixedWork,
    Network,
    NoWork,
    build,
    find_products,
    stamp_steps,
    train,
)
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.measure.gpu_sampler import THREAD_NAME as SAMPLER_NAME

PER_ITERATION_US, PER_INTERVAL_MS, THREADS_PCT = 20.0, 1.0, 0.5
RUN_ITERATIONS = 304
"""So many that what a run does at its begin does not count much."""
_COUNTED_FIRST = 1
"""The first iteration lays the borders."""

ARMS: dict[str, Callable[[], Hook]] = {
    'empty': EmptyHook,
    'ours': lambda: GPUEfficiencyHook(summary=False),
    'sham': ShamHook,
}


@dataclass(frozen=True)
class Cost:
    """What one arm cost."""

    spent: Spent
    by_function_s: dict[str, float]
    """Median of the ordinary iterations."""
    logger_s: Sequence[float]
    """What LoggerHook itself took at the end of each interval but the first."""


def account_trainings(rounds: int, sham_rounds: int) -> dict[str, Cost]:
    """Train in turns with each arm; the caches between steps are a training's."""
    orders = [['empty', 'ours'], ['ours', 'empty']]
    runs: dict[str, list[tuple[CostAccount, list[float]]]] = defaultdict(list)
    for index in range(rounds):
        arms = [*orders[index % 2], *(['sham'] if index < sham_rounds else [])]
        for arm in arms:
            runs[arm].append(_account_training(ARMS[arm]()))
    return {arm: _fold(accounts) for arm, accounts in runs.items()}


def _account_training(hook: Hook) -> tuple[CostAccount, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), Network(), RUN_ITERATIONS, [hook])
        logger_s = _stamp_logger(runner)
        account = CostAccount(runner, hook)
        stamp_steps(runner.model, account.begin_step)
        train(runner)
    return account, logger_s


def _stamp_logger(runner: Any) -> list[float]:
    """Seconds of LoggerHook in each iteration, filled while it trains."""
    (logger,) = [h for h in runner.hooks if type(h).__name__ == 'LoggerHook']
    original = logger.after_train_iter
    seconds: list[float] = []

    def after_train_iter(*args: Any, **kwargs: Any) -> None:
        begin = time.perf_counter()
        original(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)

    logger.after_train_iter = after_train_iter
    return seconds


def _fold(runs: Sequence[tuple[CostAccount, list[float]]]) -> Cost:
    spent: list[Spent] = []
    ordinary: dict[str, list[float]] = defaultdict(list)
    logger_s: list[float] = []
    for account, seconds in runs:
        rows = account.costs_s()
        spent.append(
            split_ends([sum(row.values()) for row in rows], INTERVAL, _COUNTED_FIRST)
        )
        for name in account.borders.names:
            costs_s = [row[name] for row in rows]
            ordinary[name] += split_ends(costs_s, INTERVAL, _COUNTED_FIRST).ordinary
        logger_s += split_ends(seconds, INTERVAL, 0).ends
    by_function_s = {name: statistics.median(ordinary[name]) for name in ordinary}
    return Cost(join(spent), by_function_s, logger_s)


def account_bare(hook: Hook, iterations: int) -> Spent:
    """The same account in a loop without loading and steps, where caches stay warm."""
    cfg = {'type': BareLoop, 'iterations': iterations}
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), NoWork(), 8, [hook], train_cfg=cfg)
        account = CostAccount(runner, hook)
        stamp_steps(runner.model, account.begin_step)
        train(runner)
    costs_s = [sum(row.values()) for row in account.costs_s()]
    return split_ends(costs_s, INTERVAL, _COUNTED_FIRST)


def judge_cost(costs: dict[str, Cost]) -> list[Figure]:
    """The figures of the thread that trains."""
    ours, empty = costs['ours'].spent, costs['empty'].spent
    raw_us = 1e6 * statistics.median(ours.ordinary)
    border_us = 1e6 * statistics.median(empty.ordinary)
    net_us = raw_us - border_us
    raw_ms, border_ms = (
        1e3 * (statistics.median(arm.ends) - statistics.median(arm.ordinary))
        for arm in (ours, empty)
    )
    net_ms = raw_ms - border_ms
    count = f'{len(ours.ordinary)} iterations'
    figures = [
        Figure(
            'main thread per iteration, median',
            net_us,
            'us',
            f'<= {PER_ITERATION_US:g}',
            net_us <= PER_ITERATION_US,
            f'net: raw {raw_us:.1f} less the borders {border_us:.1f}; {count}',
        ),
        Figure(
            'main thread per iteration, mean',
            1e6 * (statistics.fmean(ours.ordinary) - statistics.fmean(empty.ordinary)),
            'us',
            note='with the iterations that are looked at closely',
        ),
        Figure(
            'main thread per iteration, p95',
            1e6 * quantile(ours.ordinary, 0.95) - border_us,
            'us',
            note='net of the median of the borders, '
            f'whose own p95 is {1e6 * quantile(empty.ordinary, 0.95):.1f}',
        ),
        Figure(
            'main thread per interval, median',
            net_ms,
            'ms',
            f'<= {PER_INTERVAL_MS:g}',
            net_ms <= PER_INTERVAL_MS,
            f'beyond an iteration; raw {raw_ms:.3f} less {border_ms:.3f}; '
            f'{len(ours.ends)} intervals of {INTERVAL} iterations',
        ),
        Figure(
            'main thread per interval, largest',
            1e3 * (max(ours.ends) - statistics.median(ours.ordinary)),
            'ms',
        ),
        Figure(
            "a run's first interval, median",
            1e3 * statistics.median(ours.firsts) - raw_us / 1e3,
            'ms',
            note='with what is done once',
        ),
        Figure(
            'LoggerHook for our scalars, per interval',
            1e3
            * (
                statistics.median(costs['ours'].logger_s)
                - statistics.median(costs['empty'].logger_s)
            ),
            'ms',
            note='beyond our borders: what its line takes longer',
        ),
    ]
    if 'sham' in costs:
        sham_us = 1e6 * statistics.median(costs['sham'].spent.ordinary) - border_us
        note = 'of the above: wrapping the same functions and measuring nothing'
        figures.append(
            Figure('sham hook per iteration, median', sham_us, 'us', note=note)
        )
    return [*figures, *_by_function(costs)]


def _by_function(costs: dict[str, Cost]) -> list[Figure]:
    empty = costs['empty'].by_function_s
    rows = []
    for name, seconds in costs['ours'].by_function_s.items():
        border_us = 1e6 * empty.get(name, 0.0)
        net_us = 1e6 * seconds - border_us
        note = f'raw {1e6 * seconds:.1f} less {border_us:.1f}'
        rows.append(Figure(f'- in {name}', net_us, 'us', note=note))
    return sorted(rows, key=lambda row: -(row.value or 0.0))


def judge_tight(ours: Spent, empty: Spent) -> list[Figure]:
    """The same in a bare loop, as information."""
    net_us = 1e6 * (
        statistics.median(ours.ordinary) - statistics.median(empty.ordinary)
    )
    note = 'bare loop, caches warm: not what a training pays'
    return [Figure('tight loop per iteration, median', net_us, 'us', note=note)]


@dataclass(frozen=True)
class ThreadShare:
    """What threads used in one training."""

    cpu_s: dict[str, float]
    """CPU seconds by name of the thread."""
    wall_s: float


def measure_threads(iterations: int, step_s: float = 0.02) -> ThreadShare:
    """Train with steps of fixed work and see what threads of ours use.

    Args:
        iterations: Of the training; half a minute of them holds what is done rarely.
        step_s: Seconds of each step.
    """
    threads = ThreadCosts(['mmgpu'])
    model = FixedWork(find_products(step_s))
    hook = GPUEfficiencyHook(summary=False)
    with tempfile.TemporaryDirectory() as folder, threads.watch():
        runner = build(Path(folder), model, iterations, [hook])
        begin = time.perf_counter()
        train(runner)
        wall_s = time.perf_counter() - begin
        return ThreadShare(threads.read_s(), wall_s)


def judge_threads(share: ThreadShare) -> list[Figure]:
    """All threads of ours together."""
    share_pct = 100 * sum(share.cpu_s.values()) / share.wall_s
    names = ', '.join(sorted(share.cpu_s)) or 'none'
    note = f'in {share.wall_s:.0f} s; threads: {names}'
    if SAMPLER_NAME not in share.cpu_s:
        note += '; no GPU: nothing sampled'
    is_met = share_pct <= THREADS_PCT
    target = f'<= {THREADS_PCT:g}'
    return [
        Figure('threads of its own', share_pct, '% of a core', target, is_met, note)
    ]
