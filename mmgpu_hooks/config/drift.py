"""Tells whether a config still says what a run was started with."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.loading import FlatConfig, LoadError, read_config
from mmgpu_hooks.config.request import LOADERS

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
    odd = parse_drift(now, then)
    if not odd:
        return None
    shown = ', '.join(odd[:3])
    more = f' and {len(odd) - 3} more' if len(odd) > 3 else ''
    return (
        f'{config} is not what the run was started with ({shown}{more}): it was '
        'edited since, or --cfg-options were given.'
    )


def parse_drift(now: FlatConfig, then: FlatConfig) -> list[str]:
    """Lists the plain values of the loaders that differ, ``then -> now``."""
    odd = []
    for path in sorted({*now, *then}):
        # A dump spells types and tuples in its own way; plain values it keeps.
        if path[:1] not in [(loader,) for loader in LOADERS] or path[-1][:1] == '_':
            continue
        old, new = then.get(path), now.get(path)
        if old != new and isinstance(old, _PLAIN) and isinstance(new, _PLAIN):
            odd.append(f'{".".join(path)} {old!r} -> {new!r}')
    return odd
