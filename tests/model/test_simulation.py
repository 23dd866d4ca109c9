"""Tests the simulated loader against closed formulas and a separate recurrence."""

from __future__ import annotations

import random
from dataclasses import replace
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmgpu_hooks.model.simulation import Loop, draw_costs, simulate_loop
from mmgpu_hooks.model.workload import Cost

MANY = 1000.0
BESIDE = {'workers': 1, 'other_tasks': 1.0, 'batch_cpu_s': [0.01]}


def make_loop(**fields) -> Loop:
    """Returns a loop whose loading waits and whose step sleeps, with ample cores."""
    loop = Loop(
        workers=1,
        prefetch_factor=2,
        cores=MANY,
        host_cores=MANY,
        other_tasks=0.0,
        batch_cpu_s=[0.0],
        batch_wait_s=[0.0],
        fetch_s=0.0,
        fetch_busy_s=0.0,
        step_cpu_s=0.0,
        step_threads=1,
        step_spin_s=0.0,
        step_wait_s=0.0,
    )
    return replace(loop, **fields)


def rate(loop: Loop, iterations: int = 64) -> float:
    return simulate_loop(loop, iterations, 64).seconds / iterations


@pytest.mark.parametrize(
    ('fields', 'expected_s'),
    [
        # (P + m) / C, whichever has a core then
        ({'cores': 1.0, 'batch_cpu_s': [0.03], 'step_cpu_s': 0.01}, 0.04),
        ({'cores': 2.0, 'batch_cpu_s': [0.04]}, 0.02),
        ({'cores': 0.5, 'batch_cpu_s': [0.04]}, 0.08),
        # one worker beside one other task on one core
        ({**BESIDE, 'host_cores': 1.0}, 0.02),
        # other tasks on cores that this loop may not use anyway
        ({**BESIDE, 'cores': 1.0, 'host_cores': 2.0}, 0.01),
        # a step of two threads on two cores
        ({'cores': 2.0, 'step_cpu_s': 0.04, 'step_threads': 2}, 0.02),
    ],
)
def test_cores_are_shared_equally(fields, expected_s):
    loop = make_loop(**{'workers': 4, **fields})
    assert rate(loop) == pytest.approx(expected_s, rel=1e-6)


def test_a_spinning_step_takes_a_core_but_gets_no_longer():
    """Tests that a step waiting for the GPU takes a core but is never slowed down."""
    loading = {'workers': 2, 'cores': 1.0, 'batch_cpu_s': [0.01]}
    spinning = make_loop(**loading, step_spin_s=0.05)
    computing = make_loop(**loading, step_cpu_s=0.05)
    assert rate(spinning) == pytest.approx(0.05, rel=1e-6)
    assert rate(computing) == pytest.approx(0.06, rel=1e-6)


def test_a_worker_waits_for_its_turn_when_no_core_is_free():
    narrow = make_loop(cores=1.0, batch_cpu_s=[0.01], wake_s=0.003, step_cpu_s=0.02)
    wide = replace(narrow, cores=2.0)
    # 3 ms for a turn, then half a core
    assert simulate_loop(narrow, 64, 64).busy_s / 64 == pytest.approx(0.023)
    assert simulate_loop(wide, 64, 64).busy_s / 64 == pytest.approx(0.01)


def test_fetching_takes_longer_when_no_core_is_free():
    free = make_loop(cores=2.0, batch_cpu_s=[0.05], fetch_s=0.001, fetch_busy_s=0.004)
    crowded = replace(free, workers=4)
    assert simulate_loop(free, 64, 64).fetch_s / 64 == pytest.approx(0.001)
    assert simulate_loop(crowded, 64, 64).fetch_s / 64 > 0.005


def recur(waits, steps, workers, prefetch, fetch_s, iterations):
    """Returns iteration end times by the loader's recurrence, with unlimited cores."""
    finished: list[float] = []
    taken: list[float] = []
    ends: list[float] = []
    for i in range(iterations):
        begin = max(
            finished[i - workers] if i >= workers else 0.0,
            taken[i - workers * prefetch] if i >= workers * prefetch else 0.0,
        )
        finished.append(begin + waits[i % len(waits)])
        taken.append(max(finished[i], ends[-1] if ends else 0.0) + fetch_s)
        ends.append(taken[-1] + steps[i % len(steps)])
    return ends


durations = st.lists(st.floats(0.001, 0.1), min_size=1, max_size=20)
fetches = st.sampled_from([0.0, 0.002])


@settings(max_examples=60, deadline=None)
@given(durations, durations, st.integers(1, 6), st.integers(1, 4), fetches)
def test_uneven_costs_follow_the_recurrence(waits, steps, workers, prefetch, fetch_s):
    """Tests in-order delivery: a late batch delays only those behind it."""
    loop = make_loop(
        workers=workers,
        prefetch_factor=prefetch,
        batch_cpu_s=[0.0] * len(waits),
        batch_wait_s=waits,
        fetch_s=fetch_s,
        step_wait_s=1.0,
        step_factors=steps,
    )
    expected = recur(waits, steps, workers, prefetch, fetch_s, 40)
    assert simulate_loop(loop, 40).ends_s == pytest.approx(expected)


def test_an_epoch_ends_with_its_last_batch():
    loop = make_loop(workers=2, batch_wait_s=[0.04], step_wait_s=0.01, batches=5)
    trace = simulate_loop(loop, 99)
    # both make one batch, then one more, then one of them the fifth
    assert trace.iterations == 5
    assert trace.ends_s == pytest.approx([0.05, 0.06, 0.09, 0.10, 0.13])
    # and nobody makes a sixth
    assert trace.busy_s == pytest.approx(5 * 0.04)


@pytest.mark.parametrize('workers', [1, 2, 4, 8])
@pytest.mark.parametrize('step_s', [0.006, 0.015, 0.03])
@pytest.mark.parametrize(('every', 'times'), [(37, 25), (100, 40)])
def test_rare_slow_batches_hold_the_loop_up_as_planted(workers, step_s, every, times):
    draw = random.Random(1)
    planted_s = [
        0.008 * (times if draw.random() < 1 / every else 1) for _ in range(4096)
    ]
    slow = [seconds for seconds in planted_s if seconds > 0.01]
    share = len(slow) / len(planted_s)
    cost = Cost(fmean(planted_s), rare_share=share, rare_s=slow[0])
    assert cost.usual_s == pytest.approx(0.008)
    drawn_s = draw_costs(cost, 1024, 0)
    assert fmean(drawn_s) == pytest.approx(cost.mean_s)
    loops = [
        make_loop(
            workers=workers,
            batch_cpu_s=[0.0] * len(waits_s),
            batch_wait_s=waits_s,
            step_wait_s=step_s,
        )
        for waits_s in (planted_s, drawn_s)
    ]
    planted, drawn = (
        simulate_loop(loop, count, 64).seconds / count
        for loop, count in zip(loops, (3968, 1024))
    )
    # a log-normal of the same mean and spread is up to 20 % off
    assert drawn == pytest.approx(planted, rel=0.07)


def test_a_larger_mean_or_batch_has_more_rare_slow_images():
    cost = Cost(0.0158, 0.001, rare_share=0.02, rare_s=0.3)
    assert cost.usual_s == pytest.approx(0.01)
    longer = cost.with_mean(1.5 * cost.mean_s)
    assert longer.mean_s == pytest.approx(1.5 * cost.mean_s)
    assert (longer.rare_s, longer.usual_s) == (0.3, pytest.approx(0.01))
    assert longer.variation == pytest.approx(cost.variation)
    larger = cost.of_images(2.0)
    assert larger.mean_s == pytest.approx(2 * cost.mean_s)
    assert larger.rare_share == pytest.approx(0.04)
    assert larger.rare_s == pytest.approx(0.31)
    assert larger.usual_s == pytest.approx(0.02)
    # where every second batch has one, nothing is rare, and the spread is of all
    usual = cost.of_images(30.0)
    assert (usual.rare_share, usual.mean_s) == (0.0, pytest.approx(30 * cost.mean_s))
    assert usual.std_s == pytest.approx(30**0.5 * cost.whole_std_s)
    assert cost.whole_std_s == pytest.approx(0.0406, rel=0.01)
