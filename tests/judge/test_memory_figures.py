from __future__ import annotations

import random

import pytest

from fakes.runs import make_interval, make_run
from mmgpu_hooks.judge.figures import find_creep
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import CudaMemoryWindow, RunEvidence

MIB = 2**20


def points(sizes: list[float]) -> list[tuple[int, int]]:
    """An interval of 50 iterations for each size, in MiB."""
    return [(50 * (n + 1), int(MIB * size)) for n, size in enumerate(sizes)]


def test_what_the_allocator_went_through_is_summed_over_the_whole_run():
    records = [
        make_interval(
            i,
            cuda_memory=CudaMemoryWindow(
                allocated_bytes=9, retries=retries, ooms=i, inactive_bytes=10 - i
            ),
        )
        for i, retries in enumerate([2, 0, None])
    ]
    memory = Run(RunEvidence('x', make_run(), tuple(records))).cuda_memory
    assert memory is not None
    assert (memory.retries, memory.ooms, memory.inactive_bytes) == (2, 3, 10)
    assert memory.creep_bytes_per_1000 is None


def test_a_planted_leak_is_found_with_its_rate():
    noise = random.Random(0)
    # 1 MiB per interval of 50 iterations, under noise of 2 MiB
    sizes = [1000 + n + noise.uniform(-2, 2) for n in range(200)]
    creep = find_creep(points(sizes))
    assert creep is not None
    assert creep / MIB == pytest.approx(20.0, rel=0.05)


@pytest.mark.parametrize('seed', range(20))
def test_noise_is_no_leak(seed: int):
    noise = random.Random(seed)
    assert (
        find_creep(points([1000 + noise.uniform(-50, 50) for _ in range(200)])) is None
    )


@pytest.mark.parametrize(
    'sizes',
    [
        [1000.0] * 100,
        # a stage of training begins
        [1000.0] * 75 + [1400.0] * 25,
        # settles in the first half
        [float(min(n, 50)) for n in range(100)],
        # less than a block of the allocator in all
        [1000 + n / 1000 for n in range(100)],
        # shrinks
        [1000.0 - n for n in range(100)],
        # too few to see it
        [float(n) for n in range(14)],
        [],
    ],
)
def test_what_is_no_steady_growth_is_no_creep(sizes: list[float]):
    assert find_creep(points(sizes)) is None
