from __future__ import annotations

import pytest

from mmgpu_hooks.modeling.loader_bound import fit_loader, predict_iter_s


def fit(**figures):
    defaults = {
        'num_workers': 2,
        'data_wait_s': 0.1,
        'ready_s': 0.2,
        'data_wait_cpu_share': None,
        'worker_cpu_s': None,
        'worker_run_delay_s': None,
        'main_cpu_s': None,
        'usable_cores': None,
        'is_starved': True,
    }
    return fit_loader(**{**defaults, **figures})


def test_without_workers_the_wait_is_the_loading():
    model = fit(num_workers=0, data_wait_s=0.4, data_wait_cpu_share=0.75)
    assert model.occupancy_s == 0.4
    assert model.worker_cpu_s == pytest.approx(0.3)
    assert not model.occupancy_is_bound


def test_starved_workers_are_always_busy():
    model = fit(num_workers=4)
    assert model.occupancy_s == pytest.approx(4 * 0.3)
    assert not model.occupancy_is_bound


def test_workers_that_keep_up_only_bound_their_occupancy():
    assert fit(data_wait_s=0.001, is_starved=False).occupancy_is_bound


def test_waiting_for_a_core_is_no_cost_of_loading():
    model = fit(num_workers=4, worker_cpu_s=0.5, worker_run_delay_s=0.4)
    assert model.occupancy_s == pytest.approx(0.8)


def test_loading_takes_at_least_its_cpu():
    model = fit(num_workers=1, worker_cpu_s=0.25, worker_run_delay_s=0.2)
    assert model.occupancy_s == pytest.approx(0.25)


# ready 0.2 s, loading 1.2 s of which 0.8 s CPU, main process 0.2 s CPU, 4 cores:
# the CPU floor is (0.8 + 0.2) / 4 = 0.25 s
@pytest.mark.parametrize(
    ('workers', 'expected'),
    [(0, 1.4), (1, 1.2), (2, 0.6), (4, 0.3), (5, 0.25), (8, 0.25), (64, 0.25)],
)
def test_the_bound_is_the_highest_of_step_workers_and_cores(workers, expected):
    model = fit(num_workers=4, worker_cpu_s=0.8, main_cpu_s=0.2, usable_cores=4.0)
    assert predict_iter_s(model, workers) == pytest.approx(expected)


def test_without_known_cores_only_step_and_workers_bound():
    model = fit(num_workers=4, worker_cpu_s=0.8)
    assert model.cpu_floor_s == 0.0
    assert predict_iter_s(model, 64) == pytest.approx(0.2)


def test_fetching_ready_batches_is_no_work_of_the_workers():
    model = fit(num_workers=8, data_wait_s=0.03, data_wait_cpu_share=1.0)
    assert predict_iter_s(model, 64) == pytest.approx(0.23)
