"""Data set with all kinds of data that workers send, for any start method."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.structures import BaseDataElement, InstanceData
from torch.utils.data import Dataset


class Pair(NamedTuple):
    """Named tuple that a user's data set puts into a sample."""

    tensor: torch.Tensor
    array: np.ndarray[Any, Any]


@dataclasses.dataclass
class Box:
    """Dataclass that a user's data set puts into a sample."""

    tensor: torch.Tensor
    array: np.ndarray[Any, Any]


class SentDataset(Dataset[Any]):
    """Data set of MMDetection-like samples with every kind of tensor.

    Args:
        length: Samples.
        killed_at: Index whose worker kills itself.
    """

    def __init__(self, length: int = 24, killed_at: int | None = None) -> None:
        self.length = length
        self.killed_at = killed_at

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
        # of the worker's own stream of random numbers
        boxes = torch.rand(index % 5, 4)
        gt = InstanceData(bboxes=boxes, labels=torch.randint(0, 80, (index % 5,)))
        sample = BaseDataElement(metainfo=dict(img_id=index), gt_instances=gt)
        return {
            'inputs': torch.randint(0, 255, (3, 40, 40 + index), dtype=torch.uint8),
            'data_samples': sample,
            'kinds': make_kinds(index),
        }


class LargeDataset(Dataset[Any]):
    """Data set of two samples of large tensors, which workers send as files.

    Args:
        tensors: Number of tensors of a sample that share no memory.
        failing_at: Index that raises an exception.
    """

    def __init__(self, tensors: int, failing_at: int | None = None) -> None:
        self.tensors = tensors
        self.failing_at = failing_at
        self.held = torch.arange(2000.0)

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.failing_at:
            raise ValueError('no such image')
        images = [torch.full((40, 40), index + n) for n in range(self.tensors)]
        return {
            'images': images,
            'twice': images[:1],
            'views': [part for image in images[:2] for part in (image.t(), image[3:])],
            'held': self.held if images else None,
        }


def make_kinds(index: int) -> dict[str, Any]:
    """Returns tensors, some of which must not be sent by value."""
    large, base = torch.rand(2000), torch.arange(12.0) + index
    shared = torch.rand(3).share_memory_()
    alias = torch.rand(4)
    held, stored = torch.rand(4), torch.rand(4)
    masks = np.arange(3 * 200 * (200 + index)).reshape(3, 200, -1).astype(np.uint8)
    return {
        'scalar': torch.tensor(index),
        'flags': torch.tensor([True, False]),
        'half': torch.rand(3).half(),
        'bfloat16': torch.rand(3).bfloat16(),
        'complex': torch.rand(2, dtype=torch.complex64),
        'conjugate': torch.rand(2, dtype=torch.complex64).conj().imag,
        'empty': torch.empty(0, 4),
        'limit': torch.rand(1024),
        'above': torch.rand(1025),
        'row': torch.empty_strided((1, 5), (7, 1)).fill_(index),
        'transposed': base.view(3, 4).t(),
        'view of more': large[:4],
        'gradient': torch.rand(2, requires_grad=True),
        'parameter': torch.nn.Parameter(torch.rand(2)),
        'shared': shared,
        'alias': [alias, alias.view(2, 2)],
        'twice': [held, held],
        'array': np.arange(index, dtype=np.int16),
        'masks': masks,
        'view of masks': masks[::2],
        'columns': np.asfortranarray(masks[0]),
        'fixed': _freeze(np.ones(70_000)),
        'objects': np.array([{}] * 10_000),
        'foreign': np.ones(70_000, '>i4'),
        'unsigned': np.ones(70_000, np.uint16),
        **_make_odd_strides(index),
        'named tuple': Pair(torch.rand(2), np.ones(3)),
        'data class': Box(torch.rand(4), np.ones((1, 300, 300), np.uint8)[::-1]),
        'storage': [stored, stored.untyped_storage()],
        'nested': [(torch.rand(2), {'deep': torch.rand(1)})],
        'sparse': torch.eye(3).to_sparse(),
    }


def _make_odd_strides(index: int) -> dict[str, Any]:
    """Returns arrays that NumPy calls contiguous but whose strides PyTorch refuses."""
    gray = np.full((300, 300 + index, 1), index, np.uint8)
    row = np.arange(70_000, dtype=np.float32)
    record = np.zeros(1, dtype=[('flag', 'u1'), ('values', 'f4', (70_000,))])
    record['values'] = index
    return {
        'gray reversed': gray[..., ::-1],
        'one mask reversed': np.ones((1, 300, 300), np.uint8)[::-1],
        'odd stride': np.lib.stride_tricks.as_strided(row, (1, 70_000), (3, 4)),
        'field': record['values'],
    }


def _freeze(array: Any) -> Any:
    array.flags.writeable = False
    return array


def collate(samples: list[Any]) -> list[Any]:
    """Collate function that returns the samples unchanged, and can be pickled."""
    return samples


def seed_worker(worker_id: int) -> None:
    """Seeds torch, as a user's own ``worker_init_fn`` may do."""
    torch.manual_seed(100 + worker_id)


def describe(value: Any) -> Any:
    """Returns all bits and properties of a received batch, for comparison."""
    if isinstance(value, torch.Tensor):
        dense = value.to_dense() if value.is_sparse else value
        raw = dense.detach().contiguous().resolve_conj().resolve_neg()
        return (
            type(value).__name__,
            str(value.dtype),
            tuple(value.shape),
            () if value.is_sparse else value.stride(),
            value.requires_grad,
            bytes(raw.view(-1).view(torch.uint8).numpy()) if raw.numel() else b'',
        )
    if isinstance(value, np.ndarray):
        raw = [] if value.dtype == object else value.tobytes()
        return str(value.dtype), value.shape, value.strides, value.flags.writeable, raw
    if isinstance(value, torch.UntypedStorage):
        return bytes(value.tolist())
    if isinstance(value, BaseDataElement):
        return type(value).__name__, describe(dict(value.all_items()))
    if type(value).__module__.startswith('mmdet.structures'):
        # boxes and masks hold theirs
        return type(value).__name__, describe(vars(value))
    if isinstance(value, dict):
        return {name: describe(held) for name, held in value.items()}
    if isinstance(value, Box):
        return type(value).__name__, describe(vars(value))
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(describe(held) for held in value)]
    return value
