from __future__ import annotations

import pytest

from fakes.pooled import EACH, FIXED, PIXELS, make_pooled
from fakes.replaced import replace
from fakes.runs import GIB, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import RunPool, pool_runs
from mmgpu_hooks.model.batches import MemoryFit
from mmgpu_hooks.schema import NoPrediction, RunEvidence


def pool(*runs: RunEvidence, **differences: str) -> RunPool:
    return pool_runs([Run(run) for run in runs], differences)


def test_one_run_is_fitted_as_it_always_was():
    run = Run(make_pooled())
    found = pool_runs([run])
    assert found.workload == run.workload
    assert found.notes == ()
    assert isinstance(found.memory, NoPrediction)
    assert 'and only 4 was measured' in found.memory.reason


def test_runs_of_one_batch_size_leave_the_newest_as_it_is():
    newest = make_pooled(4, 4, day=22)
    found = pool(make_pooled(4, 2, day=20), newest, make_pooled(4, 1))
    assert found.newest.run.loader.num_workers == 4
    assert [run.num_workers for run in found.fitted] == [4]
    assert found.workload == Run(newest).workload
    assert found.notes == (
        'All runs have one batch size: the newest is judged by itself.',
    )


def test_batch_sizes_make_lines_of_step_and_memory():
    found = pool(*(make_pooled(size, day=20 + size) for size in (2, 4, 8)))
    assert found.workload is not None
    assert found.workload.batch_size == 8
    line = found.workload.step_line
    assert line is not None
    assert (line.constant_s, line.image_s) == pytest.approx((0.06, 0.01), rel=0.03)
    assert line.batch_sizes == (2, 4, 8)
    fit = found.memory
    assert isinstance(fit, MemoryFit)
    assert (fit.fixed_bytes, fit.image_bytes) == pytest.approx((FIXED, EACH), rel=1e-6)
    assert fit.image_pixels == PIXELS
    # parameters, gradients, state and buffers, as they were counted
    assert fit.static_bytes == 3 * 160 * 2**20 + 2**20
    assert [row.batch_size for row in found.memory_rules] == [2, 4, 8]


def test_without_a_card_memory_is_unknown():
    found = pool(*(make_pooled(size, device='cpu') for size in (2, 4)))
    assert isinstance(found.memory, NoPrediction)
    assert 'unknown (the runs trained on the CPU)' in found.memory.reason
    assert found.workload is not None
    assert found.workload.step_line is not None


HOST = make_run().host


@pytest.mark.parametrize(
    ('other', 'why'),
    [
        ({'run': {'host': replace(HOST, logical_cpus=16)}}, 'CPUs of the host is 16'),
        ({'run': {'host': replace(HOST, usable_cores=4.0)}}, 'usable cores is 4.0'),
        ({'run': {'optim_wrapper': 'AmpOptimWrapper'}}, 'wrapper is AmpOptimWrapper'),
        ({'run': {'world_size': 2}}, 'number of ranks is 2 there, and 1 in'),
        ({'device': 'cpu'}, 'the device is cpu there, and cuda in /runs/'),
        ({'intervals': 1, 'iterations': 5}, 'Not enough evidence: 5 steady'),
        ({'step_s': -1.0}, 'is absurd: -1 s; was the evidence edited?'),
    ],
)
def test_a_run_that_does_not_belong_is_left_out_with_the_reason(other, why):
    run = {'optim_wrapper': 'OptimWrapper', **other.pop('run', {})}
    stranger = make_pooled(4, 2, day=20, run=run, **other)
    newest = make_pooled(4, 4, day=22, run={'optim_wrapper': 'OptimWrapper'})
    found = pool(newest, stranger)
    assert len(found.notes) == 1
    assert found.notes[0].startswith(f'{stranger.path} is left out: ')
    assert why in found.notes[0]
    assert not found.notes[0].endswith('?.')
    assert found.workload == Run(newest).workload


def test_another_model_or_config_is_left_out():
    newest, other = make_pooled(4, 4, day=22), make_pooled(4, 2)
    assert other.model is not None
    larger = replace(other, model=replace(other.model, parameters=1))
    assert 'parameters of the model is 1 there' in pool(newest, larger).notes[0]
    clause = 'its config is another one (model.type A -> B)'
    found = pool(newest, other, **{other.path: clause})
    assert found.notes == (f'{other.path} is left out: {clause}.',)
    assert len(found.fitted) == 1


def test_a_run_whose_batch_size_is_unknown_is_left_out():
    known, other = make_pooled(4, day=22), make_pooled(2)
    unknown = replace(
        other,
        run=replace(other.run, loader=replace(other.run.loader, batch_size=None)),
    )
    found = pool(known, unknown)
    assert found.notes == (f'{other.path} is left out: its batch size is unknown.',)
    newest = replace(unknown, run=replace(unknown.run, started_unix_s=2e9))
    found = pool(known, newest)
    why = f'the batch size of {other.path} is unknown'
    assert found.notes == (f'{known.path} is left out: {why}.',)


def test_configs_that_were_not_compared_are_named():
    newest, other = make_pooled(4, 4, day=22), make_pooled(8, 2)
    short = make_pooled(4, 1, intervals=1, iterations=5)
    runs = [Run(run) for run in (newest, other, short)]
    why = dict.fromkeys((newest.path, other.path, short.path), 'no copy')
    notes = pool_runs(runs, uncompared=why).notes
    assert notes[0] == (
        f'The configs of {newest.path} and {other.path} were not compared (no copy); '
        'they are taken for the same training.'
    )
    # what is left out is not taken for anything
    assert len(notes) == 2
    assert notes[1].startswith(f'{short.path} is left out')


def test_the_same_run_twice_counts_once():
    found = pool(make_pooled(), make_pooled())
    assert len(found.fitted) == 1
    assert 'is the same run as' in found.notes[0]


def test_the_newest_that_tells_enough_is_judged():
    short = make_pooled(4, 2, day=25, intervals=1, iterations=5)
    found = pool(make_pooled(4, 4, day=22), short)
    assert found.newest.run.loader.num_workers == 4
    assert 'Not enough evidence' in found.notes[0]
    # none does: the newest says why
    found = pool(short)
    assert found.workload is None
    assert isinstance(found.memory, NoPrediction)


def test_a_step_that_falls_with_the_batch_size_is_no_line():
    odd = make_pooled(8, day=20, step_s=0.02)
    found = pool(make_pooled(4, day=22), odd)
    assert found.workload is not None
    assert found.workload.step_line is None
    assert 'The step does not grow with the batch size' in found.notes[0]
    assert 'The newest run is judged by itself.' in found.notes[0]
    assert len(found.fitted) == 1


def test_memory_that_falls_with_the_batch_size_is_no_fit():
    odd = make_pooled(8, day=20, gpu_mem_peak_bytes=2 * GIB)
    found = pool(make_pooled(4, day=22), odd)
    assert isinstance(found.memory, NoPrediction)
    assert 'Memory does not grow with the batch size' in found.memory.reason


def test_every_rank_tells_of_memory():
    small, large = make_pooled(2, day=22), make_pooled(4, day=20)
    ranks = ((FIXED + 5 * EACH, 5 * PIXELS), (FIXED + 3 * EACH, None))
    runs = [Run(small), Run(large)]
    runs[1].other_ranks = [
        Run(large).altered(gpu_mem_peak_bytes=peak, largest_batch_pixels=pixels)
        for peak, pixels in ranks
    ]
    fit = pool_runs(runs).memory
    assert isinstance(fit, MemoryFit)
    assert len(fit.points) == 4
    # one rank tells no pixels: growth is per image then
    assert fit.image_pixels is None
    assert [row.peak_bytes for row in pool_runs(runs).memory_rules] == [
        FIXED + 2 * EACH,
        FIXED + 5 * EACH,
    ]
