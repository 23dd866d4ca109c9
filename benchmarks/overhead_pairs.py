"""Part four: a paired, randomised comparison with training without the hook."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.accounting import ShamHook
from benchmarks.harness import Figure
from benchmarks.overhead_figures import fold_ratios
from benchmarks.overhead_loop import (
    INTERVAL,
    FixedWork,
    build,
    find_products,
    stamp_steps,
    train,
)
from mmgpu_hooks import GPUEfficiencyHook

MARGIN = 0.005
STEP_S, RUN_ITERATIONS = 0.02, 3 * INTERVAL + 3
WARM_UP = INTERVAL + 2
"""The first interval holds what is done once: what is left ends an interval twice."""

ARMS = ('none', 'sham', 'ours')


@dataclass(frozen=True)
class Iteration:
    """What an iteration took in one training, in seconds."""

    mean_s: float
    median_s: float


def train_pairs(rounds: int, seed: int = 0) -> dict[str, list[Iteration]]:
    """Train without the hook, with the sham hook and with ours.

    Args:
        rounds: In each, every arm trains once, in an order drawn by lot.
        seed: Of the lots.

    Returns:
        By arm, one of each round.
    """
    lots, products = random.Random(seed), find_products(STEP_S)
    trained: dict[str, list[Iteration]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm in lots.sample(ARMS, len(ARMS)):
            trained[arm].append(_train(arm, products))
    return trained


def _train(arm: str, products: int) -> Iteration:
    hooks: list[Any] = {
        'none': [],
        'sham': [ShamHook()],
        'ours': [GPUEfficiencyHook(summary=False)],
    }[arm]
    stamps: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        runner = build(Path(folder), FixedWork(products), RUN_ITERATIONS, hooks)
        stamp_steps(runner.model, lambda: stamps.append(time.perf_counter()))
        train(runner)
    steady = stamps[WARM_UP:]
    seconds = [after - before for before, after in zip(steady, steady[1:])]
    return Iteration(statistics.fmean(seconds), statistics.median(seconds))


def judge_pairs(trained: Mapping[str, Sequence[Iteration]]) -> list[Figure]:
    """Equivalence to training without, of the hook and of the control."""
    pairs = list(zip(trained['ours'], trained['sham'], trained['none']))
    step_ms = 1e3 * statistics.median(none.mean_s for _, _, none in pairs)
    means = [ours.mean_s / none.mean_s for ours, _, none in pairs]
    controls = [sham.mean_s / none.mean_s for _, sham, none in pairs]
    medians = [ours.median_s / none.median_s for ours, _, none in pairs]
    rounds = f'{len(pairs)} rounds of iterations of {step_ms:.1f} ms'
    return [
        _judge('iteration with the hook over without', means, rounds, True),
        _judge('iteration with the sham hook over without', controls, 'the control'),
        _judge('median iteration with the hook over without', medians, 'less noisy'),
    ]


def _judge(
    name: str, ratios: Sequence[float], words: str, has_target: bool = False
) -> Figure:
    ratio = fold_ratios(ratios)
    low, high = (100 * (bound - 1) for bound in (ratio.low, ratio.high))
    note = f'90 % CI {low:+.2f} to {high:+.2f}; {words}'
    if ratio.is_wide(MARGIN):
        note += '; the machine is too noisy to tell'
    target = f'90 % CI within +-{100 * MARGIN:g}' if has_target else ''
    is_met = ratio.is_within(MARGIN) if has_target else None
    return Figure(name, 100 * (ratio.value - 1), '%', target, is_met, note)
