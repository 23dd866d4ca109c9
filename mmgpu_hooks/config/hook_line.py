"""Finds the file and line in which a config or its bases name GPUEfficiencyHook."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.config.files import read_source
from mmgpu_hooks.config.hook_arguments import is_our_hook
from mmgpu_hooks.config.loading import LoadError, RefusedError, load_config
from mmgpu_hooks.config.syntax import Module, is_display, parse_entries, parse_string


@dataclass(frozen=True)
class HookLine:
    """File and line number at which a config names GPUEfficiencyHook."""

    path: Path
    """Path of the config or base config that names GPUEfficiencyHook."""
    line: int
    """Number of the line with GPUEfficiencyHook's ``type``, counted from 1.

    An argument may stand right behind it."""


def find_hook_line(config: Path) -> HookLine | None:
    """Finds the last line that names GPUEfficiencyHook in a config or one of its bases.

    Args:
        config: That MMEngine loads; loading executes it.

    Returns:
        ``None`` where no text of it names the hook in a dict, or it does not load.
    """
    opened: list[Path] = []
    try:
        load_config(config, opened=opened)
    except LoadError:
        return None
    for path in (config, *dict.fromkeys(opened)):
        if path.suffix != '.py' or not path.is_file():
            continue
        try:
            lines = list(_list_lines(Module(read_source(path).text)))
        except (RefusedError, OSError):
            continue
        if lines:
            return HookLine(path, lines[-1])
    return None


def _list_lines(module: Module) -> Iterator[int]:
    for statement in module.body:
        for node in ast.walk(statement):
            if not isinstance(node, (ast.Call, ast.Dict)) or not is_display(node):
                continue
            for entry in parse_entries(node):
                if entry.key == 'type' and is_our_hook(_read_name(entry.value)):
                    yield entry.value.end_lineno or entry.value.lineno


def _read_name(node: ast.AST) -> str:
    """Returns the class name that a ``type`` in a config spells, as string or class."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return node.attr
    return parse_string(node) or ''
