"""Proves that a rewrite changed what was asked and nothing else. Pure.

The text proof reads both versions with the standard library's ``ast``, so it
shares no code with the edit that it checks.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from mmgpu_hooks.configfile.loading import Container, FlatConfig
from mmgpu_hooks.configfile.outcome import REMOVE, RefusedError, Setting

NONE_IS_ABSENT = frozenset(
    ('prefetch_factor', 'persistent_workers', 'pin_memory', 'multiprocessing_context')
)
"""Keys that PyTorch's DataLoader treats as left out when they are ``None``."""


def is_held(config: FlatConfig, dotted: str, value: Setting) -> bool:
    """Says whether a loaded config has a setting already, type included."""
    path = tuple(dotted.split('.'))
    if value is REMOVE:
        inside = [found for found in config if found[: len(path)] == path]
        gone = config.get(path, '') is None and path[-1] in NONE_IS_ABSENT
        return not inside or gone
    return path in config and is_same(config[path], value)


def verify_config(
    before: FlatConfig, after: FlatConfig, settings: Mapping[str, Setting]
) -> str | None:
    """Compares two loaded configs.

    Returns:
        ``None`` if exactly the asked settings differ, else what is wrong.
    """
    missed = [k for k, value in settings.items() if not is_held(after, k, value)]
    if missed:
        return (
            f'expected the edit to set {missed[0]}, MMEngine loads another value; '
            'something later in the file overrides it'
        )
    asked = {tuple(dotted.split('.')) for dotted in settings}
    changed = [
        path
        for path in sorted({*before, *after})
        if path[:2] not in asked
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


def verify_loaders(config: FlatConfig, changes: Mapping[str, Setting]) -> None:
    """Refuses settings of a loader that the loaded config lacks.

    Raises:
        RefusedError: If a loader is missing or no dict, or a setting is a container.
    """
    for dotted in changes:
        loader, key = dotted.split('.')
        if (loader,) not in config:
            raise RefusedError(
                f'expected a {loader} in the config or its bases, found none; '
                'name the config that is trained'
            )
        if config[(loader,)] != Container('dict', 0):
            raise RefusedError(
                f'expected {loader} to be a dict, found {_render(config[(loader,)])}; '
                'name the config that is trained'
            )
        if isinstance(config.get((loader, key)), Container):
            raise RefusedError(
                f'expected a single value in {dotted}, found a dict or list; '
                'change it by hand'
            )


def _render(value: object) -> str:
    return f'a {value.kind}' if isinstance(value, Container) else repr(value)


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


@dataclass(frozen=True)
class _Statement:
    before: bytes
    after: bytes
    entries: Sequence[tuple[object, bytes]]
    comments: list[str]


def verify_text(
    before: str, after: str, loader: str, keys: AbstractSet[str], removed: bool
) -> str | None:
    """Checks that only the asked keys of one loader changed in the text.

    Args:
        before: The text before the edit.
        after: The text after it.
        loader: Name of the loader.
        keys: Its keys that may differ.
        removed: Whether one of them is removed, with the comment on its line.

    Returns:
        ``None`` if the rest is the same, else what is wrong.
    """
    if before == after:
        return None
    old = _parse_statement(before, loader, keys)
    new = _parse_statement(after, loader, keys, appended=old is None)
    if new is None:
        return f'expected the edit to leave one {loader} statement'
    if old is None:
        start = before.encode()
        same = new.before.startswith(start) and not new.before[len(start) :].strip()
        same = same and not new.after.strip()
        same = same and {key for key, _ in new.entries} <= keys
        return None if same else f'expected one {loader} statement at the end, no more'
    kept = [entry for entry in old.entries if entry[0] not in keys]
    if kept != [entry for entry in new.entries if entry[0] not in keys]:
        return f'expected the other entries of {loader} to stay as they are'
    if (old.before, old.after) != (new.before, new.after):
        return f'expected everything outside {loader} to stay as it is'
    rest = iter(old.comments)
    held = all(comment in rest for comment in new.comments)
    if not held or (not removed and old.comments != new.comments):
        return f'expected the comments in {loader} to stay as they are'
    return None


def _parse_statement(
    text: str, loader: str, keys: AbstractSet[str], appended: bool = False
) -> _Statement | None:
    lines = re.findall(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z', text)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    raw = text.encode()

    def span(node: ast.stmt | ast.expr) -> slice:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        first = starts[node.lineno - 1] + node.col_offset
        return slice(first, starts[node.end_lineno - 1] + node.end_col_offset)

    body = ast.parse(text).body
    for node in body[-1:] if appended else body:
        value = _parse_value(node, loader, keys)
        if value is not None:
            whole = span(node)
            entries = [(key, raw[span(item)]) for key, item in _entries(value)]
            comments = _comments(raw[whole].decode())
            head, tail = raw[: whole.start], raw[whole.stop :]
            return _Statement(head, tail, entries, comments)
    return None


def _parse_value(
    node: ast.stmt, loader: str, keys: AbstractSet[str]
) -> ast.Dict | ast.Call | None:
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        named = isinstance(target, ast.Name) and target.id == loader
    else:
        named = (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and ast.unparse(node.value.func) == f'{loader}.update'
            and any(key in keys for key, _ in _entries(node.value))
        )
    value = getattr(node, 'value', None)
    return value if named and isinstance(value, (ast.Dict, ast.Call)) else None


def _entries(value: ast.Dict | ast.Call) -> list[tuple[object, ast.expr]]:
    if isinstance(value, ast.Dict):
        pairs = zip(value.keys, value.values)
        return [(getattr(key, 'value', None), item) for key, item in pairs]
    found: list[tuple[object, ast.expr]] = [(None, item) for item in value.args]
    return found + [(item.arg, item.value) for item in value.keywords]


def _comments(code: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]
