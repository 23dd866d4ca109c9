"""Proves that a rewrite changed what was asked for in the loaded config. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.config.outcome import Setting


def is_held(config: FlatConfig, dotted: str, value: Setting) -> bool:
    """Says whether a loaded config has a setting already, type included."""
    path = tuple(dotted.split('.'))
    return path in config and is_same(config[path], value)


def verify_config(
    before: FlatConfig,
    after: FlatConfig,
    settings: Mapping[str, Setting],
    others: Iterable[str] = (),
) -> str | None:
    """Compares two loaded configs.

    Args:
        before: Without the edit.
        after: With it.
        settings: What it is to have set.
        others: Keys that may differ, too, as their edit is still to come.

    Returns:
        ``None`` if exactly the asked settings differ, else what is wrong.
    """
    missed = [key for key, value in settings.items() if not is_held(after, key, value)]
    if missed:
        return (
            f'expected the edit to set {missed[0]}, MMEngine loads another value; '
            'something later in the file overrides it'
        )
    asked = [
        tuple(dotted.split('.')) for dotted in {**settings, **dict.fromkeys(others)}
    ]
    # The first setting of a dict brings the dict, the last one takes it along.
    parents = {path[:count] for path in asked for count in range(1, len(path))}
    fresh = {path for path in parents if (path in before) != (path in after)}
    changed = [
        path
        for path in sorted({*before, *after} - fresh)
        if not any(path[: len(one)] == one for one in asked)
        and not (
            path in before and path in after and is_same(before[path], after[path])
        )
    ]
    if changed:
        return (
            f'expected only {", ".join(sorted(settings))} to change, but '
            f'{".".join(changed[0])} would change too'
            + (f' (and {len(changed) - 1} more)' if len(changed) > 1 else '')
            + '; change the settings by hand'
        )
    return None


def is_same(left: object, right: object) -> bool:
    """Compares two leaves by type and value; code by where it is defined."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if hasattr(left, '__qualname__'):
        return _identity(left) == _identity(right)
    try:
        if bool(left == right):
            return True
    except Exception:  # noqa: BLE001 - a config may hold arrays and worse
        return _strip(left) == _strip(right)
    return _strip(left) == _strip(right)


def _strip(value: object) -> str:
    # Where an object lives in memory differs between two loads.
    return re.sub(r' at 0x[0-9a-fA-F]+', '', repr(value))


def _identity(value: object) -> tuple[object, ...]:
    # A function that the config defines is a new object at each load.
    code = getattr(value, '__code__', None)
    body = (code.co_code, code.co_names, _strip(code.co_consts)) if code else ()
    module = getattr(value, '__module__', None)
    return module, getattr(value, '__qualname__', None), *body
