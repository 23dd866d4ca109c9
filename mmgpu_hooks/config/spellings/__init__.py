"""How configs spell a setting: one module each, the first that matches wins.

Each has ``match(module, path, value)``. It returns the edit that gives the setting at
a path the value (``REMOVE`` takes it out), or ``None`` where the config spells it in
another way, and raises :class:`RefusedError` where no edit would be safe.
"""

from __future__ import annotations

from mmgpu_hooks.config.edit import Match
from mmgpu_hooks.config.spellings import (
    absent,
    alias,
    computed,
    entry,
    inherited,
    literal,
    missing_key,
    overridden,
    shared,
    variable,
)

SPELLINGS: tuple[Match, ...] = (
    absent.match,
    shared.match,
    entry.match,
    literal.match,
    variable.match,
    computed.match,
    missing_key.match,
    alias.match,
    overridden.match,
    inherited.match,
)
