"""Checks and merges settings that change a config in memory, not in its file.

What a rewrite may set is judged as a rewrite judges it. Beyond that, any key goes that
MMEngine merges into the config and that its Runner reads.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.config.accepted import find_refusal
from mmgpu_hooks.config.loading import (
    Container,
    FlatConfig,
    KeyPath,
    LoadError,
    RefusedError,
    SettingValue,
    is_held,
    read_config,
)
from mmgpu_hooks.config.settings import (
    OF_RUNNER,
    complete_settings,
    expect_plain,
    is_rewritable,
    parse_settings,
    suggest_name,
    verify_changes,
)
from mmgpu_hooks.schema.text import phrase

_ALIKE = 0.8
"""Similarity (0 to 1) to a known key from which an unknown key counts as a typo."""


@dataclass(frozen=True)
class Override:
    """Loaded config with settings changed in memory, and the changes made."""

    changes: Mapping[str, SettingValue]
    """Changed settings by dotted key: those asked for, and those that follow from them.

    Settings that hold already are left out."""
    config: FlatConfig
    """Loaded config with the changed settings, merged by MMEngine."""
    unknown: tuple[str, ...]
    """Requested keys that the config lacked and that perhaps no code will read."""


def override_settings(
    path: Path, before: FlatConfig, wanted: Mapping[str, SettingValue]
) -> Override:
    """Checks settings for a config; returns the config with them, merged by MMEngine.

    Args:
        path: Of the config.
        before: As loaded.
        wanted: What is asked for, by dotted key.

    Raises:
        RefusedError: If a key is misspelt or read by nothing, or if MMEngine, PyTorch
            or our hook refuses a value.
    """
    judged = {key: value for key, value in wanted.items() if is_rewritable(before, key)}
    others = {key: value for key, value in wanted.items() if key not in judged}
    parse_settings(judged)
    unknown = [key for key in others if not _is_known(before, key, others[key])]
    changes = {
        key: value
        for key, value in complete_settings(before, wanted).items()
        if not is_held(before, key, value)
    }
    entailed = {key: value for key, value in changes.items() if key not in others}
    verify_changes(before, entailed)
    try:
        after = read_config(path, changes=changes)
    except LoadError as error:
        raise RefusedError(
            phrase(
                'expected settings that MMEngine can merge, found {changes}; '
                'it says "{error}"',
                changes=tuple(changes),
                error=error,
            )
        ) from error
    reason = find_refusal(before, after, entailed)
    if reason is not None:
        raise RefusedError(phrase('{reason}; choose another value', reason=reason))
    return Override(changes, after, tuple(unknown))


def _is_known(config: FlatConfig, dotted: str, value: SettingValue) -> bool:
    """True if a config already has a key; False if the key could be added.

    Raises:
        RefusedError: If it cannot have it, or the key is a misspelt one.
    """
    path = tuple(dotted.split('.'))
    if not all(path):
        raise RefusedError(
            phrase(
                'expected a key such as optim_wrapper.optimizer.lr, found {dotted!r}',
                dotted=dotted,
            )
        )
    expect_plain(dotted, value)
    _expect_read(config, path[0])
    if isinstance(config.get(path), Container) and value is not None:
        raise RefusedError(
            phrase(
                'expected a single value in {dotted}, found a dict or list; '
                'set a key in it, or compare two configs',
                dotted=dotted,
            )
        )
    for count in range(2, len(path) + 1):
        if path[:count] not in config:
            _expect_place(config, path[: count - 1], path[count - 1])
            _expect_names(config, path, count - 1)
            return False
    return path in config


def _expect_names(config: FlatConfig, path: KeyPath, known: int) -> None:
    """Raises a `RefusedError` for a list index where the config has no list.

    MMEngine would make a dict with the index as a key.

    Args:
        config: As loaded.
        path: A key that it does not have, and that none of its lists can have.
        known: So many of its first parts it has.
    """
    for count in range(known, len(path)):
        parent, name = path[:count], path[count]
        if not (name.isdecimal() or parent == ('custom_hooks',)):
            continue
        said = phrase('a dict') if parent in config else phrase('none')
        raise RefusedError(
            phrase(
                'expected a list in {parent} for {name!r}, found {said}; add '
                'it in a second config, and compare both',
                parent='.'.join(parent),
                name=name,
                said=said,
            )
        )


def _expect_read(config: FlatConfig, root: str) -> None:
    """Raises a `RefusedError` for a top-level config name that no code reads."""
    if root == 'custom_imports':
        raise RefusedError(
            phrase(
                'expected a setting of the training, found custom_imports, '
                'which MMEngine has imported by then; compare two configs '
                'instead'
            )
        )
    if root in OF_RUNNER:
        return
    if (root,) in config:
        raise RefusedError(
            phrase(
                'expected a key that MMEngine reads, found {root}, a variable'
                ' of the config that is used up once it is loaded; set the '
                'keys that it fills, or compare two configs',
                root=root,
            )
        )
    others = phrase('it reads {names}', names=tuple(OF_RUNNER))
    raise RefusedError(
        phrase(
            'expected a key that MMEngine reads, found {root}; {hint}',
            root=root,
            hint=suggest_name(root, OF_RUNNER, others),
        )
    )


def _expect_place(config: FlatConfig, parent: KeyPath, name: str) -> None:
    """Raises a `RefusedError` for a misspelt key, or one its parent cannot have."""
    dotted, found = '.'.join(parent), config.get(parent)
    if parent in config and not isinstance(found, Container):
        raise RefusedError(
            phrase(
                'expected {dotted} to be a dict or list, found {found!r}; '
                'change it in a second config',
                dotted=dotted,
                found=found,
            )
        )
    if isinstance(found, Container) and found.kind != 'dict':
        raise RefusedError(
            phrase(
                'expected an index below {size} in {dotted}, found {name!r}',
                size=found.size,
                dotted=dotted,
                name=name,
            )
        )
    size = len(parent) + 1
    beside = {path[-1] for path in config if path[:-1] == parent and len(path) == size}
    near = difflib.get_close_matches(name, beside, 1, _ALIKE)
    if near:
        raise RefusedError(
            phrase(
                'expected a key of {dotted}, found {name}; did you mean {near}?',
                dotted=dotted,
                name=name,
                near=near[0],
            )
        )
