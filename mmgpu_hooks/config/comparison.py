"""Finds the keys in which two configs loaded by MMEngine differ, with both values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from reprlib import repr as short

from mmgpu_hooks.config.hook_arguments import is_our_hook
from mmgpu_hooks.config.loading import (
    PLAIN,
    Container,
    FlatConfig,
    KeyPath,
    SettingValue,
    bare_name,
    list_differences,
)
from mmgpu_hooks.config.settings import OF_RUNNER
from mmgpu_hooks.schema.text import phrase

_MISSING = object()
_LISTS = ('list', 'tuple')
_HOOKS = ('default_hooks', 'custom_hooks')
_NOT_TRAINED: tuple[KeyPath, ...] = (
    ('val_cfg',),
    ('val_dataloader',),
    ('val_evaluator',),
    ('test_cfg',),
    ('test_dataloader',),
    ('test_evaluator',),
    ('train_cfg', 'val_interval'),
    ('train_cfg', 'val_begin'),
    ('work_dir',),
    ('resume',),
    ('launcher',),
    ('visualizer', 'vis_backends'),
    # MMEngine puts its CheckpointHook there
    ('default_hooks', 'checkpoint'),
)
"""Config keys that do not affect a short training without validation or resuming.

Validation, tests, saves, and where it logs."""
_WORK: dict[KeyPath, str] = {
    ('model',): phrase('model'),
    ('data_preprocessor',): phrase('model'),
    ('train_dataloader', 'dataset'): phrase('data set'),
    ('train_dataloader', 'batch_size'): phrase('batch size'),
    ('train_dataloader', 'num_batch_per_epoch'): phrase('data set'),
    ('train_dataloader', 'sampler'): phrase('sampler'),
    ('train_dataloader', 'batch_sampler'): phrase('sampler'),
    ('train_dataloader', 'collate_fn'): phrase('pipeline'),
}
"""Names of settings that change an iteration's work, such as batch size, by key."""


@dataclass(frozen=True)
class ConfigDifference:
    """Differing keys of two loaded configs, with values, and what they affect.

    A key that a config lacks is missing in its mapping.
    """

    before: Mapping[str, SettingValue]
    after: Mapping[str, SettingValue]
    """Differing values of the second config, by dotted key.

    Containers and code are written as a string: ``[Resize, PackDetInputs]``."""
    untrained: tuple[str, ...]
    """Differing keys that do not affect a short training without validation."""
    other_work: tuple[str, ...]
    """Names of differences that change an iteration's work, such as ``batch size``."""
    is_of_our_hook: bool
    """True if only one config has GPUEfficiencyHook, or its arguments differ."""


def compare_configs(before: FlatConfig, after: FlatConfig) -> ConfigDifference:
    """Returns the differing keys of two loaded configs, with their values.

    A list of another length is one difference.

    Variables of a config that MMEngine does not read are left out, and so are types
    that are merely spelled in another way (``Resize``, ``mmdet.Resize``).

    Args:
        before: The first config, as loaded.
        after: The second.
    """
    found = [path for path in _list_whole(before, after) if path[0] in OF_RUNNER]
    found.sort(key=_rank)
    trained = [path for path in found if not _is_left_out(before, after, path)]
    work = (_name_work(path) for path in trained)
    return ConfigDifference(
        before=_phrase_all(before, trained),
        after=_phrase_all(after, trained),
        untrained=tuple('.'.join(path) for path in found if path not in trained),
        other_work=tuple(dict.fromkeys(name for name in work if name)),
        is_of_our_hook=any(
            is_our_hook(kind)
            for path in trained
            for kind in _list_hooks(before, after, path)
        ),
    )


def _rank(path: KeyPath) -> tuple[bool, bool, int]:
    """Returns a sort key for config keys: train loader first, model last."""
    return path[0] == 'model', path[0] != 'train_dataloader', len(path)


def _list_whole(before: FlatConfig, after: FlatConfig) -> list[KeyPath]:
    """Lists differing config keys, none of them inside another key on the list."""
    found: list[KeyPath] = []
    for path in list_differences(before, after):
        if any(path[: len(outer)] == outer for outer in found):
            continue
        old, new = before.get(path, _MISSING), after.get(path, _MISSING)
        if _is_spelling(path, old, new) or _is_shown_by_items(path, before, after):
            continue
        found.append(path)
    return found


def _is_spelling(path: KeyPath, old: object, new: object) -> bool:
    """True if two config values name the same class in different spelling."""
    if path[-1] != 'type' or old is _MISSING or new is _MISSING:
        return False
    return bare_name(old) == bare_name(new)


def _is_shown_by_items(path: KeyPath, before: FlatConfig, after: FlatConfig) -> bool:
    """True if the keys inside two config containers already show how they differ."""
    found = [config[path] for config in (before, after) if path in config]
    containers = [value for value in found if isinstance(value, Container)]
    if len(containers) < len(found):
        return False
    if len(containers) == 2:
        # a list in the place of a tuple
        are_lists = all(container.kind in _LISTS for container in containers)
        return are_lists and containers[0].size == containers[1].size
    holder = before if path in before else after
    count = len(path)
    has_items = any(len(key) > count and key[:count] == path for key in holder)
    return containers[0].kind == 'dict' and has_items


def _is_left_out(before: FlatConfig, after: FlatConfig, path: KeyPath) -> bool:
    if any(path[: len(outer)] == outer for outer in _NOT_TRAINED):
        return True
    hooks = _list_hooks(before, after, path)
    return bool(hooks) and all(name.endswith('CheckpointHook') for name in hooks)


def _list_hooks(before: FlatConfig, after: FlatConfig, path: KeyPath) -> set[str]:
    """Lists class names of the hooks that a config key belongs to, in either config."""
    old, new = (
        {
            _phrase_code(kind)
            for place, kind in config.items()
            if len(place) == 3 and place[-1] == 'type' and place[0] in _HOOKS
            if place[: len(path[:2])] == path[:2]
        }
        for config in (before, after)
    )
    # of two lists of hooks, those that one of them lacks
    return old ^ new if len(path) == 1 else old | new


def _name_work(path: KeyPath) -> str | None:
    if path[:2] == ('train_dataloader', 'dataset') and 'pipeline' in path:
        return 'pipeline'
    names = (_WORK.get(path[:count]) for count in (1, 2))
    return next((name for name in names if name), None)


def _phrase_all(config: FlatConfig, paths: list[KeyPath]) -> dict[str, SettingValue]:
    return {'.'.join(path): _phrase(config, path) for path in paths if path in config}


def _phrase(config: FlatConfig, path: KeyPath) -> SettingValue:
    """Returns a config value for display: plain values as they are, others as text."""
    value = config[path]
    if isinstance(value, Container):
        return _phrase_container(config, path, value)
    if type(value) in PLAIN:
        return value  # type: ignore[return-value]
    return _phrase_code(value)


def _phrase_container(config: FlatConfig, path: KeyPath, value: Container) -> str:
    if value.kind not in _LISTS:
        kind = config.get((*path, 'type'))
        return 'dict' if kind is None else bare_name(kind)
    items = [
        str(_phrase(config, (*path, str(index))))
        for index in range(value.size)
        if (*path, str(index)) in config
    ]
    return f'[{", ".join(items)}]'


def _phrase_code(value: object) -> str:
    """Returns a config value as text: of a class or function, the dotted name."""
    name = getattr(value, '__qualname__', None)
    if isinstance(value, str):
        return value
    if isinstance(name, str):
        return f'{getattr(value, "__module__", "")}.{name}'
    return short(value)
