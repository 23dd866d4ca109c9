from __future__ import annotations

from types import SimpleNamespace

import pytest
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from fakes.loaders import Counting, Texts
from mmgpu_hooks.measure.loader.settings import read_loader_settings
from mmgpu_hooks.schema.recorded import LoaderSettings


def test_the_settings_are_those_of_the_live_loader():
    loader = DataLoader(
        Texts(),
        num_workers=2,
        prefetch_factor=4,
        persistent_workers=True,
        batch_sampler=BatchSampler(SequentialSampler(Texts()), 3, drop_last=False),
    )
    loader.num_workers = 5
    assert read_loader_settings(loader) == LoaderSettings(
        num_workers=5,
        persistent_workers=True,
        prefetch_factor=4,
        pin_memory=False,
        batch_size=3,
        batches_per_epoch=3,
        dataset_length=8,
    )


def test_a_loader_without_length_and_workers_has_no_settings_of_workers():
    loader = DataLoader(Counting(), batch_size=None)
    none = LoaderSettings(num_workers=0, persistent_workers=False, pin_memory=False)
    assert read_loader_settings(loader) == none


@pytest.mark.parametrize(
    'loader',
    [object(), SimpleNamespace(num_workers='2', batch_size=True, pin_memory=1)],
)
def test_what_a_loader_of_another_kind_does_not_tell_is_unknown(loader):
    assert read_loader_settings(loader) == LoaderSettings()
