"""Part four: a paired, randomised comparison with training without the hook.

A machine's speed drifts by more than the hook costs, within seconds. So the trainings
that are compared live side by side in one process, each in a thread of its own of which
only one runs at a time, and hand over to each other every few iterations.
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
STEP_S, BLOCK = 0.02, 10
"""Iterations of a turn, after one that warms the caches up again."""
WARM_UP = INTERVAL + 2
"""The first turn is longer: what is done once is done in it."""

ARMS = ('none', 'sham', 'ours')


@dataclass(frozen=True)
class Iteration:
    """What an iteration took in the turns of one round, in seconds."""

    mean_s: float
    median_s: float


class _OverError(Exception):
    """Ends the trainings when all turns are taken."""


class _Turns:
    """Lets one of several threads run at a time.

    Args:
        order: Whose turn it is, one turn after the other.
    """

    def __init__(self, order: Iterator[str]) -> None:
        self._order = order
        self._may_run = {arm: threading.Semaphore(0) for arm in ARMS}
        self._is_over = False

    def begin(self) -> None:
        """Give the first one its turn."""
        self._may_run[next(self._order)].release()

    def wait(self, arm: str) -> None:
        """Wait for one's turn.

        Raises:
            _OverError: If there is none any more.
        """
        self._may_run[arm].acquire()
        if self._is_over:
            raise _OverError

    def end(self) -> None:
        """Give the next one its turn, or end them all."""
        following = next(self._order, None)
        self._is_over = following is None
        for arm in ARMS if following is None else (following,):
            self._may_run[arm].release()


class _Arm:
    """One training, which stops at the begin of a step while others have their turn."""

    def __init__(self, arm: str, turns: _Turns, iterations: int, products: int) -> None:
        self._arm, self._turns = arm, turns
        self._iterations, self._products = iterations, products
        self._stamps: list[float] = []
        self.blocks_s: list[list[float]] = []
        """Of each turn, what its iterations took; the first is for warming up."""
        self.error: BaseException | None = None

    def run(self) -> None:
        """Train until the turns are over."""
        hooks: list[Any] = {
            'none': [],
            'sham': [ShamHook()],
            'ours': [GPUEfficiencyHook(summary=False)],
        }[self._arm]
        try:
            self._turns.wait(self._arm)
            with tempfile.TemporaryDirectory() as folder:
                model = FixedWork(self._products)
                runner = build(Path(folder), model, self._iterations, hooks)
                stamp_steps(runner.model, self._begin_step)
                train(runner)
        except _OverError:
            return
        except BaseException as error:  # noqa: BLE001  # told by the thread that waits
            self.error = error
        self._turns.end()

    def _begin_step(self) -> None:
        stamps = self._stamps
        stamps.append(time.perf_counter())
        turn = BLOCK + 1 if self.blocks_s else WARM_UP
        if len(stamps) <= turn:
            return
        steady = stamps[1:]
        self.blocks_s.append([b - a for a, b in zip(steady, steady[1:])])
        self._turns.end()
        self._turns.wait(self._arm)
        stamps[:] = [time.perf_counter()]


def train_pairs(rounds: int, seed: int = 0) -> dict[str, list[Iteration]]:
    """Train without the hook, with the sham hook and with ours.

    Args:
        rounds: In each, every arm has two turns, in an order drawn by lot and then in
            the opposite one.
        seed: Of the lots.

    Returns:
        By arm, one of each round.
    """
    lots, products = random.Random(seed), find_products(STEP_S)
    orders = [lots.sample(ARMS, len(ARMS)) for _ in range(rounds)]
    mirrored = [arm for order in orders for arm in (*order, *reversed(order))]
    turns = _Turns(itertools.chain(ARMS, mirrored))
    iterations = WARM_UP + (2 * rounds + 1) * (BLOCK + 1)
    arms = {arm: _Arm(arm, turns, iterations, products) for arm in ARMS}
    threads = [threading.Thread(target=arm.run) for arm in arms.values()]
    for thread in threads:
        thread.start()
    turns.begin()
    for thread in threads:
        thread.join()
    trained: dict[str, list[Iteration]] = defaultdict(list)
    for name, arm in arms.items():
        if arm.error is not None:
            raise arm.error
        blocks_s = arm.blocks_s[1:]
        for first, second in zip(blocks_s[::2], blocks_s[1::2]):
            both = [*first, *second]
            trained[name].append(
                Iteration(statistics.fmean(both), statistics.median(both))
            )
    return trained


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
