"""A step on several threads, by hand and against the simulation."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.scene import make_loop, step_power
from mmgpu_hooks.model.simulation import _Simulation, simulate_loop
from mmgpu_hooks.model.team import (
    USUAL_POWER,
    bound_team_cpu,
    fit_power,
    quieten_team,
)
from mmgpu_hooks.schema import Cost, LoaderWorkload

DRAWS = 512


def make_team(**fields) -> LoaderWorkload:
    """Two threads on two cores, 20 ms of step and 15 ms of loading."""
    usual = {
        'num_workers': 2,
        'usable_cores': 2.0,
        'host_cores': 2.0,
        'step': Cost(0.02),
        'step_cpu_s': 0.04,
        'step_power': 3.0,
        'occupancy': Cost(0.015),
        'batch_cpu': Cost(0.015),
        'fetch_s': 0.0,
        'fetch_busy_s': 0.0,
    }
    return make_workload(**{**usual, **fields})


def simulate(workload: LoaderWorkload):
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    return simulate_loop(make_loop(workload, workers, prefetch, DRAWS), DRAWS, 64)


def measure(truth: LoaderWorkload) -> tuple[LoaderWorkload, float]:
    """The workload as its run would tell it, and its main thread's delay."""
    trace = simulate(truth)
    step_s = trace.step_s / DRAWS
    measured = replace(
        truth,
        iter_time=Cost(trace.seconds / DRAWS),
        occupancy=Cost(trace.busy_s / DRAWS),
        step=Cost(step_s),
        # while one thread waits, the other spins
        step_cpu_s=truth.step_cpu_s + 0.5 * (step_s - truth.step.mean_s),
        step_power=1.0,
    )
    return measured, (step_s - truth.step.mean_s) / 2


@pytest.mark.parametrize('power', [1.0, 2.7])
def test_a_worker_beside_the_whole_step_slows_it_by_the_power(power):
    # loading takes longer than the step, so that there is always one being made
    loop = make_loop(
        make_team(
            num_workers=1, occupancy=Cost(0.9), batch_cpu=Cost(0.9), step_power=power
        ),
        1,
        2,
        8,
    )
    trace = simulate_loop(replace(loop, wake_s=0.0), 8, 8)
    assert trace.step_s / 8 == pytest.approx(0.02 / (2 / 3) ** power)


def test_a_worker_beside_a_part_of_the_step_slows_that_part():
    trace = simulate(make_team(num_workers=1, step_power=2.0))
    # 15 ms of loading take 22.5 ms, in which 4/9 of it are done of the step: 10 ms
    assert trace.step_s / DRAWS == pytest.approx(0.0225 + 0.01, rel=0.12)
    assert trace.wait_s == pytest.approx(0.0, abs=1e-6)


def test_delays_of_threads_add_up_in_the_step():
    measured = make_team(
        step=Cost(0.036, 0.009), step_cpu_s=0.057, step_power=1.0, iter_time=Cost(0.04)
    )
    found = quieten_team(measured, 0.008)
    assert found.step.mean_s == pytest.approx(0.02)
    assert found.step.variation == pytest.approx(0.25)
    assert found.step.error_s == pytest.approx(0.0016)
    assert bound_team_cpu(found, measured) == pytest.approx(0.04)
    assert found.step_power == USUAL_POWER
    assert not found.is_step_power_known


def test_delays_at_the_same_time_count_once():
    measured = make_team(
        num_workers=4,
        usable_cores=4.0,
        host_cores=4.0,
        step=Cost(0.03),
        step_cpu_s=0.12,
        occupancy=Cost(0.06),
        iter_time=Cost(0.03),
    )
    # two workers make batches at any time: two of the four threads wait together
    assert quieten_team(measured, 0.004).step.mean_s == pytest.approx(0.022)


def test_no_more_is_taken_out_than_can_be():
    found = quieten_team(make_team(iter_time=Cost(0.02)), 5.0)
    assert found.step.mean_s == pytest.approx(0.005)


@pytest.mark.parametrize('fields', [{'step_cpu_s': 0.02}, {'spin_s': 0.01}])
def test_a_step_on_one_thread_or_on_a_gpu_is_left_alone(fields):
    workload = make_team(step_power=1.0, **fields)
    assert quieten_team(workload, 0.008) == workload


def test_without_workers_nothing_is_taken_out_but_what_spins_outside_the_step():
    measured = make_team(num_workers=0, step_cpu_s=0.044)
    found = quieten_team(measured, 0.003)
    assert found.step.mean_s == 0.02
    assert bound_team_cpu(found, measured) == 0.04


@pytest.mark.parametrize('truth', [make_team(), make_team(num_workers=4)])
def test_the_step_and_its_power_come_back(truth):
    measured, delay_s = measure(truth)
    assert measured.step.mean_s > 1.5 * truth.step.mean_s
    found = calibrate(measured, 0.0, main_delay_s=delay_s)
    assert found.step.mean_s == pytest.approx(truth.step.mean_s, rel=0.02)
    assert found.step_cpu_s == pytest.approx(truth.step_cpu_s, rel=0.02)
    assert found.step_power == pytest.approx(truth.step_power, rel=0.05)
    assert found.is_step_power_known
    own = predict_setting(found, truth.num_workers, 2)
    assert own.iter_time_s == pytest.approx(measured.iter_time.mean_s, rel=0.01)
    # on two cores that the step fills, workers only come between
    alone = predict_setting(found, 0, 2)
    assert alone.iter_time_s == pytest.approx(0.035, rel=0.02)


def test_a_tenth_of_a_core_more_is_not_another_thread():
    found = calibrate(make_team(num_workers=0, step_cpu_s=0.0222), 0.0)
    assert found.step_cpu_s == 0.02
    # one thread leaves the other core to a worker
    assert predict_setting(found, 1, 2).iter_time_s == pytest.approx(0.02, rel=0.02)


@pytest.mark.parametrize(
    ('power', 'measured_s', 'simulated_s'),
    [(2.7, 0.02, 0.02), (1.0, 0.03, 0.025), (2.7, 0.03, 0.0205)],
)
def test_the_power_stays_where_nothing_tells_it(power, measured_s, simulated_s):
    workload = make_team(step_power=power, is_step_power_known=False)
    assert fit_power(workload, measured_s, simulated_s) == workload


@pytest.mark.parametrize(
    ('simulated_s', 'power', 'is_known'),
    [(0.028, 2 * 2**0.5, True), (0.084, 1.0, False), (0.022, 4.0, False)],
)
def test_the_power_grows_until_enough_is_lost(simulated_s, power, is_known):
    workload = make_team(step_power=2.0, is_step_power_known=False)
    found = fit_power(workload, 0.036, simulated_s)
    assert found.step_power == pytest.approx(power)
    assert found.is_step_power_known == is_known


@pytest.mark.parametrize('delay_s', [0.0, 0.0005, 0.01, 0.02, 0.04])
@pytest.mark.parametrize('cores', [4.0, 8.0])
def test_delays_on_free_cores_tell_nothing_of_the_power(delay_s, cores):
    measured = make_team(
        step=Cost(0.05),
        step_cpu_s=0.1,
        step_power=1.0,
        usable_cores=cores,
        host_cores=cores,
        occupancy=Cost(0.03),
        batch_cpu=Cost(0.03),
        iter_time=Cost(0.05),
    )
    found = calibrate(measured, 0.0, main_delay_s=delay_s)
    assert found.step.mean_s == pytest.approx(0.05, rel=0.01)
    assert found.step_cpu_s == pytest.approx(0.1, rel=0.01)
    assert not found.is_step_power_known
    own = predict_setting(found, 2, 2)
    assert own.iter_time_s == pytest.approx(0.05, rel=0.02)


def test_a_second_thread_with_little_to_do_suffers_little():
    thin = make_team(step_cpu_s=0.025, step_power=2.6)
    assert step_power(thin) == pytest.approx(1.0 + 1.6 * 0.25)
    assert step_power(make_team(step_power=2.6)) == 2.6


def test_many_workers_beside_a_team():
    team = make_team(occupancy=Cost(0.6), batch_cpu=Cost(0.6), step_power=2.0)
    loop = replace(make_loop(team, 8, 2, 64), wake_s=0.0, cores=4.0, host_cores=4.0)
    # eight that always load, and two of the step: each has four tenths of a core
    trace = simulate_loop(loop, 64, 64)
    assert trace.step_s / 64 == pytest.approx(0.02 / 0.4**2)


def test_what_is_left_of_a_step_is_stretched_once():
    running = _Simulation(make_loop(make_team(), 8, 2, 8))
    running._running = [(1.0, -1), (1.1, 0), (1.2, 1), (1.3, 2), (1.4, 3)]
    running._stretch_team(0.5)
    # to the power of 1 - 3; all that is left is 1 s
    assert (4.0, -1) in running._running
    assert sorted(running._running)[:4] == [(1.1, 0), (1.2, 1), (1.3, 2), (1.4, 3)]


def test_a_power_that_is_not_known_widens_what_it_matters_for():
    known = make_team()
    guessed = replace(known, is_step_power_known=False)
    for workers, is_wider in ((0, False), (4, True)):
        widths = [
            (one.iter_time_high_s - one.iter_time_low_s) / one.iter_time_s
            for one in (
                predict_setting(workload, workers, 2) for workload in (known, guessed)
            )
        ]
        assert (widths[1] > 1.05 * widths[0]) == is_wider
