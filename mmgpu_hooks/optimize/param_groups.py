"""Merges parameter groups with equal settings during the optimizer's step.

MMEngine makes a group of each tensor where a config has ``paramwise_cfg``, and PyTorch
steps group by group: hundreds of calls where a few would do. Before and after the step
everybody sees the groups as they are.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterable
from copy import deepcopy
from operator import itemgetter
from typing import Any, Callable

import torch
from mmengine.config import ConfigDict
from mmengine.config.lazy import LazyAttr, LazyObject
from mmengine.optim import OptimWrapper, OptimWrapperDict
from torch.optim import optimizer as torch_optimizer

from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.optimize.counts import is_compiled
from mmgpu_hooks.optimize.equal import is_equal
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.optimize.several import OnFailure, Opener, Several
from mmgpu_hooks.optimize.turns import Turns
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import Text, phrase

Group = dict[str, Any]

MERGEABLE = (
    'SGD',
    'Adam',
    'AdamW',
    'NAdam',
    'RAdam',
    'Adagrad',
    'RMSprop',
    'Adadelta',
    'Adamax',
)
"""PyTorch optimizers tested to give the same bits with merged parameter groups."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)

_MEMORY_EVERY = 100
"""Number of optimizer steps from one check of GPU memory to the next."""

_NO_GRADIENT, _ALONE = 'no gradient', 'alone'


class MergedGroups(Several):
    """Makes all optimizers of a Runner step over merged parameter groups.

    Args:
        runner: About to enter its train loop.
        on_failure: Called when it cannot go on.

    Raises:
        RefusalError: If no optimizer can, none has groups to merge, or the step is
            compiled.
    """

    def __init__(self, runner: Any, on_failure: OnFailure) -> None:
        if is_compiled(runner):
            # into few calls already, and merged groups would be compiled to other bits
            raise RefusalError(phrase("`compile` compiles the optimizer's step, too"))
        wrapper = runner.optim_wrapper
        named = {'': wrapper}
        if isinstance(wrapper, OptimWrapperDict):
            named = dict(wrapper.items())
        super().__init__(
            Opener(name, functools.partial(StepMerger, each, on_failure))
            for name, each in named.items()
        )


class StepMerger:
    """Replaces one optimizer's ``step`` by a step over merged parameter groups.

    A step is the optimizer's own, over its own groups, where a closure sees the groups
    in it and where it makes state: then the entries stand in the order in which they
    always do. Hooks of the optimizer that join later end it.

    Args:
        wrapper: MMEngine's, around the optimizer.
        on_failure: Called when merging fails, hooks of the optimizer see the groups, or
            the card's memory is nearly full.

    Raises:
        RefusalError: If the optimizer cannot be stepped so, or would gain nothing.
    """

    def __init__(self, wrapper: Any, on_failure: OnFailure) -> None:
        reason = _why_not(wrapper)
        if reason is not None:
            raise RefusalError(reason)
        self._optimizer = optimizer = wrapper.optimizer
        self._on_failure = on_failure
        self._names = tuple(optimizer.defaults)
        self._read = itemgetter(*self._names)
        self._is_open = True
        self._steps = 0
        self._turns = Turns()
        groups = optimizer.param_groups
        kinds = {self._settings(group) for group in groups}
        if len(kinds) == len(groups):
            raise RefusalError(
                phrase(
                    'no two of {group_count} parameter groups are alike',
                    group_count=len(groups),
                )
            )
        _prove(optimizer)
        self._quick = QuickGroups(groups)
        self._patches = Patches()
        self._patches.set(optimizer, 'step', self._make_step())
        facts = dict(
            kind=type(optimizer).__name__,
            group_count=len(groups),
            merged_count=len(kinds),
        )
        self.changed = phrase(
            'the step of {kind} takes {group_count} parameter groups as {merged_count}',
            **facts,
        )
        if _uses_card(optimizer):
            self.changed = phrase(
                'the step of {kind} takes {group_count} parameter groups as '
                '{merged_count}, and uses up to one copy of the parameters more of the '
                'card while it runs',
                **facts,
            )

    def _make_step(self) -> Callable[..., Any]:
        original, merger = type(self._optimizer).step, self
        turns = self._turns

        @functools.wraps(original)  # GradScaler reads its signature
        def step(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            merged, began_s = None, turns.begin()
            if merger._is_open and not args and not kwargs:
                merged = merger._try_to_merge()
            if merged is None:
                return original(optimizer, *args, **kwargs)
            if turns.is_plain_due:
                return turns.call_plain(original, optimizer)
            groups = optimizer.param_groups
            try:
                optimizer.param_groups = merged
                result = original(optimizer)
            finally:
                optimizer.param_groups = groups
            turns.end(began_s)
            return result

        # a method: schedulers of PyTorch take the function out of it
        return types.MethodType(step, self._optimizer)

    def _settings(self, group: Group) -> Any:
        values = self._read(group)
        try:
            hash(values)
        except TypeError:  # betas as a list, from a command line
            return repr(values)
        return values

    def _try_to_merge(self) -> list[Group] | None:
        """Returns merged parameter groups; ``None`` if a step needs unmerged ones."""
        optimizer = self._optimizer
        try:
            if _has_hooks(optimizer):
                raise RefusalError(_phrase_hooks(optimizer))
            merged = self._merge()
            if merged is not None:
                self._expect_memory()
                self._steps += 1
            return merged
        except Exception as error:  # noqa: BLE001, training must not see it
            self._on_failure(error)
            return None

    def _merge(self) -> list[Group] | None:
        merged: dict[Any, Group] = {}
        state, is_sgd = self._optimizer.state, type(self._optimizer) is torch.optim.SGD
        for group in self._optimizer.param_groups:
            params = group['params']
            # SGD keeps nothing without momentum
            kept = None if is_sgd and not group['momentum'] else state
            kind = _find_kind(params, kept)
            if kind is None:
                return None
            key = id(group) if kind is _ALONE else (self._settings(group), kind)
            found = merged.get(key)
            if found is None:
                settings = zip(self._names, self._read(group))
                merged[key] = {**dict(settings), 'params': list(params)}
            else:
                found['params'] += params
        return list(merged.values())

    def _expect_memory(self) -> None:
        if self._steps % _MEMORY_EVERY == 0 and _uses_card(self._optimizer):
            for device, size in _weigh(self._optimizer).items():
                if _spare_bytes(device) < size:
                    raise RefusalError(
                        phrase(
                            'the memory of {device} is full but for less than one copy '
                            'of the parameters',
                            device=str(device),
                        )
                    )

    @property
    def spared(self) -> SparedTime | None:
        """CPU seconds of one optimizer step, unmerged and merged, if timed."""
        return self._turns.spared

    def close(self) -> None:
        """Restores the optimizer's ``step``; if others wrapped it, forwards calls."""
        self._is_open = False
        self._patches.close()
        self._quick.close()


def _why_not(wrapper: Any) -> Text | None:
    """Returns why an optimizer cannot step over merged groups, or ``None``."""
    # Apex puts other tensors into the groups
    is_apex = any(kind.__name__ == 'ApexOptimWrapper' for kind in type(wrapper).__mro__)
    if not isinstance(wrapper, OptimWrapper) or is_apex:
        return phrase(
            '{kind} is no wrapper whose steps were tried', kind=type(wrapper).__name__
        )
    optimizer = wrapper.optimizer
    name = type(optimizer).__name__
    if name not in MERGEABLE or type(optimizer) is not getattr(torch.optim, name):
        return phrase('{name} is no optimizer whose steps were tried', name=name)
    if 'step' in vars(optimizer):
        return phrase('something else stands in for the step of {name}', name=name)
    if _has_hooks(optimizer):
        return _phrase_hooks(optimizer)
    for group in optimizer.param_groups:
        if group.get('differentiable') or group.get('capturable'):
            return phrase('a parameter group is differentiable or capturable')
        if any(isinstance(group[key], torch.Tensor) for key in optimizer.defaults):
            return phrase('a setting of a parameter group is a tensor')
    return None


def _has_hooks(optimizer: Any) -> bool:
    """True if the optimizer has hooks that may read its parameter groups in a step."""
    places = (
        (optimizer, '_optimizer_step_pre_hooks'),
        (optimizer, '_optimizer_step_post_hooks'),
        (torch_optimizer, '_global_optimizer_pre_hooks'),
        (torch_optimizer, '_global_optimizer_post_hooks'),
    )
    # torch before 2.0 has none
    return any(getattr(owner, name, None) for owner, name in places)


def _phrase_hooks(optimizer: Any) -> Text:
    return phrase(
        'hooks that are registered for the step of {name} may read its groups',
        name=type(optimizer).__name__,
    )


def _find_kind(params: Iterable[Any], state: Any) -> Any:
    """Returns the key of groups that may be merged: device, data types and layout.

    Args:
        params: Of one group.
        state: The optimizer's; ``None`` where it keeps none.

    Returns:
        ``_ALONE`` for a group of several kinds or of tensors of a class of their own;
        ``None`` if a tensor with a gradient has no state yet.
    """
    kind: Any = _NO_GRADIENT
    for param in params:
        grad = param.grad
        if grad is None:
            continue
        if state is not None and param not in state:
            return None
        if type(param) not in _PLAIN or grad.layout is not torch.strided:
            return _ALONE
        is_laid_out_alike = grad.stride() == param.stride()
        own = param.device, param.dtype, grad.dtype, is_laid_out_alike
        if kind is not _NO_GRADIENT and kind != own:
            return _ALONE
        kind = own
    return kind


def _prove(optimizer: Any) -> None:
    """Raises if an optimizer computes other bits for merged than for unmerged groups.

    Raises:
        RefusalError: If the results differ in one bit.
    """
    taken = inspect.signature(type(optimizer)).parameters
    settings = {
        name: value for name, value in optimizer.defaults.items() if name in taken
    }
    # a warm-up may have begun with a rate of nothing
    settings['lr'] = settings['lr'] or 0.01
    places = {
        (param.device, param.dtype)
        for group in optimizer.param_groups
        for param in group['params']
        if param.dtype.is_floating_point
    }
    for device, dtype in places:
        ramps = [
            torch.linspace(-1, 1, size, device=device) for size in (1, 7, 1000, 70_000)
        ]
        single = [torch.nn.Parameter(ramp.to(dtype)) for ramp in ramps]
        together = [torch.nn.Parameter(ramp.to(dtype)) for ramp in ramps]
        steppers = (
            type(optimizer)([{'params': [param]} for param in single], **settings),
            type(optimizer)(together, **settings),
        )
        for number in range(3):
            for param, twin, ramp in zip(single, together, ramps):
                param.grad = torch.sin(ramp * (number + 3)).to(dtype)
                twin.grad = param.grad.clone()
            for stepper in steppers:
                stepper.step()
        if not all(map(is_equal, single, together)):
            raise RefusalError(
                phrase(
                    '{kind} steps over several tensors of {dtype} on {device} to other '
                    'bits than over each alone',
                    kind=type(optimizer).__name__,
                    dtype=str(dtype),
                    device=str(device),
                )
            )


def _uses_card(optimizer: Any) -> bool:
    """True if a merged optimizer step needs GPU memory for intermediate results."""
    return any(
        param.is_cuda
        for group in optimizer.param_groups
        if group.get('foreach') is not False and not group.get('fused')
        for param in group['params']
    )


def _weigh(optimizer: Any) -> dict[torch.device, int]:
    """Returns the bytes of an optimizer's parameters on each GPU, by device."""
    sizes: dict[torch.device, int] = {}
    for group in optimizer.param_groups:
        for param in group['params']:
            if param.is_cuda:
                sizes[param.device] = sizes.get(param.device, 0) + param.nbytes
    return sizes


def _spare_bytes(device: torch.device) -> int:
    """Returns the bytes of a GPU's memory that are free, or reserved but unused."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


class QuickGroup(ConfigDict):
    """Parameter group of class ``ConfigDict`` that can be read as fast as a dict.

    ``ConfigDict`` looks for lazy objects each time a value is read. A copy or a pickle
    is a plain ``ConfigDict``.
    """

    __getitem__ = dict.__getitem__
    get = dict.get
    _hook = ConfigDict._hook

    def __setitem__(self, name: str, value: Any) -> None:
        if isinstance(value, (int, float)):
            dict.__setitem__(self, name, value)
        else:  # a list is copied, a dict becomes a ConfigDict
            super().__setitem__(name, value)

    def __copy__(self) -> ConfigDict:
        return ConfigDict(dict.copy(self))

    copy = __copy__

    def __deepcopy__(self, memo: dict[int, Any]) -> ConfigDict:
        copied = memo[id(self)] = self.__copy__()
        for name in self.keys():
            copied[name] = deepcopy(dict.__getitem__(self, name), memo)
        return copied

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return ConfigDict, (dict.copy(self),)


class QuickGroups:
    """Makes an optimizer's ``ConfigDict`` groups fast to read, without copying them.

    They stay the same objects: a hook may hold one.

    Args:
        groups: Of an optimizer.
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        self._changed = [
            group
            for group in groups
            if type(group) is ConfigDict
            and not any(
                isinstance(value, (LazyAttr, LazyObject))
                for value in dict.values(group)
            )
        ]
        for group in self._changed:
            object.__setattr__(group, '__class__', QuickGroup)

    def close(self) -> None:
        """Turns the parameter groups back into plain ``ConfigDict`` objects."""
        for group in self._changed:
            if type(group) is QuickGroup:
                object.__setattr__(group, '__class__', ConfigDict)
