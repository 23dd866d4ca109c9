"""Where a save goes to and what it is for, by the arguments of its call."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.hooks import CheckpointHook

from mmgpu_hooks.hooks.saves import Target, read_publish_target, read_save_target


def make_runner(**arguments: Any) -> SimpleNamespace:
    hook = CheckpointHook(interval=1, **arguments)
    return SimpleNamespace(hooks=[hook], epoch=3, iter=70)


BY_ITER = {'by_epoch': False}
BEST = {'save_best': 'mAP', 'rule': 'greater'}
OWN_NAME = {'by_epoch': False, 'filename_tmpl': 'mine_{}.pth'}


@pytest.mark.parametrize(
    ('arguments', 'name', 'occasion'),
    [
        # MMEngine counts on after the hooks of an epoch, and a best one comes later
        ({}, 'epoch_4.pth', 'epoch'),
        ({}, 'epoch_3.pth', 'epoch'),
        ({}, 'epoch_2.pth', 'other'),
        ({}, 'iter_71.pth', 'other'),
        (BY_ITER, 'iter_71.pth', 'iteration'),
        (BY_ITER, 'iter_70.pth', 'iteration'),
        (OWN_NAME, 'mine_71.pth', 'iteration'),
        (BEST, 'best_mAP_epoch_3.pth', 'best'),
        ({}, 'best_of_mine.pth', 'other'),
    ],
)
def test_the_occasion_is_in_the_name(
    arguments: dict[str, Any], name: str, occasion: str
) -> None:
    target = read_save_target(make_runner(**arguments), '/runs', name, None)
    assert target == Target(occasion, f'/runs/{name}')


def test_arguments_by_name_and_of_another_kind() -> None:
    runner = make_runner()
    named = read_save_target(runner, filename='epoch_4.pth', out_dir='/runs')
    assert named == Target('epoch', '/runs/epoch_4.pth')
    assert read_save_target(runner) == Target('other')
    assert read_save_target(runner, None, 'epoch_4.pth') == Target('epoch')
    assert read_publish_target(runner, 'epoch_4.pth') == Target('publish')
