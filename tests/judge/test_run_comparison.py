"""Tests the comparison of two synthetic runs with known noise."""

from __future__ import annotations

import pytest

from fakes.compared_runs import make_noisy_run
from fakes.replaced import replace
from fakes.runs import make_evidence, make_gpu_run, make_interval, make_loader, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import FIGURES, compare_runs
from mmgpu_hooks.schema.judged import NO_DIFFERENCE, SLOWER, RunComparison
from mmgpu_hooks.schema.run import RunEvidence


def compare(before: RunEvidence, after: RunEvidence) -> RunComparison:
    return compare_runs(Run(before), Run(after))


def figure(comparison: RunComparison, name: str):
    return next(each for each in comparison.figures if each.name == name)


def test_what_was_planted_is_found_and_put_down_to_its_part():
    before = make_noisy_run(1)
    comparison = compare(before, make_noisy_run(2, data_wait_s=0.16))
    assert comparison.obstacles == ()
    assert [each.name for each in comparison.figures] == list(FIGURES)
    iteration = comparison.figures[0].difference
    assert iteration.low > 0.03
    assert iteration.count == 40
    assert figure(comparison, 'data_wait_s').difference.low > 0.04
    assert abs(figure(comparison, 'step_s').difference.value) < 0.02
    assert figure(comparison, 'images_per_s').difference.high < 0
    assert comparison.verdict == SLOWER


def test_images_per_second_are_all_images_over_all_the_time():
    # iterations of 0.3 s and of 1.2 s in turns, 4 images each
    steps_s = [0.2, 1.1] * 10
    intervals = tuple(make_interval(n, step_s=s) for n, s in enumerate(steps_s))
    run = RunEvidence('x', make_run(), (make_interval(0), *intervals))
    comparison = compare(run, run)
    assert figure(comparison, 'iter_s').before.value == pytest.approx(0.75)
    assert figure(comparison, 'images_per_s').before.value == pytest.approx(4 / 0.75)


def test_a_part_that_is_not_recorded_is_unknown():
    after = make_noisy_run(2)
    kept = {'data_wait': 2.0, 'step': 4.0}
    intervals = [replace(interval, ledger_s=kept) for interval in after.intervals]
    comparison = compare(make_noisy_run(1), replace(after, intervals=tuple(intervals)))
    missing = figure(comparison, 'startup_s')
    assert missing.before is not None
    assert (missing.after, missing.difference) == (None, None)
    assert comparison.obstacles == ()


H100 = make_gpu_run().gpu


@pytest.mark.parametrize(
    ('before', 'after', 'word'),
    [
        ({}, {'loader': make_loader(batch_size=8)}, 'batch size'),
        ({}, {'world_size': 2}, 'number of ranks'),
        ({}, {'device': 'cuda'}, 'device'),
        ({}, {'host': replace(make_run().host, logical_cpus=64)}, 'number of CPUs'),
        ({'gpu': H100}, {'gpu': replace(H100, name='A100')}, 'GPU'),
    ],
)
def test_runs_of_another_kind_are_not_compared(before, after, word):
    comparison = compare(make_noisy_run(1, **before), make_noisy_run(2, **after))
    (obstacle,) = comparison.obstacles
    assert obstacle.startswith(f'The {word}')
    assert comparison.figures[0].difference is not None
    assert comparison.verdict is None


def test_equal_runs_that_drift_have_no_sign():
    pairs = 200
    runs = [
        Run(make_noisy_run(seed, intervals=18, alike=0.7)) for seed in range(pairs + 1)
    ]
    comparisons = [compare_runs(*pair) for pair in zip(runs, runs[1:])]
    assert not any(comparison.obstacles for comparison in comparisons)
    signs = [each for each in comparisons if each.verdict != NO_DIFFERENCE]
    assert len(signs) <= 0.05 * pairs


def test_a_run_too_short_says_how_much_is_missing():
    comparison = compare(make_noisy_run(1), make_evidence(intervals=4))
    (obstacle,) = comparison.obstacles
    assert 'The second run is too short' in obstacle
    assert '60 more iterations' in obstacle
    assert comparison.figures[0].difference is None


def test_settings_that_differ_are_named():
    after = make_noisy_run(
        2, loader=make_loader(8, prefetch_factor=4), versions={'torch': '2.13.0'}
    )
    assert compare(make_noisy_run(1), after).settings == {
        'loader.num_workers': ('2', '8'),
        'loader.prefetch_factor': ('2', '4'),
        'versions.mmengine': ('0.10.7', None),
        'versions.torch': (None, '2.13.0'),
    }
