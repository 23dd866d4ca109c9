"""Tests that multi-tensor EMA equals the averages of MMEngine bit by bit."""

from __future__ import annotations

import copy
import functools
import math
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.hooks import EMAHook
from mmengine.model import (
    ExponentialMovingAverage,
    MomentumAnnealingEMA,
    StochasticWeightAverage,
)
from torch import nn

from benchmarks.equal import is_equal
from mmgpu_hooks.optimize.ema import ListedAverages
from mmgpu_hooks.optimize.refusal import RefusalError

ema_of_mmdet = pytest.importorskip('mmdet.models.layers.ema', exc_type=ImportError)
KINDS = (
    ExponentialMovingAverage,
    MomentumAnnealingEMA,
    ema_of_mmdet.ExpMomentumEMA,
)


class Heads(nn.Module):
    """Model with a backbone and two heads that share a convolution, like RTMDet."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
        shared = nn.Conv2d(4, 4, 1)
        self.heads = nn.ModuleList([nn.Sequential(shared) for _ in range(2)])
        self.small = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.register_buffer('scale', torch.ones(2, dtype=torch.float64))
        self.register_buffer('empty', torch.ones(0))


def fail(error: Exception) -> None:
    raise AssertionError('taken back') from error


def hooked(ema: Any) -> Any:
    hook = EMAHook()
    hook.ema_model = ema
    return SimpleNamespace(hooks=[hook])


def change(model: nn.Module, number: int, generator: torch.Generator) -> None:
    """Changes a model's weights and buffers as a train step does."""
    with torch.no_grad():
        for param in model.parameters():
            noise = torch.randn(param.shape, generator=generator)
            param.add_(noise.to(param.dtype))
        for buffer in model.buffers():
            noise = torch.rand(buffer.shape, generator=generator)
            buffer.add_((noise * 9).to(buffer.dtype))
    convolution = model.backbone[0]
    if number == 7:
        convolution.weight = nn.Parameter(convolution.weight.detach() + 1)
    if number == 10:
        convolution.weight.data = convolution.weight.data * 2
    if number == 13:
        model.backbone[1] = nn.BatchNorm2d(4)
    if number == 16:
        model.register_buffer('scale', torch.full((2,), 5.0, dtype=torch.float64))


def run(kind: type[Any], is_listed: bool, **arguments: Any) -> list[Any]:
    """Returns the averaged model's state after each of 20 updates."""
    model = Heads()
    ema = kind(model, momentum=0.02, **arguments)
    listed = ListedAverages(hooked(ema), fail) if is_listed else None
    generator, states = torch.Generator().manual_seed(4), []
    for number in range(20):
        change(model, number, generator)
        ema.update_parameters(model)
        states.append(copy.deepcopy(ema.state_dict()))
    if listed is not None:
        assert ema.update_parameters is vars(ema)['update_parameters']
        listed.close()
        assert 'update_parameters' not in vars(ema)
    return states


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('update_buffers', [False, True])
@pytest.mark.parametrize('interval', [1, 3])
def test_averages_are_the_same_to_the_last_bit(kind, update_buffers, interval):
    arguments = dict(update_buffers=update_buffers, interval=interval)
    assert is_equal(run(kind, False, **arguments), run(kind, True, **arguments))


def average_by_lerp(
    ema: Any, average: torch.Tensor, source: torch.Tensor, steps: int
) -> None:
    """Averages as the maintained fork of MMDetection does."""
    rest = math.exp(-float(1 + steps) / ema.gamma)
    average.lerp_(source, (1 - ema.momentum) * rest + ema.momentum)


def test_averages_of_the_maintained_fork_are_the_same_to_the_last_bit(monkeypatch):
    kind = ema_of_mmdet.ExpMomentumEMA
    upstream = run(kind, True)
    monkeypatch.setattr(kind, 'avg_func', average_by_lerp)
    assert is_equal(run(kind, False), run(kind, True))
    # it is another formula
    assert not is_equal(run(kind, True), upstream)


@pytest.fixture
def calls(monkeypatch):
    """List with one item per tensor that MMEngine's own EMA averages."""
    counted: list[int] = []
    original = ExponentialMovingAverage.avg_func

    @functools.wraps(original)
    def avg_func(*args: Any) -> None:
        counted.append(1)
        original(*args)

    monkeypatch.setattr(ExponentialMovingAverage, 'avg_func', avg_func)
    return counted


@pytest.fixture
def ema():
    made = ExponentialMovingAverage(Heads())
    made.update_parameters(Heads())
    return made


def test_averages_are_updated_by_lists_until_closed(ema, calls):
    listed = ListedAverages(hooked(ema), fail)
    calls.clear()
    ema.update_parameters(Heads())
    assert calls == []
    assert f'averages {len(ema.avg_parameters)} tensors by lists' in listed.changed
    listed.close()
    ema.update_parameters(Heads())
    assert len(calls) == len(ema.avg_parameters)


def test_a_copy_averages_itself_and_in_its_own_way(ema, calls):
    ListedAverages(hooked(ema), fail)
    assert list(ema.state_dict()) == list(
        ExponentialMovingAverage(Heads()).state_dict()
    )
    for other in (copy.deepcopy(ema), pickle.loads(pickle.dumps(ema))):
        calls.clear()
        before = copy.deepcopy(ema.state_dict())
        other.update_parameters(Heads())
        assert len(calls) == len(ema.avg_parameters)
        assert is_equal(before, copy.deepcopy(ema.state_dict()))
        assert int(other.steps) == int(ema.steps) + 1


class OwnAverage(ExponentialMovingAverage):
    """User's own subclass of MMEngine's EMA."""


@pytest.mark.parametrize(
    ('kind', 'sentence'),
    [
        (
            StochasticWeightAverage,
            'StochasticWeightAverage is no average whose formula',
        ),
        (OwnAverage, 'OwnAverage is no average whose formula is known'),
    ],
)
def test_an_unknown_average_is_refused(kind, sentence):
    with pytest.raises(RefusalError, match=sentence):
        ListedAverages(hooked(kind(Heads())), fail)


def test_no_average_and_a_replaced_update_are_refused(ema):
    with pytest.raises(RefusalError, match='no EMAHook averages the model'):
        ListedAverages(SimpleNamespace(hooks=[]), fail)
    vars(ema)['update_parameters'] = lambda model: None
    with pytest.raises(RefusalError, match='something else stands in for updates'):
        ListedAverages(hooked(ema), fail)


def test_a_pytorch_without_multi_tensor_calls_is_refused(ema, monkeypatch):
    """Tests that a PyTorch before 2.1 is refused, as it lacks ``_foreach_copy_``."""
    monkeypatch.delattr(torch, '_foreach_copy_')
    with pytest.raises(RefusalError, match=r'no torch\._foreach_copy_'):
        ListedAverages(hooked(ema), fail)


def test_another_formula_is_refused(ema, monkeypatch):
    def avg_func(ema: Any, average: Any, source: Any, steps: Any) -> None:
        average.mul_(1 - ema.momentum).add_(source, alpha=ema.momentum)

    monkeypatch.setattr(ExponentialMovingAverage, 'avg_func', avg_func)
    ema.momentum = 0.3
    with pytest.raises(RefusalError, match='computes other bits over lists'):
        ListedAverages(hooked(ema), fail)


def copy_source(average: Any, source: Any, steps: Any) -> None:
    average.copy_(source)


CHANGES: dict[str, dict[str, Any]] = {
    'type(momentum)': {'momentum': torch.tensor(0.3)},
    'avg_func': {'avg_func': copy_source},
    'update_buffers': {'update_buffers': False},
    'avg_func and update_buffers': {'avg_func': copy_source, 'update_buffers': False},
}


@pytest.mark.parametrize('named', CHANGES)
def test_what_changes_in_training_takes_it_back(named):
    """Tests that a setting changed during training switches multi-tensor EMA off."""
    torch.manual_seed(1)
    model = nn.Linear(3, 3).bfloat16()
    failures: list[BaseException] = []
    pair = [ExponentialMovingAverage(model, update_buffers=True) for _ in range(2)]

    def give_up(error: Exception) -> None:
        failures.append(error)
        listed.close()

    listed = ListedAverages(hooked(pair[0]), give_up)
    for number in range(20):
        model.weight.data.mul_(1.1)
        for ema in pair:
            if number == 10:
                vars(ema).update(CHANGES[named])
            ema.update_parameters(model)
    assert is_equal(*[copy.deepcopy(ema.state_dict()) for ema in pair])
    assert [str(failure) for failure in failures] == [
        f'{named} of ExponentialMovingAverage changed in training'
    ]


def test_a_tensor_as_momentum_is_refused():
    ema = ExponentialMovingAverage(Heads(), momentum=0.1)
    ema.momentum = torch.tensor(0.1)
    with pytest.raises(RefusalError, match=r'the momentum of Exp.* is of type Tensor'):
        ListedAverages(hooked(ema), fail)


def test_momentum_that_a_scheduler_changes_is_followed():
    model = Heads()
    pair = [ExponentialMovingAverage(model) for _ in range(2)]
    ListedAverages(hooked(pair[0]), fail)
    for number in range(30):
        change(model, 0, torch.Generator().manual_seed(number))
        for ema in pair:
            ema.momentum = 0.1 + number / 100
            ema.update_parameters(model)
    assert is_equal(*[copy.deepcopy(ema.state_dict()) for ema in pair])


def test_an_average_of_another_type_is_left_to_mmengine():
    model = Heads()
    failures: list[BaseException] = []
    pair = [ExponentialMovingAverage(model) for _ in range(2)]
    for ema in pair:
        ema.module.scale = ema.module.scale.float()
    ListedAverages(hooked(pair[0]), failures.append)
    for _ in range(3):
        for ema in pair:
            ema.update_parameters(model)
    assert failures
    assert 'the average of buffer' in str(failures[0])
    assert is_equal(*[copy.deepcopy(ema.state_dict()) for ema in pair])
