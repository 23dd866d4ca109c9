"""Averages a model's tensors with multi-tensor calls (``torch._foreach``).

MMEngine's and MMDetection's formulas, over lists of tensors (``torch._foreach_*``).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from numbers import Real
from operator import is_
from typing import Any, Callable, NamedTuple

import torch
from mmengine.hooks import EMAHook
from mmengine.model import BaseAveragedModel

from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.optimize.equal import is_equal
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.optimize.several import OnFailure, Opener, Several
from mmgpu_hooks.optimize.turns import Turns
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import phrase

Formula = Callable[[Any, int, list[Any], list[Any]], None]
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_SIZES = (1, 7, 1000, 70_001)
_CALLS = ('_foreach_mul_', '_foreach_add_', '_foreach_lerp_', '_foreach_copy_')
"""Multi-tensor calls that update an EMA; torch before 2.1 lacks the last of them."""


def _average(ema: Any, steps: int, averages: list[Any], sources: list[Any]) -> None:
    torch._foreach_lerp_(averages, sources, ema.momentum)


def _anneal(ema: Any, steps: int, averages: list[Any], sources: list[Any]) -> None:
    momentum = max(ema.momentum, ema.gamma / (ema.gamma + steps))
    torch._foreach_lerp_(averages, sources, momentum)


def _warmed_up(ema: Any, steps: int) -> float:
    rest = math.exp(-float(1 + steps) / ema.gamma)
    return float((1 - ema.momentum) * rest + ema.momentum)


def _warm_up(ema: Any, steps: int, averages: list[Any], sources: list[Any]) -> None:
    momentum = _warmed_up(ema, steps)
    torch._foreach_mul_(averages, 1 - momentum)
    torch._foreach_add_(averages, sources, alpha=momentum)


def _warm_up_by_lerp(
    ema: Any, steps: int, averages: list[Any], sources: list[Any]
) -> None:
    torch._foreach_lerp_(averages, sources, _warmed_up(ema, steps))


FORMULAS: dict[str, Sequence[Formula]] = {
    'mmengine.model.averaged_model.ExponentialMovingAverage': [_average],
    'mmengine.model.averaged_model.MomentumAnnealingEMA': [_anneal],
    # of MMDetection, and of its maintained fork
    'mmdet.models.layers.ema.ExpMomentumEMA': [_warm_up, _warm_up_by_lerp],
}
"""Update functions for lists of tensors, by class name of the averaged model.

The first one that computes the same bits as the model's own is taken.
"""


class ListedAverages(Several):
    """All EMA models of a Runner, updated with multi-tensor calls.

    Args:
        runner: About to enter its train loop.
        on_failure: Called when it cannot go on.

    Raises:
        RefusalError: If there is none, or none that can be averaged so.
    """

    def __init__(self, runner: Any, on_failure: OnFailure) -> None:
        hooks = [hook for hook in runner.hooks if isinstance(hook, EMAHook)]
        if not hooks:
            raise RefusalError(phrase('no EMAHook averages the model'))
        super().__init__(
            Opener('', partial(ListedAverage, hook.ema_model, on_failure))
            for hook in hooks
        )


class _Lists(NamedTuple):
    """Lists of one averaged model's tensors, as multi-tensor calls take them."""

    model: Any
    """Model whose tensors are averaged by the EMA."""
    dicts: list[dict[str, Any]]
    """Dicts that hold the tensors and submodules of the model and of its average."""
    held: list[Any]
    """Tensors and submodules of model and averaged model when the lists were made."""
    averaged: list[tuple[list[Any], list[Any]]]
    """Averaged tensors with their sources; no two of a list share a storage."""
    copied: list[tuple[list[Any], list[Any]]]
    """Buffers of the averaged model, each with the model's buffer to copy from."""

    def is_current(self, model: Any) -> bool:
        """True if the lists still hold all tensors of the model."""
        now = _list_held(self.dicts)
        is_same = model is self.model and len(now) == len(self.held)
        return is_same and all(map(is_, now, self.held))


class ListedAverage:
    """Replaces one averaged model's ``update_parameters`` by multi-tensor calls.

    A copy or a pickle of the model has its own method in the place of this.

    Args:
        ema: The averaged model.
        on_failure: Called when it cannot go on.

    Raises:
        RefusalError: If its class is not known, or computes other bits here, or if
            this PyTorch has no multi-tensor calls for it.
    """

    def __init__(self, ema: Any, on_failure: OnFailure) -> None:
        kind = type(ema)
        name = f'{kind.__module__}.{kind.__qualname__}'
        lacking = [call for call in _CALLS if not hasattr(torch, call)]
        if lacking:
            raise RefusalError(
                phrase('this PyTorch has no torch.{name}', name=lacking[0])
            )
        if name not in FORMULAS:
            raise RefusalError(
                phrase('{name} is no average whose formula is known', name=name)
            )
        own = kind.update_parameters
        if (
            own is not BaseAveragedModel.update_parameters
            or 'update_parameters' in vars(ema)
        ):
            raise RefusalError(
                phrase('something else stands in for updates of {name}', name=name)
            )
        if not isinstance(ema.momentum, Real):
            raise RefusalError(
                phrase(
                    'the momentum of {kind} is of type {given}',
                    kind=kind.__name__,
                    given=type(ema.momentum).__name__,
                )
            )
        self._ema = ema
        self._given = _read_settings(ema)
        self._on_failure = on_failure
        self._lists: _Lists | None = None
        self._turns = Turns()
        self._is_open = True
        self._formula = self._choose(FORMULAS[name])
        self._patches = Patches()
        self._patches.set(ema, 'update_parameters', self)
        count = len(ema.avg_parameters)
        self.changed = phrase(
            '{kind} averages {tensors} by lists', kind=kind.__name__, tensors=count
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._ema, 'update_parameters')

    def _choose(self, formulas: Sequence[Formula]) -> Formula:
        """Returns the first formula that gives the same bits as single-tensor updates.

        Raises:
            RefusalError: If there is none.
        """
        *others, last = formulas
        for formula in others:
            with contextlib.suppress(RefusalError):
                return self._prove(formula)
        return self._prove(last)

    def _prove(self, formula: Formula) -> Formula:
        """Returns the formula; raises if single-tensor updates give other bits."""
        ema = self._ema
        for device, dtype in {
            (average.device, average.dtype)
            for average in ema.avg_parameters.values()
            if average.dtype.is_floating_point
        }:
            ramps = [torch.linspace(-1, 1, size, device=device) for size in _SIZES]
            sources = [torch.sin(9 * ramp).to(dtype) for ramp in ramps]
            singles = [ramp.to(dtype) for ramp in ramps]
            listed = [single.clone() for single in singles]
            for single, source in zip(singles, sources):
                ema.avg_func(single, source, ema.steps)
            formula(ema, int(ema.steps), listed, sources)
            if not all(map(is_equal, singles, listed)):
                raise RefusalError(
                    phrase(
                        '{kind} computes other bits over lists of {dtype} on {device}',
                        kind=type(ema).__name__,
                        dtype=str(dtype),
                        device=str(device),
                    )
                )
        return formula

    def __call__(self, model: Any) -> None:
        """Updates the averaged model with the tensors of ``model``."""
        ema, lists, began_s = self._ema, None, self._turns.begin()
        steps = int(ema.steps)
        if self._is_open and steps and steps % ema.interval == 0:
            lists = self._find_lists(model)
        if lists is None:
            type(ema).update_parameters(ema, model)
            return
        if self._turns.is_plain_due:
            self._turns.call_plain(type(ema).update_parameters, ema, model)
            return
        with torch.no_grad():
            for averages, sources in lists.averaged:
                self._formula(ema, steps, averages, sources)
            for averages, sources in lists.copied:
                torch._foreach_copy_(averages, sources)
            ema.steps += 1
        self._turns.end(began_s)

    def _find_lists(self, model: Any) -> _Lists | None:
        try:
            self._expect_settings()
            if self._lists is None or not self._lists.is_current(model):
                self._lists = _make_lists(self._ema, model)
        except Exception as error:  # noqa: BLE001, training must not see it
            self._on_failure(error)
            return None
        return self._lists

    def _expect_settings(self) -> None:
        """Raises if a setting that the EMA's update formula depends on was replaced."""
        if (now := _read_settings(self._ema)) != self._given:
            names = tuple(name for name in now if now[name] != self._given[name])
            raise RefusalError(
                phrase(
                    '{names:&} of {kind} changed in training',
                    names=names,
                    kind=type(self._ema).__name__,
                )
            )

    @property
    def spared(self) -> SparedTime | None:
        """CPU seconds of an EMA update, plain and multi-tensor; ``None`` if untimed."""
        return self._turns.spared

    def close(self) -> None:
        """Restores ``update_parameters``, or passes calls on if others wrapped it."""
        self._is_open = False
        self._lists = None
        self._patches.close()


def _read_settings(ema: Any) -> dict[str, Any]:
    """Reads the settings that an EMA's update formula depends on, except numbers."""
    return {
        'avg_func': getattr(ema.avg_func, '__func__', ema.avg_func),
        'update_buffers': ema.update_buffers,
        'type(momentum)': type(ema.momentum),
        'type(gamma)': type(getattr(ema, 'gamma', None)),
    }


def _list_held(dicts: Iterable[dict[str, Any]]) -> list[Any]:
    return list(chain.from_iterable(map(dict.values, dicts)))


def _make_lists(ema: Any, model: Any) -> _Lists:
    """Pairs the averaged model's tensors with the model's tensors, in lists.

    Raises:
        RefusalError: If a tensor must be averaged by itself.
    """
    dicts = [
        held
        for root in (ema.module, model)
        for module in root.modules()
        for held in (module._parameters, module._buffers, module._modules)
    ]
    dicts.append(ema.avg_parameters)
    found = dict(model.named_parameters())
    copied: Iterable[tuple[Any, Any]] = ()
    if ema.update_buffers:
        # the tensors themselves, which stay when their data is replaced
        found = model.state_dict(keep_vars=True)
    else:
        copied = zip(ema.module.buffers(), model.buffers())
    own = {id(tensor) for tensor in chain(model.parameters(), model.buffers())}
    averaged, turns = _Sorted(), dict[int, int]()
    for name, average in ema.avg_parameters.items():
        if not average.dtype.is_floating_point:
            continue
        source = found[name]
        if id(source) not in own:
            raise RefusalError(
                phrase('{name} is made anew for each state of the model', name=name)
            )
        # a tensor that stands under several names is averaged once for each
        storage = average.untyped_storage().data_ptr()
        turn = turns[storage] = turns.get(storage, 0) + 1
        averaged.add(name, average, source, turn)
    buffers = _Sorted()
    for number, (average, source) in enumerate(copied):
        buffers.add(f'buffer {number}', average, source)
    return _Lists(
        model, dicts, _list_held(dicts), averaged.in_turns(), buffers.in_turns()
    )


class _Sorted:
    """Sorts averaged and source tensors into lists that one kernel can take."""

    def __init__(self) -> None:
        self._lists: dict[Any, tuple[list[Any], list[Any]]] = {}

    def add(self, name: str, average: Any, source: Any, turn: int = 0) -> None:
        """Adds an averaged tensor and its source tensor to a list.

        Args:
            name: Of the tensor.
            average: To be changed.
            source: Of the model.
            turn: Lists of a lower one come before.

        Raises:
            RefusalError: If a pair differs, or is of a class of its own.
        """
        pair = (average, source)
        kinds = [(tensor.device, tensor.dtype, tensor.shape) for tensor in pair]
        is_plain = {type(average), type(source)} <= set(_PLAIN)
        if kinds[0] != kinds[1] or not is_plain:
            raise RefusalError(
                phrase(
                    'the average of {name} is of another device, type or shape',
                    name=name,
                )
            )
        # else all of a list would go the way of tensors that differ
        is_laid_out_alike = average.stride() == source.stride()
        key = turn, average.device, average.dtype, is_laid_out_alike
        averages, sources = self._lists.setdefault(key, ([], []))
        averages.append(average)
        sources.append(source)

    def in_turns(self) -> list[tuple[list[Any], list[Any]]]:
        """Returns the lists of averaged and source tensors in the order of updates."""
        return [self._lists[key] for key in sorted(self._lists, key=lambda key: key[0])]
