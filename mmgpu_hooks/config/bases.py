"""Finds the base files of a config without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

BASE_KEY = '_base_'


def read_bases(config: Path) -> list[Path]:
    """Lists a config and its bases in its project, nearest first.

    Bases of installed packages (``mmdet::...``) and those that are computed are
    left out: nobody should edit the one, and the other cannot be known.
    """
    found, queue = [], [config]
    while queue:
        path = queue.pop(0)
        if path in found or not path.is_file() or 'site-packages' in path.parts:
            continue
        found.append(path)
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        queue += [path.parent / name for name in parse_bases(tree)]
    return found


class Chain(NamedTuple):
    """The texts of a config and its bases."""

    texts: dict[Path, str]
    """By path, the config itself first."""

    unseen: str | None = None
    """A base that is not among them, as the config spells it."""


ReadChain = Callable[[], Chain]
"""Reads the chain when it is needed."""


def read_chain(config: Path, text: str) -> Chain:
    """Reads a config's bases without running anything.

    Args:
        config: The config.
        text: What it holds.
    """
    texts = {config: text}
    unseen = None
    for path in read_bases(config):
        if path != config:
            try:
                texts[path] = path.read_text(encoding='utf-8')
            except (OSError, UnicodeDecodeError):
                unseen = str(path)
                continue
        try:
            names = list(_all_bases(ast.parse(texts[path])))
        except (SyntaxError, ValueError):
            del texts[path]
            names = [str(path)]
        for name in names:
            base = path.parent / name
            if '::' in name or not base.is_file() or 'site-packages' in base.parts:
                unseen = name
    return Chain(texts, unseen)


def _all_bases(tree: ast.Module) -> Iterator[str]:
    """Lists the bases as they are spelled, those that nobody can follow too."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == BASE_KEY:
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError):
                value = ast.unparse(node.value)
            yield from map(str, value if isinstance(value, (list, tuple)) else [value])
        elif isinstance(node, ast.With):
            for inner in node.body:
                known = _is_relative(inner)
                yield _module_path(inner) if known else ast.unparse(inner)


def parse_bases(tree: ast.Module) -> list[str]:
    """Lists the relative paths of a config's bases."""
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == BASE_KEY:
            try:
                value = ast.literal_eval(node.value)
            except (ValueError, TypeError):
                continue
            names += value if isinstance(value, (list, tuple)) else [value]
        elif isinstance(node, ast.With):
            names += [_module_path(inner) for inner in node.body if _is_relative(inner)]
    return [name for name in names if isinstance(name, str) and '::' not in name]


def is_lazy_text(text: str) -> bool:
    """Says whether MMEngine takes a config for a pure-Python one."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == BASE_KEY:
            return False
        if isinstance(node, ast.With) or _is_foreign(node):
            return True
    return False


def _is_foreign(node: ast.AST) -> bool:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or '.'] if not node.level else ['.']
    known = getattr(sys, 'stdlib_module_names', sys.builtin_module_names)
    return any(name.partition('.')[0] not in known for name in names)


def _is_relative(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.level > 0 and bool(node.module)


def _module_path(node: ast.stmt) -> str:
    assert isinstance(node, ast.ImportFrom)
    assert node.module is not None
    return '../' * (node.level - 1) + node.module.replace('.', '/') + '.py'
