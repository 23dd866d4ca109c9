"""A model's tensors, those of its optimizers and of averaged copies, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine import optim
from mmengine.model import ExponentialMovingAverage
from torch import nn

from mmgpu_hooks.measure.cuda import count_model_bytes, count_tensors

FLOAT = 4


def saved_bytes(value: Any) -> int:
    """Bytes of the storages in what torch would save, each once."""
    storages: dict[int, int] = {}

    def walk(one: Any) -> None:
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
        elif isinstance(one, Mapping):
            for part in one.values():
                walk(part)
        elif isinstance(one, (list, tuple)):
            for part in one:
                walk(part)

    walk(value)
    return sum(storages.values())


class Small(nn.Module):
    """Trained numbers, one of them tied, 15 frozen ones and some buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 3)
        self.body = nn.Linear(3, 10)
        self.norm = nn.BatchNorm1d(10)
        self.head = nn.Linear(10, 3, bias=False)
        self.tied = nn.Linear(3, 10, bias=False)
        self.tied.weight = self.body.weight
        self.frozen.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.head(self.norm(self.body(self.frozen(x)))).sum()


TRAINED = (3 * 10 + 10 + 10 + 10 + 10 * 3) * FLOAT
FROZEN = (4 * 3 + 3) * FLOAT
BUFFERS = (10 + 10) * FLOAT + 8


def wrap(model: Any, kind: str = 'SGD', **options: Any) -> Any:
    trained = [p for p in model.parameters() if p.requires_grad]
    return optim.OptimWrapper(getattr(torch.optim, kind)(trained, lr=0.1, **options))


@pytest.mark.parametrize(
    ('kind', 'options', 'copies', 'steps'),
    [
        ('SGD', {}, 0, 0),
        ('SGD', dict(momentum=0.9), 1, 0),
        ('Adam', {}, 2, 5),
        ('AdamW', dict(amsgrad=True), 3, 5),
    ],
)
def test_each_optimizers_state(kind, options, copies, steps):
    model = Small()
    wrapper = wrap(model, kind, **options)
    wrapper.update_params(model(torch.ones(2, 4)))
    counted = count_model_bytes(model, wrapper, [])
    assert counted == {
        'parameters': (TRAINED + FROZEN) // FLOAT,
        'parameter_bytes': TRAINED + FROZEN,
        'gradient_bytes': TRAINED,
        # each trained tensor has a step count besides
        'optimizer_state_bytes': copies * TRAINED + steps * FLOAT,
        'buffer_bytes': BUFFERS,
        'ema_bytes': 0,
    }
    state = wrapper.state_dict()['state']
    assert counted['optimizer_state_bytes'] == saved_bytes(state)
    both = counted['parameter_bytes'] + counted['buffer_bytes']
    assert both == saved_bytes(model.state_dict())


def test_several_optimizers_and_averaged_copies():
    model = Small()
    halves = [wrap(model.body, momentum=0.9), wrap(model.head, momentum=0.9)]
    wrappers = optim.OptimWrapperDict(body=halves[0], head=halves[1])
    model(torch.ones(2, 4)).backward()
    for one in halves:
        one.step()
    copy = ExponentialMovingAverage(model)
    hooks = [SimpleNamespace(), SimpleNamespace(ema_model=copy)]
    counted = count_model_bytes(model, wrappers, hooks)
    assert counted['optimizer_state_bytes'] == (3 * 10 + 10 + 10 * 3) * FLOAT
    # parameters, and the counter of steps
    assert counted['ema_bytes'] == TRAINED + FROZEN + BUFFERS + 8


def test_sharded_and_absent_tensors():
    whole = torch.zeros(8)
    sharded = SimpleNamespace(to_local=lambda: torch.zeros(3))
    meta = torch.zeros(5, device='meta')
    assert count_tensors([whole, whole, sharded, meta], set()) == (11, 44)
    inner = SimpleNamespace(state={0: {'momentum_buffer': whole}})
    wrapper = SimpleNamespace(optimizer=SimpleNamespace(optim=inner))
    model = Small()
    assert count_model_bytes(model, wrapper, [])['optimizer_state_bytes'] == 32
    bare = SimpleNamespace(optimizer=object())
    assert count_model_bytes(model, bare, [])['optimizer_state_bytes'] is None
