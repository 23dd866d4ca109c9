from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mmgpu_hooks.memory.config_model import find_progress
from mmgpu_hooks.memory.estimate import estimate_memory

torch = pytest.importorskip('torch', exc_type=ImportError)
pytest.importorskip('mmdet', exc_type=ImportError)

CONFIG = """\
model = dict(type='staged_models.Staged')
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.1))
train_cfg = dict(max_epochs=6)
train_dataloader = dict(batch_size=3, dataset=dict(pipeline=[
    dict(type='mmdet.Resize', scale=(96, 64)), dict(type='mmdet.PackDetInputs')]))
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a model that trains another way in its first epochs, as TOOD does."""
    from mmengine.logging import MessageHub
    from mmengine.model import BaseModel

    class Staged(BaseModel):
        def __init__(self, **_: Any) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(10, 2)

        def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
            # where nobody has told the epoch, None cannot be compared
            is_early = MessageHub.get_current_instance().get_info('epoch') < 5
            rows = torch.ones(len(inputs), 10, requires_grad=True)
            kept = rows.exp().exp() if is_early else rows
            return {'loss': self.layer(kept).sum()}

    module = SimpleNamespace(Staged=Staged)
    monkeypatch.setitem(sys.modules, 'staged_models', module)
    path = tmp_path / 'staged.py'
    path.write_text(CONFIG)
    return path


def test_a_model_is_run_as_in_its_last_epoch(config):
    told = estimate_memory(config, (3,))
    assert dict(told.activation_bytes) == {3: 3 * 10 * 4}


@pytest.mark.parametrize('train', [None, {}, {'by_epoch': True}])
def test_a_config_that_leaves_it_open_trains_one_epoch(train):
    told = find_progress({'train_cfg': train})
    assert (told['epoch'], told['max_epochs'], told['max_iters']) == (0, 1, 1)
