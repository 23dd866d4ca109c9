"""Tests the joint fit of several synthetic runs of one training."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.pooled import EACH, FIXED, make_pooled
from fakes.replaced import replace
from fakes.runs import make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, pool_runs
from mmgpu_hooks.schema.run import RunEvidence


def pool(*runs: RunEvidence) -> RunPool:
    return pool_runs([Run(run) for run in runs])


def test_runs_of_one_batch_size_leave_the_newest_as_it_is():
    newest = make_pooled(4, 4, day=22)
    for older in ([], [make_pooled(4, 2, day=20), make_pooled(4, 1)]):
        found = pool(*older, newest)
        assert found.newest.meta.loader.num_workers == 4
        assert found.fitted == {newest.path: 4}
        assert found.workload == Run(newest).workload
        assert len(found.notes) == bool(older)
        assert found.memory.fit is None and found.memory.why_unknown


def test_batch_sizes_make_lines_of_step_and_memory():
    found = pool(*(make_pooled(size, day=20 + size) for size in (2, 4, 8)))
    assert found.workload is not None
    assert found.workload.batch_size == 8
    line = found.workload.step_line
    assert line is not None
    assert (line.constant_s, line.image_s) == pytest.approx((0.06, 0.01), rel=0.03)
    assert line.batch_sizes == (2, 4, 8)
    fit = found.memory.fit
    assert fit is not None
    assert (fit.fixed_bytes, fit.image_bytes) == pytest.approx((FIXED, EACH), rel=1e-6)
    assert fit.batch_sizes == (2, 4, 8)
    on_cpu = pool(*(make_pooled(size, device='cpu') for size in (2, 4)))
    assert on_cpu.memory.fit is None
    assert 'training on the CPU' in on_cpu.memory.why_unknown
    assert on_cpu.workload is not None
    assert on_cpu.workload.step_line is not None


HOST = make_run().host
OPTIM = {'optim_wrapper': 'OptimWrapper', 'parameters': 2}


@pytest.mark.parametrize(
    ('other', 'why'),
    [
        ({'run': {'host': replace(HOST, logical_cpus=16)}}, 'CPUs of the host is 16'),
        ({'run': {'host': replace(HOST, usable_cores=4.0)}}, 'usable cores is 4.0'),
        ({'run': {'optim_wrapper': 'AmpOptimWrapper'}}, 'wrapper is AmpOptimWrapper'),
        ({'run': {'world_size': 2}}, 'number of ranks is 2 there, and 1 in'),
        ({'run': {'parameters': 1}}, 'parameters of the model is 1 there'),
        ({'batch_bytes': 4 * 7 * 2**18}, '1.75 MiB each, and 1.00 MiB in /runs/'),
        ({'device': 'cpu'}, 'device is cpu there, and cuda in /runs/'),
        ({'intervals': 1, 'iterations': 5}, 'Not enough evidence: 5 steady'),
    ],
)
def test_a_run_that_does_not_belong_is_left_out_with_the_reason(other, why):
    run: dict[str, Any] = {**OPTIM, **other.get('run', {})}
    apart = make_pooled(4, 2, day=20, **{**other, 'run': run})
    newest = make_pooled(4, 4, day=22, run=OPTIM)
    found = pool(newest, apart)
    (note,) = found.notes
    assert note.startswith(f'{apart.path} is left out. ')
    assert why in note
    assert found.workload == Run(newest).workload


def test_the_newest_that_tells_enough_is_judged():
    short = make_pooled(4, 2, day=25, intervals=1, iterations=5)
    found = pool(make_pooled(4, 4, day=22), short)
    assert found.newest.meta.loader.num_workers == 4
    assert len(found.fitted) == 1
    assert 'Not enough evidence' in found.notes[0]
    # none does
    assert pool(short).workload is None


def test_the_rank_with_the_largest_peak_tells_of_memory():
    runs = [Run(make_pooled(2, day=22)), Run(make_pooled(4, day=20))]
    others = [Run(make_pooled(size, day=20)) for size in (5, 3)]
    runs[1] = Run(runs[1].evidence, others)
    fit = pool_runs(runs).memory.fit
    assert fit is not None
    assert fit.image_bytes == pytest.approx(1.5 * EACH)
