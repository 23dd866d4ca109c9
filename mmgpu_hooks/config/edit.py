"""What an edit is: a piece of the text and what replaces it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from mmgpu_hooks.config.entries import Span, render_value
from mmgpu_hooks.config.locate import KeyPath
from mmgpu_hooks.config.outcome import ABSENT, REMOVE, RefusedError, Setting
from mmgpu_hooks.config.syntax import Module

INHERIT, UPDATE, REBIND = '{0} = dict({1})', '{0}.update({1})', '{0} = dict({0}, {1})'
"""Statements that set a key of a name. MMEngine merges the first over the base's; what
else stands for the same dict does not see the last."""

HOOK_ROOTS = ('default_hooks', 'custom_hooks')
"""The names that hold hooks."""


@dataclass(frozen=True)
class Edit:
    """An edit; without a span it leaves the text as it is."""

    span: Span | None = None
    note: str | None = None
    variable: str | None = None
    """The variable that is changed, as nothing else uses it."""


Match = Callable[[Module, KeyPath, Setting], Union[Edit, None]]


def resting(path: KeyPath, value: Setting) -> Setting:
    """Returns what stands for a removed key where the key cannot vanish.

    Raises:
        RefusedError: If nothing does.
    """
    if value is not REMOVE:
        return value
    if path[-1] not in ABSENT:
        raise RefusedError(
            f'expected to remove {".".join(path)}, but it is inherited or set '
            'elsewhere; give it another value'
        )
    return ABSENT[path[-1]][0]


def render_statement(form: str, path: KeyPath, value: Setting) -> str:
    """Renders a statement that sets a key of a name."""
    if form == UPDATE and len(path) > 2 and path[0] not in HOOK_ROOTS:
        # what else the inner dict holds stays
        holder = ''.join(f'.setdefault({key!r}, dict())' for key in path[1:-1])
        return form.format(path[0] + holder, f'{path[-1]}={resting(path, value)!r}')
    code = render_value(path[2:], resting(path, value))
    return form.format(path[0], f'{path[1]}={code}')


def append(text: str, newline: str, statement: str) -> Span:
    """Adds a statement at the end, after a blank line of its own."""
    ended = not text or text.endswith(('\n', '\r'))
    gap = '' if not text else newline if ended else newline + newline
    return len(text), len(text), f'{gap}{statement}{newline if ended else ""}'
