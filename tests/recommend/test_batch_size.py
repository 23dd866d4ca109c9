from __future__ import annotations

from typing import Any

import pytest

from fakes.changed import changed
from fakes.pooled import EACH, FIXED, make_pooled
from fakes.replaced import replace
from fakes.runs import GIB, make_inside_workers, make_loader, steady
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_pool import pool_runs
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.judged import Recommendation
from mmgpu_hooks.schema.run import RunEvidence


def recommend(*runs: RunEvidence, other_tasks: float = 0.0) -> Recommendation:
    """Returns the recommendation for the newest run, fitted to all runs."""
    read = [Run(e) for e in runs]
    pool = pool_runs(read)
    run = pool.newest
    workload = pool.workload and replace(pool.workload, other_tasks=other_tasks)
    together = run.replaced(workload=workload)
    return recommend_settings(together, pool.memory)


def two_sizes(small: int = 2, large: int = 4, **fields) -> list[RunEvidence]:
    return [make_pooled(size, day=30 - size, **fields) for size in (small, large)]


def card(gib: int) -> dict[str, object]:
    """Returns run record fields for a GPU of the given memory in GiB."""
    run = make_pooled().run
    assert run.gpu is not None
    return {'gpu': replace(run.gpu, memory_total_bytes=gib * GIB)}


def test_a_larger_batch_that_fits_and_is_faster_is_recommended():
    # 60 ms and 10 ms per image: 25 images/s with 2, 40 with 4, 57 with 8
    found = recommend(*two_sizes())
    assert changed(found)['batch_size'] == 8
    first = found.changes[0]
    assert (first.old, first.confidence) == (2, 'medium')
    assert '24.7 now with 2' in first.reason
    assert 'peak at 17.0 GiB (' in first.reason
    # 141 ms for 8 instead of 4 x 81 ms, less the first batches of the epochs
    assert first.predicted_gain_pct == pytest.approx(54.6, abs=0.5)
    assert first.predicted_gain_low_pct < 54.6 < first.predicted_gain_high_pct
    assert first.predicted_iter_s == pytest.approx(0.141, rel=0.03)


@pytest.mark.parametrize(('gib', 'size'), [(10, 3), (14, 4), (16, 6), (80, 8)])
def test_never_beyond_the_memory_that_is_safe(gib, size):
    found = recommend(*two_sizes(run=card(gib)))
    assert changed(found).get('batch_size', 2) <= size
    room = 0.9 * (gib - 1)
    assert FIXED / GIB + EACH / GIB * changed(found).get('batch_size', 2) <= room


def test_a_batch_size_that_was_not_recorded_stays():
    loader = make_loader(4, batch_size=None, persistent_workers=True)
    found = recommend(make_pooled(day=31, run={'loader': loader}), *two_sizes())
    said = 'The batch size stays as it is. That of the run was not recorded.'
    assert found.batch_size == (said,)
    assert 'batch_size' not in changed(found)


def test_never_more_images_than_an_epoch_has():
    # 400 for 66 ranks
    found = recommend(*two_sizes(run={'world_size': 66}))
    assert changed(found)['batch_size'] == 6


@pytest.mark.parametrize(
    ('constant_s', 'other_tasks', 'why'),
    [
        # 0.2 ms besides 10 ms per image: one image is as fast as many
        (0.0002, 0.0, 'be more than 3 % faster'),
        # faster beside other programs alone
        (0.003, 16.0, 'too little, or too unsure, for another recipe'),
    ],
)
def test_a_batch_that_is_no_faster_is_not_recommended(constant_s, other_tasks, why):
    host = replace(make_pooled().run.host, usable_cores=2.0)
    runs = two_sizes(constant_s=constant_s, run={'host': host})
    found = recommend(*runs, other_tasks=other_tasks)
    assert 'batch_size' not in changed(found)
    assert why in found.batch_size[0]


def test_the_knee_and_not_the_largest_is_taken():
    # 80, 95 and 98 images/s with 2, 12 and 24
    found = recommend(*two_sizes(2, 12, constant_s=0.005))
    assert changed(found)['batch_size'] == 12


def test_workers_beyond_the_cores_are_allowed_with_the_larger_batch_too():
    host = replace(make_pooled().run.host, usable_cores=2.0)
    runs = []
    for size in (2, 4):
        batch_s = 0.1 * size
        cpu: dict[str, Any] = {
            'cpu_s': 2 * batch_s,
            'batch_cpu': steady(0.1 * batch_s, 20),
        }
        workers = make_inside_workers(batch_s, std_s=0.0001, count=2, **cpu)
        runs.append(
            make_pooled(size, 2, day=30 - size, run={'host': host}, workers=workers)
        )
    found = recommend(*runs)
    assert changed(found)['batch_size'] == 8
    assert changed(found)['num_workers'] > 2
    assert all(change.predicted_gain_low_pct > 0 for change in found.changes)


@pytest.mark.parametrize(
    ('runs', 'why'),
    [
        ([make_pooled(4)], 'train a second run with another batch size'),
        (two_sizes(4, 4), 'at least two batch sizes'),
        (two_sizes(device='cpu'), 'as in a training on the CPU'),
        (two_sizes(run={'gpu': None}), 'How much memory the card has is unknown'),
        (two_sizes(gpu_mem_peak_bytes=GIB), 'Memory does not grow with the batch'),
        (two_sizes(intervals=1, iterations=5), 'Not enough evidence: 5 steady'),
    ],
)
def test_without_the_evidence_the_batch_size_stays(runs, why):
    found = recommend(*runs)
    assert 'batch_size' not in changed(found)
    assert found.batch_size[0].startswith('The batch size stays as it is. ')
    assert why in found.batch_size[0]
