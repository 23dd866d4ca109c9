"""Counts what a real step on the CPU keeps for its backward pass, and its gradients.

torch calls a hook for each tensor that it saves for the backward pass, and another when
it wants it back. What is saved is put into a holder; the holders that are alive
when the forward pass has ended hold what a GPU would hold then.

A GPU saves the same tensors, where no operator runs another way there; of those that
do, see :mod:`mmgpu_hooks.experiment.cuda_operators`.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mmgpu_hooks.experiment.cuda_operators import as_on_cuda

LOSSES = 'losses'
"""Stands for all that no module's own forward has saved."""


@dataclass(frozen=True)
class SavedBytes:
    """What a forward pass kept."""

    total: int
    by_module: Mapping[str, int]
    """By the full name of the innermost module."""


def count_saved(
    model: Any, batch: Mapping[str, Any], *, mixed_precision: bool = False
) -> SavedBytes:
    """Run the forward pass with its losses and count what is kept for the backward.

    Args:
        model: MMEngine's ``BaseModel``, on the CPU, in training mode.
        batch: What its data preprocessor takes.
        mixed_precision: Whether to run under autocast, in bfloat16 on the CPU, whose
            numbers are as large as those of float16.

    Returns:
        Bytes of storage, shared storage once, without parameters and buffers.
    """
    counter = _SavedCounter(model)
    with counter, _forward(model, batch, mixed_precision) as loss:
        saved = counter.count()
    del loss
    return saved


def run_backward(
    model: Any, batch: Mapping[str, Any], *, mixed_precision: bool = False
) -> list[tuple[int, int]]:
    """Run one step's forward and backward pass, and drop the gradients again.

    Args:
        model: MMEngine's ``BaseModel``, on the CPU, in training mode.
        batch: What its data preprocessor takes.
        mixed_precision: Whether to run under autocast.

    Returns:
        Numbers and bytes per number of each gradient.
    """
    with _forward(model, batch, mixed_precision) as loss:
        loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    sizes = [(int(g.nelement()), int(g.element_size())) for g in grads]
    model.zero_grad(set_to_none=True)
    return sizes


def parameter_sizes(model: Any) -> list[tuple[int, int]]:
    """Numbers and bytes per number of each parameter that is to be trained."""
    return [
        (int(p.nelement()), int(p.element_size()))
        for p in model.parameters()
        if p.requires_grad
    ]


@contextlib.contextmanager
def _forward(model: Any, batch: Mapping[str, Any], mixed: bool) -> Iterator[Any]:
    import torch

    with torch.random.fork_rng(devices=[]), torch.enable_grad(), as_on_cuda():
        torch.manual_seed(0)
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=mixed):
            data = model.data_preprocessor(dict(batch), True)
            losses = model(**data, mode='loss')
        loss = model.parse_losses(losses)[0]  # the others would keep the graph, too
        del data, losses
        yield loss


class _Holder:
    """Stands in the graph for a saved tensor."""

    __slots__ = ('__weakref__', 'module', 'tensor')

    def __init__(self, tensor: Any, module: str) -> None:
        self.tensor = tensor
        self.module = module


class _SavedCounter:
    """Watches one forward pass; not to be entered twice."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
        self._inside: list[str] = []
        self._exits = contextlib.ExitStack()

    def __enter__(self) -> _SavedCounter:
        from torch.autograd.graph import saved_tensors_hooks

        for name, module in self._model.named_modules():
            if name:
                self._watch(name, module)
        self._exits.enter_context(saved_tensors_hooks(self._hold, self._give))
        return self

    def __exit__(self, *_: object) -> None:
        self._exits.close()

    def _watch(self, name: str, module: Any) -> None:
        def enter(*_: Any) -> None:
            self._inside.append(name)

        def leave(*_: Any) -> None:
            self._inside.pop()

        before = module.register_forward_pre_hook(enter)
        after = module.register_forward_hook(leave)
        self._exits.callback(before.remove)
        self._exits.callback(after.remove)

    def _hold(self, tensor: Any) -> _Holder:
        holder = _Holder(tensor, self._inside[-1] if self._inside else LOSSES)
        self._holders.add(holder)
        return holder

    @staticmethod
    def _give(holder: _Holder) -> Any:
        return holder.tensor

    def count(self) -> SavedBytes:
        """Bytes held now."""
        static = {_place(t) for t in _own_tensors(self._model)}
        by_module: Counter[str] = Counter()
        seen: set[Any] = set()
        # the order of a set is no order: the first module by name has shared storage
        for holder in sorted(self._holders, key=lambda holder: holder.module):
            for part in _parts(holder.tensor):
                place = _place(part)
                if place not in static and place not in seen:
                    seen.add(place)
                    by_module[holder.module] += int(part.untyped_storage().nbytes())
        return SavedBytes(sum(by_module.values()), dict(by_module))


def _own_tensors(model: Any) -> Iterable[Any]:
    yield from model.parameters()
    yield from model.buffers()


def _parts(tensor: Any) -> tuple[Any, ...]:
    if tensor.is_sparse:
        return tensor._indices(), tensor._values()
    return (tensor,)


def _place(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())
