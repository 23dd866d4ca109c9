"""The size of a batch that is changed in the step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mmdet.models.data_preprocessors import (
    BatchFixedSizePad,
    BatchResize,
    BatchSyncRandomResize,
)

from mmgpu_hooks.hooks.step_sizes import StepSizes, find_step_sizes
from mmgpu_hooks.measure.absent import Absent, SourceError


def model_of(*augments: Any) -> Any:
    return SimpleNamespace(
        data_preprocessor=SimpleNamespace(batch_augments=list(augments))
    )


def test_pixels_are_those_that_the_model_was_given() -> None:
    resizer = BatchSyncRandomResize((32, 160))
    sizes = find_step_sizes(model_of(resizer))
    assert isinstance(sizes, StepSizes)
    largest = []
    for drawn in ([None], [(96, 96)], [(96, 96), (32, 32)], [(160, 128)]):
        for size in drawn:
            resizer._input_size = size
            sizes.note()
        largest.append(sizes.drain(2, 2 * 64 * 64))
    # before the first draw images are trained at as they were loaded
    assert largest == [2 * 64**2, 2 * 96**2, 2 * 96**2, 2 * 160 * 128]


@pytest.mark.parametrize(('size', 'area'), [((96, 80), 96 * 80), ((48, 32), 64 * 64)])
def test_a_fixed_pad_is_the_least(size: tuple[int, int], area: int) -> None:
    sizes = find_step_sizes(model_of(BatchFixedSizePad(size=size)))
    assert isinstance(sizes, StepSizes)
    assert sizes.drain(2, 2 * 64 * 64) == 2 * area
    assert (sizes.drain(None, 100), sizes.drain(3, None)) == (None, None)


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
