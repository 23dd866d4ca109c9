"""Compares results of trainings bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from mmengine.logging import HistoryBuffer


def is_equal(one: Any, other: Any) -> bool:
    """True if two values have equal types and are equal in every bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        kinds = [(t.dtype, t.shape, t.stride()) for t in (one, other)]
        return kinds[0] == kinds[1] and _bytes(one) == _bytes(other)
    if isinstance(one, np.ndarray):
        is_alike = one.dtype == other.dtype and one.shape == other.shape
        if one.dtype == object:
            return bool(is_alike and is_equal(one.tolist(), other.tolist()))
        return bool(is_alike and one.tobytes() == other.tobytes())
    if isinstance(one, HistoryBuffer):
        return is_equal(one.data, other.data)
    if isinstance(one, dict):
        names = list(one) == list(other)
        return names and all(is_equal(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(is_equal, one, other))
    return bool(one == other or one != one)


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().view(-1)
    if flat.dtype == torch.bfloat16:  # which NumPy has not
        flat = flat.view(torch.int16)
    return bytes(flat.numpy().tobytes())
