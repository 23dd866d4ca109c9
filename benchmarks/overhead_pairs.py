"""Part four: a paired, randomised comparison with training without the hook.

The trainings take turns of a few iterations (:mod:`benchmarks.overhead_turns`), in an
order drawn by lot, so that what is compared was measured within a quarter of a second.
How the hook's effect is told from noise, :mod:`benchmarks.overhead_effect` says.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook

from benchmarks.accounting import ShamHook, ThreadCosts
from benchmarks.harness import Figure
from benchmarks.overhead_effect import (
    Comparison,
    Effect,
    Iteration,
    Round,
    compare_arms,
)
from benchmarks.overhead_loop import (
    INTERVAL,
    FixedWork,
    build,
    find_products,
)
from benchmarks.overhead_turns import SteppedLoop, train_side_by_side
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.measure.proc import read_process_cpu_s

MARGIN_PCT = 0.5
STEP_S = 0.02
WARM, KEPT = 1, 2
"""Iterations of a turn: first those that warm the caches up again.

Their sum has no factor in common with :data:`INTERVAL`, so that the iterations that end
an interval are kept as often as the others.
"""
FIRST_TURN = INTERVAL + 2
"""The first turn is longer: what is done once is done in it."""
PARTS = 4
"""Where memory happens to lie makes one of two equal trainings the faster for good."""
_CONTROLLED = 2
"""The control takes part in every second round: it is shown, not judged."""

Hooks = Callable[[], Sequence[Hook]]

ARMS: dict[str, Hooks] = {
    'none': lambda: [],
    'sham': lambda: [ShamHook()],
    'ours': lambda: [GPUEfficiencyHook(summary=False)],
}


@dataclass(frozen=True)
class Paired:
    """What the trainings took."""

    rounds: Sequence[Round]
    threads: float
    """CPU that threads of our own used meanwhile, in percent of a core.

    They work by the clock: those of a training that is seldom its turn work no less.
    """
    workers_s: Mapping[str, float]
    """By arm, CPU of the loader's workers per iteration."""


class _TimedWork(FixedWork):
    """A step that tells what it took."""

    step_s = 0.0

    def train_step(self, *args: Any, **kwargs: Any) -> Any:
        begin_s = time.perf_counter()
        outputs = super().train_step(*args, **kwargs)
        self.step_s = time.perf_counter() - begin_s
        return outputs


class _Arm:
    """One training."""

    def __init__(
        self, folder: Path, iterations: int, products: int, hooks: Hooks
    ) -> None:
        self._model = _TimedWork(products)
        cfg = {'type': SteppedLoop, 'max_epochs': 1}
        self.runner = build(folder, self._model, iterations, hooks(), train_cfg=cfg)

    def take_turn(self, iterations: int) -> list[Iteration]:
        """Train so many iterations; those that warm the caches up are left out."""
        take, model, taken = self.runner.train_loop.take, self._model, []
        for _ in range(iterations):
            begin_s = time.perf_counter()
            hooks_s = take() - model.step_s
            whole_s = time.perf_counter() - begin_s
            taken.append(Iteration(hooks_s, whole_s - hooks_s))
        return taken[WARM:]

    def read_workers_s(self) -> float:
        """CPU of the loader's workers so far."""
        iterator = self.runner.train_loop.dataloader._iterator
        return sum(read_process_cpu_s(one.pid) or 0.0 for one in iterator._workers)


def train_pairs(
    rounds: int, arms: Mapping[str, Hooks] = ARMS, parts: int = PARTS, seed: int = 0
) -> Paired:
    """Train without the hook, with the sham hook and with ours.

    Args:
        rounds: In each, every arm has two turns, in an order drawn by lot and then in
            the opposite one. The control takes part in every second one.
        arms: Their hooks, by name, in each part called anew.
        parts: How often all is begun anew.
        seed: Of the lots.
    """
    lots, products = random.Random(seed), find_products(STEP_S)
    orders = []
    for index in range(rounds):
        names = [n for n in arms if n != 'sham' or index % _CONTROLLED == 0]
        order = lots.sample(names, len(names))
        orders.append([*order, *reversed(order)])
    trained: list[Round] = []
    workers_s: dict[str, list[float]] = defaultdict(list)
    threads = ThreadCosts(['mmgpu'])
    begin_s = time.perf_counter()
    with threads.watch():
        size = math.ceil(rounds / parts)
        for begin in range(0, rounds, size):
            # who began first has the older memory, and the older workers
            names = lots.sample(tuple(arms), len(arms))
            hooks = {name: arms[name] for name in names}
            part = _train_part(orders[begin : begin + size], hooks, products)
            trained += part[0]
            for name, seconds in part[1].items():
                workers_s[name].append(seconds)
        share = sum(threads.read_s().values()) / (time.perf_counter() - begin_s)
    means_s = {name: statistics.fmean(workers_s[name]) for name in workers_s}
    return Paired(trained, 100 * share, means_s)


def _train_part(
    orders: Sequence[Sequence[str]], arms: Mapping[str, Hooks], products: int
) -> tuple[list[Round], dict[str, float]]:
    rounds: list[Round] = []
    workers_s: dict[str, float] = {}
    iterations = FIRST_TURN + 2 * len(orders) * (WARM + KEPT)
    with tempfile.TemporaryDirectory() as folder:
        trained = {
            name: _Arm(Path(folder) / name, iterations, products, hooks)
            for name, hooks in arms.items()
        }

        def drive() -> None:
            for arm in trained.values():
                arm.take_turn(FIRST_TURN)
            before_s = {name: arm.read_workers_s() for name, arm in trained.items()}
            for order in orders:
                taken: dict[str, list[Iteration]] = {name: [] for name in order}
                for name in order:
                    taken[name] += trained[name].take_turn(WARM + KEPT)
                rounds.append(taken)
            for name, arm in trained.items():
                turns = sum(order.count(name) for order in orders)
                spent_s = arm.read_workers_s() - before_s[name]
                workers_s[name] = spent_s / (turns * (WARM + KEPT))

        train_side_by_side([arm.runner for arm in trained.values()], drive)
    return rounds, workers_s


def judge_pairs(paired: Paired) -> list[Figure]:
    """Equivalence to training without, of the hook and of the control."""
    ours = compare_arms(paired.rounds, 'ours', 'none', paired.threads)
    sham = compare_arms(paired.rounds, 'sham', 'none')
    words = f'{ours.rounds} rounds of iterations of {1e3 * ours.iteration_s:.1f} ms'
    return [
        _show('iteration with the hook over without', ours.total, words, True),
        *_show_parts(ours),
        Figure(
            "loader's workers, more CPU per iteration",
            1e6 * (paired.workers_s['ours'] - paired.workers_s['none']),
            'us',
            note='beside the training, on other cores; '
            f'{1e6 * paired.workers_s["none"]:.0f} without',
        ),
        _show('iteration with the sham hook over without', sham.total, 'the control'),
    ]


def _show_parts(ours: Comparison) -> list[Figure]:
    us = 1e4 * ours.hooks.value * ours.iteration_s
    parts = [
        _show('- at the hook points', ours.hooks, f'plain mean; {us:.0f} us'),
        _show('- in the wait for the batch and the step', ours.rest, 'robust mean'),
        Figure('- in threads of its own', ours.threads, '%', note='in full'),
    ]
    words = 'no part of the above: nothing is robust in it'
    return [*parts, _show('plain mean of whole iterations', ours.plain, words)]


def _show(name: str, effect: Effect, words: str, has_target: bool = False) -> Figure:
    note = f'90 % CI {effect.low:+.2f} to {effect.high:+.2f}; {words}'
    is_wide = effect.half_width > MARGIN_PCT
    if is_wide:
        note += '; the machine is too noisy to tell'
    target = f'90 % CI within +-{MARGIN_PCT:g}' if has_target else ''
    is_met = effect.is_within(MARGIN_PCT) if has_target else None
    return Figure(name, effect.value, '%', target, is_met, note)
