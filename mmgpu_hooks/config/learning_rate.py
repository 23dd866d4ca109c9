"""Reads how a config's learning rate follows the batch size."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.loading import FlatConfig, LoadError, read_config
from mmgpu_hooks.schema import LearningRate


def read_learning_rate(config: Path) -> LearningRate | None:
    """Load a config for it; ``None`` if it cannot be loaded."""
    try:
        return parse_learning_rate(read_config(config))
    except LoadError:
        return None


def parse_learning_rate(config: FlatConfig) -> LearningRate:
    """Pick it out of a loaded config."""
    lr = config.get(('optim_wrapper', 'optimizer', 'lr'))
    base = config.get(('auto_scale_lr', 'base_batch_size'))
    return LearningRate(
        lr=float(lr) if isinstance(lr, (int, float)) else None,
        base_batch_size=base if isinstance(base, int) and base > 0 else None,
        is_auto=config.get(('auto_scale_lr', 'enable')) is True,
    )
