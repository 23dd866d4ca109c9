"""Checks which settings are asked for. Pure."""

from __future__ import annotations

import ast
import keyword
import math
import re
import shlex
from collections.abc import Iterable, Mapping

from mmgpu_hooks.config.edit import HOOK_ROOTS, resting
from mmgpu_hooks.config.outcome import RefusedError, Remove, Setting

_PLAIN_TEXT = re.compile(r'[A-Za-z_][\w.:/-]*\Z', re.ASCII)
_NO_TEXT = frozenset(('true', 'false', 'none', 'nan', 'inf', 'infinity'))

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')

HOOK_TYPE = 'mmgpu_hooks.GPUEfficiencyHook'
"""How the hook is named in a config, without an import."""

HOOK_KEY = 'gpu_efficiency'
"""Its key in ``default_hooks``."""


def is_our_hook(value: object) -> bool:
    """Says whether a ``type`` names our hook, in whatever spelling."""
    name = value if isinstance(value, str) else getattr(value, '__name__', '')
    return str(name).rpartition('.')[2] == HOOK_TYPE.rpartition('.')[2]


_EXPECTED = (
    'expected a setting such as train_dataloader.num_workers, '
    f'default_hooks.{HOOK_KEY}.interval or auto_scale_lr.enable, found '
)


def parse_settings(settings: Mapping[str, Setting]) -> dict[str, Setting]:
    """Checks keys and values of the settings asked for.

    Raises:
        RefusedError: If a key is none that may be set or a value has no literal.
    """
    if not isinstance(settings, Mapping):
        raise RefusedError(
            f'expected settings by dotted key, found a {type(settings).__name__}'
        )
    checked: dict[str, Setting] = {}
    for dotted, value in settings.items():
        if not _is_known(str(dotted).split('.')):
            raise RefusedError(
                f'{_EXPECTED}{dotted!r}; only settings of the dataloaders, our hook '
                'and auto_scale_lr are rewritten'
            )
        _refuse_type(str(dotted), value)
        simple = value is None or type(value) in (bool, int, float, str, Remove)
        if not simple or (isinstance(value, float) and not math.isfinite(value)):
            raise RefusedError(
                f'expected a bool, number, string or None for {dotted}, found '
                f'{value!r}; pass a plain value'
            )
        if type(value) is int and abs(value) > _LARGEST:
            raise RefusedError(f'expected a number of 64 bits for {dotted}, found more')
        _refuse_impossible(str(dotted), value)
        checked[dotted] = value
    return checked


OBJECTS = (
    'dataset',
    'sampler',
    'batch_sampler',
    'collate_fn',
    'worker_init_fn',
    'generator',
)
"""Arguments of PyTorch's DataLoader that no plain value stands for."""

_LARGEST = 2**63 - 1

_LEAST = {'num_workers': 0, 'batch_size': 1, 'prefetch_factor': 1}
"""Arguments that are whole numbers, and their least."""


def _refuse_impossible(dotted: str, value: Setting) -> None:
    """Refuses what PyTorch's DataLoader certainly refuses."""
    root, _, key = dotted.partition('.')
    if root not in LOADERS or isinstance(value, Remove):
        return
    wanted = None
    if key in _LEAST and not (value is None and key != 'num_workers'):
        if type(value) is not int or value < _LEAST[key]:
            wanted = f'a whole number of at least {_LEAST[key]}'
    elif key in ('persistent_workers', 'pin_memory'):
        wanted = None if value is None or type(value) is bool else 'True or False'
    elif key in OBJECTS and value is not None:
        wanted = 'a dict, which is to be changed by hand,'
    if wanted is not None:
        raise RefusedError(
            f'expected {wanted} for {dotted}, found {value!r}; PyTorch refuses that'
        )


def _refuse_type(dotted: str, value: Setting) -> None:
    root, _, key = dotted.partition('.')
    if root not in HOOK_ROOTS or not key.endswith('.type'):
        return
    if (key, value) != (f'{HOOK_KEY}.type', HOOK_TYPE):
        raise RefusedError(
            f'expected an argument of our hook, found {dotted}, which makes another '
            'hook of it; change it by hand'
        )


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
        if isinstance(ast.parse(text, mode='eval').body, ast.Call):
            raise RefusedError(
                f'expected a plain value, found {text}; change it by hand'
            )
        value: Setting = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text
    return value


def render_options(changes: Mapping[str, Setting]) -> str | None:
    """Renders the argument of ``tools/train.py`` that changes the same.

    Returns:
        It, quoted for a shell; ``None`` if that parser would read other values.
    """
    words = []
    for dotted, value in changes.items():
        try:
            given = resting(tuple(dotted.split('.')), value)
        except RefusedError:
            return None
        if isinstance(given, str) and (
            not _PLAIN_TEXT.match(given) or given.lower() in _NO_TEXT
        ):
            return None
        words.append(shlex.quote(f'{dotted}={given}'))
    return f'--cfg-options {" ".join(words)}' if words else None
