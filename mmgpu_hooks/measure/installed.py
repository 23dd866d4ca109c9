"""Reads facts about installed packages from their files, without importing them."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read_versions(names: Iterable[str]) -> dict[str, str]:
    """Returns the installed versions of named distributions; omits missing ones."""
    found = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def find_package(name: str) -> Path | None:
    """Finds the folder of an import package; ``None`` if it is not installed."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent


def read_constants(path: Path) -> Mapping[str, Any]:
    """Reads the literals that a Python file assigns to global names; does not run it.

    Returns:
        The last value of each; empty for a file that is missing or no Python.
    """
    try:
        body = ast.parse(path.read_text(encoding='utf-8')).body
    except (OSError, ValueError, SyntaxError):
        return {}
    found: dict[str, Any] = {}
    for statement in body:
        if isinstance(statement, ast.Assign):
            targets: list[ast.expr] = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        else:
            continue
        for target in targets:
            if isinstance(target, ast.Name) and statement.value is not None:
                with contextlib.suppress(ValueError, TypeError):
                    found[target.id] = ast.literal_eval(statement.value)
    return found


def has_text(path: Path, text: str) -> bool | None:
    """True if a file contains a text; ``None`` if the file cannot be read."""
    try:
        return text in path.read_text(encoding='utf-8', errors='replace')
    except OSError:
        return None


def find_openmp(torch: Path) -> Path | None:
    """Finds the file of GNU's OpenMP library (libgomp) in the installed torch wheel.

    Args:
        torch: Folder of the package.

    Returns:
        The library; ``None`` where torch uses another one.
    """
    for folder in (torch / 'lib', torch.with_name('torch.libs')):
        for library in sorted(folder.glob('libgomp*.so*')):
            return library
    return None
