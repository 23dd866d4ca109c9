"""Tests FastCocoMetric against MMDetection's CocoMetric on the demo's data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip('mmdet', exc_type=ImportError)

import torch
from mmdet.evaluation.metrics import CocoMetric
from mmdet.structures.mask import encode_mask_results
from mmengine.config import Config
from mmengine.registry import METRICS, DefaultScope

from fakes.predicted import MODULE, evaluate, predict, write_annotations
from mmgpu_hooks import FastCocoMetric
from mmgpu_hooks.config.rewrite import rewrite_config
from mmgpu_hooks.optimize import coco_metric
from mmgpu_hooks.optimize.coco_metric import BACKENDS, Backend, encode_masks
from training.detection import environ

ARRAYS = ('precision', 'recall', 'scores')
TYPE = 'mmgpu_hooks.FastCocoMetric'


@pytest.fixture(scope='module')
def truth(tmp_path_factory) -> Path:
    return write_annotations(tmp_path_factory.mktemp('annotations'))


@pytest.fixture
def said(monkeypatch) -> list[str]:
    """Lines that the metric logs."""
    texts: list[str] = []
    monkeypatch.setattr(
        coco_metric, 'print_log', lambda text, *rest, **more: texts.append(text)
    )
    return texts


@pytest.fixture
def evaluations(monkeypatch) -> list[Any]:
    """All COCOeval objects that pycocotools and faster backends make."""
    made: list[Any] = []

    def keep(make):
        def kept(*args):
            made.append(make(*args))
            return made[-1]

        return kept

    monkeypatch.setattr(MODULE, 'COCOeval', keep(MODULE.COCOeval))
    own = keep(FastCocoMetric.open_evaluation)
    monkeypatch.setattr(FastCocoMetric, 'open_evaluation', own)
    return made


def of_backend(backend: Backend) -> Any:
    """Returns a FastCocoMetric class that uses only the given COCOeval backend."""
    return type('FastCocoMetric', (FastCocoMetric,), {'backends': (backend,)})


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    'boxes': ({}, {}),
    'by class': ({'classwise': True}, {}),
    'items': ({'metric_items': ['mAP_75', 'AR@1000']}, {}),
    'proposals': ({'metric': 'proposal'}, {}),
    'boxes, then proposals': ({'metric': ['bbox', 'proposal']}, {}),
    'as RTMDet asks': ({'proposal_nums': (100, 1, 10)}, {}),
    'few detections count': ({'proposal_nums': (3, 10, 20)}, {}),
    'four numbers': ({'proposal_nums': (10, 100, 300, 1000)}, {}),
    'thresholds': ({'iou_thrs': np.array([0.5, 0.65])}, {}),
    'masks': ({'metric': ['bbox', 'segm'], 'classwise': True}, {'masks': True}),
    'masks, twice': ({'metric': ['segm', 'segm']}, {'masks': True}),
    'masks for nothing': ({}, {'masks': True}),
    'empty images': ({'metric': ['bbox', 'segm']}, {'every': 3, 'masks': True}),
    'no results': ({}, {'every': 1000}),
}


def compare(
    arguments: dict[str, Any], samples: Any, backend: Backend, evaluations: list[Any]
) -> dict[str, float]:
    """Asserts that a backend's COCOeval arrays equal those of pycocotools, twice."""
    plain = evaluate(CocoMetric(**arguments), samples)
    count = len(evaluations)
    metric = of_backend(backend)(**arguments)
    for _ in range(2):
        np.testing.assert_equal(evaluate(metric, samples), plain)
        made = evaluations[count:]
        assert len(made) == count
        for ours, theirs in zip(made, evaluations):
            assert [
                'evaluate' in vars(evaluation) for evaluation in (ours, theirs)
            ] == [True, False]
            for name in ARRAYS:
                np.testing.assert_array_equal(ours.eval[name], theirs.eval[name])
            np.testing.assert_array_equal(ours.stats, theirs.stats)
        del evaluations[count:]
    return plain


BY_BACKEND = pytest.mark.parametrize(
    'backend', BACKENDS, ids=lambda backend: backend.module
)


@BY_BACKEND
@pytest.mark.parametrize('case', CASES)
def test_every_array_is_that_of_pycocotools(case, backend, truth, evaluations, said):
    arguments, wanted = CASES[case]
    samples = predict(truth, **wanted)
    if case == 'no results':
        samples = [sample for sample in samples if not len(sample.pred_instances)]
    arguments = {'ann_file': str(truth), **arguments}
    plain = compare(arguments, samples, backend, evaluations)
    assert len(said) == 1
    assert said[0].startswith(f'FastCocoMetric: evaluates with {backend.distribution} ')
    if case == 'boxes':
        # of figures that are all the same, nothing would be seen
        assert 0.1 < plain['coco/bbox_mAP'] < 0.9


@BY_BACKEND
def test_categories_in_reverse_order_give_the_figures_of_pycocotools(
    backend, truth, tmp_path, evaluations, said
):
    """Tests that reversed category ids give the same values as pycocotools."""
    coco = json.loads(truth.read_text())
    for category in coco['categories']:
        category['id'] = 90 - category['id']
    for note in coco['annotations']:
        note['category_id'] = 90 - note['category_id']
    path = tmp_path / 'reversed.json'
    path.write_text(json.dumps(coco))
    arguments = {'ann_file': str(path), 'classwise': True}
    compare(arguments, predict(truth), backend, evaluations)
    assert len(said) == 1


PLAIN: dict[str, dict[str, Any]] = {
    'format_only': {'format_only': True, 'outfile_prefix': '{}/files'},
    'outfile_prefix': {'outfile_prefix': '{}/files'},
    'ann_file': {'ann_file': None},
    'use_mp_eval': {'use_mp_eval': True},
}


@pytest.mark.parametrize('name', PLAIN)
def test_what_wants_the_plain_way_gets_it_and_is_told_once(name, truth, tmp_path, said):
    samples = predict(truth)
    if name == 'ann_file':
        for sample in samples:
            sample.instances = [{'bbox': [1, 2, 50, 60], 'bbox_label': 1}]
    found, files = [], []
    for kind in (CocoMetric, FastCocoMetric):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        given = {'ann_file': str(truth), **PLAIN[name]}
        if 'outfile_prefix' in given:
            given['outfile_prefix'] = given['outfile_prefix'].format(folder)
        metric = kind(**given)
        # processes of pycocotools take seconds to start
        times = 1 if name == 'use_mp_eval' else 2
        found += [evaluate(metric, samples) for _ in range(times)]
        files.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert found == found[:1] * len(found)
    assert files[0] == files[1]
    assert bool(files[0]) == ('outfile_prefix' in PLAIN[name])
    assert len(said) == 1
    assert said[0].startswith('FastCocoMetric: evaluates as CocoMetric does: ')
    assert name in said[0]


FAILS: dict[str, dict[str, Any]] = {
    'a list of thresholds, with numpy 2': {'iou_thrs': [0.5, 0.65]},
    'one number of proposals': {'proposal_nums': (100,)},
    'fast proposals, with numpy 2': {'metric': 'proposal_fast'},
    'an unknown item': {'metric_items': ['mAP_99']},
    'no masks': {'metric': 'segm'},
}


@pytest.mark.parametrize('name', FAILS)
def test_what_mmdetection_fails_on_fails_alike(name, truth):
    samples, raised = predict(truth), []
    for kind in (CocoMetric, FastCocoMetric):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - as MMDetection has it
            evaluate(kind(ann_file=str(truth), **FAILS[name]), samples)
        raised.append((caught.type, str(caught.value)))
    assert raised[0] == raised[1]


@pytest.mark.parametrize(
    ('backends', 'words'),
    [
        (
            (Backend('a_b', 'a-b', '1'), Backend('c', 'c-d', '1')),
            'wants a-b or c-d, none',
        ),
        ((Backend('numpy', 'numpy', '9999'),), 'is older than 9999'),
        ((Backend('not_there', 'numpy', '1'),), 'does not load (ModuleNotFoundError'),
    ],
)
def test_without_a_backend_it_is_coco_metric(backends, words, truth, said):
    samples = predict(truth)
    metric = type('Fast', (FastCocoMetric,), {'backends': backends})(str(truth))
    assert evaluate(metric, samples) == evaluate(CocoMetric(str(truth)), samples)
    assert len(said) == 1
    assert words in said[0]


def test_the_metric_is_switched_off_with_everything_of_ours(truth, monkeypatch, said):
    monkeypatch.setenv('MMGPU_DISABLE', '1')
    monkeypatch.setattr(coco_metric, 'encode_masks', None)
    samples = predict(truth, masks=True)
    metric = FastCocoMetric(str(truth), 'segm')
    plain = CocoMetric(str(truth), 'segm')
    assert evaluate(metric, samples) == evaluate(plain, samples)
    assert 'MMGPU_DISABLE is set' in said[0]


class PanicException(BaseException):
    """Fake of the exception class by which Rust's panics appear in Python."""


@pytest.mark.parametrize('kind', [RuntimeError, PanicException, KeyboardInterrupt])
def test_a_backend_that_fails_costs_no_figure(kind, truth, monkeypatch, said):
    def fail(*_):
        raise kind('index out of bounds')

    samples = predict(truth)
    plain = evaluate(CocoMetric(str(truth)), samples)
    monkeypatch.setattr(FastCocoMetric, 'open_evaluation', fail)
    metric = FastCocoMetric(str(truth))
    if kind is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            evaluate(metric, samples)
        return
    assert [evaluate(metric, samples) for _ in range(2)] == [plain] * 2
    assert len(said) == 2
    assert said[1].endswith(f'{kind.__name__}: index out of bounds.')


def rename_images(coco: dict[str, Any], samples: list[Any]) -> None:
    for image in coco['images']:
        image['id'] = f'{image["id"]}'
    for note in coco['annotations']:
        note['image_id'] = f'{note["image_id"]}'
    for sample in samples:
        sample.set_metainfo({'img_id': f'{sample.img_id}'})


def number_annotations_from_0(coco: dict[str, Any], samples: list[Any]) -> None:
    for number, note in enumerate(coco['annotations']):
        note['id'] = number


def number_annotations_alike(coco: dict[str, Any], samples: list[Any]) -> None:
    coco['annotations'][1]['id'] = coco['annotations'][0]['id']


def lose_a_score(coco: dict[str, Any], samples: list[Any]) -> None:
    samples[3].pred_instances.scores[2] = float('nan')


def lose_a_box(coco: dict[str, Any], samples: list[Any]) -> None:
    samples[3].pred_instances.bboxes[2, 1] = float('inf')


ODD = (
    rename_images,
    number_annotations_from_0,
    number_annotations_alike,
    lose_a_score,
    lose_a_box,
)


@pytest.mark.parametrize('make_odd', ODD)
def test_what_backends_may_take_in_another_way_is_evaluated_by_pycocotools(
    make_odd, truth, tmp_path, evaluations, said
):
    samples, coco = predict(truth), json.loads(truth.read_text())
    make_odd(coco, samples)
    odd = tmp_path / 'odd.json'
    odd.write_text(json.dumps(coco))
    found = [evaluate(kind(str(odd)), samples) for kind in (CocoMetric, FastCocoMetric)]
    np.testing.assert_equal(found[1], found[0])
    assert len(said) == len(evaluations) == 2
    assert 'evaluates as CocoMetric does: ValueError: ' in said[1]


COUNTS = {'size': [240, 320], 'counts': [10, 20, 76770]}
OF_ANNOTATIONS: dict[str, dict[str, Any]] = {
    'no outline': {'segmentation': []},
    'no outline at all': {'segmentation': None},
    'an outline of one point': {'segmentation': [[1, 2]]},
    'an outline of four numbers': {'segmentation': [[1, 2, 30, 40]]},
    'an outline of seven numbers': {'segmentation': [[1, 1, 50, 1, 50, 50, 2]]},
    'an outline of texts': {'segmentation': [['1', '1', '50', '1', '50', '50']]},
    'a point beside an outline': {'segmentation': [[1, 1, 50, 1, 50, 50], [1, 2]]},
    'run lengths that end early': {'segmentation': {**COUNTS, 'counts': [10, 20]}},
    'run lengths of another size': {'segmentation': {**COUNTS, 'size': [9, 9]}},
    'packed run lengths that are none': {'segmentation': {**COUNTS, 'counts': 'abc'}},
    'no area': {'area': None},
    'an area that is a text': {'area': '5'},
    'an area that is not finite': {'area': float('nan')},
    'no box': {'bbox': []},
    'a box of five numbers': {'bbox': [1, 2, 30, 40, 5]},
    'a box turned round': {'bbox': [50, 60, -30, -40]},
    'a crowd that is a text': {'iscrowd': '1'},
    'another image': {'image_id': 99},
    'an image that is no number': {'image_id': None},
    'another category': {'category_id': 99},
}


def find_outcome(kind: Any, path: Path, metric: str, samples: Any) -> Any:
    """Returns the metric values, or the type and text of the exception raised."""
    try:
        return evaluate(kind(str(path), metric), samples)
    except Exception as error:  # noqa: BLE001 - as MMDetection has it
        return type(error), str(error)


@pytest.mark.parametrize('metric', ['bbox', 'segm'])
@pytest.mark.parametrize(
    'case',
    [
        *OF_ANNOTATIONS,
        'no outline named',
        'no height',
        # over which a backend hangs
        'another width than the masks',
    ],
)
def test_an_odd_annotation_ends_as_with_coco_metric(
    case, metric, truth, tmp_path, evaluations
):
    coco = json.loads(truth.read_text())
    note = coco['annotations'][3]
    note.update(OF_ANNOTATIONS.get(case, {}))
    if case == 'no outline named':
        del note['segmentation']
    if case == 'no height':
        del coco['images'][0]['height']
    if case == 'another width than the masks':
        coco['images'][0]['width'] = 64
    odd, samples = tmp_path / 'odd.json', predict(truth, masks=True)
    odd.write_text(json.dumps(coco))
    plain = find_outcome(CocoMetric, odd, metric, samples)
    theirs = [*evaluations]
    for backend in BACKENDS:
        evaluations.clear()
        np.testing.assert_equal(
            find_outcome(of_backend(backend), odd, metric, samples), plain
        )
        if isinstance(plain, dict):
            for name in ARRAYS:
                np.testing.assert_array_equal(
                    evaluations[-1].eval[name], theirs[-1].eval[name]
                )


def test_run_lengths_of_all_kinds_are_evaluated_by_the_backend(
    truth, tmp_path, evaluations, said
):
    coco = json.loads(truth.read_text())
    notes = coco['annotations']
    (packed,) = encode_masks(MASKS[:1].new_ones(1, 240, 320))
    notes[3]['segmentation'] = COUNTS
    notes[4]['segmentation'] = {**packed, 'counts': packed['counts'].decode()}
    path = tmp_path / 'lengths.json'
    path.write_text(json.dumps(coco))
    arguments = {'ann_file': str(path), 'metric': ['bbox', 'segm']}
    for backend in BACKENDS:
        evaluations.clear()
        compare(arguments, predict(truth, masks=True), backend, evaluations)
    assert [text for text in said if 'evaluates as' in text] == []


def test_results_of_another_data_set_are_refused_as_by_pycocotools(truth):
    samples = predict(truth)
    samples[3].set_metainfo({'img_id': 7777})
    for kind in (CocoMetric, FastCocoMetric):
        with pytest.raises(AssertionError, match='do not correspond'):
            evaluate(kind(str(truth)), samples)


MASKS = torch.rand(7, 40, 33, generator=torch.Generator().manual_seed(1)) > 0.4


@pytest.mark.parametrize(
    'masks',
    [
        MASKS,
        MASKS.to(torch.uint8),
        MASKS.permute(0, 2, 1),
        MASKS[:, 3:-2, 5:],
        torch.zeros(2, 3, 5, dtype=torch.bool),
        torch.ones(2, 3, 5, dtype=torch.bool),
        MASKS[:0],
    ],
    ids=['bool', 'uint8', 'turned', 'cut', 'empty masks', 'full masks', 'no masks'],
)
def test_masks_are_encoded_to_the_same_bytes(masks, monkeypatch):
    # two of them at a time
    monkeypatch.setattr(coco_metric, '_CHUNK_BYTES', 2 * 40 * 33)
    assert encode_masks(masks) == encode_mask_results(masks.numpy())


def test_masks_of_a_card_are_transposed_there(monkeypatch):
    """Tests that masks on a GPU are transposed there, by a tensor on ``meta``."""
    moved = []

    def to_host(tensor):
        moved.append((tensor.device.type, tensor.is_contiguous(), tuple(tensor.shape)))
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, 'cpu', to_host)
    masks = torch.empty(3, 4, 6, dtype=torch.bool, device='meta')
    assert encode_masks(masks) == encode_mask_results(np.zeros((3, 4, 6), bool))
    assert moved == [('meta', True, (3, 6, 4))]


def test_other_masks_are_left_to_mmdetection():
    encoded = encode_mask_results(MASKS.numpy())
    for masks in (encoded, MASKS.float(), MASKS[0], MASKS[:, :0]):
        assert encode_masks(masks) is None


def test_a_card_without_room_encodes_as_mmdetection_does(truth, monkeypatch):
    samples = predict(truth, masks=True)
    plain = evaluate(CocoMetric(str(truth), 'segm'), samples)

    def fail(masks):
        raise torch.OutOfMemoryError('CUDA out of memory.')

    monkeypatch.setattr(coco_metric, 'encode_masks', fail)
    assert evaluate(FastCocoMetric(str(truth), 'segm'), samples) == plain


CONFIGS = {
    'own.py': "val_evaluator = dict(type='CocoMetric', ann_file={!r}, metric='bbox')\n",
    'child.py': "_base_ = './base.py'\n",
    'lazy.py': (
        'from mmdet.evaluation.metrics import CocoMetric\n'
        "val_evaluator = dict(type=CocoMetric, ann_file={!r}, metric='bbox')\n"
    ),
}


@pytest.mark.parametrize('name', CONFIGS)
def test_set_writes_it_and_the_figures_stay(name, truth, tmp_path, evaluations):
    for own, text in (('base.py', CONFIGS['own.py']), (name, CONFIGS[name])):
        (tmp_path / own).write_text(text.format(str(truth)))
    config, samples = tmp_path / name, predict(truth)
    outcome = rewrite_config(config, {'val_evaluator.type': TYPE}, suffix='_set')
    assert outcome.status == 'rewritten', outcome.reason
    assert any('ultrafast-pycocotools' in note for note in outcome.notes)
    with DefaultScope.overwrite_default_scope('mmdet'):
        found = [
            evaluate(dict(Config.fromfile(path).val_evaluator), samples)
            for path in (config, outcome.target)
        ]
    assert found[0] == found[1]
    assert ['evaluate' in vars(evaluation) for evaluation in evaluations] == [
        False,
        True,
    ]


def test_two_ranks_find_the_figures_of_one(truth, tmp_path):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.metric_ranks']
    done = subprocess.run(
        [*command, str(truth), str(tmp_path)],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    one = evaluate(CocoMetric(str(truth)), predict(truth))
    for rank in (0, 1):
        found = json.loads((tmp_path / f'figures_{rank}.json').read_text())
        assert found == {'plain': one, 'fast': one}


def test_the_name_in_a_config_is_enough():
    assert METRICS.get(TYPE) is FastCocoMetric
    assert issubclass(FastCocoMetric, CocoMetric)


def test_importing_the_package_imports_none_of_it():
    code = (
        'import sys, mmgpu_hooks\n'
        "print({'torch', 'mmengine', 'mmdet', 'numpy'} & set(sys.modules))\n"
    )
    done = subprocess.run(
        [sys.executable, '-c', code], capture_output=True, text=True, check=True
    )
    assert done.stdout == 'set()\n'


def test_without_mmdetection_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(METRICS, 'get', lambda name: None)
    with pytest.raises(RuntimeError, match='expected MMDetection, whose CocoMetric'):
        coco_metric.find_coco_metric()
