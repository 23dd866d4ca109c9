from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from mmgpu_hooks.experiment.save_experiment import plan_saves, temporary_folder
from mmgpu_hooks.schema import SaveSetting


def test_each_number_of_workers_is_planned_once_and_polite_only_with_workers():
    plans = plan_saves([8, 0, 8], saves=6, prefetch_factor=2, worker_nice=10)
    settings = [plan.setting for plan in plans]
    assert settings == [SaveSetting(0), SaveSetting(8), SaveSetting(8, 10)]


@pytest.mark.parametrize(
    ('workers', 'prefetch', 'interval', 'planned'),
    [
        # nobody works ahead
        (0, 2, None, (8, 56)),
        # 16 batches and 8 iterations from save to save, 16 iterations after the last
        (8, 2, None, (24, 184)),
        (8, 4, None, (40, 312)),
        # 64 batches, and a round of 32 workers
        (32, 2, None, (96, 736)),
        # as asked for; the next save would be due where the training ends
        (8, 2, 5, (5, 39)),
        (2, 2, 5, (5, 39)),
        (1, 2, 5, (5, 37)),
        (8, 2, 1, (1, 7)),
    ],
)
def test_saves_are_as_far_apart_as_the_queue_is_long(
    workers, prefetch, interval, planned
):
    (plan,) = plan_saves(
        [workers], saves=6, prefetch_factor=prefetch, interval=interval
    )
    assert (plan.interval, plan.iterations) == planned


def test_the_folder_goes_with_what_is_in_it_and_what_was_made_for_it(tmp_path: Path):
    parent = tmp_path / 'a' / 'b'
    with contextlib.suppress(KeyError), temporary_folder(parent) as folder:
        assert folder.parent == parent
        (folder / 'x.pth').write_text('x')
        raise KeyError
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_was_there_stays_and_so_does_what_others_put_there(tmp_path):
    with temporary_folder(tmp_path):
        pass
    assert tmp_path.is_dir()
    with temporary_folder(tmp_path / 'new') as folder:
        (folder.parent / 'theirs').write_text('')
    assert [path.name for path in (tmp_path / 'new').iterdir()] == ['theirs']
