from __future__ import annotations

import pytest

from fakes.replaced import replace
from mmgpu_hooks.experiment.sweep_plan import (
    SweepGrid,
    folder_name,
    make_spec,
    plan_pace,
)
from mmgpu_hooks.experiment.trial_config import read_trial_config
from mmgpu_hooks.schema import SweepSetting


def test_every_combination_is_there_once_in_the_order_of_the_table():
    grid = SweepGrid((4, 0, 4), (8, 1), (2, 4))
    assert grid.list_settings() == (
        SweepSetting(0, 1),
        SweepSetting(4, 1, 2),
        SweepSetting(4, 1, 4),
        SweepSetting(0, 8),
        SweepSetting(4, 8, 2),
        SweepSetting(4, 8, 4),
    )


def test_pinned_memory_and_mixed_precision_are_tried_beside_their_absence():
    settings = SweepGrid((2,), pin_memory=True, amp=True).list_settings()
    assert settings == (
        SweepSetting(2, None, None, False, False),
        SweepSetting(2, None, None, True, False),
        SweepSetting(2, None, None, False, True),
        SweepSetting(2, None, None, True, True),
    )
    assert len({folder_name(setting) for setting in settings}) == 4


@pytest.mark.parametrize(
    ('workers', 'prefetch', 'pace'),
    [
        (0, None, (10, 1)),
        (4, None, (10, 1)),
        # 16 batches are made ahead, so two rounds of ten are left out
        (8, None, (10, 2)),
        (8, 4, (10, 4)),
        # a round of all workers
        (32, None, (32, 2)),
    ],
)
def test_an_interval_is_a_round_and_the_queue_is_warm_up(workers, prefetch, pace):
    found = plan_pace(SweepSetting(workers, prefetch_factor=prefetch))
    assert (found.interval, found.warm_up) == pace
    # three to judge by, and one that is on its way meanwhile
    assert found.least_iterations == (pace[1] + 4) * pace[0]


def spec_of(setting: SweepSetting, *, saves: bool = False):
    return make_spec(
        setting,
        config='/a.py',
        folder='/runs/a',
        lengthened={'train_cfg.max_epochs': 9},
        saves=saves,
    )


def test_what_is_not_asked_for_stays_as_the_config_has_it():
    spec = spec_of(SweepSetting(0))
    assert spec.settings == {
        'train_cfg.max_epochs': 9,
        'train_dataloader.num_workers': 0,
    }
    assert (spec.interval, spec.save_interval, spec.saves) == (10, None, False)


def test_what_is_asked_for_is_set():
    spec = spec_of(SweepSetting(16, 3, 4, True, True), saves=True)
    assert spec.settings == {
        'train_cfg.max_epochs': 9,
        'train_dataloader.num_workers': 16,
        'train_dataloader.persistent_workers': True,
        'train_dataloader.batch_size': 3,
        'train_dataloader.prefetch_factor': 4,
        'train_dataloader.pin_memory': True,
        'optim_wrapper.type': 'AmpOptimWrapper',
    }
    assert (spec.interval, spec.save_interval) == (16, 32)


def test_full_precision_beside_mixed_is_set_too():
    settings = spec_of(SweepSetting(0, amp=False, pin_memory=False)).settings
    assert settings['optim_wrapper.type'] == 'OptimWrapper'
    assert settings['train_dataloader.pin_memory'] is False


MIXED = """
train_dataloader = dict(batch_size=4, num_workers=2)
optim_wrapper = dict(
    type='AmpOptimWrapper', loss_scale='dynamic', dtype='float16', use_fsdp=False,
    accumulative_counts=2, optimizer=dict(type='SGD', lr=0.02))
"""


@pytest.mark.parametrize(
    ('amp', 'kept'),
    [
        (False, {'type': 'OptimWrapper'}),
        (
            True,
            {
                'type': 'AmpOptimWrapper',
                'loss_scale': 'dynamic',
                'dtype': 'float16',
                'use_fsdp': False,
            },
        ),
    ],
)
def test_a_config_in_mixed_precision_trains_in_full_precision_too(tmp_path, amp, kept):
    path = tmp_path / 'mixed.py'
    path.write_text(MIXED)
    spec = replace(spec_of(SweepSetting(2, amp=amp)), config=str(path))
    always = {'accumulative_counts': 2, 'optimizer': {'type': 'SGD', 'lr': 0.02}}
    found = read_trial_config(spec).optim_wrapper.to_dict()
    assert found == {**kept, **always}
