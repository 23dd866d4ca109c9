"""Says the same change in other words: a child config, a command line. Pure."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from mmgpu_hooks.config.edit import parse_resting
from mmgpu_hooks.config.outcome import RefusedError, Setting
from mmgpu_hooks.config.override import Form, render_override

_PLAIN_TEXT = re.compile(r'[A-Za-z_][\w.:/-]*\Z', re.ASCII)
_NO_TEXT = frozenset(('true', 'false', 'none', 'nan', 'inf', 'infinity'))


def render_overlay(
    source: Path, target: Path, settings: Mapping[str, Setting], lazy: bool
) -> str:
    """Renders a child config that inherits the source and overrides settings.

    Raises:
        RefusedError: If MMEngine could not import the source as a base.
    """
    roots: dict[str, dict[tuple[str, ...], Setting]] = {}
    for dotted, value in settings.items():
        root, *keys = dotted.split('.')
        path = tuple(keys)
        if root == 'custom_hooks':
            raise RefusedError(
                f'expected settings that a child can override, found {dotted}: a list '
                'is replaced as a whole; edit the config itself'
            )
        roots.setdefault(root, {})[path] = parse_resting(root, path, value)
    where = os.path.relpath(os.path.abspath(source), os.path.abspath(target.parent))
    head = f'_base_ = {_render_path(where)!r}\n'
    if lazy:
        head = _render_import(where)
    form: Form = 'update' if lazy else 'inherit'
    bodies = [
        render_override(root, values, form, '\n') for root, values in roots.items()
    ]
    return '\n'.join((head, *bodies, ''))


def _render_path(where: str) -> str:
    path = where.replace(os.sep, '/')
    return path if path.startswith('../') else f'./{path}'


def _render_import(where: str) -> str:
    *folders, name = where.replace(os.sep, '/').split('/')
    ups = folders.count('..')
    parts = [*folders[ups:], name.removesuffix('.py')]
    if not all(part.isidentifier() for part in parts):
        raise RefusedError(
            f'expected a base whose path can be imported, found {where!r}; rename it, '
            'or edit the config itself'
        )
    return (
        'from mmengine.config import read_base\n\nwith read_base():\n'
        f'    from {"." * (ups + 1)}{".".join(parts)} import *\n'
    )


def render_options(changes: Mapping[str, Setting]) -> str | None:
    """Renders the argument of ``tools/train.py`` that changes the same.

    Returns:
        It, quoted for a shell; ``None`` if that parser would read other values.
    """
    words = []
    for dotted, value in changes.items():
        root, *path = dotted.split('.')
        try:
            given = parse_resting(root, tuple(path), value)
        except RefusedError:
            return None
        if isinstance(given, str) and (
            not _PLAIN_TEXT.match(given) or given.lower() in _NO_TEXT
        ):
            return None
        words.append(shlex.quote(f'{dotted}={given}'))
    return f'--cfg-options {" ".join(words)}' if words else None
