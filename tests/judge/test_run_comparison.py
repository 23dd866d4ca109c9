from __future__ import annotations

import pytest

from fakes.compared_runs import make_noisy_run
from fakes.replaced import replace
from fakes.runs import make_evidence, make_gpu_run, make_model_bytes, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import FIGURES, compare_runs
from mmgpu_hooks.schema import LoaderSettings, RunComparison, RunEvidence


def compare(before: RunEvidence, after: RunEvidence) -> RunComparison:
    return compare_runs(Run(before), Run(after))


def figure(comparison: RunComparison, name: str):
    return next(each for each in comparison.figures if each.name == name)


def test_what_was_planted_is_found_and_put_down_to_its_part():
    before = make_noisy_run(1)
    comparison = compare(before, make_noisy_run(2, data_wait_s=0.16))
    assert comparison.obstacles == ()
    assert [each.name for each in comparison.figures] == list(FIGURES)
    assert comparison.iter_ratio.low > 1.1
    assert comparison.iter_ratio.count == 40
    assert figure(comparison, 'data_wait_s').difference.low > 0.04
    step = figure(comparison, 'step_s').difference
    assert abs(step.value) < 0.02
    rate = figure(comparison, 'images_per_s')
    assert rate.before.value == pytest.approx(4 / 0.3, rel=0.02)
    assert rate.difference.high < 0


def test_the_interval_covers_what_was_planted():
    covered, rounds = {'iter_s': 0, 'data_wait_s': 0}, 60
    for seed in range(rounds):
        before = make_noisy_run(2 * seed)
        after = make_noisy_run(2 * seed + 1, data_wait_s=0.16)
        comparison = compare(before, after)
        ratio = comparison.iter_ratio
        covered['iter_s'] += ratio.low <= 1.2 <= ratio.high
        wait = figure(comparison, 'data_wait_s').difference
        covered['data_wait_s'] += wait.low <= 0.06 <= wait.high
    assert min(covered.values()) >= 0.9 * rounds


def test_the_first_interval_is_warm_up():
    run = make_noisy_run(1, noise=0.0)
    comparison = compare(run, run)
    assert figure(comparison, 'iter_s').before.value == pytest.approx(0.3)
    assert comparison.iter_ratio.value == 1.0


def test_equal_runs_are_past_no_limit():
    alarms = 0
    for seed in range(60):
        before, after = make_noisy_run(2 * seed), make_noisy_run(2 * seed + 1)
        alarms += compare(before, after).iter_ratio.low > 1
    assert alarms <= 3


def test_a_part_that_an_older_file_lacks_is_unknown():
    after = make_noisy_run(2)
    intervals = tuple(
        replace(
            record,
            images=None,
            ledger_s={
                part: seconds
                for part, seconds in record.ledger_s.items()
                if part != 'startup'
            },
        )
        for record in after.intervals
    )
    comparison = compare(make_noisy_run(1), replace(after, intervals=intervals))
    for name in ('startup_s', 'images_per_s'):
        missing = figure(comparison, name)
        assert missing.before is not None
        assert (missing.after, missing.difference, missing.ratio) == (None,) * 3
    assert comparison.obstacles == ()


def of_loader(**fields):
    return replace(make_run().loader, **fields)


@pytest.mark.parametrize(
    ('before', 'after', 'word'),
    [
        ({}, {'loader': of_loader(batch_size=8)}, 'batch size is not the same: 4'),
        ({}, {'world_size': 2}, 'number of ranks is not the same: 1'),
        ({}, {'device': 'cuda'}, 'device is not the same: cpu'),
        (
            {},
            {'host': replace(make_run().host, logical_cpus=64)},
            'number of CPUs of the host is not the same: 8',
        ),
        (
            {'gpu': make_gpu_run().gpu},
            {'gpu': replace(make_gpu_run().gpu, name='A100')},
            'GPU is not the same: NVIDIA H100 80GB HBM3',
        ),
    ],
)
def test_runs_of_another_kind_are_not_compared(before, after, word):
    runs = make_noisy_run(1, **before), make_noisy_run(2, **after)
    comparison = compare(*runs)
    (obstacle,) = comparison.obstacles
    assert word in obstacle
    assert comparison.iter_ratio is not None


def test_another_model_is_not_compared():
    model = make_model_bytes()
    before = replace(make_noisy_run(1), model=model)
    after = replace(make_noisy_run(2), model=replace(model, parameters=1))
    (obstacle,) = compare(before, after).obstacles
    assert 'number of parameters of the model' in obstacle
    # what is unknown of one is no obstacle
    assert compare(before, make_noisy_run(2)).obstacles == ()


def test_a_run_too_short_says_how_much_is_missing():
    comparison = compare(make_noisy_run(1), make_evidence(intervals=4))
    (obstacle,) = comparison.obstacles
    assert obstacle == (
        'The second run is too short: 3 intervals after the warm-up, 6 needed (about '
        '60 iterations more).'
    )
    assert comparison.iter_ratio is None


def test_a_run_that_drifts_says_so():
    drifting = make_noisy_run(1, intervals=10, alike=1.0, noise=0.0)
    slower = tuple(
        replace(record, step=replace(record.step, total_s=record.step.total_s * number))
        for number, record in enumerate(drifting.intervals, start=1)
    )
    drifting = replace(drifting, intervals=slower)
    (obstacle,) = compare(drifting, make_noisy_run(2)).obstacles
    assert 'too short for how much it drifts' in obstacle


def test_settings_that_differ_are_named():
    loader = LoaderSettings(
        num_workers=8,
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=False,
        batch_size=4,
        batches_per_epoch=100,
        dataset_length=400,
        start_method='fork',
    )
    after = make_noisy_run(2, loader=loader, versions={'torch': '2.13.0'})
    settings = compare(make_noisy_run(1), after).settings
    assert [(each.name, each.before, each.after) for each in settings] == [
        ('loader.num_workers', '2', '8'),
        ('loader.prefetch_factor', '2', '4'),
        ('versions.mmengine', '0.10.7', None),
        ('versions.torch', None, '2.13.0'),
    ]
