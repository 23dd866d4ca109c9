from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader.batches import BatchWatch, count_tensors


class Array:
    """Fake image or label tensor with a shape and a length."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]


def image(height: int, width: int) -> Array:
    return Array(3, height, width)


def sample(boxes: int) -> SimpleNamespace:
    return SimpleNamespace(
        gt_instances=SimpleNamespace(labels=Array(boxes)),
        ignored_instances=SimpleNamespace(labels=Array(5)),
    )


WIDE, HIGH = image(80, 90), image(100, 50)
BRANCHES = dict(
    inputs=dict(
        sup=[image(10, 10), None, None],
        teacher=[None, image(20, 20), image(10, 30)],
        student=[None, image(5, 5), image(6, 4)],
    ),
    data_samples=dict(sup=[sample(4), None], student=[None, sample(0), sample(2)]),
)


@pytest.mark.parametrize(
    ('batch', 'held'),
    [
        # padded to the largest height and width of the batch; ignored boxes left out
        (dict(inputs=[HIGH, WIDE], data_samples=[sample(2), sample(3)]), (2, 18000, 5)),
        (dict(inputs=Array(2, 3, 100, 90), data_samples=[]), (2, 18000, 0)),
        # instances without labels, and labels in a list
        (
            dict(inputs=[HIGH], data_samples=[SimpleNamespace(gt_instances=Array(6))]),
            (1, 5000, 6),
        ),
        # branches are padded each on its own and added up
        (BRANCHES, (3, 100 + 2 * 20 * 30 + 2 * 6 * 5, 6)),
        # default_collate, torchvision's detectors, and lists
        ((Array(4, 3, 10, 20), Array(4)), (4, 800, None)),
        (([image(10, 20)] * 3, [{}] * 3), (3, 600, None)),
        ([image(10, 20)] * 2, (2, 400, None)),
        (Array(2, 3, 10, 20), (2, 400, None)),
    ],
)
def test_images_padded_pixels_and_boxes_of_a_batch_are_counted(
    batch: Any, held: tuple[Any, ...]
):
    assert BatchWatch().examine(batch)[:3] == held


@pytest.mark.parametrize(
    ('divisor', 'area'), [(1, 100 * 90), (32, 128 * 96), (50, 100 * 100)]
)
def test_images_are_padded_up_to_the_divisor(divisor: int, area: int):
    for inputs in ([WIDE, HIGH], (HIGH, WIDE), Array(2, 3, 100, 90)):
        batch = dict(inputs=inputs, data_samples=[])
        held = BatchWatch(divisor).examine(batch)
        assert held.pixels == 2 * area
        assert held.height is not None and held.width is not None
        assert held.height * held.width == area


def test_branches_of_several_sizes_have_no_height_and_width():
    held = BatchWatch().examine(BRANCHES)
    assert (held.height, held.width) == (None, None)


@pytest.mark.parametrize(
    ('odd', 'images'),
    [
        (None, None),
        ('text', None),
        (object(), None),
        ({}, None),
        (dict(inputs=None, data_samples=None), None),
        (dict(inputs=['a', 'b'], data_samples=['c', 'd']), 2),
        (dict(inputs=[[1, 2], [3]], data_samples=7), 2),
        (dict(inputs=Array(), data_samples=[object()]), None),
        (dict(inputs=[Array(5)] * 2, data_samples={'a': 3}), 2),
    ],
)
def test_a_batch_without_pixels_and_boxes_says_so_once(odd: Any, images: int | None):
    watch = BatchWatch()
    assert watch.examine(odd) == (images, None, None, None, None)
    assert set(watch.unknown) == {'largest_batch_pixels', 'most_boxes'}
    reasons = [watch.unknown[name] for name in ('largest_batch_pixels', 'most_boxes')]
    assert 'no images were found in the batch' in reasons[0]
    assert 'no gt_instances were found in the batch' in reasons[1]
    # decided: what comes later is not searched
    good = dict(inputs=[image(4, 4)], data_samples=[sample(1)])
    assert watch.examine(good) == (1, None, None, None, None)


def test_the_reason_of_a_figure_names_the_part_that_it_counts():
    watch = BatchWatch()
    assert watch._count('most_masks', 'gt_masks', len, [7, 8]) == 2
    assert watch._count('most_masks', 'gt_masks', len, None) is None
    assert watch.unknown['most_masks'].startswith('no gt_masks were found')


def test_a_batch_that_contains_itself_is_an_error():
    endless: list[Any] = []
    endless += [endless]
    with pytest.raises(SourceError, match='parts'):
        count_tensors(endless)
    assert count_tensors(dict(inputs='path', number=[1, None])) == (0, 0, 0, 0)


class Boxes:
    """Fake of MMDetection's boxes, which hold a tensor but are not tensors."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)


def test_images_boxes_and_tensors_of_real_data_samples_are_counted():
    torch = pytest.importorskip('torch', exc_type=ImportError)
    structures = pytest.importorskip('mmengine.structures', exc_type=ImportError)
    data_samples = []
    for boxes in (2, 0):
        element = structures.BaseDataElement(metainfo=dict(img_shape=(8, 8), flip=True))
        element.gt_instances = structures.InstanceData(
            labels=torch.zeros(boxes, dtype=torch.int64),
            bboxes=Boxes(torch.zeros(boxes, 4)),
        )
        data_samples.append(element)
    inputs = [torch.zeros(3, 8, 8, dtype=torch.uint8) for _ in range(2)]
    batch = dict(inputs=inputs, data_samples=data_samples)
    assert BatchWatch().examine(batch) == (2, 128, 2, 8, 8)
    # 2 images, 2 times labels and boxes; 2 labels and 8 coordinates in all
    size = 2 * 3 * 64 + 2 * 8 + 8 * 4
    assert count_tensors(batch) == (6, size, 6, size)
    # from 4 KiB on it is no small one
    inputs[0] = torch.zeros(3, 40, 40, dtype=torch.uint8)
    inputs[1] = torch.zeros(4096, dtype=torch.uint8)
    assert count_tensors(batch) == (6, 4800 + 4096 + 48, 5, 4096 + 48)
