from __future__ import annotations

import pytest

from mmgpu_hooks.memory.padded_size import locate_padded_size

PACK = {'type': 'PackDetInputs'}


def config(*transforms, divisor=1, augments=None, **model):
    return {
        'model': {
            'data_preprocessor': {
                'pad_size_divisor': divisor,
                'batch_augments': augments,
            },
            **model,
        },
        'train_dataloader': {'dataset': {'pipeline': [*transforms, PACK]}},
    }


COCO = {'type': 'Resize', 'scale': (1333, 800), 'keep_ratio': True}
MOSAIC = {'type': 'Mosaic', 'img_scale': (640, 640)}
DETR = {
    'type': 'RandomChoice',
    'transforms': [
        [{'type': 'RandomChoiceResize', 'scales': [(480, 1333), (800, 1333)]}],
        [
            {'type': 'RandomChoiceResize', 'scales': [(400, 4200), (600, 4200)]},
            {
                'type': 'RandomCrop',
                'crop_type': 'absolute_range',
                'crop_size': (384, 600),
            },
            {'type': 'RandomChoiceResize', 'scales': [(480, 1333), (800, 1333)]},
        ],
    ],
}


@pytest.mark.parametrize(
    ('case', 'size', 'source'),
    [
        (config(COCO, divisor=32), (800, 1344), 'Resize, pad_size_divisor=32'),
        (config({**COCO, 'keep_ratio': False}), (800, 1333), 'Resize'),
        (config(DETR), (800, 1333), 'RandomChoice'),
        (
            config(
                {'type': 'RandomResize', 'scale': [(320, 320), (608, 608)]},
                divisor=32,
            ),
            (608, 608),
            'RandomResize, pad_size_divisor=32',
        ),
        (
            config(
                {'type': 'RandomResize', 'scale': (640, 640), 'ratio_range': (0.1, 2)},
                {'type': 'RandomCrop', 'crop_size': (640, 640)},
                {'type': 'Pad', 'size': (640, 640)},
            ),
            (640, 640),
            'RandomResize, RandomCrop, Pad',
        ),
        (
            config(MOSAIC, {'type': 'RandomAffine', 'border': (-320, -320)}),
            (640, 640),
            'Mosaic, RandomAffine',
        ),
        (config(MOSAIC), (1280, 1280), 'Mosaic'),
        (
            config(COCO, {'type': 'Pad', 'pad_to_square': True}),
            (1333, 1333),
            'Resize, Pad',
        ),
        (
            config(
                {'type': 'mmdet.Resize', 'scale': 512},
                augments=[
                    {'type': 'BatchSyncRandomResize', 'random_size_range': (480, 800)}
                ],
            ),
            (800, 800),
            'Resize, BatchSyncRandomResize',
        ),
        (
            config(COCO, augments=[{'type': 'BatchFixedSizePad', 'size': (1024, 900)}]),
            (1024, 1333),
            'Resize, BatchFixedSizePad',
        ),
    ],
)
def test_the_largest_image_of_a_pipeline(case, size, source):
    assert locate_padded_size(case) == (size, source)


def test_wrapped_data_sets_come_first():
    inner = {'pipeline': [{'type': 'Resize', 'scale': (300, 200)}]}
    outer = {'pipeline': [{'type': 'Pad', 'size': (400, 100)}, PACK]}
    mixed = {**outer, 'dataset': {'type': 'ConcatDataset', 'datasets': [inner, {}]}}
    found = locate_padded_size({'train_dataloader': {'dataset': mixed}})
    assert found == ((200, 400), 'Resize, Pad')


@pytest.mark.parametrize(
    'case',
    [
        {},
        config({'type': 'OwnResize', 'size': 5}),
        config({'type': 'Pad', 'size_divisor': 32}),
    ],
)
def test_a_size_that_nothing_fixes_is_unknown(case):
    size, why = locate_padded_size(case)
    assert size is None
    assert why == 'no transform of the train pipeline fixes the size'
