"""Tests that pipelines designed by others train, and are judged by repeated runs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('mmengine', exc_type=ImportError)

import torch
from torch.utils.data import DataLoader

from benchmarks import costs, predict
from benchmarks.harness import Figure
from benchmarks.planted_by_others import OTHERS, PaddedFloats, TinyCrops
from mmgpu_hooks.schema.judged import Prediction


@pytest.fixture(scope='module')
def works() -> dict[str, costs.Work]:
    """CPU loads for train steps and loading, by kind."""
    return costs.make_works()


def test_at_least_twelve_pipelines_are_planted_by_others_each_described():
    assert len({pipeline.name for pipeline in OTHERS}) == len(OTHERS) >= 12
    known = (*predict.SEEN, *predict.draw_unseen(), *predict.MMDET)
    assert not {pipeline.name for pipeline in OTHERS} & {other.name for other in known}
    for pipeline in OTHERS:
        assert type(pipeline).__doc__


@pytest.mark.parametrize('pipeline', OTHERS, ids=lambda pipeline: pipeline.name)
def test_a_batch_of_each_comes_from_a_worker_and_makes_a_step(pipeline, works):
    dataset = pipeline.make_dataset(Path(), works, 2 * pipeline.batch)
    loader = DataLoader(
        dataset, pipeline.batch, num_workers=1, collate_fn=pipeline.collate
    )
    step = pipeline.make_step(works)
    batches = list(loader)
    for batch in batches:
        step(batch)
    assert len(batches) == 2
    assert [len(batch['inputs']) for batch in batches] == [pipeline.batch] * 2
    first, measured = predict.count_batches(pipeline, 8, 2, seconds=2.5)
    assert first >= 32
    assert measured >= 48
    assert measured * pipeline.batch % pipeline.period == 0


def test_images_of_two_shapes_are_padded_to_the_largest(works):
    pipeline = PaddedFloats()
    dataset = pipeline.make_dataset(Path(), works, 4)
    batch = pipeline.collate([dataset[2], dataset[3]])
    assert batch['inputs'].shape == (2, 3, 1333, 1333)
    assert batch['data_samples'] == [2, 3]


@pytest.mark.parametrize(
    'block',
    [costs.log_normal_block(2.5, 128), costs.pareto_block(1.5, 128), [1.0] * 18 + [19]],
    ids=['log-normal', 'Pareto', 'one long'],
)
def test_each_block_of_draws_has_the_same_mean_in_another_order(block):
    drawn = list(itertools.islice(costs.draw_blocks(block, seed=1), 2 * len(block)))
    first, second = drawn[: len(block)], drawn[len(block) :]
    assert sorted(first) == sorted(second) == sorted(block)
    assert first != second
    other = list(itertools.islice(costs.draw_blocks(block, seed=2), len(block)))
    assert first != other


def test_blocks_have_a_mean_of_1_and_a_tail():
    for block in (costs.log_normal_block(2.5, 128), costs.pareto_block(1.5, 128)):
        assert sum(block) / len(block) == pytest.approx(1.0)
        assert max(block) > 10
    # the quantiles of Pareto's: half lie beyond 2 ** (1 / shape) of the least
    pareto = costs.pareto_block(2.0, 1000)
    assert pareto[500] / pareto[0] == pytest.approx(2**0.5, rel=0.01)


def predicted(low_s: float, middle_s: float, high_s: float) -> Prediction:
    return Prediction(2, 2, 4, middle_s, low_s, high_s, 0.0, None, 'step')


@pytest.mark.parametrize(
    ('measured_s', 'bounds_s', 'repeats', 'is_covered'),
    [
        # the mean is the truth, though one training lies outside
        ((0.100, 0.104), (0.101, 0.110), True, True),
        ((0.100, 0.104), (0.103, 0.110), True, False),
        # 20 % apart: the interval must hold both
        ((0.100, 0.120), (0.095, 0.125), False, True),
        ((0.120, 0.100), (0.105, 0.125), False, False),
        ((0.100, 0.120), (0.095, 0.115), False, False),
    ],
)
def test_a_truth_is_the_mean_where_it_repeats_and_both_elsewhere(
    measured_s, bounds_s, repeats, is_covered
):
    low_s, high_s = bounds_s
    case = predict.Case('it', 'others', measured_s, predicted(low_s, 0.1, high_s))
    assert case.repeats is repeats
    assert case.is_covered is is_covered


def cases(pipeline: str, measured_s: Any, count: int) -> list[predict.Case]:
    found = predicted(0.09, 0.1, 0.11)
    return [predict.Case(pipeline, 'others', measured_s, found) for _ in range(count)]


HIT, OFF, TWO_VALUED = (0.101, 0.101), (0.2, 0.2), (0.05, 0.12)


@pytest.mark.parametrize(
    ('judged', 'verdicts'),
    [
        # error: median and 90th percentile; coverage, half width; that of a and b
        (cases('a', HIT, 10) + cases('b', HIT, 10), 'met met met met met met'),
        (
            cases('a', HIT, 90) + cases('b', HIT, 6) + cases('b', OFF, 4),
            'met met met met met missed',
        ),
        (
            cases('a', HIT, 8) + cases('a', OFF, 2) + cases('b', HIT, 10),
            'met met met met met met',
        ),
        # what does not repeat has no error, and an interval that must hold both
        (
            cases('a', HIT, 10) + cases('b', TWO_VALUED, 10),
            'met met missed met met missed',
        ),
        (cases('a', HIT, 10), 'met met met met met missed'),
        (cases('a', TWO_VALUED, 1), 'missed missed missed met missed missed'),
        ([], 'missed missed missed missed missed missed'),
    ],
    ids=[
        'both hit',
        'six in ten of b',
        'eight in ten of a',
        'b is two-valued',
        'b was not predicted',
        'little, and two-valued',
        'nothing',
    ],
)
def test_pipelines_planted_by_others_are_judged_by_their_own_targets(judged, verdicts):
    figures = list(predict.judge_others(['a', 'b'], judged))
    assert [figure.verdict for figure in figures if figure.target] == verdicts.split()


def test_the_number_of_settings_that_repeat_is_printed():
    judged = cases('a', HIT, 3) + cases('b', TWO_VALUED, 3)
    (figure,) = (
        figure
        for figure in predict.judge_others(['a', 'b'], judged)
        if 'settings whose trainings repeat' in figure.name
    )
    assert figure == Figure(figure.name, 1, note='of 2')


def test_a_setting_that_lost_a_training_is_no_truth():
    def trial(workers: int, iter_s: float, origin: str) -> dict[str, Any]:
        return {'setting': [workers, 2], 'iter_s': iter_s, 'origin': origin}

    twice = [trial(0, 0.1, 'others'), trial(2, 0.05, 'others'), trial(0, 0.2, 'others')]
    assert predict.gather_truths(twice) == {(0, 2): [0.1, 0.2]}
    once = [trial(0, 0.1, 'seen'), trial(2, 0.05, 'seen')]
    assert predict.gather_truths(once) == {(0, 2): [0.1], (2, 2): [0.05]}


@pytest.mark.slow
def test_trials_of_all_origins_are_judged_again_from_one_file(tmp_path, capsys):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trials = [
            *predict.measure([predict.SEEN[6]], [(0, 2), (2, 2)], 0.2, attempts=1),
            *predict.measure([TinyCrops()], [(0, 2), (2, 2)], 0.2, 1, repeats=2),
        ]
    finally:
        torch.set_num_threads(threads)
    assert [trial['pipeline'] for trial in trials] == ['step-bound'] * 2 + [
        '64 tiny crops'
    ] * 4
    for trial in trials:
        trial['other_load_pct'] = 0.0  # not what is tested here
    path = tmp_path / 'trials.jsonl'
    path.write_text('\n'.join(map(json.dumps, trials)))
    predict.main(['--trials', str(path)])
    rows = {
        line.split('|')[1].strip(): line.split('|')[2].strip()
        for line in capsys.readouterr().out.splitlines()
        if line.startswith('| ')
    }
    assert rows['trainings'] == '6'
    assert {'seen: error, median', 'pipeline step-bound: error, median'} <= {*rows}
    assert 'pipeline 64 tiny crops: intervals that hold the truth' in rows
    predict.main(['--trials', str(path), '--only', 'others'])
    page = capsys.readouterr().out
    assert 'planted by others: intervals that hold the truth' in page
    assert 'step-bound' not in page


def test_the_table_of_one_part_is_not_kept(tmp_path, capsys):
    with pytest.raises(SystemExit, match='2'):
        predict.main(['--only', 'others', '--output', str(tmp_path / 'table.md')])
    assert 'of one part is not kept' in capsys.readouterr().err


def test_a_quick_run_has_a_pipeline_of_every_origin():
    chosen = predict.choose_pipelines(is_quick=True, only=None)
    assert {*chosen} == {*predict.ORIGINS}
    assert all(chosen.values())
    (only,) = predict.choose_pipelines(is_quick=True, only='others')
    assert only == 'others'
    for origin, pipelines in predict.choose_pipelines(False, None).items():
        assert {pipeline.origin for pipeline in pipelines} == {origin}
