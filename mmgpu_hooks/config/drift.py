"""Compares the configs of runs, and reads their learning rate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mmgpu_hooks.config.loading import (
    Container,
    FlatConfig,
    KeyPath,
    LoadError,
    read_config,
)
from mmgpu_hooks.config.settings import LOADERS, is_our_hook
from mmgpu_hooks.schema import LearningRate

_PLAIN = (bool, int, float, str, type(None))
_TRAINED = ('model', 'optim_wrapper', 'train_dataloader', 'env_cfg', 'custom_hooks')
"""What an iteration costs depends on these; the rest says how long and whereto."""
_OF_LOADER = (
    'batch_size',
    'num_workers',
    'prefetch_factor',
    'persistent_workers',
    'pin_memory',
    'num_batch_per_epoch',
)
_ABSENT = object()


def read_drift(config: Path, copy: Path) -> str | None:
    """Compares the loaders of a config with the run's own copy, both loaded.

    Args:
        config: The config as it is on disk now.
        copy: The flattened copy in the run's folder.

    Returns:
        A sentence on what differs; ``None`` if nothing does or one does not load.
    """

    # a dump spells types and tuples in its own way; plain values it keeps
    def is_compared(path: KeyPath, old: object, new: object) -> bool:
        is_plain = isinstance(old, _PLAIN) and isinstance(new, _PLAIN)
        return is_plain and path[0] in LOADERS and path[-1][:1] != '_'

    try:
        now, then = read_config(config), read_config(copy)
    except LoadError:
        return None
    odd = _compare(then, now, is_compared, absent=None)
    if not odd:
        return None
    more = f' and {len(odd) - 3} more' if len(odd) > 3 else ''
    return (
        f'{config} is not what the run was started with ({", ".join(odd[:3])}{more}): '
        'it was edited since, or --cfg-options were given.'
    )


def read_workload_drift(config: Path, other: Path) -> str | None:
    """What of two runs' own copies of their configs is not the same, as a clause.

    Args:
        config: Of the run compared with.
        other: Of the other run.

    Returns:
        ``None`` if nothing is; learning rates and the loader's settings do not count.

    Raises:
        LoadError: If one of them cannot be loaded.
    """
    first, second = read_config(config), read_config(other)
    # our own hook is measuring, not training
    ours = {
        path[:2]
        for path, value in (*first.items(), *second.items())
        if path[:1] == ('custom_hooks',) and is_our_hook(value)
    }

    def is_compared(path: KeyPath, old: object, new: object) -> bool:
        is_loader = path[0] == 'train_dataloader' and path[-1] in _OF_LOADER
        is_trained = path[0] in _TRAINED and path[-1] != 'lr' and not is_loader
        return is_trained and path[:2] not in ours

    odd = _compare(first, second, is_compared, absent=_ABSENT)
    more = f' and {len(odd) - 1} more' if len(odd) > 1 else ''
    return f'its config is another one ({odd[0]}{more})' if odd else None


def _compare(
    one: FlatConfig,
    other: FlatConfig,
    is_compared: Callable[[KeyPath, object, object], bool],
    absent: object,
) -> list[str]:
    """Lists the values that differ, ``old -> new``."""
    odd = []
    for path in sorted({*one, *other} - {()}):
        old, new = one.get(path, absent), other.get(path, absent)
        if old != new and is_compared(path, old, new):
            odd.append(f'{".".join(path)} {_text(old)} -> {_text(new)}')
    return odd


def _text(value: object) -> str:
    if isinstance(value, Container):
        return f'a {value.kind}'
    text = 'absent' if value is _ABSENT else repr(value)
    return text if len(text) <= 40 else f'{text[:37]}...'


def read_learning_rate(config: Path) -> LearningRate | None:
    """Load a config for it; ``None`` if it cannot be loaded."""
    try:
        loaded = read_config(config)
    except LoadError:
        return None
    lr = loaded.get(('optim_wrapper', 'optimizer', 'lr'))
    base = loaded.get(('auto_scale_lr', 'base_batch_size'))
    return LearningRate(
        lr=float(lr) if isinstance(lr, (int, float)) else None,
        base_batch_size=base if isinstance(base, int) and base > 0 else None,
        is_auto=loaded.get(('auto_scale_lr', 'enable')) is True,
    )
