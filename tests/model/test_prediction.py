from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.prediction import (
    LIMITS,
    JobPlan,
    LoaderSetting,
    estimate_job_s,
    predict_setting,
)
from mmgpu_hooks.model.workload import BatchLine, Cost, Workload, at_batch_size
from mmgpu_hooks.schema.errors import NoPredictionError

workloads = st.builds(
    lambda loading_s, share, spread, step_s, step_share, cores, others: make_workload(
        batch_time=Cost(loading_s, spread * loading_s, 0.01 * loading_s, 100),
        batch_cpu=Cost(share * loading_s, spread * share * loading_s),
        step=Cost(step_s, 0.0, 0.01 * step_s, 100),
        step_cpu_s=step_share * step_s,
        usable_cores=cores,
        host_cores=cores,
        other_tasks=others,
    ),
    st.floats(0.002, 0.2),
    st.floats(0.0, 1.0),
    st.floats(0.0, 2.0),
    st.floats(0.005, 0.1),
    st.floats(0.0, 1.0),
    st.sampled_from([1.0, 2.0, 8.0]),
    st.sampled_from([0.0, 0.5, 2.0]),
)


@settings(max_examples=25, deadline=None)
@given(workloads, st.sampled_from([0, 1, 2, 5]), st.sampled_from([1, 4]))
def test_nothing_is_faster_than_the_bound_nor_slower_with_cores(
    workload, workers, prefetch
):
    found = predict_setting(workload, workers, prefetch)
    assert found.iter_time_s >= workload.bound_iter_s(workers) * (1 - 1e-9)
    assert found.iter_time_low_s < found.iter_time_s < found.iter_time_high_s
    assert 0.0 <= found.data_wait_s <= found.iter_time_s
    assert found.limit in LIMITS
    wide = replace(workload, usable_cores=64.0, host_cores=64.0)
    most_s = found.iter_time_s * (1 + 1e-9)
    assert predict_setting(wide, workers, prefetch).iter_time_s <= most_s


def test_without_workers_loading_and_step_add_up():
    found = predict_setting(make_workload(transfer_s=0.002, transfer_cpu_s=0.001), 0)
    # S without the transfer, and G
    assert found.iter_time_s == pytest.approx(0.040 - 0.002 + 0.015)
    assert found.data_wait_s == pytest.approx(0.038)
    assert found.prefetch_factor is None
    assert found.images_per_s == pytest.approx(4 / 0.053)


@pytest.mark.parametrize(
    ('workers', 'fields', 'limit'),
    [
        (1, {}, 'workers'),
        (4, {}, 'step'),
        (0, {}, 'workers'),
        (8, {'usable_cores': 1.0, 'batch_cpu': Cost(0.03)}, 'cores'),
        (2, {'batch_time': Cost(0.0), 'batch_cpu': Cost(0.0)}, 'step'),
    ],
)
def test_the_wall_is_named(workers, fields, limit):
    assert predict_setting(make_workload(**fields), workers).limit == limit


def test_what_was_badly_measured_or_not_seen_is_less_sure():
    def width(workload: Workload, workers: int) -> float:
        found = predict_setting(workload, workers)
        return found.iter_time_high_s / found.iter_time_s

    workload = make_workload(num_workers=2)
    blind = replace(workload, num_workers=0, is_transfer_known=False)
    assert width(workload, 2) < width(workload, 4) < width(blind, 4)
    sure, unsure = (
        width(make_workload(step=Cost(0.06, 0.0, error_s, 100)), 4)
        for error_s in (0.0001, 0.006)
    )
    assert sure < unsure


def test_another_batch_size_needs_the_line_of_the_step():
    with pytest.raises(NoPredictionError, match='batch size of 8'):
        at_batch_size(make_workload(), 8)
    line = BatchLine(constant_s=0.005, image_s=0.0025)
    workload = make_workload(step_line=line, batch_time=Cost(0.04, 0.02))
    larger = at_batch_size(workload, 16)
    # the costs of its images even out, by the root of how many there are
    assert larger.batch_time.mean_s == pytest.approx(0.16)
    assert larger.batch_time.variation == pytest.approx(0.25)
    # 5 ms + 16 x 2.5 ms of step, 1 ms of fetching for four images
    fed = predict_setting(larger, 8)
    assert (fed.batch_size, fed.iter_time_s) == (16, pytest.approx(0.049, rel=0.02))


# 40 ms of loading that only waits, a 20 ms step, nothing to fetch
PLAIN = {
    'batch_time': Cost(0.04),
    'batch_cpu': Cost(0.0),
    'step': Cost(0.02),
    'step_cpu_s': 0.0,
    'fetch_s': 0.0,
    'fetch_busy_s': 0.0,
    'worker_start_s': 0.1,
}


def job_s(workers: int, plan: JobPlan, persistent: bool = True, **fields) -> float:
    workload = make_workload(**{**PLAIN, **fields})
    return estimate_job_s(workload, LoaderSetting(workers, 2, persistent), plan)


@pytest.mark.parametrize(
    ('workers', 'plan', 'persistent', 'expected_s'),
    [
        # ten first batches of 40 ms, and four workers started once or each time
        (4, JobPlan(100, 10), True, 1000 * 0.02 + 10 * 0.04 + 4 * 0.1),
        (4, JobPlan(100, 10), False, 1000 * 0.02 + 10 * (0.04 + 4 * 0.1)),
        (0, JobPlan(100, 10), True, 1000 * 0.06),
        (2, JobPlan(1), True, 2 * 0.1 + 0.04 + 0.02),
        # saves take what they take
        (0, JobPlan(100, 10, 7.0), True, 1000 * 0.06 + 7.0),
    ],
)
def test_a_job_is_its_iterations_and_its_starts(workers, plan, persistent, expected_s):
    assert job_s(workers, plan, persistent) == pytest.approx(expected_s)
