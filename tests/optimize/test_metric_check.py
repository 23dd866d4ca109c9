"""Tests comparing FastCocoMetric with CocoMetric on a validation's stored results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip('mmdet', exc_type=ImportError)

from mmdet.evaluation.metrics import CocoMetric

from fakes.predicted import evaluate, predict, write_annotations
from mmgpu_hooks.config.kept_results import find_kept_results
from mmgpu_hooks.config.loading import parse_flat
from mmgpu_hooks.optimize import metric_check
from mmgpu_hooks.optimize.metric_check import check_metric
from mmgpu_hooks.show.experiments import describe_metric_check


@pytest.fixture(scope='module')
def kept(tmp_path_factory) -> tuple[Path, Path]:
    """Paths of the ground truth, and of CocoMetric's stored results."""
    folder = tmp_path_factory.mktemp('kept')
    truth, prefix = write_annotations(folder), folder / 'results'
    metric = CocoMetric(str(truth), metric=['bbox', 'segm'], outfile_prefix=str(prefix))
    evaluate(metric, predict(truth, masks=True))
    return truth, prefix


def config_of(kept: tuple[Path, Path], **more: Any) -> Any:
    truth, prefix = kept
    evaluator = {
        'type': 'mmdet.CocoMetric',
        'ann_file': str(truth),
        'metric': 'bbox',
        'outfile_prefix': str(prefix),
        **more,
    }
    return parse_flat({'val_evaluator': evaluator})


@pytest.mark.parametrize('kind', ['bbox', 'segm'])
def test_every_array_is_the_same(kept, kind):
    found = find_kept_results(config_of(kept, metric=['bbox', 'segm']))
    assert found is not None
    check = check_metric(found.annotations, found.files[kind], kind)
    assert (check.differing, check.plain_reason) == ((), None)
    assert check.images == 12 and check.rows > 100
    said = describe_metric_check('results', check)
    assert 'FastCocoMetric gives every array of CocoMetric' in said


def test_a_difference_is_named(kept, monkeypatch):
    truth, prefix = kept
    make = metric_check.FastCocoMetric.open_evaluation

    def spoil(metric, *args):
        evaluation = make(metric, *args)
        accumulate = evaluation.accumulate

        def spoilt():
            accumulate()
            evaluation.eval['precision'] = evaluation.eval['precision'] * 0.5

        evaluation.accumulate = spoilt
        return evaluation

    monkeypatch.setattr(metric_check.FastCocoMetric, 'open_evaluation', spoil)
    check = check_metric(truth, Path(f'{prefix}.bbox.json'), 'bbox')
    assert check.differing[:2] == ('precision', 'stats')
    assert 'differs from CocoMetric in precision' in describe_metric_check('r', check)


@pytest.mark.parametrize(
    'more',
    [
        {'type': 'mmdet.LVISMetric'},
        {'outfile_prefix': None},
        {'outfile_prefix': 'nowhere/results'},
        {'ann_file': 'nowhere.json'},
    ],
    ids=['another metric', 'keeps nothing', 'files are gone', 'truth is gone'],
)
def test_where_nothing_was_kept_nothing_is_compared(kept, more):
    assert find_kept_results(config_of(kept, **more)) is None
    assert find_kept_results({}) is None


@pytest.mark.parametrize('text', ['{"a": 1}', '[{"image_id": 1}]', 'no JSON'])
def test_files_of_another_kind_are_an_error_that_can_be_said(kept, tmp_path, text):
    (tmp_path / 'odd.bbox.json').write_text(text)
    with pytest.raises((ValueError, KeyError, TypeError, json.JSONDecodeError)):
        check_metric(kept[0], tmp_path / 'odd.bbox.json', 'bbox')
