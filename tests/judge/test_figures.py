"""Tests which derived values change with each stored value of a run."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

from fakes.runs import make_evidence, make_inside_workers
from mmgpu_hooks.judge.figures import IterationParts, LoaderFigures, RunFigures
from mmgpu_hooks.judge.run import Run

ITERATION = ('iter_s', 'images_per_s', 'data_wait_share')
BOUND = ('bound_share', 'is_data_bound', 'wait_cause', 'workload')
PARTS: dict[str, tuple[float, tuple[str, ...]]] = {
    'data_wait_s': (0.0, (*ITERATION, *BOUND)),
    'step_s': (0.4, (*ITERATION, 'bound_share', 'workload')),
    'hooks_s': (0.4, (*ITERATION, 'bound_share', 'workload')),
    'loop_s': (0.4, (*ITERATION, 'bound_share', 'workload')),
}
"""New duration of each part of an iteration, with the derived values that change."""
MOVED: dict[str, tuple[Any, tuple[str, ...]]] = {
    'per_iteration': (None, (*ITERATION, *BOUND, 'is_enough', 'used_cores')),
    'images': (9.0, ('images_per_s',)),
    'steady_iterations': (3, ('images_per_s', 'is_enough', 'workload')),
    'ledger_s': ({'startup': 9.0}, ('duration_s', 'startup_s', 'headspace_pct')),
    'build_s': (1e9, ('startup_s',)),
    'throttled_s': (2.0, ('throttled_pct',)),
    'throttle_counted_s': (4.0, ('throttled_pct',)),
    'why_no_cpu': ('no /proc', ('unknown',)),
    'why_no_external': ('one rank is missing', ('unknown',)),
    'reasons': ({'GPU': 'no driver'}, ('unknown', 'why_no_gpu_util')),
    'data_wait_p95_s': (1e-6, ('wait_cause',)),
    'data_wait_cpu_share': (1.0, ('wait_cause',)),
    'main_cpu_s': (0.011, ('workload',)),
    'external_cpu_cores': (7.5, ('external_share_cores', 'is_busy_host', 'workload')),
    'batch_tensors': (999, ('workload',)),
    'epoch_starts': (1, ('workload',)),
    'process_cpu_cores': (3.0, ('used_cores',)),
    'worker_cpu_s': (0.31, ('threads', 'used_cores')),
    'worker_run_delay_s': (0.03, ('threads', 'blocked_share')),
    'worker_threads': (3, ('threads',)),
    'worker_thread_cpu_s': (9.0, ('threads',)),
    'loader': (None, ('threads', 'blocked_share', 'confined_cpus')),
}
"""New value of each `RunFigures` field, with the derived values that must change."""
ALONE = {
    'iterations',
    'saves',
    'alloc_retries',
    'by_hook_s',
    'stored_pixel_ratio',
    'process_rss_bytes',
    'largest_batch_pixels',
    'most_boxes',
    'shm_free_bytes',
    'gpu_mem_peak_bytes',
    'gpu_mem_reserved_bytes',
    'inactive_bytes',
    # the workload needs these where workers do not show what they send, or wait for
    'batch_bytes',
    'main_run_delay_s',
    # of a training on a CUDA card alone
    'gpu_idle_pct',
    'gpu_last_iteration',
    'gpu',
}
"""Names of `RunFigures` fields that no other value is derived from."""


@pytest.fixture(scope='module')
def run() -> Run:
    """Data-bound run with known worker starts, quota, threads and core waits."""
    workers = msgspec.structs.replace(
        make_inside_workers(0.8, opencv_threads=2, affinity_cpus=1),
        fetch_cpu_s=0.6,
        thread_cpu_s=20.0,
        run_delay_s=1.0,
    )
    evidence = make_evidence(
        workers=workers,
        worker_threads=5,
        data_wait_s=0.2,
        process_cpu_s=1.0,
        process_run_delay_s=0.4,
    )
    run = Run(evidence)
    known = dataclasses.replace(
        run.figures,
        ledger_s={**run.figures.ledger_s, 'startup': 30.0},
        epoch_starts=8,
        throttled_s=1.0,
        throttle_counted_s=9.0,
    )
    return run.replaced(figures=known)


def test_each_stored_figure_is_known_to_stand_alone_or_to_move_others():
    names = {field.name for field in dataclasses.fields(RunFigures)}
    assert names == {*MOVED} | ALONE
    assert {*MOVED}.isdisjoint(ALONE)
    assert {field.name for field in dataclasses.fields(IterationParts)} == {*PARTS}


def find_unmoved(
    run: Run, figures: RunFigures, followers: tuple[str, ...]
) -> list[str]:
    """Returns the derived values that stay the same when stored values are replaced."""
    other = run.replaced(figures=figures)

    def read(some: Run, follower: str) -> Any:
        return getattr(some if hasattr(some, follower) else some.figures, follower)

    return [name for name in followers if read(run, name) == read(other, name)]


@pytest.mark.parametrize('name', MOVED)
def test_what_follows_from_a_figure_moves_with_it(run, name):
    value, followers = MOVED[name]
    other = dataclasses.replace(run.figures, **{name: value})
    assert find_unmoved(run, other, followers) == []


@pytest.mark.parametrize('name', PARTS)
def test_what_follows_from_a_part_of_an_iteration_moves_with_it(run, name):
    value, followers = PARTS[name]
    parts = dataclasses.replace(run.figures.per_iteration, **{name: value})
    other = dataclasses.replace(run.figures, per_iteration=parts)
    assert find_unmoved(run, other, followers) == []


def test_a_figure_that_does_not_exist_is_refused(run):
    with pytest.raises(TypeError, match='itre_s'):
        dataclasses.replace(run.figures, itre_s=0.3)


def test_what_a_batch_costs_to_send_is_the_rest_of_its_cpu():
    loader = LoaderFigures(1, 0, batch_cpu_s=0.5, fetch_cpu_s=0.4)
    assert loader.sent_cpu_s == pytest.approx(0.1)
    assert dataclasses.replace(loader, fetch_cpu_s=0.6).sent_cpu_s == 0.0
    assert dataclasses.replace(loader, fetch_cpu_s=None).sent_cpu_s is None
