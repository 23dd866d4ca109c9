from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.replaced import replace
from fakes.workloads import make_workload
from mmgpu_hooks.model.pace import bound_iter_s
from mmgpu_hooks.model.prediction import (
    LIMITS,
    predict_grid,
    predict_setting,
)
from mmgpu_hooks.model.scene import at_batch_size
from mmgpu_hooks.schema import BatchLine, Cost, LoaderWorkload, NoPrediction


def predict(workload: LoaderWorkload, workers: int, prefetch: int = 2, **fields):
    found = predict_setting(workload, workers, prefetch, **fields)
    assert not isinstance(found, NoPrediction)
    return found


workloads = st.builds(
    lambda loading_s, share, spread, step_s, step_share, cores, strangers: (
        make_workload(
            occupancy=Cost(loading_s, spread * loading_s, 0.01 * loading_s, 100),
            batch_cpu=Cost(share * loading_s, spread * share * loading_s),
            step=Cost(step_s, 0.0, 0.01 * step_s, 100),
            step_cpu_s=step_share * step_s,
            usable_cores=cores,
            host_cores=cores,
            stranger_tasks=strangers,
        )
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
def test_nothing_is_faster_than_the_bound(workload, workers, prefetch):
    found = predict(workload, workers, prefetch)
    assert found.iter_time_s >= bound_iter_s(workload, workers) * (1 - 1e-9)
    assert found.iter_time_low_s < found.iter_time_s < found.iter_time_high_s
    assert 0.0 <= found.data_wait_s <= found.iter_time_s
    assert found.limit in LIMITS


@settings(max_examples=25, deadline=None)
@given(workloads, st.sampled_from([1, 2, 5]))
def test_cores_for_everybody_are_never_slower(workload, workers):
    roomy = replace(workload, usable_cores=64.0, host_cores=64.0)
    crowded_s = predict(workload, workers).iter_time_s
    assert predict(roomy, workers).iter_time_s <= crowded_s * (1 + 1e-9)


def test_without_workers_loading_and_step_add_up():
    workload = make_workload(handover_s=0.002, handover_cpu_s=0.001)
    found = predict(workload, 0)
    # S without the handing over, and G
    assert found.iter_time_s == pytest.approx(0.040 - 0.002 + 0.015)
    assert found.data_wait_s == pytest.approx(0.038)
    assert found.prefetch_factor is None
    assert found.worker_utilisation is None
    assert found.images_per_s == pytest.approx(4 / 0.053)


@pytest.mark.parametrize(
    ('workers', 'fields', 'limit'),
    [
        (1, {}, 'workers'),
        (4, {}, 'step'),
        (0, {}, 'workers'),
        (1, {'is_storage_bound': True}, 'storage'),
        (8, {'usable_cores': 1.0, 'batch_cpu': Cost(0.03)}, 'cores'),
        (2, {'occupancy': Cost(0.028, 0.05), 'batch_cpu': Cost(0.0)}, 'head_of_line'),
    ],
)
def test_the_wall_is_named(workers, fields, limit):
    assert predict(make_workload(**fields), workers).limit == limit


def test_prefetching_helps_where_costs_are_uneven():
    workload = make_workload(occupancy=Cost(0.028, 0.04), batch_cpu=Cost(0.0))
    times = [
        one.iter_time_s for one in predict_grid(workload, [(2, 1), (2, 2), (2, 8)])
    ]
    assert times[0] > times[1] > times[2]


def test_a_worse_known_step_widens_the_interval():
    sure, unsure = (
        predict(make_workload(step=Cost(0.06, 0.0, error_s, 100)), 4)
        for error_s in (0.0001, 0.006)
    )
    assert unsure.iter_time_high_s > sure.iter_time_high_s
    assert unsure.iter_time_low_s < sure.iter_time_low_s


def test_what_was_not_seen_is_less_sure():
    def width(workload: LoaderWorkload, workers: int) -> float:
        found = predict(workload, workers)
        return found.iter_time_high_s / found.iter_time_s

    workload = make_workload(num_workers=2)
    blind = replace(workload, num_workers=0, is_handover_known=False)
    assert width(workload, 2) < width(workload, 4) < width(blind, 4)


def test_another_batch_size_needs_the_line_of_the_step():
    found = predict_setting(make_workload(), 4, 2, batch_size=8)
    assert isinstance(found, NoPrediction)
    assert 'batch size of 8' in found.reason
    line = BatchLine(constant_s=0.005, image_s=0.0025)
    larger = predict(make_workload(step_line=line), 4, batch_size=8)
    assert larger.batch_size == 8
    # 5 ms + 8 x 2.5 ms of step, 1 ms of fetching for four images
    assert larger.iter_time_s == pytest.approx(0.025 + 0.002, rel=0.02)


def test_a_larger_batch_varies_less():
    """The costs of its images even out: by the root of how many there are."""
    line = BatchLine(constant_s=0.0, image_s=0.004)
    workload = make_workload(occupancy=Cost(0.04, 0.02), step_line=line)
    larger = at_batch_size(workload, 16)
    assert larger is not None
    assert larger.occupancy.mean_s == pytest.approx(0.16)
    assert larger.occupancy.variation == pytest.approx(0.25)


@pytest.mark.parametrize(
    ('setting', 'complaint'),
    [
        ((-1, 2), 'num_workers: expected 0 to 512, found -1'),
        ((10_000, 2), 'num_workers'),
        ((1, 0), 'prefetch_factor: expected 1 to 1024, found 0'),
    ],
)
def test_settings_out_of_range_are_refused(setting, complaint):
    with pytest.raises(ValueError, match=complaint):
        predict_setting(make_workload(), *setting)


def test_a_costless_batch_is_predicted_too():
    nothing = make_workload(occupancy=Cost(0.0), batch_cpu=Cost(0.0))
    assert predict(nothing, 2).limit == 'step'
