"""What a simulated run measures leads back to the costs that it was simulated with."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.scene import make_loop
from mmgpu_hooks.model.simulation import simulate_loop
from mmgpu_hooks.schema import Cost, LoaderWorkload

DRAWS = 512


def measure(truth: LoaderWorkload) -> tuple[LoaderWorkload, float]:
    """The workload as its run would tell it, and the strangers' cores."""
    workers, prefetch = truth.num_workers, truth.prefetch_factor
    trace = simulate_loop(make_loop(truth, workers, prefetch, DRAWS), DRAWS, 64)
    measured = replace(
        truth,
        iter_time=Cost(trace.seconds / DRAWS),
        occupancy=replace(truth.occupancy, mean_s=trace.busy_s / DRAWS),
        step=replace(truth.step, mean_s=trace.step_s / DRAWS),
        stranger_tasks=0.0,
    )
    return measured, trace.stranger_cpu_s / trace.seconds


CROWDED = {'usable_cores': 2.0, 'host_cores': 2.0, 'step_cpu_s': 0.012}


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'num_workers': 1},
        {**CROWDED, 'num_workers': 4},
        {**CROWDED, 'num_workers': 4, 'occupancy': Cost(0.03, 0.02)},
    ],
)
def test_the_costs_come_back(fields):
    truth = make_workload(**fields)
    measured, strangers = measure(truth)
    found = calibrate(measured, strangers)
    assert found.step.mean_s == pytest.approx(truth.step.mean_s, rel=0.02)
    assert found.occupancy.mean_s == pytest.approx(truth.occupancy.mean_s, rel=0.02)
    assert found.stranger_tasks == pytest.approx(truth.stranger_tasks, abs=0.05)


@pytest.mark.parametrize(
    'fields', [{'num_workers': 4}, {'num_workers': 2, 'stranger_tasks': 1.0}]
)
def test_the_run_itself_is_predicted_as_it_was_measured(fields):
    measured, strangers = measure(make_workload(**CROWDED, **fields))
    workload = calibrate(measured, strangers)
    found = predict_setting(workload, fields['num_workers'], 2)
    assert found.iter_time_s == pytest.approx(measured.iter_time.mean_s, rel=0.01)


def test_a_loop_that_does_not_starve_tells_what_fetching_takes():
    truth = make_workload(num_workers=8, fetch_s=0.003)
    measured, strangers = measure(truth)
    found = calibrate(replace(measured, fetch_s=0.001), strangers)
    assert found.fetch_s == pytest.approx(0.003, rel=0.02)


def test_a_starving_loop_does_not():
    truth = make_workload(num_workers=1, fetch_s=0.003)
    measured, strangers = measure(truth)
    assert calibrate(replace(measured, fetch_s=0.001), strangers).fetch_s == 0.001


def test_without_workers_only_strangers_are_taken_out():
    workload = make_workload(
        num_workers=0, occupancy=Cost(0.04), batch_cpu=Cost(0.02), host_cores=1.0
    )
    workload = replace(workload, usable_cores=1.0)
    found = calibrate(workload, 1.0)
    # each second of CPU took two beside a stranger
    assert found.occupancy.mean_s == pytest.approx(0.02)
    assert found.step.mean_s == pytest.approx(0.014)


def test_waiting_for_cores_is_taken_out_only_where_cores_were_scarce():
    free = make_workload(num_workers=4, iter_time=Cost(0.016))
    crowded = replace(
        free,
        usable_cores=1.0,
        host_cores=1.0,
        iter_time=Cost(0.03),
        occupancy=Cost(0.06),
    )
    found = calibrate(free, 0.0, run_delay_s=0.01)
    assert found.occupancy.mean_s == pytest.approx(0.04)
    assert calibrate(crowded, 0.0, run_delay_s=0.04).occupancy.mean_s < 0.046


def test_what_workers_that_fill_all_cores_waited_is_no_part_of_their_loading():
    truth = make_workload(
        **CROWDED,
        num_workers=8,
        occupancy=Cost(0.04),
        batch_cpu=Cost(0.04),
        step=Cost(0.01),
        iter_time=Cost(0.026),
    )
    measured, strangers = measure(truth)
    # the simulation is as slow with loading that waits: cores are what is short
    slower = replace(measured, occupancy=Cost(1.1 * measured.occupancy.mean_s))
    delay_s = slower.occupancy.mean_s - 0.04
    found = calibrate(slower, strangers, run_delay_s=delay_s)
    untold = calibrate(slower, strangers)
    assert 0.04 <= found.occupancy.mean_s < 0.9 * untold.occupancy.mean_s


def test_no_more_waiting_is_taken_out_of_loading_than_was_measured():
    # both cores are taken by the step, so that the simulation has workers wait
    measured = make_workload(
        **{**CROWDED, 'step_cpu_s': 0.03},
        num_workers=2,
        occupancy=Cost(0.0075),
        batch_cpu=Cost(0.002),
    )
    found = calibrate(measured, 0.0, run_delay_s=0.001)
    assert found.occupancy.mean_s >= 0.0065
    assert calibrate(measured, 0.0).occupancy.mean_s < 0.006
