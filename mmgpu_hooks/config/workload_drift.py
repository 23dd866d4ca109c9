"""Tells whether two runs' configs train the same, apart from how it is loaded."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.loading import (
    Container,
    FlatConfig,
    KeyPath,
    read_config,
)
from mmgpu_hooks.config.request import HOOK_TYPE

_TRAINED = (
    ('model',),
    ('optim_wrapper',),
    ('train_dataloader',),
    ('env_cfg',),
    ('custom_hooks',),
)
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

_HOOK_NAME = HOOK_TYPE.rpartition('.')[2]


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
    odd = parse_workload_drift(read_config(config), read_config(other))
    if not odd:
        return None
    more = f' and {len(odd) - 1} more' if len(odd) > 1 else ''
    return f'its config is another one ({odd[0]}{more})'


def parse_workload_drift(config: FlatConfig, other: FlatConfig) -> list[str]:
    """Lists the values that make it another training, ``old -> new``."""
    # our own hook is measuring, not training
    ours = {
        path[:2]
        for one in (config, other)
        for path, value in one.items()
        if path[:1] == ('custom_hooks',) and str(value).endswith(_HOOK_NAME)
    }
    odd = []
    for path in sorted({*config, *other}):
        old, new = config.get(path, _ABSENT), other.get(path, _ABSENT)
        if old != new and _is_trained(path) and path[:2] not in ours:
            odd.append(f'{".".join(path)} {_text(old)} -> {_text(new)}')
    return odd


def _is_trained(path: KeyPath) -> bool:
    if path[:1] not in _TRAINED or path[-1] == 'lr':
        return False
    return path[:1] != ('train_dataloader',) or path[-1] not in _OF_LOADER


def _text(value: object) -> str:
    if isinstance(value, Container):
        return f'a {value.kind}'
    text = 'absent' if value is _ABSENT else repr(value)
    return text if len(text) <= 40 else f'{text[:37]}...'
