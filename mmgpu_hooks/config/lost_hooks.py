"""Finds hooks of a base config that a child's ``custom_hooks`` list replaced.

MMEngine merges dicts, but a list of a child takes the place of the base's: its EMA or
pipeline switch is gone without an error.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgpu_hooks.config.files import read_source
from mmgpu_hooks.config.loading import bare_name, load_config
from mmgpu_hooks.config.syntax import (
    Module,
    is_read_base,
    locate_setting,
    parse_chain,
)
from mmgpu_hooks.schema.checkup import LostHook

_KEY = 'custom_hooks'
_MOST_LETTERS = 60
"""Maximum length in characters of a ``custom_hooks`` list that advice repeats."""


def find_lost_hooks(path: Path) -> tuple[LostHook, ...]:
    """Finds hooks of base configs that a child's list ``custom_hooks`` dropped.

    A base that was installed with a package is taken as its authors meant it.

    Args:
        path: A config that MMEngine loads.

    Returns:
        The hooks that are in no list any more.

    Raises:
        RefusedError: If the text of the config cannot be read.
        LoadError: If a base cannot be loaded alone.
    """
    opened: list[Path] = []
    final = _list_types(load_config(path, opened=opened))
    found: dict[str, LostHook] = {}
    for config in _list_own_files(path, opened):
        for lost in _compare_with_bases(config, opened):
            # another base of the config, or the config itself, may have it again
            if lost.name not in final:
                found.setdefault(lost.name, replace(lost, is_own=config is path))
    return tuple(found.values())


def _list_own_files(path: Path, opened: Iterable[Path]) -> list[Path]:
    installed = [Path(sysconfig.get_path(name)) for name in ('purelib', 'platlib')]
    bases = (
        base
        for base in dict.fromkeys(opened)
        # MMEngine works on temporary copies, too
        if base.suffix == '.py' and base.is_file() and not base.samefile(path)
    )
    return [
        path,
        *(base for base in bases if not any(map(base.is_relative_to, installed))),
    ]


def _compare_with_bases(config: Path, opened: Sequence[Path]) -> list[LostHook]:
    text = read_source(config).text
    if _KEY not in text:
        return []
    module = Module(text)
    bases = _keep_bases(module)
    if bases is None:
        return []
    inherited = _list_types(load_config(config, {config: bases.encode()}))
    left = _list_types(load_config(config))
    gone = [index for index, name in enumerate(inherited) if name not in left]
    names = [inherited[index] for index in gone]
    cure = _phrase_cure(module, inherited, gone)
    return [
        LostHook(
            name, _name_config(_find_base(config, name, opened)), str(config), cure
        )
        for name in dict.fromkeys(names)
    ]


def _keep_bases(module: Module) -> str | None:
    """Returns a config's statements that name base configs, as text, or ``None``."""
    body = ast.parse(module.text).body
    kept: list[ast.stmt] = [
        statement
        for statement in body
        if is_read_base(statement)
        or (
            isinstance(statement, ast.Assign)
            and parse_chain(statement.targets[0]) == ('_base_',)
        )
    ]
    if not kept:
        return None
    if module.is_lazy:
        imports = (ast.Import, ast.ImportFrom)
        kept = [node for node in body if isinstance(node, imports)] + kept
    return '\n'.join(map(ast.unparse, kept)) + '\n'


def _list_types(config: Mapping[str, Any]) -> list[str]:
    """Lists the class names, without module, of the hooks in ``custom_hooks``."""
    hooks = config.get(_KEY)
    listed = hooks if isinstance(hooks, (list, tuple)) else ()
    return [bare_name(hook.get('type')) for hook in listed if isinstance(hook, dict)]


def _find_base(config: Path, name: str, opened: Sequence[Path]) -> Path:
    """Finds the first base config, in loading order, whose text names a hook."""
    after = [path for path in opened if path.suffix == '.py' and path.is_file()]
    own = [number for number, path in enumerate(after) if path.samefile(config)]
    for base in after[max(own[:1], default=0) :]:
        if base.samefile(config):
            continue
        text = base.read_text(encoding='utf-8', errors='replace')
        if _KEY in text and name in text:
            return base
    return config


def _name_config(path: Path) -> str:
    """Returns a config's path; ``package::config`` for one in an installed package."""
    found = re.fullmatch(r'.*/(\w+)/\.mim/configs/(.+)', path.as_posix())
    return f'{found[1]}::{found[2]}' if found else str(path)


def _phrase_cure(module: Module, inherited: Sequence[str], gone: Sequence[int]) -> str:
    """Returns a ``custom_hooks = [...]`` statement that adds the base's hooks."""
    source = _KEY if module.is_lazy else f'_base_.{_KEY}'
    if len(gone) == len(inherited):
        kept = f'*{source}'
    else:
        kept = ', '.join(f'{source}[{index}]' for index in gone)
    place, own = locate_setting(module, (_KEY,)), '...'
    if place.kind == 'value' and isinstance(place.node, ast.List):
        own = ' '.join(module.code(place.node)[1:-1].split()).rstrip(', ')
        if len(own) > _MOST_LETTERS or '#' in own:
            own = '...'
    elif place.kind == 'value' and module.code(place.node) == 'None':
        own = ''
    return f'{_KEY} = [{", ".join(filter(None, (kept, own)))}]'
