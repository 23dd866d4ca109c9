from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.loader.batches import (
    BatchWatch,
    Contents,
    count_tensors,
    fold_contents,
)


class Array:
    """All that is looked at of an image or a label tensor."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def __len__(self) -> int:
        return self.shape[0]


def image(height: int, width: int) -> Array:
    return Array(3, height, width)


def sample(boxes: int, ignored: int = 0) -> SimpleNamespace:
    return SimpleNamespace(
        gt_instances=SimpleNamespace(labels=Array(boxes)),
        ignored_instances=SimpleNamespace(labels=Array(ignored)),
    )


def batch(images: list[Any], boxes: list[int]) -> dict[str, Any]:
    return dict(inputs=images, data_samples=[sample(count) for count in boxes])


class Watched:
    """Looks at the batches of an interval."""

    def __init__(self, pad_size_divisor: int = 1) -> None:
        self._watch = BatchWatch(pad_size_divisor)
        self._seen: list[Contents] = []
        self.unknown = self._watch.unknown

    def add(self, batch: Any) -> int | None:
        self._seen.append(self._watch.look(batch))
        return self._seen[-1].images

    def drain(self) -> tuple[int | None, int | None]:
        seen, self._seen = self._seen, []
        columns: Any = zip(*seen) if seen else ([], [], [])
        return fold_contents(*columns)[1:]


def test_images_are_unknown_when_those_of_one_batch_are():
    known, unknown = Contents(4, 100, 3), Contents(None, 50, 7)
    assert fold_contents(*zip(known, known)) == (8, 100, 3)
    assert fold_contents(*zip(known, unknown)) == (None, 100, 7)
    assert fold_contents([], [], []) == (None, None, None)


def test_images_are_padded_to_the_largest_of_their_batch():
    watch = Watched()
    assert watch.add(batch([image(100, 50), image(80, 90)], [2, 3])) == 2
    assert watch.drain() == (2 * 100 * 90, 5)


@pytest.mark.parametrize(
    ('divisor', 'height', 'width'), [(1, 100, 90), (32, 128, 96), (50, 100, 100)]
)
def test_and_up_to_the_divisor(divisor: int, height: int, width: int):
    wide, high = image(80, 90), image(100, 50)
    for inputs in ([wide, high], [high, wide], (wide, high), Array(2, 3, 100, 90)):
        watch = Watched(pad_size_divisor=divisor)
        watch.add(dict(inputs=inputs, data_samples=[]))
        assert watch.drain()[0] == 2 * height * width


def test_the_largest_batch_and_the_most_boxes_may_be_two_batches():
    watch = Watched()
    watch.add(batch([image(10, 10)], [7]))
    watch.add(batch([image(20, 20)], [1]))
    watch.add(batch([image(10, 20)], [0]))
    assert watch.drain() == (400, 7)
    assert watch.drain() == (None, None)
    watch.add(batch([image(5, 5)], [0]))
    assert watch.drain() == (25, 0)


def test_ignored_boxes_do_not_count():
    watch = Watched()
    data_samples = [sample(2, ignored=5)]
    watch.add(dict(inputs=[image(4, 4)], data_samples=data_samples))
    assert watch.drain() == (16, 2)


def test_instances_without_labels_are_counted_themselves():
    watch = Watched()
    data_samples = [SimpleNamespace(gt_instances=Array(6))]
    watch.add(dict(inputs=[image(4, 4)], data_samples=data_samples))
    assert watch.drain() == (16, 6)


def test_branches_are_padded_each_on_its_own_and_added_up():
    inputs = dict(
        sup=[image(10, 10), None, None],
        teacher=[None, image(20, 20), image(10, 30)],
        student=[None, image(5, 5), image(6, 4)],
    )
    data_samples = dict(
        sup=[sample(4), None, None],
        teacher=[None, sample(1), sample(0)],
        student=[None, sample(0), sample(2)],
    )
    watch = Watched()
    assert watch.add(dict(inputs=inputs, data_samples=data_samples)) == 3
    assert watch.drain() == (100 + 2 * 20 * 30 + 2 * 6 * 5, 7)


def test_branches_after_their_preprocessor_tell_no_number_of_images():
    inputs = dict(sup=[image(10, 10)], teacher=[image(20, 20), image(10, 30)])
    watch = Watched()
    assert watch.add(dict(inputs=inputs)) is None
    assert watch.drain() == (100 + 2 * 20 * 30, None)


@pytest.mark.parametrize(
    ('odd', 'images', 'pixels'),
    [
        ((Array(4, 3, 10, 20), Array(4)), 4, 800),  # default_collate
        (([image(10, 20)] * 3, [{}] * 3), 3, 600),  # torchvision's detectors
        ([dict(inputs=image(10, 20), data_samples=sample(1))] * 2, 2, 400),
        ([image(10, 20)] * 2, 2, 400),
        (Array(2, 3, 10, 20), 2, 400),
        ([], 0, 0),
    ],
)
def test_batches_that_are_no_mapping(odd: Any, images: int, pixels: int):
    watch = Watched()
    assert watch.add(odd) == images
    assert watch.drain()[0] == pixels


@pytest.mark.parametrize(
    ('odd', 'images'),
    [
        (None, None),
        ('text', None),
        (7, None),
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
    watch = Watched()
    assert watch.add(odd) == images
    assert set(watch.unknown) == {'largest_batch_pixels', 'most_boxes'}
    assert watch.add(odd) == images
    # decided: what comes later is not looked into
    assert watch.add(batch([image(4, 4)], [1])) == 1
    assert watch.drain() == (None, None)


def test_the_reason_names_what_was_found():
    watch = Watched()
    watch.add(dict(inputs=['path.jpg'], data_samples=[sample(1)]))
    assert (
        'no images were found in the batch: str'
        in (watch.unknown['largest_batch_pixels'])
    )
    assert watch.drain() == (None, 1)


def test_a_batch_that_contains_itself_is_an_error():
    endless: list[Any] = []
    endless += [endless]
    with pytest.raises(SourceError, match='parts'):
        count_tensors(endless)
    mock = pytest.importorskip('unittest.mock')
    assert count_tensors([mock.MagicMock(spec_set=['tensor'])]) == (0, 0)


class Boxes:
    """As MMDetection's boxes: no tensor, but with one inside."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return len(self.tensor)


@pytest.fixture
def detection() -> dict[str, Any]:
    """Two images as MMDetection's collate function hands them over."""
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
    return dict(inputs=inputs, data_samples=data_samples)


def test_real_data_samples(detection: dict[str, Any]):
    watch = Watched()
    assert watch.add(detection) == 2
    assert watch.drain() == (128, 2)
    assert watch.unknown == {}
    # 2 images, 2 times labels and boxes; 2 labels and 8 coordinates in all
    assert count_tensors(detection) == (6, 2 * 3 * 64 + 2 * 8 + 8 * 4)
    assert count_tensors(dict(inputs='path', number=[1, None])) == (0, 0)


def test_forms_may_change_in_mid_run():
    watch = Watched(pad_size_divisor=4)
    assert watch.add(batch([image(10, 10)], [3])) == 1
    stacked = dict(inputs=Array(2, 3, 10, 20), data_samples=[sample(1), sample(0)])
    assert watch.add(stacked) == 2
    assert watch.add(batch([image(30, 10), image(4, 4)], [5, 4])) == 2
    assert watch.drain() == (2 * 32 * 12, 9)
    assert watch.unknown == {}


def test_labels_may_be_a_list():
    watch = Watched()
    data_samples = [SimpleNamespace(gt_instances=SimpleNamespace(labels=[1, 1, 2]))]
    watch.add(dict(inputs=[image(4, 4)], data_samples=data_samples))
    assert watch.drain() == (16, 3)
