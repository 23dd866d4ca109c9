"""Tests the rules on memory and threads with synthetic runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import (
    GIB,
    make_evidence,
    make_gpu_fields,
    make_gpu_run,
    make_host_window,
    make_inside_workers,
    make_interval,
    make_loader,
    make_run,
    make_workers,
    steady,
)
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.schema.recorded import CudaMemoryWindow, ValidationRecord

MIB = 2**20
READINGS = 60
Fields = Callable[[int], dict[str, Any]]


def judge(
    fields: Fields, run: Any = None, count: int = READINGS, *, has_ended: bool = True
) -> tuple[Any, dict]:
    """Returns the verdict's name, with severity and sentence of each finding."""
    evidence = make_evidence(count, run=run)
    if not has_ended:
        evidence = replace(evidence, end=None)
    intervals = tuple(make_interval(n, **fields(n)) for n in range(count))
    diagnosis = diagnose_run(Run(replace(evidence, intervals=intervals)))
    found = {
        finding.code: (finding.severity, finding.detail)
        for finding in diagnosis.findings
    }
    return diagnosis.verdict.name, found


def process(mib_each: float, free: int = 40 * GIB) -> Fields:
    """Returns log interval fields by number; memory of the training process grows."""
    host = make_host_window(ram_available_bytes=free)
    return lambda n: {
        'process_own_bytes': int(GIB + n * mib_each * MIB),
        'worker_own_bytes': GIB,
        'host': host,
    }


def workers(mib_each: float) -> Fields:
    host = make_host_window(ram_available_bytes=GIB)
    return lambda n: {
        'process_own_bytes': GIB,
        'worker_own_bytes': int(GIB + n * mib_each * MIB),
        'host': host,
    }


def sending(n: int) -> dict[str, Any]:
    """Returns a log interval's fields: heap growth of eight workers that send tensors.

    They grow until each has sent 128 tensors, more slowly until 256, and then swing.
    """
    sent = 20 * n / 8
    grown = min(sent, 128) + 0.12 * min(max(sent - 128, 0), 128)
    size = 1024 + 8 * 3 * (grown + 10 * (sent > 256) * (int(sent / 128) % 2))
    fields = workers(0.0)(n)
    return {**fields, 'worker_own_bytes': int(size * MIB), 'batch_tensors': 1}


LONG = make_run(max_iters=100_000, max_epochs=1000)


ENDING = replace(LONG, loader=make_loader(persistent_workers=False))
"""Run record of a training whose workers end with each epoch."""


@pytest.mark.parametrize(
    ('fields', 'run', 'severity'),
    [
        # 100 MiB per 1000 iterations, 1 GiB free
        (process(2.0, GIB), LONG, 'problem'),
        (process(2.0, GIB), make_run(max_iters=4000), 'notice'),
        # training ends long before that
        (process(2.0), make_run(max_iters=2000), None),
        (lambda n: {**process(2.0)(n), 'group_free_bytes': GIB}, LONG, 'problem'),
        (workers(2.0), LONG, 'problem'),
        (workers(2.0), ENDING, None),
        # what is free is unknown
        (lambda n: {'process_own_bytes': GIB + n * MIB}, LONG, 'notice'),
        (process(0.0), LONG, None),
    ],
    ids=[
        'full before the end',
        'full soon after the end',
        'full long after the end',
        'a control group is full',
        'workers',
        'workers of epochs that end',
        'unknown room',
        'twin',
    ],
)
def test_growth_of_host_memory_is_judged_by_when_it_will_be_full(fields, run, severity):
    named, found = judge(fields, run)
    assert found.get('MG401', (None,))[0] == severity
    assert (named == 'memory_bound') == (severity == 'problem')
    if severity == 'problem':
        count = int(found['MG401'][1].partition('Full in ')[2].split()[0])
        assert count == pytest.approx(10_240, rel=0.05)


def test_what_workers_take_until_they_have_sent_enough_is_no_growth():
    run = replace(LONG, loader=make_loader(8))
    alarms = [n for n in range(20, 240, 3) if 'MG401' in judge(sending, run, n)[1]]
    assert alarms == []
    # twin: twelve tensors a batch, which were sent long ago
    found = judge(lambda n: {**sending(n), 'batch_tensors': 12}, run, 50)[1]
    assert found['MG401'][0] == 'problem'


def test_a_short_run_that_rises_says_what_it_lacks():
    _, found = judge(process(40.0), LONG, count=12)
    assert found['MG401'][0] == 'unknown'
    assert 'MG401' not in judge(process(1.0), LONG, count=12)[1]


@pytest.mark.parametrize(
    ('loader', 'free', 'severity'),
    [
        ({'object_bytes': 90 * MIB}, 40 * GIB, 'notice'),
        ({'object_bytes': 90 * MIB}, GIB // 4, 'notice'),
        ({'object_bytes': 10 * MIB}, 40 * GIB, None),
        ({'object_bytes': 90 * MIB, 'num_workers': 0}, 40 * GIB, None),
        ({}, 40 * GIB, None),
    ],
    ids=['copies', 'more than was free', 'few', 'no workers', 'twin: serialised'],
)
def test_copies_of_a_large_dataset_in_workers_are_found(loader, free, severity):
    settings = {'num_workers': 4, 'object_count': 9, 'object_name': 'D.data', **loader}
    host = replace(LONG.host, ram_available_bytes=free)
    run = replace(LONG, loader=make_loader(**settings), host=host)
    _, found = judge(process(0.0), run)
    assert found.get('MG402', (None,))[0] == severity
    _, found = judge(process(0.0), run, has_ended=False)
    is_short = severity is not None and free < GIB
    assert found.get('MG402', (None,))[0] == ('problem' if is_short else severity)


@pytest.mark.parametrize(
    ('total', 'free', 'batch', 'is_found'),
    [
        (64 * MIB, 8 * MIB, 10 * MIB, True),
        # not full yet, but its batches in flight will fill it
        (64 * MIB, 60 * MIB, 20 * MIB, True),
        (GIB, 900 * MIB, 10 * MIB, False),
        (None, None, 10 * MIB, False),
    ],
)
def test_shared_memory_that_batches_in_flight_fill_is_found(
    total, free, batch, is_found
):
    run = replace(LONG, host=replace(LONG.host, shm_total_bytes=total))
    host = make_host_window(shm_free_bytes=free)
    _, found = judge(lambda n: {'host': host, 'batch_bytes': batch}, run)
    assert ('MG403' in found) == is_found


def on_card(**memory: Any) -> Fields:
    """Returns log interval fields with the given values of the CUDA allocator."""
    still = make_gpu_fields()
    window = replace(still['cuda_memory'], **memory)
    return lambda n: {**still, 'cuda_memory': window}


def leaking(mib_each: float) -> Fields:
    return lambda n: {
        **make_gpu_fields(),
        'cuda_memory': CudaMemoryWindow(allocated_bytes=int(GIB + n * mib_each * MIB)),
    }


def bursting(n: int) -> dict[str, Any]:
    """Returns a log interval's fields; number 40 has twice as many boxes as others."""
    is_large = n == 40
    return {
        **make_gpu_fields(),
        'gpu_mem_peak_bytes': (74 if is_large else 50) * GIB,
        'gpu_mem_reserved_bytes': 75 * GIB,
        'most_boxes': 400 if is_large else 200,
    }


@pytest.mark.parametrize(
    ('fields', 'run', 'expected'),
    [
        (leaking(2.0), {}, {'MG404': 'notice'}),
        (leaking(2.0), {'max_iters': 10**7}, {'MG404': 'problem'}),
        (on_card(), {}, {}),
        (on_card(retries=3), {}, {'MG405': 'notice'}),
        # much is split, but there is room enough
        (on_card(inactive_bytes=4 * GIB), {}, {}),
        (bursting, {}, {'MG406': 'notice'}),
    ],
    ids=['leak', 'leak that fills', 'twin', 'retries', 'fragments', 'burst'],
)
def test_leaks_retries_and_bursts_on_the_card_are_found(fields, run, expected):
    _, found = judge(fields, make_gpu_run(**run))
    got = {code: severity for code, (severity, _) in found.items() if code in expected}
    assert got == expected
    assert not {'MG404', 'MG405', 'MG406'} - expected.keys() & found.keys()


def on_cores(cores: float, workers: int) -> Any:
    host = replace(LONG.host, logical_cpus=int(cores), usable_cores=cores)
    return replace(LONG, loader=make_loader(workers), host=host)


@pytest.mark.parametrize(
    ('threads', 'beside', 'delay_s', 'sent_s', 'severity'),
    [
        (10, 0.4, 0.3, 0.0, 'problem'),
        (10, 0.15, 0.3, 0.0, 'notice'),
        (10, 0.05, 0.3, 0.0, None),
        (10, 0.4, 0.0, 0.0, None),
        (10, 0.4, 0.3, 0.078, None),
        (3, 0.4, 0.3, 0.0, None),
    ],
    ids=['thrash', 'a little', 'idle', 'cores enough', 'sending', "PyTorch's own"],
)
def test_threads_that_workers_start_are_found_where_cores_are_short(
    threads, beside, delay_s, sent_s, severity
):
    cpu_s = 0.2
    window = replace(
        make_workers(cpu_s, count=4, run_delay_s=delay_s),
        thread_cpu_s=beside * cpu_s * 20,
        batch_cpu=steady(cpu_s, 20),
        fetch_cpu_s=cpu_s - sent_s,
        opencv_threads=8,
    )
    fields = {'workers': window, 'worker_threads': threads}
    verdict, found = judge(lambda n: fields, on_cores(2.0, 4))
    assert found.get('MG115', (None,))[0] == severity
    if severity == 'problem':
        assert verdict == 'thread_thrash'
        assert 'OpenCV uses 8 in each' in found['MG115'][1]


@pytest.mark.parametrize(
    ('count', 'cores', 'fields', 'is_found'),
    [
        (2, 8.0, {}, True),
        (2, 2.0, {}, False),
        (2, 8.0, {'thread_cpu_s': 0.2 * 20}, False),
        # they wait for storage
        (2, 8.0, {'batch_time': steady(2.0, 20)}, False),
    ],
)
def test_idle_cores_while_the_loop_waits_for_workers_are_found(
    count, cores, fields, is_found
):
    window = make_inside_workers(0.6, count=count)
    window = replace(window, thread_cpu_s=0.0, fetch_cpu_s=0.54)
    fields = {'workers': replace(window, **fields), 'worker_threads': 2}
    _, found = judge(lambda n: fields, on_cores(cores, count))
    assert ('MG116' in found) == is_found


@pytest.mark.parametrize(
    ('mib', 'is_found'), [(300, True), (200, False), (None, False)]
)
def test_large_results_that_validation_keeps_are_found(mib, is_found):
    record = ValidationRecord(
        iteration=20,
        wall_s=2.0,
        iterations=50,
        result_bytes=mib and mib * MIB,
        result_name=mib and 'CocoMetric.results',
    )
    evidence = replace(make_evidence(8), validations=(record,))
    found = {finding.code: finding for finding in diagnose_run(Run(evidence)).findings}
    assert ('MG407' in found) == is_found
    if is_found:
        assert 'CocoMetric.results came to 300' in found['MG407'].detail


@pytest.mark.parametrize(('count', 'is_found'), [(900, True), (500, False)])
def test_open_files_near_their_limit_are_found(count, is_found):
    run = replace(LONG, host=replace(LONG.host, open_files_soft=1024))
    _, found = judge(lambda n: {'open_files': count}, run)
    assert ('MG408' in found) == is_found
    if is_found:
        assert found['MG408'][1].startswith(
            '900 of 1024 files were open; a batch has 12'
        )
