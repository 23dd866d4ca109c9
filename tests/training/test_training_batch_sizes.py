"""Tests the recorded batch sizes of real trainings."""

from __future__ import annotations

import pytest

from training.toy import (
    GrowingDataset,
    build_runner,
    collate_branches,
    evidence_of,
    train,
)


@pytest.mark.parametrize(
    ('options', 'new'),
    [
        ({'num_workers': 2}, [1, 0, 0]),
        ({'num_workers': 0, 'loop': 'iter'}, [1, 0, 0]),
        # an epoch's last batch has fewer images
        ({'num_workers': 1, 'length': 23}, [1, 0, 1]),
        ({'num_workers': 0, 'collate_fn': collate_branches}, [1, 0, 0]),
        (
            {'num_workers': 2, 'batch_size': 1, 'dataset': GrowingDataset(12)},
            [4, 4, 4],
        ),
    ],
)
def test_sizes_that_no_batch_had_before_are_counted(tmp_path, options, new):
    train(build_runner(tmp_path, **options))
    assert [
        interval.new_batch_sizes for interval in evidence_of(tmp_path).intervals
    ] == new


def test_a_second_epoch_brings_no_new_sizes(tmp_path):
    dataset = GrowingDataset(12)
    train(build_runner(tmp_path, dataset=dataset, batch_size=1, epochs=2))
    counted = [interval.new_batch_sizes for interval in evidence_of(tmp_path).intervals]
    assert counted == [4, 4, 4, 0, 0, 0]
