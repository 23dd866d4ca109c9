"""How configs spell a setting: one module each, the first that matches wins.

Each has ``match(module, path, value)``. It returns the edit that gives the setting at
a path the value (``REMOVE`` takes it out), or ``None`` where the config spells it in
another way, and raises :class:`RefusedError` where no edit would be safe.
"""

from __future__ import annotations

import importlib

from mmgpu_hooks.config.edit import Match

_NAMES = (
    'absent',
    'own_statement',
    'entry',
    'literal',
    'variable',
    'computed',
    'missing_key',
    'alias',
    'overridden',
    'inherited',
)

SPELLINGS: tuple[Match, ...] = tuple(
    importlib.import_module(f'{__name__}.{name}').match for name in _NAMES
)
