"""Makes workers send small tensors inside messages, and large arrays as shared files.

PyTorch passes each tensor as a file in shared memory: a descriptor, an mmap and a few
system calls on both sides, for the 16 bytes of a label too. Arrays of NumPy, of which
bitmap masks are made, go through the pipe byte by byte, however large they are.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from typing import Any, Callable

import numpy as np
import torch
from torch.multiprocessing.reductions import reduce_tensor

from mmgpu_hooks.measure.loader.batches import SMALL_BYTES
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.optimize.bundles import bundle_files
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.text import phrase

MOST_BYTES = SMALL_BYTES
"""Largest size in bytes of a tensor that a worker sends inside a message.

A higher limit gained nothing.
"""

LEAST_BYTES = 65_536
"""Smallest size in bytes of a NumPy array that a worker sends as a shared file."""

SPARE_SHM_BYTES = 2**29
"""Bytes of ``/dev/shm`` that stay free for tensors, which need files in it."""

_KINDS = {
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
}
"""Tensor types that workers send inside a message: those that NumPy also has."""
_ARRAY_KINDS = {
    np.dtype(name)
    for name in (
        'float32',
        'float64',
        'float16',
        'bool',
        'uint8',
        'int8',
        'int16',
        'int32',
        'int64',
    )
}
"""NumPy types, in native byte order, whose arrays workers send as files."""

# private: without it nothing is sent by value
_count_uses: Callable[[int], int] | None = getattr(torch._C, '_storage_Use_Count', None)


class SmallTensors:
    """Makes a loader's workers send small tensors by value and large arrays as files.

    Args:
        loader: The train loader, before it starts workers.
        on_failure: Not called: a worker sends as ever what it cannot send so.

    Raises:
        RefusalError: If no worker sends tensors, or PyTorch does not say who uses one.
    """

    def __init__(self, loader: Any, on_failure: Callable[[Exception], None]) -> None:
        if not getattr(loader, 'num_workers', 0):
            raise RefusalError(phrase('no worker sends batches'))
        if not isinstance(loader, torch.utils.data.DataLoader):
            raise RefusalError(
                phrase('{kind} is no DataLoader of PyTorch', kind=type(loader).__name__)
            )
        if not _is_count_known():
            raise RefusalError(
                phrase('this PyTorch does not say who else uses a tensor')
            )
        self._patches = Patches()
        init = ByValueInit(loader.worker_init_fn)
        self._patches.set(loader, 'worker_init_fn', init)
        self.changed = phrase(
            'workers send tensors of at most {most_bytes:d} bytes within their '
            'message, and arrays from {least_bytes:d} bytes on through shared memory',
            most_bytes=MOST_BYTES,
            least_bytes=LEAST_BYTES,
        )

    def close(self) -> None:
        """Makes workers that start from now on send tensors in PyTorch's usual way."""
        self._patches.close()


@dataclass
class ByValueInit:
    """A ``worker_init_fn`` that makes a worker send small tensors by value."""

    user_init: Callable[[int], Any] | None
    """``worker_init_fn`` that the user's DataLoader had before."""

    def __call__(self, worker_id: int) -> None:
        """Makes this worker send small tensors by value, before its first batch."""
        if self.user_init is not None:
            self.user_init(worker_id)
        reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
        # else the user has a way of his own
        if reducers.get(torch.Tensor) is reduce_tensor and np.ndarray not in reducers:
            ForkingPickler.register(torch.Tensor, reduce_by_value)
            ForkingPickler.register(np.ndarray, reduce_array)
            # where this fails, files go one by one, as ever
            with contextlib.suppress(Exception):
                bundle_files()


def reduce_by_value(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Pickles a small, plain tensor as bytes, and other tensors as shared files."""
    return _try(_send_by_value, tensor) or reduce_tensor(tensor)


def reduce_array(array: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """Pickles large, plain NumPy arrays as shared files, and other arrays as bytes."""
    cheap = _try(_send_as_file, array)
    return cheap or array.__reduce_ex__(pickle.DEFAULT_PROTOCOL)  # type: ignore[return-value]


def _try(
    send: Callable[[Any], tuple[Any, ...] | None], value: Any
) -> tuple[Any, ...] | None:
    """Tries a cheaper way to pickle a value; ``None`` if the usual way is needed.

    An exception while a batch is being sent would lose the batch, and the training
    would wait for it for good.
    """
    try:
        return send(value)
    except Exception:  # noqa: BLE001, it goes as ever
        return None


def _send_by_value(tensor: torch.Tensor) -> tuple[Any, ...] | None:
    if not _may_go_by_value(tensor):
        return None
    data = tensor.numpy().tobytes()
    return rebuild, (data, tensor.dtype, tuple(tensor.shape), tensor.stride())


def rebuild(
    data: bytes, dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Rebuilds a tensor from the bytes in a message, in memory of its own."""
    if not data:
        return torch.empty_strided(shape, stride, dtype=dtype)
    flat = torch.frombuffer(bytearray(data), dtype=dtype)
    # not of the buffer: PyTorch's memory is aligned, as that of a file is
    return flat.as_strided(shape, stride).clone()


def _may_go_by_value(tensor: torch.Tensor) -> bool:
    """True if a tensor is small and plain, and shares its memory with no other."""
    # a nested one has no size that could be asked for
    if tensor.is_nested or tensor.layout is not torch.strided:
        return False
    is_plain = tensor.dtype in _KINDS and tensor.is_cpu and not tensor.requires_grad
    if not is_plain or tensor.nbytes > MOST_BYTES:
        return False
    if not tensor.is_contiguous() or tensor.is_neg() or tensor.is_shared():
        return False
    is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return is_whole and _count_holders(tensor) == _count_holders(torch.empty(1))


def _count_holders(tensor: torch.Tensor) -> tuple[int, int]:
    """Counts references to a tensor's storage, and to the storage's Python object.

    Both counts include the caller's own.
    """
    assert _count_uses is not None
    storage = tensor.untyped_storage()
    # a storage that is referenced elsewhere is returned as the same object
    return _count_uses(storage._cdata), sys.getrefcount(storage)


def _is_count_known() -> bool:
    """True if PyTorch tells whether something else uses the storage of a tensor."""
    if _count_uses is None:
        return False
    alone, viewed, stored = (torch.empty(1) for _ in range(3))
    others = viewed.view(1), stored.untyped_storage()
    counts = [_count_holders(tensor) for tensor in (alone, viewed, stored)]
    return len(others) == 2 and counts[0] not in counts[1:]


def _send_as_file(array: np.ndarray[Any, Any]) -> tuple[Any, ...] | None:
    if not _may_go_as_file(array):
        return None
    # a dimension of one element may have any stride, which PyTorch refuses
    flat = torch.from_numpy(array.reshape(-1))
    # the file is made here: where that fails, the array goes as ever
    return rebuild_array, (bytes(ForkingPickler.dumps(flat)), array.shape)


def rebuild_array(message: bytes, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Rebuilds a NumPy array in the shared memory of its file, without a copy."""
    flat: torch.Tensor = pickle.loads(message)
    return flat.numpy().reshape(shape)  # type: ignore[no-any-return]


def _may_go_as_file(array: np.ndarray[Any, Any]) -> bool:
    """True if an array is large and plain, and leaves room in shared memory."""
    kind = array.dtype
    is_plain = kind in _ARRAY_KINDS and kind.metadata is None
    # whole, aligned and writeable
    if array.nbytes < LEAST_BYTES or not is_plain or not array.flags.carray:
        return False
    shared = os.statvfs('/dev/shm')
    return shared.f_bavail * shared.f_frsize >= array.nbytes + SPARE_SHM_BYTES
