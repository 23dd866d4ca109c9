"""What an edit is: a piece of the text and what replaces it, or a statement. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union

from mmgpu_hooks.config.entries import WIDTH, Span
from mmgpu_hooks.config.locate import KeyPath
from mmgpu_hooks.config.outcome import ABSENT, REMOVE, RefusedError, Setting
from mmgpu_hooks.config.syntax import Module

Form = Literal['inherit', 'update', 'rebind']
"""``inherit``: ``x = dict(k=v)``, which MMEngine merges over the base's;
``update``: ``x.update(k=v)``; ``rebind``: ``x = dict(x, k=v)``, which no other name
that stands for the same dict sees."""

HOOK_ROOTS = ('default_hooks', 'custom_hooks')
"""The names that hold hooks."""


@dataclass(frozen=True)
class Replacement:
    """An edit of what is there; without spans it leaves the text as it is."""

    spans: tuple[Span, ...] = ()
    notes: tuple[str, ...] = ()
    variable: str | None = None
    """The variable that is changed, as nothing else uses it."""


@dataclass(frozen=True)
class Statement:
    """An edit that adds a statement."""

    form: Form
    index: int = -1
    """Of the statement that it follows; -1 for the end of the file."""


Edit = Union[Replacement, Statement]
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


def render_statement(
    values: Mapping[KeyPath, Setting], form: Form, newline: str
) -> str:
    """Renders a statement that overrides settings of one name."""
    nested: dict[str, Any] = {}
    root = next(iter(values))[0]
    for (_, *keys), value in values.items():
        inner = nested
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = value
    opening = {
        'inherit': f'{root} = dict(',
        'update': f'{root}.update(',
        'rebind': f'{root} = dict({root}, ',
    }[form]
    pairs = [f'{key}={_render(value)}' for key, value in nested.items()]
    line = f'{opening}{", ".join(pairs)})'
    if len(line) <= WIDTH:
        return line
    joined = f',{newline}    '.join(pairs)
    return f'{opening.rstrip()}{newline}    {joined})'


def _render(value: object) -> str:
    if isinstance(value, dict):
        pairs = (f'{key}={_render(item)}' for key, item in value.items())
        return f'dict({", ".join(pairs)})'
    return repr(value)


def append(text: str, statement: str, newline: str) -> str:
    """Adds a statement at the end, after a blank line."""
    ended = not text or text.endswith(('\n', '\r'))
    # always one blank line of its own, so that `cut` knows which to take back
    gap = newline if ended else newline + newline
    gap = gap if text else ''
    return f'{text}{gap}{statement}{newline if ended else ""}'


def cut(module: Module, first: int, last: int) -> Span:
    """Takes lines out; at the end of the file also the blank line above them.

    Args:
        module: The config.
        first: The first line to go, from 1.
        last: The last one.
    """
    lines = module.lines
    head, tail = lines[: first - 1], lines[last:]
    if not tail and head and not head[-1].strip('\r\n'):
        head.pop()
        if head and not lines[-1].endswith(('\n', '\r')):
            head[-1] = head[-1].rstrip('\r\n')
    return len(''.join(head)), len(''.join(lines[:last])), ''


def follow(module: Module, index: int, statement: str) -> str:
    """Adds a statement on the line after another one."""
    line = module.body[index].end_lineno or 0
    for later in module.body[index + 1 :]:
        # what stands on the same line, after a semicolon
        line = (later.end_lineno or 0) if later.lineno <= line else line
    head, tail = ''.join(module.lines[:line]), ''.join(module.lines[line:])
    gap = '' if head.endswith(('\n', '\r')) else module.newline
    return f'{head}{gap}{statement}{"" if gap else module.newline}{tail}'
