"""Finds our hook in the text of a config that is not to be loaded. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from mmgpu_hooks.config.request import HOOK_KEY, is_our_hook


@dataclass
class HookText:
    """What one text says of our hook."""

    places: set[tuple[str, str]] = field(default_factory=set)
    """The entries whose literal ``type`` is ours, as root and key or index."""

    taken: int | None = None
    """Line of another's entry under our key in ``default_hooks``."""

    loose: int | None = None
    """Line of our name where it is no entry's ``type``."""

    dropped: bool = False
    """Whether the text takes out or replaces what it inherits."""


def parse_hooks(text: str) -> HookText:
    """Reads every place of a text that names our hook or its key."""
    tree = ast.parse(text)
    found, known = HookText(), set()
    for statement in tree.body:
        for root, key, value in _entries(statement):
            kind = dict(_pairs(value)).get('type')
            name = getattr(kind, 'value', None) if _is_text(kind) else _last(kind)
            if kind is not None and is_our_hook(name):
                found.places.add((root, key))
                known.add(id(kind))
            elif (root, key) == ('default_hooks', HOOK_KEY) and (
                kind is not None or not isinstance(value, (ast.Call, ast.Dict))
            ):
                found.taken = value.lineno
    for node in ast.walk(tree):
        if isinstance(node, (ast.Constant, ast.Name, ast.Attribute)):
            name = node.value if isinstance(node, ast.Constant) else _last(node)
            if id(node) not in known and is_our_hook(name):
                found.loose = node.lineno
    found.dropped = any(map(_drops, tree.body))
    return found


def _drops(statement: ast.stmt) -> bool:
    code = ast.unparse(statement)
    words = ('_delete_', '.pop(', 'del ')
    replaced = code.startswith('custom_hooks =')
    return replaced or ('hooks' in code and any(word in code for word in words))


def _entries(node: ast.stmt) -> Iterator[tuple[str, str, ast.expr]]:
    """Lists the hooks that a statement sets: root, key or index, value."""
    value = getattr(node, 'value', None)
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = node.targets[0]
    elif isinstance(node, ast.AnnAssign):
        target = node.target
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
        # x.update(k=v) sets what x = dict(k=v) does
        target = value.func.value if value.func.attr == 'update' else value.func
    else:
        return
    name = ast.unparse(target).removeprefix('_base_.')
    if name == 'custom_hooks' and isinstance(value, ast.List):
        yield from ((name, str(i), item) for i, item in enumerate(value.elts))
    elif name == 'default_hooks':
        yield from ((name, key, item) for key, item in _pairs(value) if key)
    elif isinstance(target, (ast.Subscript, ast.Attribute)) and value is not None:
        owner = ast.unparse(target.value).removeprefix('_base_.')
        key = getattr(target, 'attr', None) or getattr(
            getattr(target, 'slice', None), 'value', ''
        )
        if owner == 'default_hooks' and isinstance(node, (ast.Assign, ast.AnnAssign)):
            yield owner, str(key), value


def _pairs(node: ast.expr | None) -> list[tuple[str, ast.expr]]:
    if isinstance(node, ast.Call):
        return [(item.arg or '', item.value) for item in node.keywords]
    if isinstance(node, ast.Dict):
        pairs = zip(node.keys, node.values)
        return [(str(getattr(key, 'value', '')), item) for key, item in pairs]
    return []


def _is_text(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _last(node: ast.AST | None) -> str:
    return str(getattr(node, 'id', None) or getattr(node, 'attr', ''))
