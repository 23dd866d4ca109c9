"""Checks which settings are asked for. Pure."""

from __future__ import annotations

import ast
import keyword
import math
from collections.abc import Iterable, Mapping

from mmgpu_hooks.configfile.outcome import RefusedError, Remove, Setting

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')

HOOK_TYPE = 'mmgpu_hooks.GPUEfficiencyHook'
"""How the hook is named in a config, without an import."""

HOOK_KEY = 'gpu_efficiency'
"""Its key in ``default_hooks``."""

_EXPECTED = (
    'expected a setting such as train_dataloader.num_workers, '
    f'default_hooks.{HOOK_KEY}.interval or auto_scale_lr.enable, found '
)


def parse_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Checks keys and values of the settings asked for.

    Raises:
        RefusedError: If a key is none that may be set or a value has no literal.
    """
    checked: dict[str, Setting] = {}
    for dotted, value in settings.items():
        if not _is_known(str(dotted).split('.')):
            raise RefusedError(
                f'{_EXPECTED}{dotted!r}; only settings of the dataloaders, our hook '
                'and auto_scale_lr are rewritten'
            )
        simple = value is None or type(value) in (bool, int, float, str, Remove)
        if not simple or (isinstance(value, float) and not math.isfinite(value)):
            raise RefusedError(
                f'expected a bool, number, string or None for {dotted}, found '
                f'{value!r}; pass a plain value'
            )
        checked[dotted] = value
    return checked


def _is_known(parts: list[str]) -> bool:
    names = parts[:1] + parts[2:] if parts[0] == 'custom_hooks' else parts
    if any(not part.isidentifier() or keyword.iskeyword(part) for part in names):
        return False
    if parts[0] in (*LOADERS, 'auto_scale_lr'):
        return len(parts) == 2
    if parts[0] == 'custom_hooks':
        return len(parts) == 3 and parts[1].isdecimal() and parts[1].isascii()
    return parts[0] == 'default_hooks' and len(parts) == 3


def parse_assignments(
    assignments: Iterable[str], unset: Iterable[str] = ()
) -> dict[str, Setting]:
    """Reads ``key=value`` as ``tools/train.py --cfg-options`` does.

    Args:
        assignments: Such as ``train_dataloader.num_workers=8``.
        unset: Keys to take out.

    Raises:
        RefusedError: If one is no assignment, or a key is given twice.
    """
    found: dict[str, Setting] = {}
    pairs: list[tuple[str, Setting]] = []
    for text in assignments:
        key, equal, value = text.partition('=')
        if not equal:
            raise RefusedError(
                f'expected KEY=VALUE, found {text!r}; write '
                'train_dataloader.num_workers=8'
            )
        pairs.append((key.strip(), _parse_value(value.strip())))
    pairs += [(key, Remove.REMOVE) for key in unset]
    for key, setting in pairs:
        if key in found:
            raise RefusedError(f'expected {key} once, found it twice; drop one')
        found[key] = setting
    return found


def _parse_value(text: str) -> Setting:
    if text.lower() in ('true', 'false'):
        return text.lower() == 'true'
    try:
        value: Setting = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value
