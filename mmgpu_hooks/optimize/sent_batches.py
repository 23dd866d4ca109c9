"""Measures the CPU seconds of sending a batch in PyTorch's way and by value."""

from __future__ import annotations

import copy
import statistics
from typing import Any, NamedTuple

from torch.utils.data import DataLoader

from mmgpu_hooks.measure.clock import process_cpu_s, thread_cpu_s
from mmgpu_hooks.optimize.small_tensors import SmallTensors

_WARM_UP, _BATCHES = 4, 24


class SentBatch(NamedTuple):
    """CPU seconds of sending one batch from a worker to the training process."""

    received_s: float
    """Median CPU seconds in which the training thread receives a batch."""
    sent_s: float
    """Mean CPU seconds in which a worker sends a batch.

    The copy that stands for loading is not in it.
    """
    received_error_s: float
    """Standard error, in seconds, of the CPU time in which a batch is received."""


class SentBatches(NamedTuple):
    """CPU seconds of sending the same batch in PyTorch's way and by value."""

    plain: SentBatch
    by_value: SentBatch


class _Copies:
    """Data set of copies of one batch, each with its worker's CPU seconds so far.

    Args:
        batch: To be copied.
    """

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __len__(self) -> int:
        return _WARM_UP + _BATCHES

    def __getitem__(self, index: int) -> Any:
        return process_cpu_s(), copy.deepcopy(self._batch)


def _give(item: Any) -> Any:
    """Collate function that returns its single item, which is a whole batch."""
    return item


def _ignore(error: Exception) -> None:
    """Ignores a failure, after which workers send tensors in PyTorch's way."""


def time_sending(batch: Any) -> SentBatches:
    """Measures the CPU seconds of sending one batch in PyTorch's way and by value.

    Args:
        batch: As a loader gives it, in memory of the host.

    Raises:
        RefusalError: If small tensors cannot be sent by value here.
    """
    # what a worker has sent is shared memory already, and would go as ever
    batch = copy.deepcopy(batch)
    began_s = process_cpu_s()
    for _ in range(_WARM_UP):
        copy.deepcopy(batch)
    copied_s = (process_cpu_s() - began_s) / _WARM_UP
    plain, by_value = (_send(batch, copied_s, is_ours) for is_ours in (False, True))
    return SentBatches(plain, by_value)


def _send(batch: Any, copied_s: float, is_ours: bool) -> SentBatch:
    loader: Any = DataLoader(
        _Copies(batch), batch_size=None, collate_fn=_give, num_workers=1
    )
    if is_ours:
        SmallTensors(loader, _ignore)
    iterator, received_s, worker_s = iter(loader), list[float](), list[float]()
    for _ in range(len(loader.dataset)):
        began_s = thread_cpu_s()
        spent_s, item = next(iterator)
        received_s.append(thread_cpu_s() - began_s)
        worker_s.append(spent_s)
        del item
    iterator._shutdown_workers()
    received_s, worker_s = received_s[_WARM_UP:], worker_s[_WARM_UP:]
    sent_s = (worker_s[-1] - worker_s[0]) / (len(worker_s) - 1)
    return SentBatch(
        received_s=statistics.median(received_s),
        sent_s=max(sent_s - copied_s, 0.0),
        received_error_s=statistics.stdev(received_s) / len(received_s) ** 0.5,
    )
