"""Tests that merged parameter groups give the same weights and state as plain ones."""

from __future__ import annotations

import copy
import functools
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.config import ConfigDict
from mmengine.optim import OptimWrapper, OptimWrapperDict, build_optim_wrapper
from mmengine.registry import PARAM_SCHEDULERS
from torch import nn
from torch.optim import optimizer as torch_optimizer

from benchmarks.equal import is_equal
from mmgpu_hooks.optimize import param_groups
from mmgpu_hooks.optimize.param_groups import MergedGroups
from mmgpu_hooks.optimize.refusal import RefusalError

STEPS = 24
SCHEDULERS = (
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=8),
    dict(type='CosineAnnealingLR', T_max=20, by_epoch=False, begin=8, end=28),
)
MOMENTUM = (dict(type='LinearMomentum', start_factor=0.5, by_epoch=False, end=10),)
CLIP = dict(max_norm=0.1, norm_type=2)


def fail(error: Exception) -> None:
    raise AssertionError('taken back') from error


def build(optimizer: dict[str, Any], **more: Any) -> Any:
    """Returns an optimizer wrapper with a parameter group for each of 14 tensors."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)) for _ in range(3)]
    model = nn.Sequential(*layers, nn.Linear(5, 4))
    given = dict(optimizer={'lr': 0.01, **optimizer}, **more)
    paramwise = dict(norm_decay_mult=0.0, bias_decay_mult=0.0, bypass_duplicate=True)
    given['optimizer'].setdefault('weight_decay', 0.05)
    return build_optim_wrapper(model, ConfigDict(paramwise_cfg=paramwise, **given))


def params_of(optimizer: Any) -> list[Any]:
    return [param for group in optimizer.param_groups for param in group['params']]


def train(
    optimizer: dict[str, Any],
    is_merged: bool,
    schedulers: Any = SCHEDULERS,
    **more: Any,
) -> list[Any]:
    """Trains with merged or plain parameter groups; returns all states."""
    wrapper = build(optimizer, **more)
    steps = STEPS
    merged = None
    if is_merged:
        merged = MergedGroups(SimpleNamespace(cfg={}, optim_wrapper=wrapper), fail)
    plans = [
        PARAM_SCHEDULERS.build(dict(plan, optimizer=wrapper)) for plan in schedulers
    ]
    generator = torch.Generator().manual_seed(1)
    left = []
    for number in range(steps):
        change_groups(wrapper.optimizer, number)
        for place, param in enumerate(params_of(wrapper.optimizer)):
            noise = torch.randn(param.shape, generator=generator)
            # some have no gradient now and then, and one none at first
            has_none = (number + place) % 7 == 0 or (place == 3 and number < 5)
            param.grad = None if has_none else noise.to(param.dtype)
        wrapper.step()
        wrapper.zero_grad()
        # of a group that joined later they know nothing
        for plan in plans if number < 18 else ():
            plan.step()
        weights = [param.detach().clone() for param in params_of(wrapper.optimizer)]
        left.append((weights, wrapper.get_lr(), wrapper.get_momentum()))
    if merged is not None:
        merged.close()
    return [left, copy.deepcopy(wrapper.state_dict())]


def change_groups(optimizer: Any, number: int) -> None:
    """Changes parameter groups during training, as users' hooks do."""
    groups = optimizer.param_groups
    if type(optimizer) is torch.optim.Adagrad and number in (15, 18):
        return  # it makes its state once and for all
    if number == 9:
        groups[5]['weight_decay'] = 0.3
    if number == 12:
        groups[7]['lr'] *= 0.5
    if number == 15:
        first = groups[1]['params'][0]
        optimizer.state.pop(first, None)
        groups[1]['params'][0] = nn.Parameter(first.detach().clone() + 1)
    if number == 18:
        extra = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2).double())]
        optimizer.add_param_group(dict(params=extra))


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: (dict(type=name), {}) for name in param_groups.MERGEABLE},
    **{
        f'{name} foreach': (dict(type=name, foreach=True), {})
        for name in param_groups.MERGEABLE
    },
    **{
        f'{name} fused': (dict(type=name, fused=True), {})
        for name in ('SGD', 'Adam', 'AdamW', 'Adagrad')
    },
    'SGD momentum': (dict(type='SGD', momentum=0.9, nesterov=True), {}),
    'SGD momentum foreach': (dict(type='SGD', momentum=0.9, foreach=True), {}),
    'SGD momentum fused': (dict(type='SGD', momentum=0.9, fused=True), {}),
    'Adam amsgrad': (dict(type='Adam', amsgrad=True, maximize=True), {}),
    'betas as a list': (dict(type='AdamW', betas=[0.9, 0.99]), {}),
    'clipped': (dict(type='AdamW', foreach=True), dict(clip_grad=CLIP)),
    'clipped SGD': (dict(type='SGD', momentum=0.9), dict(clip_grad=CLIP)),
    'scheduled momentum': (
        dict(type='SGD', momentum=0.9),
        dict(schedulers=(*SCHEDULERS, *MOMENTUM)),
    ),
}


@pytest.mark.parametrize('name', CASES)
def test_a_training_is_the_same_to_the_last_bit(name):
    optimizer, more = CASES[name]
    assert is_equal(train(optimizer, False, **more), train(optimizer, True, **more))


@pytest.fixture
def seen(monkeypatch):
    """Number of parameter groups in each step of AdamW."""
    counts: list[int] = []
    original = torch.optim.AdamW.step
    if not hasattr(original, 'hooked'):
        build(dict(type='AdamW'))
        original = torch.optim.AdamW.step

    @functools.wraps(original)
    def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        counts.append(len(optimizer.param_groups))
        return original(optimizer, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, 'step', step)
    return counts


@pytest.fixture
def wrapper(seen):
    """Optimizer wrapper with merged parameter groups, after one step."""
    made = build(dict(type='AdamW'))
    made.merged = MergedGroups(SimpleNamespace(cfg={}, optim_wrapper=made), fail)
    step(made)
    seen.clear()
    yield made
    made.merged.close()


def step(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
    for param in params_of(wrapper.optimizer):
        param.grad = torch.ones_like(param)
    return wrapper.optimizer.step(*args, **kwargs)


def test_the_step_alone_sees_merged_groups(wrapper, seen):
    optimizer = wrapper.optimizer
    groups, kept = optimizer.param_groups, list(optimizer.param_groups)
    step(wrapper)
    assert seen == [2]
    assert optimizer.param_groups is groups
    assert len(groups) == 14
    assert all(map(lambda one, other: one is other, groups, kept))
    assert '14 parameter groups as 2' in wrapper.merged.changed


def test_groups_are_read_as_dicts_and_stay_config_dicts(wrapper):
    groups = wrapper.optimizer.param_groups
    assert all(type(group) is not ConfigDict for group in groups)
    assert all(isinstance(group, ConfigDict) for group in groups)
    group = groups[0]
    group['params'] = listed = list(group['params'])
    assert group.lr == group['lr'] == group.get('lr')
    assert group['params'] is not listed
    assert group == dict(group)
    with pytest.raises(KeyError):
        group['missing']
    for other in (
        copy.copy(group),
        group.copy(),
        copy.deepcopy(group),
        pickle.loads(pickle.dumps(group)),
    ):
        assert type(other) is ConfigDict
        assert list(other) == list(group)
    assert 'step' not in vars(copy.deepcopy(wrapper.optimizer))
    wrapper.merged.close()
    assert all(type(group) is ConfigDict for group in groups)
    assert 'step' not in vars(wrapper.optimizer)


def test_a_step_that_raises_leaves_the_groups(wrapper, monkeypatch):
    def raise_out_of_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError('CUDA out of memory')

    optimizer = wrapper.optimizer
    groups = optimizer.param_groups
    monkeypatch.setattr(torch.optim.AdamW, '_init_group', raise_out_of_memory)
    with pytest.raises(torch.OutOfMemoryError):
        step(wrapper)
    assert optimizer.param_groups is groups
    assert len(groups) == 14


def test_closures_of_a_step_see_the_unmerged_groups(wrapper, seen):
    lengths = []

    def compute() -> torch.Tensor:
        lengths.append(len(wrapper.optimizer.param_groups))
        return torch.ones(())

    step(wrapper, compute)
    step(wrapper, closure=compute)
    assert lengths == [14] * 2
    assert seen == [14] * 2
    step(wrapper)
    assert seen[-1] == 2


def register(name: str, optimizer: Any, hook: Any) -> Any:
    """Registers a hook before or after the step of one optimizer or of all."""
    if name.startswith('register_optimizer'):
        return getattr(torch_optimizer, name)(hook)
    return getattr(optimizer, name)(hook)


@pytest.mark.parametrize(
    'name',
    [
        'register_step_pre_hook',
        'register_step_post_hook',
        'register_optimizer_step_pre_hook',
        'register_optimizer_step_post_hook',
    ],
)
def test_hooks_of_a_step_refuse_it_and_take_it_back(name, seen):
    """Tests that hooks of an optimizer's step keep parameter groups from merging."""
    lengths, failures = list[int](), list[BaseException]()
    wrapper = build(dict(type='AdamW'))
    runner = SimpleNamespace(cfg={}, optim_wrapper=wrapper)

    def count(optimizer: Any, *_: Any) -> None:
        lengths.append(len(optimizer.param_groups))

    handle = register(name, wrapper.optimizer, count)
    try:
        with pytest.raises(RefusalError, match='for the step of AdamW may read its gr'):
            MergedGroups(runner, fail)
        # the comparison of both ways makes no step that a user's hook sees
        assert lengths == []
    finally:
        handle.remove()
    merged = MergedGroups(runner, failures.append)
    step(wrapper)
    seen.clear()
    handle = register(name, wrapper.optimizer, count)
    try:
        step(wrapper)
    finally:
        handle.remove()
    assert lengths == seen == [14]
    assert 'hooks that are registered' in str(failures[0])
    merged.close()


@pytest.mark.parametrize('name', param_groups.MERGEABLE)
def test_a_half_precision_parameter_is_no_reason_to_refuse(name):
    """Tests that float16 parameters are merged, though epsilon is 0 in float16.

    Both ways give NaN for 0 / 0.
    """
    params = [nn.Parameter(torch.ones(3, dtype=torch.half)) for _ in range(2)]
    optimizer = getattr(torch.optim, name)([dict(params=[each]) for each in params])
    runner = SimpleNamespace(cfg={}, optim_wrapper=OptimWrapper(optimizer))
    merged = MergedGroups(runner, fail)
    assert '2 parameter groups as 1' in merged.changed
    merged.close()


def test_a_scheduler_that_joins_late_wraps_the_step(wrapper, seen):
    optimizer = wrapper.optimizer
    late = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.5**epoch)
    step(wrapper)
    late.step()
    assert seen == [2]
    assert {group['lr'] for group in optimizer.param_groups} == {0.005}
    # ours passes calls on, where it cannot be taken back
    wrapper.merged.close()
    step(wrapper)
    assert seen == [2, 14]


class OwnAdamW(torch.optim.AdamW):
    pass


class Lion(torch.optim.Optimizer):
    """Third-party optimizer with a name that PyTorch does not have."""

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0) -> None:
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))


class AdamW(torch.optim.AdamW):
    """Third-party optimizer with the name of PyTorch's AdamW."""


REFUSED = [
    (dict(type=Lion), 'Lion is no optimizer whose steps were tried'),
    (dict(type=AdamW), 'AdamW is no optimizer whose steps were tried'),
    (dict(type='Rprop', weight_decay=None), 'Rprop is no optimizer whose'),
    (dict(type='AdamW', capturable=True), 'differentiable or capturable'),
    (dict(type='AdamW', differentiable=True), 'differentiable or capturable'),
    (dict(type=OwnAdamW), 'OwnAdamW is no optimizer whose steps were tried'),
]


@pytest.mark.parametrize(('optimizer', 'sentence'), REFUSED)
def test_what_was_not_tried_is_refused(optimizer, sentence):
    given = {key: value for key, value in optimizer.items() if value is not None}
    if optimizer['type'] == 'Rprop':
        model = nn.Linear(2, 2)
        groups = [dict(params=[param]) for param in model.parameters()]
        wrapper = OptimWrapper(torch.optim.Rprop(groups))
    else:
        wrapper = build(given)
    with pytest.raises(RefusalError, match=sentence):
        MergedGroups(SimpleNamespace(cfg={}, optim_wrapper=wrapper), fail)
    assert 'step' not in vars(wrapper.optimizer)


def test_an_optimizer_over_ranks_is_refused(tmp_path):
    """Tests that ZeroRedundancyOptimizer is refused, as it steps per rank."""
    torch.distributed.init_process_group(
        'gloo', init_method=f'file://{tmp_path}/store', rank=0, world_size=1
    )
    try:
        wrapper = build(dict(type='ZeroRedundancyOptimizer', optimizer_type='AdamW'))
        with pytest.raises(RefusalError, match='ZeroRedundancyOptimizer is no optimi'):
            MergedGroups(SimpleNamespace(cfg={}, optim_wrapper=wrapper), fail)
        assert 'step' not in vars(wrapper.optimizer)
        step(wrapper)
    finally:
        torch.distributed.destroy_process_group()


def test_a_tensor_a_replaced_step_and_unlike_groups_are_refused():
    runner = SimpleNamespace(cfg={}, optim_wrapper=build(dict(type='AdamW')))
    optimizer = runner.optim_wrapper.optimizer
    optimizer.param_groups[0]['lr'] = torch.tensor(0.1)
    with pytest.raises(
        RefusalError, match='a setting of a parameter group is a tensor'
    ):
        MergedGroups(runner, fail)
    for number, group in enumerate(optimizer.param_groups):
        group['lr'] = 0.1 + number
    with pytest.raises(RefusalError, match='no two of 14 parameter groups are alike'):
        MergedGroups(runner, fail)
    assert all(type(group) is ConfigDict for group in optimizer.param_groups)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    with pytest.raises(RefusalError, match='something else stands in for the step'):
        MergedGroups(runner, fail)


def test_of_several_optimizers_each_is_judged(seen):
    parts = dict(
        backbone=build(dict(type='AdamW')), head=build(dict(type='SGD', lr=0.1))
    )
    parts['head'].optimizer.param_groups[0]['lr'] = torch.tensor(0.1)
    merged = MergedGroups(
        SimpleNamespace(cfg={}, optim_wrapper=OptimWrapperDict(**parts)), fail
    )
    seen.clear()
    for _ in range(2):
        step(parts['backbone'])
    assert seen == [14, 2]
    assert 'backbone: the step of AdamW takes 14' in merged.changed
    assert 'head: a setting of a parameter group is a tensor' in merged.changed
    merged.close()


def test_other_bits_on_a_device_are_refused(monkeypatch):
    monkeypatch.setattr(torch, 'equal', lambda *_: False)
    with pytest.raises(RefusalError, match='to other bits than over each alone'):
        MergedGroups(
            SimpleNamespace(cfg={}, optim_wrapper=build(dict(type='SGD'))), fail
        )


@pytest.mark.parametrize(
    ('spare', 'is_kept'), [(10**12, True), (1, False)], ids=['room', 'full']
)
def test_a_full_card_takes_it_back(monkeypatch, spare, is_kept):
    wrapper = build(dict(type='AdamW'))
    failures: list[BaseException] = []
    cpu = torch.device('cpu')
    monkeypatch.setattr(param_groups, '_uses_card', lambda optimizer: True)
    monkeypatch.setattr(param_groups, '_weigh', lambda optimizer: {cpu: 100})
    monkeypatch.setattr(param_groups, '_spare_bytes', lambda device: spare)
    runner = SimpleNamespace(cfg={}, optim_wrapper=wrapper)
    merged = MergedGroups(runner, failures.append)
    assert 'one copy of the parameters more of the card' in merged.changed
    for _ in range(2):
        step(wrapper)
    assert [str(failure) for failure in failures] == (
        []
        if is_kept
        else ['the memory of cpu is full but for less than one copy of the parameters']
    )
    merged.close()
