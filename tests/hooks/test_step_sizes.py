"""The size of a batch that is changed in the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mmdet.models.data_preprocessors import (
    BatchFixedSizePad,
    BatchResize,
    BatchSyncRandomResize,
    DetDataPreprocessor,
)
from mmdet.structures import DetDataSample
from mmengine.logging import MessageHub
from mmengine.structures import InstanceData
from torch import Tensor, rand, zeros

from mmgpu_hooks.hooks.step_sizes import StepSizes, find_step_sizes
from mmgpu_hooks.measure.absent import Absent, SourceError


def model_of(*augments: Any) -> Any:
    return SimpleNamespace(
        data_preprocessor=SimpleNamespace(batch_augments=list(augments))
    )


def batch_of(images: int, side: int) -> dict[str, Any]:
    samples = []
    for _ in range(images):
        boxes = InstanceData(bboxes=rand(1, 4), labels=zeros(1))
        meta = {'img_shape': (side, side), 'pad_shape': (side, side)}
        samples.append(DetDataSample(gt_instances=boxes, metainfo=meta))
    return {'inputs': [zeros(3, side, side)] * images, 'data_samples': samples}


class Training:
    """Iterations of MMDetection's own data preprocessor, and what is known of them."""

    def __init__(self, name: str, **augment: Any) -> None:
        self.preprocessor = DetDataPreprocessor(batch_augments=[augment])
        self.hub = MessageHub.get_instance(name)
        self.iterations = 0
        model = SimpleNamespace(data_preprocessor=self.preprocessor)
        sizes = find_step_sizes(model)
        assert isinstance(sizes, StepSizes)
        self.sizes = sizes

    def run(self, iterations: int, images: int = 2) -> int:
        """Run iterations; pixels of the largest batch that a model was given."""
        largest = 0
        for _ in range(iterations):
            batch = batch_of(images, 64)
            self.hub.update_info('iter', self.iterations)
            if self.sizes.resizer is not None:
                self.sizes.note()
            given: Tensor = self.preprocessor(batch, training=True)['inputs']
            count, _, height, width = given.shape
            largest = max(largest, count * height * width)
            self.iterations += 1
        return largest


@pytest.fixture
def draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes drawn one after the other: 96, 32, 160, 128."""
    sizes = iter([3, 1, 5, 4])
    monkeypatch.setattr('random.randint', lambda low, high: next(sizes))


def test_pixels_are_those_that_the_model_was_given(draws: None) -> None:
    training = Training(
        'resized', type=BatchSyncRandomResize, random_size_range=(32, 160), interval=2
    )
    largest = []
    for iterations in (3, 2, 3):
        given = training.run(iterations)
        largest.append(given)
        assert training.sizes.drain(2, 2 * 64 * 64) == given
    # the third iteration is the first of 96; 96 and 32 are next; then 32, 160 twice
    assert largest == [2 * 96**2, 2 * 96**2, 2 * 160**2]


@pytest.mark.parametrize(('size', 'area'), [((96, 80), 96 * 80), ((48, 32), 64 * 64)])
def test_a_fixed_pad_is_the_least(size: tuple[int, int], area: int) -> None:
    training = Training(f'padded {area}', type=BatchFixedSizePad, size=size)
    assert training.run(2) == 2 * area
    assert training.sizes.drain(2, 2 * 64 * 64) == 2 * area


@pytest.mark.parametrize(
    'augments',
    [
        [BatchResize((64, 64))],
        [BatchSyncRandomResize((32, 64)), BatchFixedSizePad((64, 64))],
    ],
)
def test_what_is_not_understood_is_unknown(augments: list[Any]) -> None:
    found = find_step_sizes(model_of(*augments))
    assert isinstance(found, Absent)
    assert type(augments[0]).__name__ in found.reason


def test_a_preprocessor_without_augments_is_left_alone() -> None:
    assert find_step_sizes(SimpleNamespace()) is None
    assert find_step_sizes(model_of()) is None
    mixing = SimpleNamespace(batch_augments=SimpleNamespace())
    assert find_step_sizes(SimpleNamespace(data_preprocessor=mixing)) is None


def test_without_the_images_of_each_batch_the_pixels_are_unknown() -> None:
    sizes = StepSizes(None, (64, 64))
    assert sizes.drain(None, 100) is None
    assert sizes.drain(3, None) is None
    assert sizes.drain(3, 100) == 3 * 64 * 64


@pytest.mark.parametrize('size', [32, (32, 32, 32)])
def test_an_augment_of_odd_make_is_unknown(size: Any) -> None:
    odd = BatchFixedSizePad(size=(32, 32))
    odd.size = size
    assert isinstance(find_step_sizes(model_of(odd)), Absent)
    resizer = BatchSyncRandomResize((32, 64))
    resizer._input_size = size
    sizes = find_step_sizes(model_of(resizer))
    assert isinstance(sizes, StepSizes)
    sizes.note()
    with pytest.raises(SourceError):
        sizes.drain(2, 100)
