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
from mmengine.hooks import Hook
from mmengine.logging import MessageHub
from mmengine.structures import InstanceData
from torch import Tensor, rand, zeros

from mmgpu_hooks.hooks.batches import BatchSource, StepSizes, find_step_sizes
from mmgpu_hooks.measure.absent import Absent, SourceError
from mmgpu_hooks.measure.loader.batches import BatchWatch


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
    """Iterations of MMDetection's own data preprocessor, and a source beside it."""

    def __init__(self, name: str, **augment: Any) -> None:
        self.preprocessor = DetDataPreprocessor(batch_augments=[augment])
        self.hub = MessageHub.get_instance(name)
        self.iterations = 0
        self.hook = Hook()
        sizes = find_step_sizes(SimpleNamespace(data_preprocessor=self.preprocessor))
        self.source = BatchSource(self.hook, BatchWatch(), None, sizes)
        self.source.begin(self.source.look)

    def run(self, iterations: int, images: int = 2) -> int:
        """Run iterations; pixels of the largest batch that a model was given."""
        largest = 0
        for _ in range(iterations):
            batch = batch_of(images, 64)
            self.hub.update_info('iter', self.iterations)
            self.hook.before_train_iter(batch)
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
        assert training.source.drain(iterations).pixels == given
    # the third iteration is the first of 96; 96 and 32 are next; then 32, 160 twice
    assert largest == [2 * 96**2, 2 * 96**2, 2 * 160**2]


@pytest.mark.parametrize(('size', 'area'), [((96, 80), 96 * 80), ((48, 32), 64 * 64)])
def test_a_fixed_pad_is_the_least(size: tuple[int, int], area: int) -> None:
    training = Training(f'padded {area}', type=BatchFixedSizePad, size=size)
    assert training.run(2) == 2 * area
    assert training.source.drain(2).pixels == 2 * area


def test_a_changing_size_is_noted_while_the_workers_alone_look() -> None:
    resizer = BatchSyncRandomResize((32, 160))
    told: list[Any] = []

    class Delivered:
        def collect(self, is_due: bool = True) -> None: ...

        def drain(self) -> Any:
            columns = tuple(map(list, zip(*told)))
            told.clear()
            return columns

    hook, delivered = Hook(), Delivered()
    source = BatchSource(
        hook, BatchWatch(), delivered, find_step_sizes(model_of(resizer))
    )
    source.begin(source.look)
    batch = batch_of(2, 64)
    for size in [None] + [(64, 64)] * 15 + [(96, 96)] * 3 + [(32, 32)]:
        resizer._input_size = size
        hook.before_train_iter(batch)
        told.append((2, 2 * 64 * 64, 2))
        source.follow()
    assert source.drain(20).pixels == 2 * 96 * 96
    hook.before_train_iter(batch)
    told.append((2, 2 * 64 * 64, 2))
    assert source.drain(1).pixels == 2 * 32 * 32
    source.close()
    assert vars(hook) == {}


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
    source = BatchSource(Hook(), BatchWatch(), None, found)
    source.look(batch_of(2, 64))
    source._is_looking = True
    assert source.drain(1).pixels is None
    assert source.unknown == {'largest_batch_pixels': found.reason}


def test_a_preprocessor_without_augments_is_left_alone() -> None:
    assert find_step_sizes(SimpleNamespace()) is None
    assert find_step_sizes(model_of()) is None
    mixing = SimpleNamespace(batch_augments=SimpleNamespace())
    assert find_step_sizes(SimpleNamespace(data_preprocessor=mixing)) is None


def test_without_the_images_of_each_batch_the_pixels_are_unknown() -> None:
    sizes = StepSizes(None, (64, 64))
    assert sizes.drain([2, None], 100) is None
    assert sizes.drain([2, 3], None) is None
    assert sizes.drain([2, 3], 100) == 3 * 64 * 64


def test_a_size_that_cannot_be_noted_fails_later() -> None:
    sizes = StepSizes(SimpleNamespace(_input_size=[64, 64]))
    sizes.note(None, batch_idx=0)
    with pytest.raises(SourceError, match='unhashable'):
        sizes.drain([2], 100)


def test_an_augment_of_odd_make_costs_no_other_figure() -> None:
    odd = BatchFixedSizePad(size=(32, 32))
    odd.size = 32
    found = find_step_sizes(model_of(odd))
    assert isinstance(found, Absent)
    assert found.reason.startswith('the data preprocessor cannot be looked at: ')
