"""How large a checkpoint is, without pickling it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from mmengine.logging import HistoryBuffer

from mmgpu_hooks.measure import save as contents
from mmgpu_hooks.measure.save import (
    count_history_bytes,
    count_tensor_bytes,
    read_size_bytes,
)


def test_the_state_of_a_real_optimizer():
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 10)).sum().backward()
    optimizer.step()
    # two moments of 110 weights, and a step of 4 bytes for each of two tensors
    assert count_tensor_bytes(optimizer.state_dict()) == 2 * 110 * 4 + 2 * 4


@pytest.mark.parametrize('state', [None, {}, [], {'a': 1}, [1, 2], {'a': [['b']]}])
def test_what_holds_no_tensor_is_nothing(state: object):
    assert count_tensor_bytes(state) == 0


def test_histories_of_a_message_hub():
    history = HistoryBuffer([1.0, 2.0, 3.0], [1, 1, 1])
    size = sum(array.nbytes for array in history.data)
    assert size >= 3 * 16
    assert (
        count_history_bytes({'log_scalars': {'a': history, 'b': history}}) == 2 * size
    )


@pytest.mark.parametrize('hub', [None, {}, {'log_scalars': None}, 'text'])
def test_a_hub_of_another_form_is_unknown(hub: object):
    assert count_history_bytes(hub) is None


def test_a_file_and_a_folder_have_a_size(tmp_path: Path):
    (tmp_path / 'a').mkdir()
    (tmp_path / 'a' / 'rank0.pth').write_bytes(b'12345')
    (tmp_path / 'rank1.pth').write_bytes(b'123')
    assert read_size_bytes(str(tmp_path / 'rank1.pth')) == 3
    assert read_size_bytes(str(tmp_path)) == 8


def test_what_is_not_there_has_none(tmp_path: Path):
    assert read_size_bytes(str(tmp_path / 'gone')) is None
    assert read_size_bytes('s3://bucket/epoch_1.pth') is None


def test_a_folder_without_end_is_not_walked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(contents, '_MOST_FILES', 2)
    for name in 'abc':
        (tmp_path / name).write_bytes(b'1')
    assert read_size_bytes(str(tmp_path)) is None
