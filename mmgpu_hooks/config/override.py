"""Writes a statement that overrides settings of a name. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import libcst as cst

from mmgpu_hooks.config.outcome import Setting

Form = Literal['inherit', 'update', 'rebind']
"""``inherit``: ``x = dict(k=v)``, which MMEngine merges over the base's;
``update``: ``x.update(k=v)``; ``rebind``: ``x = dict(x, k=v)``, which no other name
that stands for the same dict sees."""

WIDTH = 79
"""Columns of a line in OpenMMLab's configs."""


def render_override(
    root: str, values: Mapping[tuple[str, ...], Setting], form: Form, newline: str
) -> str:
    """Renders the statement, without a newline at its end."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        inner = nested
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = value
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


def edit_append(text: str, statement: str, newline: str) -> str:
    """Adds a statement at the end, behind a blank line."""
    ended = not text or text.endswith(('\n', '\r'))
    # Always one blank line of its own, so that edit_cut knows which to take back.
    gap = newline if ended else newline + newline
    gap = gap if text else ''
    return f'{text}{gap}{statement}{newline if ended else ""}'


def edit_cut(text: str, first: int, last: int) -> str:
    """Takes lines out; at the end of the file also the blank line above them.

    Args:
        text: The config.
        first: The first line to go, from 1.
        last: The last one.
    """
    lines = re.findall(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z', text)
    head, tail = lines[: first - 1], lines[last:]
    if not tail and head and not head[-1].strip('\r\n'):
        head.pop()
        if head and not lines[-1].endswith(('\n', '\r')):
            head[-1] = head[-1].rstrip('\r\n')
    return ''.join((*head, *tail))


def edit_follow(module: cst.Module, index: int, statement: str) -> cst.Module:
    """Adds a statement on the line behind another one."""
    added = cst.parse_statement(statement, module.config_for_parsing)
    body = [*module.body[: index + 1], added, *module.body[index + 1 :]]
    return module.with_changes(body=body)
