"""Compares a config with what a run was started with, and reads its learning rate."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.loading import KeyPath, LoadError, read_config
from mmgpu_hooks.config.settings import LOADERS
from mmgpu_hooks.schema.judged import LearningRate

_PLAIN = (bool, int, float, str, type(None))


def read_drift(config: Path, copy: Path) -> str | None:
    """Compares the loaders of a config with the run's own copy, both loaded.

    Args:
        config: The config as it is on disk now.
        copy: The flattened copy in the run's folder.

    Returns:
        A sentence on what differs; ``None`` if nothing does or one does not load.
    """
    try:
        now, then = read_config(config), read_config(copy)
    except LoadError:
        return None

    def differs(path: KeyPath) -> bool:
        old, new = then.get(path), now.get(path)
        # a dump spells types and tuples in its own way; plain values it keeps
        is_plain = isinstance(old, _PLAIN) and isinstance(new, _PLAIN)
        return is_plain and old != new and path[0] in LOADERS and path[-1][:1] != '_'

    odd = [
        f'{".".join(path)} {_text(then.get(path))} -> {_text(now.get(path))}'
        for path in sorted({*now, *then} - {()})
        if differs(path)
    ]
    if not odd:
        return None
    more = f' and {len(odd) - 3} more' if len(odd) > 3 else ''
    return (
        f'{config} is not what the run was started with ({", ".join(odd[:3])}{more}): '
        'it was edited since, or --cfg-options were given.'
    )


def _text(value: object) -> str:
    text = repr(value)
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
