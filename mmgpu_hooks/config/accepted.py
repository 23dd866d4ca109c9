"""Checks by trial calls if PyTorch and MMEngine accept the settings of a config.

A loader is built with them over a stand-in for the dataset, as MMEngine's Runner builds
it. That starts no worker, so it takes what a constructor takes.
"""

from __future__ import annotations

import multiprocessing
import warnings
from collections.abc import Mapping
from typing import Any

from mmgpu_hooks.config.loading import (
    LOADERS,
    PLAIN,
    FlatConfig,
    SettingValue,
)
from mmgpu_hooks.config.registry import is_checked
from mmgpu_hooks.config.settings import OF_LOADER, OF_MMENGINE, OF_WORKERS
from mmgpu_hooks.schema.text import phrase, said_by

_REFUSALS = (
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    RuntimeError,
    OverflowError,
    OSError,
)
"""Types of exceptions by which PyTorch and MMEngine refuse a bad setting."""


def find_refusal(
    before: FlatConfig, after: FlatConfig, changes: Mapping[str, SettingValue]
) -> str | None:
    """Returns why PyTorch or MMEngine would refuse a setting; ``None`` if neither does.

    Args:
        before: The loaded config without the changes.
        after: With them.
        changes: By dotted key.

    Returns:
        ``None`` if nothing is refused that was taken before.
    """
    for dotted, value in changes.items():
        if dotted.startswith('default_hooks.') and dotted.endswith('.priority'):
            error = _find_error_of_priority(value)
            if error is not None:
                return _phrase(f'{dotted}={value!r}', 'MMEngine', error)
    for loader in LOADERS:
        changed = [
            f'{dotted}={value!r}'
            for dotted, value in changes.items()
            # the others were checked without PyTorch, whose import takes seconds
            if dotted.startswith(f'{loader}.') and not is_checked(dotted)
        ]
        # another class of loader has arguments of its own
        if not changed or (loader, 'type') in after:
            continue
        error = _find_error_of_loader(after, loader)
        if error is not None and error != _find_error_of_loader(before, loader):
            taker = phrase("PyTorch's DataLoader")
            return _phrase(', '.join(changed), taker, error)
    return None


def _phrase(found: str, taker: str, error: str) -> str:
    return phrase(
        'expected settings that {taker} takes, found {found}; it says "{error}"',
        taker=taker,
        found=found,
        error=error,
    )


def _find_error_of_priority(value: SettingValue) -> str | None:
    try:
        from mmengine.runner.priority import get_priority
    except ImportError:
        return None
    try:
        get_priority(value)
    except KeyError:
        return phrase('expected 0 to 100, or a name such as NORMAL')
    except (TypeError, ValueError) as error:
        return said_by(error)
    return None


def _find_error_of_loader(config: FlatConfig, loader: str) -> str | None:
    """Returns PyTorch's error for a loader's settings; ``None`` if it takes them."""
    try:
        import torch
        from torch.utils.data import DataLoader
    except ImportError:
        return None
    # shared tensors, datasets and functions stay out: they are not set here
    given: dict[str, Any] = {
        key: config[loader, key]
        for key in OF_LOADER
        if key not in OF_MMENGINE and type(config.get((loader, key), ())) in PLAIN
    }
    sampled: dict[str, Any] = {'sampler': [0]}
    if config.get((loader, 'batch_sampler')) is not None:
        # MMEngine gives it the batch size
        sampled = {'batch_sampler': [[0]]}
        given.pop('batch_size', None)
    alone = {key: value for key, value in given.items() if key not in OF_WORKERS}
    alone.update(num_workers=0, pin_memory=False)
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        try:
            DataLoader([0], **sampled, **given)
            # what is looked at first when an epoch starts
            iter(DataLoader([0], **sampled, **alone))
            if given.get('pin_memory_device'):
                torch.device(given['pin_memory_device'])
            _wait_at_most(given.get('timeout', 0))
        except _REFUSALS as error:
            return ' '.join(str(error).split()).partition('. ')[0].rstrip('.')
    return None


def _wait_at_most(seconds: float) -> None:
    """Checks that a timeout in seconds is not too long for the operating system.

    Raises:
        OverflowError: If the operating system cannot wait for so long.
    """
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer:
        writer.send_bytes(b'')
        reader.poll(seconds)
