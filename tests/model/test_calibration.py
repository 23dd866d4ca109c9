"""Tests that measurements of a simulated run yield the simulated times again."""

from __future__ import annotations

import pytest

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.simulation import WAKE_S, make_loop, simulate_loop
from mmgpu_hooks.model.workload import Cost, Workload

DRAWS = 512


def simulate(workload: Workload):
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    return simulate_loop(make_loop(workload, workers, prefetch, DRAWS), DRAWS, 64)


def measure(truth: Workload) -> tuple[Workload, float]:
    """Returns a simulated run's workload, and how many cores other programs used."""
    trace = simulate(truth)
    measured = replace(
        truth,
        iter_time=Cost(trace.seconds / DRAWS),
        batch_time=replace(truth.batch_time, mean_s=trace.busy_s / DRAWS),
        step=replace(truth.step, mean_s=trace.step_s / DRAWS),
        other_tasks=0.0,
    )
    return measured, trace.others_cpu_s / trace.seconds


CROWDED = {'usable_cores': 2.0, 'host_cores': 2.0, 'step_cpu_s': 0.012}


@pytest.mark.parametrize(
    'fields',
    [
        {},
        {'num_workers': 1},
        {**CROWDED, 'num_workers': 4},
        {**CROWDED, 'num_workers': 4, 'batch_time': Cost(0.03, 0.02)},
        {**CROWDED, 'num_workers': 2, 'other_tasks': 1.0},
    ],
)
def test_the_costs_come_back(fields):
    truth = make_workload(**fields)
    measured, others = measure(truth)
    found = calibrate(measured, others)
    if not truth.other_tasks:
        assert found.step.mean_s == pytest.approx(truth.step.mean_s, rel=0.02)
        loading_s = truth.batch_time.mean_s
        assert found.batch_time.mean_s == pytest.approx(loading_s, rel=0.02)
        assert found.other_tasks == pytest.approx(0.0, abs=0.05)
    own = predict_setting(found, truth.num_workers, 2)
    assert own.iter_time_s == pytest.approx(measured.iter_time.mean_s, rel=0.01)


@pytest.mark.parametrize(('workers', 'fetch_s'), [(8, 0.003), (1, 0.001)])
def test_only_a_loop_that_does_not_starve_shows_what_fetching_takes(workers, fetch_s):
    measured, others = measure(make_workload(num_workers=workers, fetch_s=0.003))
    found = calibrate(replace(measured, fetch_s=0.001), others)
    assert found.fetch_s == pytest.approx(fetch_s, rel=0.02)


def test_without_workers_only_other_processes_are_taken_out():
    one_core = {'usable_cores': 1.0, 'host_cores': 1.0, 'num_workers': 0}
    costs = {'batch_time': Cost(0.04), 'batch_cpu': Cost(0.02)}
    found = calibrate(make_workload(**one_core, **costs), 1.0)
    # each second of CPU took two beside another process
    assert found.batch_time.mean_s == pytest.approx(0.02)
    assert found.step.mean_s == pytest.approx(0.014)


IMAGE = 3 * 256 * 256 * 4
"""Bytes of an image, so large that several threads copy it."""
TWO_CORES = {'usable_cores': 2.0, 'host_cores': 2.0}


@pytest.mark.parametrize(
    ('cores', 'others', 'image_bytes', 'turns'),
    [
        # four images a batch, two turns of the scheduler each
        (TWO_CORES, 1.0, IMAGE, 8),
        (TWO_CORES, 0.5, IMAGE, 4),
        (TWO_CORES, 0.0, IMAGE, 0),
        ({}, 1.0, IMAGE, 0),
        (TWO_CORES, 1.0, 3 * 64 * 64 * 4, 0),
        (TWO_CORES, 1.0, None, 0),
        ({'usable_cores': 1.0, 'host_cores': 2.0}, 1.5, IMAGE, 0),
    ],
)
def test_loading_in_the_training_process_waits_for_its_threads_beside_others(
    cores, others, image_bytes, turns
):
    measured = make_workload(**cores, iter_time=Cost(0.04))
    whole_bytes = image_bytes and 4 * image_bytes
    found = calibrate(measured, others, batch_bytes=whole_bytes)
    quiet = replace(found, turns_s=0.0)
    assert found.turns_s == pytest.approx(turns * WAKE_S, rel=0.1)
    waiting, quick = (predict_setting(workload, 0) for workload in (found, quiet))
    assert waiting.iter_time_s == pytest.approx(quick.iter_time_s + found.turns_s)
    # half of them or twice as many would be no surprise
    reach_s = waiting.iter_time_high_s - waiting.iter_time_s
    assert reach_s >= 0.9 * found.turns_s
    with_workers = predict_setting(found, 2), predict_setting(quiet, 2)
    assert with_workers[0] == with_workers[1]


@pytest.mark.parametrize(
    ('delay_s', 'image_bytes', 'loading_s'),
    [
        (0.01, IMAGE, 0.04),
        # no more than was measured, and nothing that its own threads do not explain
        (0.005, IMAGE, 0.05),
        (0.01, 4, 0.06),
    ],
)
def test_what_the_main_thread_waited_for_its_own_threads_is_no_loading(
    delay_s, image_bytes, loading_s
):
    costs = {'batch_time': Cost(0.06), 'batch_cpu': Cost(0.06), 'step_cpu_s': 0.0}
    measured = make_workload(**TWO_CORES, **costs, num_workers=0)
    found = calibrate(measured, 1.0, None, delay_s, 4 * image_bytes)
    assert found.batch_time.mean_s == pytest.approx(loading_s)
    assert found.batch_cpu.mean_s == pytest.approx(loading_s)
    assert predict_setting(found, 0).iter_time_s == pytest.approx(0.06 + 0.015)


def test_threads_of_the_step_that_spin_on_are_no_cpu_of_loading():
    step = {'step': Cost(0.02), 'step_cpu_s': 0.04}
    found = calibrate(make_workload(**TWO_CORES, **step, num_workers=0), 0.0)
    assert found.batch_cpu.mean_s == pytest.approx(0.02 - 0.005)
    assert found.batch_time.mean_s == pytest.approx(0.04)


def test_what_workers_that_fill_all_cores_waited_is_no_part_of_their_loading():
    costs = {'batch_time': Cost(0.04), 'batch_cpu': Cost(0.04), 'step': Cost(0.01)}
    truth = make_workload(**CROWDED, num_workers=8, iter_time=Cost(0.026), **costs)
    measured, others = measure(truth)
    # the simulation is as slow with loading that waits: cores are what is short
    slower = replace(measured, batch_time=Cost(1.1 * measured.batch_time.mean_s))
    delay_s = slower.batch_time.mean_s - 0.04
    found = calibrate(slower, others, run_delay_s=delay_s)
    unknown = calibrate(slower, others)
    assert 0.04 <= found.batch_time.mean_s < 0.9 * unknown.batch_time.mean_s


def test_no_more_waiting_is_taken_out_of_loading_than_was_measured():
    # both cores are taken by the step, so that the simulation has workers wait
    costs = {'batch_time': Cost(0.0075), 'batch_cpu': Cost(0.002), 'step_cpu_s': 0.03}
    measured = make_workload(**{**CROWDED, **costs})
    found = calibrate(measured, 0.0, run_delay_s=0.001)
    assert found.batch_time.mean_s >= 0.0065
    assert calibrate(measured, 0.0).batch_time.mean_s < 0.006


def make_threads(**fields) -> Workload:
    """Returns a workload: 20 ms step of two threads on two cores, 15 ms of loading."""
    step = {'step': Cost(0.02), 'step_cpu_s': 0.04, 'step_power': 3.0}
    loading = {'batch_time': Cost(0.015), 'batch_cpu': Cost(0.015)}
    fetching = {'fetch_s': 0.0, 'fetch_busy_s': 0.0}
    usual = {'num_workers': 2, **TWO_CORES, **step, **loading, **fetching}
    return make_workload(**{**usual, **fields})


@pytest.mark.parametrize(
    ('workers', 'cores', 'power', 'step_s'),
    [
        # loading takes longer than the step, so that there is always one being made
        (1, 2.0, 1.0, 0.02 / (2 / 3)),
        (1, 2.0, 2.7, 0.02 / (2 / 3) ** 2.7),
        # eight that always load, and two of the step: each has four tenths of a core
        (8, 4.0, 2.0, 0.02 / 0.4**2),
    ],
)
def test_workers_beside_the_whole_step_slow_it_by_the_power(
    workers, cores, power, step_s
):
    always = {'batch_time': Cost(0.9), 'batch_cpu': Cost(0.9), 'step_power': power}
    loop = make_loop(make_threads(**always), workers, 2, 64)
    loop = replace(loop, wake_s=0.0, cores=cores, host_cores=cores)
    assert simulate_loop(loop, 64, 64).step_s / 64 == pytest.approx(step_s)


@pytest.mark.parametrize('workers', [2, 4])
def test_the_step_and_its_power_come_back(workers):
    truth = make_threads(num_workers=workers)
    measured, _ = measure(truth)
    lost_s = measured.step.mean_s - truth.step.mean_s
    # while one thread waits, the other spins
    measured = replace(
        measured, step_cpu_s=truth.step_cpu_s + 0.5 * lost_s, step_power=1.0
    )
    assert measured.step.mean_s > 1.5 * truth.step.mean_s
    found = calibrate(measured, 0.0, main_delay_s=lost_s / 2)
    assert found.step.mean_s == pytest.approx(truth.step.mean_s, rel=0.02)
    assert found.step_cpu_s == pytest.approx(truth.step_cpu_s, rel=0.02)
    assert found.step_power == pytest.approx(truth.step_power, rel=0.05)
    assert found.is_step_power_known
    own = predict_setting(found, workers, 2)
    assert own.iter_time_s == pytest.approx(measured.iter_time.mean_s, rel=0.01)
    # on two cores that the step fills, workers only come between
    assert predict_setting(found, 0, 2).iter_time_s == pytest.approx(0.035, rel=0.02)


@pytest.mark.parametrize('delay_s', [0.0, 0.01, 0.04])
def test_delays_on_free_cores_show_nothing_of_the_power(delay_s):
    step = {'step': Cost(0.05), 'step_cpu_s': 0.1, 'step_power': 1.0}
    loading = {'batch_time': Cost(0.03), 'batch_cpu': Cost(0.03)}
    free = {'usable_cores': 8.0, 'host_cores': 8.0, 'iter_time': Cost(0.05)}
    measured = make_threads(**step, **loading, **free)
    found = calibrate(measured, 0.0, main_delay_s=delay_s)
    assert found.step.mean_s == pytest.approx(0.05, rel=0.01)
    assert not found.is_step_power_known
    own = predict_setting(found, 2, 2)
    assert own.iter_time_s == pytest.approx(0.05, rel=0.02)


def test_a_power_that_is_not_known_widens_what_it_matters_for():
    known = make_threads()
    guessed = replace(known, is_step_power_known=False)
    for workers, is_wider in ((0, False), (4, True)):
        found = [predict_setting(workload, workers, 2) for workload in (known, guessed)]
        widths = [
            (prediction.iter_time_high_s - prediction.iter_time_low_s)
            / prediction.iter_time_s
            for prediction in found
        ]
        assert (widths[1] > 1.05 * widths[0]) == is_wider


@pytest.mark.parametrize(
    ('main_delay_s', 'threads', 'alone_s'), [(0.008, 2, 0.014), (0.0, 1, 0.029)]
)
def test_a_step_whose_main_thread_waits_for_cores_has_more_threads(
    main_delay_s, threads, alone_s
):
    # 31 ms of CPU in 29 ms: of one thread, or of two that had two thirds of a core each
    measured = make_workload(
        num_workers=1,
        iter_time=Cost(0.035),
        batch_time=Cost(0.0215),
        batch_cpu=Cost(0.0215),
        step=Cost(0.029),
        step_cpu_s=0.031,
        usable_cores=2.0,
        host_cores=2.0,
    )
    found = calibrate(measured, 0.0, 0.005, main_delay_s)
    assert found.step_threads == threads
    assert found.step.mean_s == pytest.approx(alone_s, rel=0.25)
    # without workers none of its threads has to share a core
    alone = predict_setting(found, 0)
    assert alone.iter_time_s == pytest.approx(0.0215 + alone_s, rel=0.2)
