"""Exact bytes of a model's parameters, gradients, optimizer state and buffers.

Tensors are looked at from outside, without torch. What several names share is
counted once; of sharded parameters, the shard that this rank holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mmgpu_hooks.measure.source_error import SourceError
from mmgpu_hooks.schema import ModelBytesRecord

_PATIENCE = 1000
"""Iterations to wait for a call of ``zero_grad`` that custom code may never make."""


class ModelBytesWatch:
    """Counts a model once, when its optimizers have stepped for the first time.

    Before that there is no optimizer state, and afterwards no gradient: MMEngine
    drops them within the step. So ``zero_grad`` of each optimizer wrapper is
    watched, as an instance attribute, until its first call that finds a gradient.

    Waiting costs 0.6 us in each call of ``zero_grad`` that finds no gradient, and
    nothing once it is over; a read that waits costs 0.2 us. Counting costs 2.4 us per
    tensor, once: 14 ms for 1000 parameters that AdamW trains and an EMAHook copies
    (6000 tensors with the gradients).

    Args:
        optim_wrapper: MMEngine's ``OptimWrapper`` or ``OptimWrapperDict``, before
            the first iteration.
    """

    def __init__(self, optim_wrapper: Any) -> None:
        self._wrappers = list(_each_wrapper(optim_wrapper))
        self._watches = [_GradientWatch(wrapper) for wrapper in self._wrappers]
        self._since: int | None = None
        self._is_done = False

    def read(
        self,
        model: Any,
        hooks: Iterable[Any],
        iteration: int,
        final: bool = False,
    ) -> ModelBytesRecord | None:
        """Count after an iteration, unless it is too early or has been done.

        Gradients are as they were when the optimizers had stepped. Where custom code
        never calls ``zero_grad`` of the wrapper, they are those found 1000 iterations
        after the first call, or at the end, and ``None`` when there are none
        (DeepSpeed keeps its own).

        Args:
            model: The model, wrapped (DDP, FSDP) or not. A teacher that is part of
                it is counted as frozen parameters.
            hooks: The runner's hooks; the ``ema_model`` of each is counted.
            iteration: Iterations done; calls may leave some out.
            final: There will be no further call: do not wait any longer.

        Returns:
            The record, once.

        Raises:
            SourceError: If something in the model is not as torch makes it.
        """
        if self._is_done:
            return None
        if self._since is None:
            self._since = iteration
        is_patient = not final and iteration - self._since < _PATIENCE
        if is_patient and any(not watch.is_over for watch in self._watches):
            return None
        self.close()
        failure = next((w.failure for w in self._watches if w.failure), None)
        try:
            if failure is not None:
                raise failure
            return self._count(model, hooks, iteration)
        except Exception as error:
            raise SourceError(
                f'the tensors of the model cannot be counted: '
                f'{type(error).__name__}: {error}'
            ) from error

    def _count(
        self, model: Any, hooks: Iterable[Any], iteration: int
    ) -> ModelBytesRecord:
        counter = TensorCounter()
        trainable = counter.add(p for p in model.parameters() if p.requires_grad)
        frozen = counter.add(model.parameters())
        numbers = counter.numbers
        return ModelBytesRecord(
            iteration=iteration,
            parameters=numbers,
            parameter_bytes=trainable + frozen,
            trainable_bytes=trainable,
            gradient_bytes=sum(watch.gradient_bytes() for watch in self._watches)
            or None,
            optimizer_state_bytes=self._count_state(counter),
            buffer_bytes=counter.add(model.buffers()),
            ema_bytes=counter.add(_averaged_tensors(hooks)),
        )

    def _count_state(self, counter: TensorCounter) -> int | None:
        states = [_optimizer_state(wrapper.optimizer) for wrapper in self._wrappers]
        if any(state is None for state in states):
            return None
        return counter.add(_tensors(states))

    def close(self) -> None:
        """Give the wrappers their own method back; a second call does nothing."""
        self._is_done = True
        for watch in self._watches:
            watch.close()


class _GradientWatch:
    """Counts the gradients of one optimizer when they are about to be dropped."""

    def __init__(self, wrapper: Any) -> None:
        self.failure: Exception | None = None
        self._wrapper = wrapper
        self._bytes = 0
        self._is_set = True
        self._before = vars(wrapper).get('zero_grad')
        original = wrapper.zero_grad

        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            self._look()
            return original(*args, **kwargs)

        self._ours = wrapper.zero_grad = zero_grad

    @property
    def is_over(self) -> bool:
        return self._bytes > 0 or self.failure is not None

    def _look(self) -> None:
        # whoever wrapped ours in turn may go on calling it
        if not self._is_set:
            return
        try:
            self._bytes = self._count()
        except Exception as error:  # noqa: BLE001  # it would surface in training
            self.failure = error
        if self.is_over:
            self.close()

    def _count(self) -> int:
        groups = self._wrapper.optimizer.param_groups
        parameters = (parameter for group in groups for parameter in group['params'])
        gradients = (parameter.grad for parameter in parameters)
        return TensorCounter().add(grad for grad in gradients if grad is not None)

    def gradient_bytes(self) -> int:
        """Bytes when they were dropped, else those that are there now."""
        return self._bytes or self._count()

    def close(self) -> None:
        if self._is_set and vars(self._wrapper).get('zero_grad') is self._ours:
            if self._before is None:
                del self._wrapper.zero_grad
            else:
                self._wrapper.zero_grad = self._before
        self._is_set = False


class TensorCounter:
    """Adds up tensors, each piece of memory once."""

    def __init__(self) -> None:
        self.numbers = 0
        self._seen: dict[tuple[Any, int], int] = {}

    def add(self, tensors: Iterable[Any]) -> int:
        """Bytes of those tensors that were not counted before."""
        total = 0
        for tensor in tensors:
            for part in _parts(tensor):
                size = _size(part)
                place = part.device, part.data_ptr() if size else 0
                added = size - self._seen.get(place, 0)
                if added > 0:
                    self._seen[place] = size
                    self.numbers += added // part.element_size()
                    total += added
        return total


def _parts(tensor: Any) -> tuple[Any, ...]:
    """The dense tensors of this rank that one tensor is made of."""
    to_local = getattr(tensor, 'to_local', None)  # of a DTensor
    local = tensor if to_local is None else to_local()
    if getattr(local, 'is_sparse', False):
        return local._indices(), local._values()
    return (local,)


def _size(tensor: Any) -> int:
    if tensor.device.type == 'meta':  # without memory
        return 0
    size = int(tensor.nelement() * tensor.element_size())
    # an expanded tensor has less memory than elements
    return size if tensor.is_contiguous() else min(size, _storage_size(tensor))


def _storage_size(tensor: Any) -> int:
    return int(tensor.untyped_storage().nbytes())


def _tensors(value: Any) -> Iterator[Any]:
    """Every tensor in nested mappings and lists."""
    if hasattr(value, 'nelement'):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part)


def _each_wrapper(optim_wrapper: Any) -> Iterable[Any]:
    """The wrappers of an ``OptimWrapperDict``, or the one there is."""
    wrappers = getattr(optim_wrapper, 'optim_wrappers', None)
    return wrappers.values() if isinstance(wrappers, Mapping) else [optim_wrapper]


def _optimizer_state(optimizer: Any) -> Any:
    # a ZeroRedundancyOptimizer keeps the shard of this rank in an inner one
    return getattr(getattr(optimizer, 'optim', optimizer), 'state', None)


def _averaged_tensors(hooks: Iterable[Any]) -> Iterator[Any]:
    for hook in hooks:
        copy = getattr(hook, 'ema_model', None)
        if copy is not None:
            yield from copy.parameters()
            yield from copy.buffers()
