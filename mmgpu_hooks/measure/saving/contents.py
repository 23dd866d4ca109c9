"""How large a checkpoint is, and what of it is in which part: counted, not pickled."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

_MOST_FILES = 4096
"""Of a folder; a sharded checkpoint has a few per rank."""


def count_tensor_bytes(state: Any) -> int:
    """Bytes of all tensors and arrays in nested dicts, lists and tuples.

    0.6 us per tensor. A tensor that is in it twice counts twice.

    Args:
        state: Such as the state dict of an optimizer.
    """
    total = 0
    pending = [state]
    while pending:
        one = pending.pop()
        if isinstance(one, Mapping):
            pending.extend(one.values())
        elif isinstance(one, (list, tuple)):
            # thousands of parameter numbers are in the groups of an optimizer
            if one and not isinstance(one[0], (int, float, str)):
                pending.extend(one)
        else:
            total += _nbytes(one)
    return total


def _nbytes(value: Any) -> int:
    size = getattr(value, 'nbytes', None)
    return size if isinstance(size, int) else 0


def count_history_bytes(hub: Any) -> int | None:
    """Bytes of the histories in the state of MMEngine's message hub.

    Args:
        hub: What ``MessageHub.state_dict()`` gave.

    Returns:
        The bytes of their arrays; ``None`` when it is of another form.
    """
    scalars = hub.get('log_scalars') if isinstance(hub, Mapping) else None
    if not isinstance(scalars, Mapping):
        return None
    # HistoryBuffer.data: the values and the counts behind them
    return sum(
        _nbytes(array)
        for history in scalars.values()
        for array in getattr(history, 'data', ())
    )


def read_size_bytes(path: str) -> int | None:
    """Bytes of a file, or of all files in a folder.

    Returns:
        ``None`` when there is neither, or when a folder holds more than 4096 files.
    """
    try:
        if not os.path.isdir(path):
            return os.stat(path).st_size
        total = count = 0
        for folder, _, names in os.walk(path):
            count += len(names)
            if count > _MOST_FILES:
                return None
            total += sum(os.stat(os.path.join(folder, name)).st_size for name in names)
        return total
    except OSError:
        return None
