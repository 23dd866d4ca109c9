"""Tests the workloads read from synthetic runs, and the reasons if there is none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_evidence,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.prediction import predict_setting
from mmgpu_hooks.model.workload import (
    GAP_S,
    TRANSFER_CPU_S,
    TRANSFER_TENSOR_S,
    Workload,
)
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.recorded import (
    DurationStats,
    HostLimits,
    IntervalRecord,
    LoaderSettings,
)
from mmgpu_hooks.schema.run import RunEvidence


def fit(evidence: RunEvidence) -> Workload:
    run = Run(evidence)
    return fit_workload(run, run.figures)


def fitted(**fields: Any) -> Workload:
    return fit(make_evidence(**fields))


def refused(**fields: Any) -> str:
    with pytest.raises(NoPredictionError) as caught:
        fitted(**fields)
    return str(caught.value)


# two workers of 0.4 s per batch, 0.36 s of it CPU; the loop takes one every 0.2 s
STARVED: dict[str, Any] = {
    'workers': make_inside_workers(0.4),
    'data_wait_s': 0.1,
    'step_s': 0.1,
    'process_cpu_s': 20 * 0.03,
}


def test_a_bound_run_is_fitted_to_its_cores_and_predicted_for_all():
    had = HostLimits(logical_cpus=8, affinity_cpus=2, usable_cores=2.0)
    bound = replace(had, unbound_cpus=8, usable_cores=8.0)
    narrow, found = (
        fitted(**STARVED, run=make_run(host=host)) for host in (had, bound)
    )
    assert 'bound to 2 of 8 CPUs' in found.notes[0]
    assert replace(found, notes=()) == replace(narrow, usable_cores=8.0)


def test_its_own_setting_is_predicted_as_measured():
    assert predict_setting(fitted(**STARVED), 2, 2).iter_time_s == pytest.approx(
        0.2, rel=0.015
    )


# 1 batch in 40 takes 0.25 s, the others 0.01 s: percentiles see only these
RARE_SHARE, RARE_S, USUAL_S = 1 / 40, 0.25, 0.01
RARE_MEAN_S = RARE_SHARE * RARE_S + (1 - RARE_SHARE) * USUAL_S
RARE_STD_S = (RARE_SHARE * (1 - RARE_SHARE)) ** 0.5 * (RARE_S - USUAL_S)


def make_rare(cpu_share: float, **fields: Any) -> dict[str, Any]:
    """Returns log interval fields in which two workers have rare slow batches."""
    usual = DurationStats(
        count=20,
        total_s=20 * RARE_MEAN_S,
        mean_s=RARE_MEAN_S,
        p50_s=USUAL_S,
        p95_s=USUAL_S,
    )
    cpu_s = RARE_SHARE * cpu_share * RARE_S + (1 - RARE_SHARE) * USUAL_S
    cpu = replace(usual, mean_s=cpu_s, total_s=20 * cpu_s)
    workers = replace(
        make_inside_workers(RARE_MEAN_S),
        cpu_s=20 * cpu_s,
        batch_time=usual,
        batch_time_std_s=RARE_STD_S,
        batch_cpu=cpu,
    )
    return {
        'workers': workers,
        'data_wait_s': 0.005,
        'step_s': 0.015,
        'process_cpu_s': 20 * 0.003,
        **fields,
    }


@pytest.mark.parametrize('cpu_share', [1.0, 0.2])
def test_rare_slow_batches_are_found_with_their_share_and_their_cpu(cpu_share):
    found = fitted(**make_rare(cpu_share))
    loading, cpu = found.batch_time, found.batch_cpu
    assert loading.rare_share == pytest.approx(RARE_SHARE, rel=0.02)
    assert loading.rare_s == pytest.approx(RARE_S, rel=0.02)
    assert loading.usual_s == pytest.approx(USUAL_S + GAP_S, rel=0.1)
    assert loading.variation < 0.1
    assert cpu.rare_share == loading.rare_share
    assert cpu.rare_s == pytest.approx(cpu_share * RARE_S, rel=0.05)


@pytest.mark.parametrize(
    ('p95_s', 'std_s'),
    [
        (0.05, 0.02),  # an ordinary spread
        (RARE_S, RARE_STD_S),  # slow ones so frequent that the percentile sees them
    ],
)
def test_batches_that_vary_have_no_rare_ones(p95_s, std_s):
    rare = make_rare(1.0)
    seen = replace(rare['workers'].batch_time, p95_s=p95_s)
    workers = replace(rare['workers'], batch_time=seen, batch_time_std_s=std_s)
    assert fitted(**{**rare, 'workers': workers}).batch_time.rare_share == 0.0


ALONE = {
    'run': make_run(loader=make_loader(0)),
    'data_wait_s': 0.4,
    'data_wait_cpu_s': 20 * 0.3,
    'step_s': 0.1,
    'process_cpu_s': 20 * 0.33,
}


def test_a_run_without_workers_tells_loading_by_its_waits():
    found = fitted(**ALONE)
    # a batch has 12 tensors and 1 MiB
    extra_s = TRANSFER_CPU_S + 12 * TRANSFER_TENSOR_S + 2**20 * 1e-9
    assert found.batch_cpu.mean_s == pytest.approx(0.3 + extra_s)
    # where loading waits, the handing over goes on beside it
    assert found.batch_time.mean_s == pytest.approx(0.4 + GAP_S + 0.75 * extra_s)
    assert not found.is_transfer_known
    alone = predict_setting(found, 0, 2)
    assert alone.iter_time_s == pytest.approx(0.5)


def test_what_workers_burn_to_send_a_batch_is_not_burnt_without_them():
    workers = replace(STARVED['workers'], fetch_cpu_s=0.34)
    found = fitted(**{**STARVED, 'workers': workers})
    assert found.local_loading.cpu_s == pytest.approx(0.34)
    assumed = fitted(**STARVED)
    assert found.transfer_cpu_error < assumed.transfer_cpu_error
    unlike = [
        predict_setting(workload, 0).iter_time_high_s for workload in (found, assumed)
    ]
    assert unlike[0] != unlike[1]


def test_sending_that_outweighs_loading_is_not_taken_out_of_the_loading():
    # a fetch of 0.1 s; 0.36 s of CPU per batch, all but 0.06 in threads that send it
    quick = make_inside_workers(0.1)
    workers = replace(STARVED['workers'], batch_time=quick.batch_time, fetch_cpu_s=0.06)
    found = fitted(**{**STARVED, 'workers': workers})
    loading = found.local_loading
    assert loading.cpu_s == pytest.approx(0.06)
    assert loading.whole_s == pytest.approx(0.1)
    alone = predict_setting(found, 0)
    assert alone.iter_time_s == pytest.approx(0.1 + found.local_step_s, rel=0.01)


@pytest.mark.parametrize(
    ('wait_cpu_s', 'least_s', 'most_s'),
    [
        # little of the wait is the training process's own: 12 tensors as usual
        (0.001, 0.003, 0.005),
        # the other side takes as long as the training process
        (0.03, 0.055, 0.065),
        # fetching is a part of the wait
        (0.09, 0.095, 0.105),
    ],
)
def test_cpu_in_the_waits_shows_what_fetching_a_batch_takes(
    wait_cpu_s, least_s, most_s
):
    found = fitted(**{**STARVED, 'data_wait_cpu_s': 20 * wait_cpu_s})
    assert least_s < found.fetch_s < most_s


def test_more_workers_do_not_cure_a_wait_that_is_fetching():
    found = fitted(**{**STARVED, 'data_wait_cpu_s': 20 * 0.09})
    assert predict_setting(found, 8).iter_time_s == pytest.approx(0.2, rel=0.05)


def test_batches_of_many_tensors_are_predicted_with_the_doubt_of_their_transfer():
    few, many = (
        predict_setting(fitted(**{**ALONE, 'batch_tensors': count}), 4)
        for count in (2, 200)
    )
    few_pct, many_pct = (
        (prediction.iter_time_high_s - prediction.iter_time_low_s)
        / prediction.iter_time_s
        for prediction in (few, many)
    )
    assert many_pct > 1.3 * few_pct


def test_workers_seen_from_outside_are_busy_all_the_time_when_the_loop_starves():
    outside = replace(STARVED['workers'], batch_time=None, batch_cpu=None)
    found = fitted(**{**STARVED, 'workers': outside})
    assert found.batch_time.mean_s == pytest.approx(2 * 0.2 + GAP_S, rel=0.005)
    assert found.is_batch_time_known


def test_workers_seen_from_outside_are_bounded_when_it_does_not():
    outside = replace(make_inside_workers(0.1), batch_time=None, batch_cpu=None)
    found = fitted(workers=outside, data_wait_s=0.0, step_s=0.2)
    # more than the CPU of a batch, less than two iterations
    assert found.batch_time.mean_s == pytest.approx((0.09 + 0.4) / 2 + GAP_S)
    assert not found.is_batch_time_known
    assert 'only bounded' in found.notes[0]
    prediction = predict_setting(found, 1, 2)
    assert prediction.iter_time_low_s < 0.2 < prediction.iter_time_high_s


def test_the_start_of_workers_is_what_first_waits_took_beyond_a_first_batch():
    run = make_run(loader=make_loader(persistent_workers=False))
    fields = {**STARVED, 'first_waits': 1, 'first_wait_s': 1.4, 'iterations': 40}
    found = fitted(run=run, **fields)
    # 1.4 s, less a normal wait of 0.1 and 0.3 of waiting for the first batch
    assert found.worker_start_s == pytest.approx((1.3 - 0.3) / 2, abs=0.02)


def test_a_gpu_run_spins_while_it_waits_for_the_gpu():
    fields = {**STARVED, 'run': make_run(device='cuda'), 'process_cpu_s': 20 * 0.1}
    found = fitted(**fields, gpu_idle_pct=60.0, gpu_idle_iterations=20)
    # the GPU idles 0.12 s of 0.2, 0.1 of them waiting for data
    assert found.spin_s == pytest.approx(0.1 - 0.02)
    assert fitted(**STARVED).spin_s == 0.0


def test_a_pipeline_that_changed_midway_is_cut():
    """Tests that a run is cut where its pipeline changes (YOLOXModeSwitchHook)."""
    slow = [make_interval(i, **STARVED) for i in range(8)]
    fast = [
        make_interval(8 + i, **{**STARVED, 'workers': make_inside_workers(0.1)})
        for i in range(6)
    ]
    evidence = replace(make_evidence(), intervals=(*slow, *fast))
    found = fit(evidence)
    assert found.batch_time.mean_s == pytest.approx(0.1 + GAP_S)
    assert found.iterations == 5 * 20
    assert 'changed during the run' in found.notes[0]
    assert 'from iteration 180 on' in found.notes[0]


NO_CORES = {'run': make_run(host=HostLimits())}
NO_SETTINGS = {'run': make_run(loader=LoaderSettings())}
MANY_WORKERS = {'run': make_run(loader=make_loader(10**9))}
ONE_OF_FOUR = HostLimits(logical_cpus=2, usable_cores=0.5, ranks_on_host=4)
UNEVEN = {'run': make_run(host=ONE_OF_FOUR, world_size=4)}
"""Fields of a run of four ranks that share two cores, half a core for each."""
MUCH_AHEAD = {'run': make_run(loader=make_loader(prefetch_factor=10**9))}


@pytest.mark.parametrize(
    ('fields', 'reason'),
    [
        ({'intervals': 1, 'iterations': 19}, '19 steady iterations, 20 needed'),
        ({'data_wait_s': 0.0, 'step_s': 0.0}, 'no time'),
        ({'step_s': 1e9}, 'time of a step is absurd'),
        ({'data_wait_s': float('inf')}, 'absurd'),
        ({'process_cpu_s': None}, 'CPU of the training process is unknown'),
        ({'process_cpu_s': 1e9}, 'CPU of the training process is absurd'),
        ({'process_cpu_s': 20 * 100.0}, 'contradict each other'),
        (
            UNEVEN,
            'used 2.0 cores, more than its part of the host (0.5, one of 4',
        ),
        ({**UNEVEN, 'process_cpu_s': 20 * 100.0}, 'contradict each other'),
        ({'workers': None}, 'loading a batch is unknown'),
        ({'workers': make_inside_workers(1e7)}, 'per batch is absurd'),
        (NO_CORES, 'usable cores is unknown'),
        (NO_SETTINGS, 'num_workers of the loader is unknown'),
        (MANY_WORKERS, 'num_workers of the loader is absurd'),
        (MUCH_AHEAD, 'prefetch_factor is absurd'),
        ({**ALONE, 'data_wait_cpu_s': None}, 'CPU of the training process'),
    ],
)
def test_what_tells_too_little_or_nonsense_gives_the_reason(fields, reason):
    assert reason in refused(**{**STARVED, **fields})


STATS = 'total_s', 'mean_s', 'p50_s', 'p95_s', 'count'
EDITED = [
    'data_wait_cpu_s',
    'process_cpu_s',
    'system_cpu_pct',
    'batch_tensors',
    'images',
    'first_wait_s',
    'gpu_idle_pct',
    'workers.cpu_s',
    'workers.run_delay_s',
    'workers.batch_time_std_s',
    'workers.count',
    *(f'{of}.{name}' for of in ('step', 'data_wait', 'iter') for name in STATS),
    *(f'workers.batch_time.{name}' for name in STATS),
]


@pytest.mark.parametrize('field', EDITED)
def test_whatever_was_edited_no_exception_and_no_nonsense_comes_out(field):
    whole, records = make_evidence(intervals=3, **STARVED), []
    for interval in whole.intervals:
        records.append(part := msgspec.to_builtins(interval))
        *groups, name = field.split('.')
        for group in groups:
            part = part[group]
        part[name] = 10**18
    intervals = msgspec.convert(records, tuple[IntervalRecord, ...])
    workload = Run(replace(whole, intervals=intervals)).workload
    if workload is not None:
        seen = predict_setting(workload, 4, 2)
        assert 0.0 < seen.iter_time_low_s <= seen.iter_time_s < 1e4
        assert seen.iter_time_s <= seen.iter_time_high_s < 1e5
