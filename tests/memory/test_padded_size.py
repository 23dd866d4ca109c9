from __future__ import annotations

import pytest

from mmgpu_hooks.memory.padded_size import locate_padded_size

PACK = {'type': 'PackDetInputs'}


GROUPED = {'type': 'mmdet.AspectRatioBatchSampler'}


def config(*transforms, divisor=1, augments=None, sampler=GROUPED):
    return {
        'model': {
            'data_preprocessor': {
                'pad_size_divisor': divisor,
                'batch_augments': augments,
            }
        },
        'train_dataloader': {
            'batch_sampler': sampler,
            'dataset': {'pipeline': [*transforms, PACK]},
        },
    }


def step(kind, **options):
    return {'type': kind, **options}


COCO = step('Resize', scale=(1333, 800), keep_ratio=True)
SCALES = step('RandomChoiceResize', scales=[(480, 1333), (800, 1333)], keep_ratio=True)
MULTI = step('RandomResize', scale=[(320, 320), (608, 608)])
JITTER = step('RandomResize', scale=(640, 640), ratio_range=(0.1, 2))
CUT = step('RandomCrop', crop_size=(640, 640))
ANY_CUT = step('RandomCrop', crop_type='absolute_range', crop_size=(384, 600))
MOSAIC = step('Mosaic', img_scale=(640, 640))
AFFINE = step('RandomAffine', border=(-320, -320))
DETR = step('RandomChoice', transforms=[[SCALES], [SCALES, ANY_CUT, SCALES]])
SYNC = step('BatchSyncRandomResize', random_size_range=(480, 800))
FIXED = step('BatchFixedSizePad', size=(1024, 900))
SHORT = {'resize_type': 'ResizeShortestEdge', 'max_size': 2048}
SHORTS = step('RandomChoiceResize', scales=[256, 307, 1024], **SHORT)
SHORTEST = step('ResizeShortestEdge', scale=(640, 800), max_size=1333)
SQUARE = step('Resize', scale=(640, 640))
HALF = step('RandomCrop', crop_size=(0.5, 0.25), crop_type='relative')
MAYBE = step('RandomApply', transforms=[step('Resize', scale=1024)])
FIX_SCALE = step('FixScaleResize', scale=(640, 480))
FIX_SHAPE = step('FixShapeResize', width=640, height=480)
ODD = [step('OwnResize', size=5), step('CenterCrop', crop_size=5)]
MIXED = 'portrait beside landscape'


@pytest.mark.parametrize(
    ('case', 'size', 'source'),
    [
        (config(COCO, divisor=32), (800, 1344), 'Resize, pad_size_divisor=32'),
        (config({**COCO, 'keep_ratio': False}), (800, 1333), 'Resize'),
        (config(MULTI, divisor=32), (608, 608), 'RandomResize, pad_size_divisor=32'),
        (config(JITTER, CUT), (640, 640), 'RandomResize, RandomCrop'),
        (config(COCO, step('Pad', size=(640, 900))), (900, 1333), 'Resize, Pad'),
        (config(COCO, step('Pad', pad_to_square=True)), (1333, 1333), 'Resize, Pad'),
        (config(MOSAIC), (1280, 1280), 'Mosaic'),
        (config(MOSAIC, AFFINE), (640, 640), 'Mosaic, RandomAffine'),
        (
            config(step('mmdet.Resize', scale=512), augments=[SYNC]),
            (800, 800),
            'Resize, BatchSyncRandomResize',
        ),
        (config(COCO, augments=[FIXED]), (1024, 1333), 'Resize, BatchFixedSizePad'),
        (config(SHORTS), (1024, 2048), 'RandomChoiceResize'),
        (config(SHORTS, CUT), (640, 640), 'RandomChoiceResize, RandomCrop'),
        (config(SHORTEST), (640, 1333), 'ResizeShortestEdge'),
        (config(SQUARE, HALF), (160, 320), 'Resize, RandomCrop'),
        (config(SQUARE, MAYBE), (1024, 1024), 'Resize, RandomApply'),
        (config(FIX_SCALE), (480, 640), 'FixScaleResize'),
        (config(FIX_SHAPE, sampler=None), (480, 640), 'FixShapeResize'),
        # a crop of any shape makes portraits of landscapes
        (config(DETR), (1333, 1333), f'RandomChoice, {MIXED}'),
        (config(step('MinIoURandomCrop'), COCO), (1333, 1333), f'Resize, {MIXED}'),
        (config(COCO, sampler=None), (1333, 1333), f'Resize, {MIXED}'),
        # one shape for all
        (
            config(COCO, step('RandomCrop', crop_size=(1024, 512)), sampler=None),
            (512, 1024),
            'Resize, RandomCrop',
        ),
        (config(step('Resize', scale=(400, 300)), sampler=None), (300, 400), 'Resize'),
    ],
    ids=[
        'resize, divisor',
        'no fixed ratio',
        'multi-scale',
        'jitter, crop',
        'padded',
        'padded to a square',
        'mosaic',
        'mosaic, affine',
        'synchronised resize',
        'fixed size of a batch',
        'short sides',
        'short sides, crop',
        'shortest edge',
        'a crop of half',
        'perhaps cropped',
        'fixed scale',
        'fixed shape',
        'DETR',
        'a crop of any shape',
        'no sampler',
        'one crop for all',
        'one shape for all',
    ],
)
def test_the_largest_padded_image_follows_from_the_pipeline(case, size, source):
    assert locate_padded_size(case) == (size, source)


def test_wrapped_data_sets_come_first():
    inner = {'pipeline': [{'type': 'Resize', 'scale': (300, 200)}]}
    outer = {'pipeline': [{'type': 'Pad', 'size': (400, 100)}, PACK]}
    mixed = {**outer, 'dataset': {'type': 'ConcatDataset', 'datasets': [inner, {}]}}
    loader = {'dataset': mixed, 'batch_sampler': GROUPED}
    found = locate_padded_size({'train_dataloader': loader})
    assert found == ((200, 400), 'Resize, Pad')


@pytest.mark.parametrize(
    'case',
    [
        {},
        *(config(SQUARE, odd_step) for odd_step in ODD),
        config(step('RandomChoice', transforms=[[SQUARE], ODD])),
        config(SQUARE, step('Resize', scale_factor=2.0)),
        config(step('RandomChoiceResize', scales=[480], resize_type='OwnResize')),
        config(step('Pad', size_divisor=32)),
    ],
    ids=[
        'no loader',
        'a resize of their own',
        'a crop of the centre',
        'a choice of these',
        'a scale factor',
        'a choice of their own',
        'padded up to a divisor',
    ],
)
def test_a_size_that_nothing_fixes_is_unknown(case):
    size, why = locate_padded_size(case)
    assert size is None
    assert why == 'no known transform of the train pipeline fixes the size'
