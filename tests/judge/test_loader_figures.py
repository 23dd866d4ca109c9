from __future__ import annotations

import math

import pytest

from fakes.replaced import replace
from fakes.runs import (
    make_inside_workers,
    make_interval,
    make_run,
    make_workers,
)
from mmgpu_hooks.judge.figures import LoaderFigures, OddWorker
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import (
    RunEvidence,
    TransformCost,
    WorkersWindow,
)


def fold(*windows: WorkersWindow | None) -> LoaderFigures | None:
    """The loader of a run with one interval per window, and one of warm-up before."""
    records = [
        make_interval(index, workers=window) for index, window in enumerate(windows)
    ]
    evidence = RunEvidence('x', make_run(), (make_interval(), *records))
    return Run(evidence).loader


def known(*windows: WorkersWindow | None) -> LoaderFigures:
    loader = fold(*windows)
    assert loader is not None
    return loader


def test_occupancy_is_weighted_by_batches():
    loader = known(
        make_inside_workers(0.2, iterations=30), make_inside_workers(0.6, iterations=10)
    )
    assert loader.batches == 40
    assert loader.occupancy_s == pytest.approx(0.3)
    assert loader.batch_cpu_s == pytest.approx(0.27)
    # that of the usual interval: the median of 0.3 and 0.7
    assert loader.occupancy_p95_s == pytest.approx(0.5)


def test_spread_is_of_all_batches_and_not_the_mean_of_spreads():
    loader = known(
        make_inside_workers(0.2, std_s=0.0), make_inside_workers(0.6, std_s=0.0)
    )
    assert loader.occupancy_std_s == pytest.approx(0.2)
    both = known(
        make_inside_workers(0.4, std_s=0.3), make_inside_workers(0.4, std_s=0.1)
    )
    assert both.occupancy_std_s == pytest.approx(math.sqrt((0.09 + 0.01) / 2))


def test_warm_up_is_left_out_unless_all_batches_were_made_in_it():
    first = make_interval(0, workers=make_inside_workers(9.0))
    idle = make_interval(1, workers=make_workers(0.0))
    busy = make_interval(1, workers=make_inside_workers(0.4))
    for later, seconds in ((busy, 0.4), (idle, 9.0)):
        loader = Run(RunEvidence('x', make_run(), (first, later))).loader
        assert loader is not None
        assert loader.occupancy_s == pytest.approx(seconds)


def test_readiness_is_weighted_by_asks():
    loader = known(
        make_inside_workers(iterations=30, ready_mean=1.0, ready_zero_pct=0.0),
        make_inside_workers(iterations=10, ready_mean=0.2, ready_zero_pct=80.0),
        make_inside_workers(iterations=50, ready_mean=None, ready_zero_pct=None),
    )
    assert loader.asks == 40
    assert loader.ready_mean == pytest.approx(0.8)
    assert loader.ready_zero_pct == pytest.approx(20.0)
    assert loader.out_of_order == 2


def test_shares_are_of_all_batches_by_worker():
    loader = known(
        make_inside_workers(worker_batches=(10, 10)),
        make_inside_workers(worker_batches=(20, 0, 40)),
    )
    assert loader.share_min_pct == pytest.approx(12.5)
    assert loader.share_max_pct == pytest.approx(50.0)


def test_a_confined_worker_goes_before_a_starved_one():
    window = make_inside_workers(
        window_s=10.0, worker_affinity_cpus=(8, 1), worker_run_delay_s=(9.0, 0.0)
    )
    assert known(window).odd_worker == OddWorker(1, 'affinity_cpus', 1.0, 8.0)
    free = replace(window, worker_affinity_cpus=(8, 8))
    assert known(free).odd_worker == OddWorker(0, 'run_delay_pct', 90.0, 0.0)


@pytest.mark.parametrize(
    'windows',
    [
        # too little to say, not far enough, or nobody knows whose it is
        ({'worker_run_delay_s': (0.9, 0.0), 'window_s': 1.0},),
        ({'worker_run_delay_s': (9.0, 4.0), 'window_s': 10.0},),
        ({'worker_run_delay_s': (1.5, 0.1), 'window_s': 30.0},),
        ({'worker_run_delay_s': (9.0,), 'window_s': 10.0},),
        (
            {'worker_run_delay_s': (9.0, 0.0), 'window_s': 10.0},
            {'worker_run_delay_s': (0.0, 9.0, 0.0), 'window_s': 10.0},
        ),
        ({'worker_cpu_s': (9.0, 0.0), 'worker_batches': (20, 0)},),
        ({'worker_cpu_s': (9.0, 0.1), 'worker_batches': ()},),
        ({'worker_cpu_s': (9.0, 3.1)},),
        ({'worker_affinity_cpus': (1,)},),
    ],
)
def test_of_no_worker_more_is_said_than_is_known(windows):
    assert known(*[make_inside_workers(**one) for one in windows]).odd_worker is None


def test_transforms_are_added_up_and_given_per_image():
    loader = known(
        make_inside_workers(
            transforms={
                'Load': TransformCost(calls=4, total_s=0.4),
                'Flip': TransformCost(calls=2, total_s=0.1),
            },
            timed_samples=4,
        ),
        make_inside_workers(
            transforms={'Flip': TransformCost(calls=6, total_s=1.1)}, timed_samples=6
        ),
    )
    assert loader.timed_samples == 10
    flip, load = loader.transforms
    assert (flip.name, flip.calls) == ('Flip', 8)
    assert flip.total_s == pytest.approx(1.2)
    # over all samples timed, those that passed it by too
    assert flip.image_s == pytest.approx(0.12)
    assert (load.name, load.image_s) == ('Load', pytest.approx(0.04))
