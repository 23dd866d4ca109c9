from __future__ import annotations

import math
import random

import pytest

from mmgpu_hooks.experiment.block_figures import (
    BlockPlan,
    SideFigures,
    is_settled,
    plan_blocks,
)
from mmgpu_hooks.experiment.blocks import Block
from mmgpu_hooks.model.stats import fold_gain
from mmgpu_hooks.schema import Estimate


def warm_up(iteration_s: float, left: int | None = None) -> Block:
    # the first half of a warm-up is slow, and is not looked at
    return Block((5.0,) * 5 + (iteration_s,) * 5, left=left)


@pytest.mark.parametrize(
    ('iteration_s', 'workers', 'left_s', 'left', 'plan'),
    [
        # three seconds of 50 ms, after one batch of each worker and two more
        (0.05, (0, 4), 300, None, BlockPlan(6, 60)),
        (0.001, (0, 0), 300, None, BlockPlan(2, 400)),
        (1.0, (2, 2), 300, None, BlockPlan(4, 8)),
        # six pairs must fit into the time, and into the training
        (1.0, (2, 2), 120, None, BlockPlan(4, 6)),
        (1.0, (2, 2), 10, None, BlockPlan(4, 4)),
        (0.05, (0, 2), 300, 120, BlockPlan(4, 16)),
    ],
)
def test_a_block_is_as_long_as_it_may_be(iteration_s, workers, left_s, left, plan):
    warm_ups = [warm_up(iteration_s, left), warm_up(iteration_s)]
    assert plan_blocks(warm_ups, workers, left_s) == plan
    assert plan.iterations == plan.skipped + plan.measured


def test_first_iterations_of_epochs_are_told_apart():
    figures = SideFigures()
    figures.add(Block((9.0, 0.2, 0.2, 1.2, 0.2), starts=(3,), batch_size=4), 1)
    figures.add(Block((0.9, 0.4, 0.4), batch_size=4), 1)
    assert figures.steady_s == pytest.approx([0.2, 0.4])
    assert figures.image_s == pytest.approx([0.05, 0.1])
    assert figures.start_s == pytest.approx([1.0])


def test_without_a_batch_size_batches_are_compared():
    figures = SideFigures()
    figures.add(Block((0.2, 0.2)), 0)
    assert figures.image_s == pytest.approx([0.2])


@pytest.mark.parametrize(
    ('value', 'half', 'pairs', 'settled'),
    [
        (0.0, 0.019, 6, True),
        (0.0, 0.021, 6, False),
        (0.5, 0.049, 6, True),
        (-0.5, 0.051, 8, False),
        (0.0, 0.001, 7, False),
        (0.0, 0.001, 4, False),
    ],
)
def test_a_gain_settles(value, half, pairs, settled):
    gain = Estimate(value, value - half, value + half, pairs)
    assert is_settled(gain) is settled
    assert is_settled(None) is False


@pytest.mark.parametrize(('noise', 'gain'), [(0.01, 0.0), (0.03, 0.1), (0.08, 0.5)])
def test_stopping_when_it_settles_keeps_the_interval_honest(noise, gain):
    lots, covered, rounds = random.Random(5), 0, 250
    for _ in range(rounds):
        before: list[float] = []
        after: list[float] = []
        estimate = None
        while not is_settled(estimate) and len(before) < 60:
            machine = math.exp(lots.gauss(0, 0.3))
            before.append(machine * math.exp(lots.gauss(0, noise)))
            after.append(machine * math.exp(lots.gauss(0, noise)) / (1 + gain))
            estimate = fold_gain(before, after)
        covered += estimate.low <= gain <= estimate.high
    assert covered / rounds >= 0.9
