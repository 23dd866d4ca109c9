"""Finds in a config what its training needs: data, work_dir, open files; no I/O."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.config.hook_arguments import HOOK_TYPE
from mmgpu_hooks.config.loading import KeyPath
from mmgpu_hooks.schema.checkup import MMENGINE_OPEN_FILES

_READ_IN_TRAINING = ('train_dataloader', 'val_dataloader', 'val_evaluator')
"""Config keys of the loaders and metrics whose data a training reads.

Data of the test's loader and evaluator are read by a test alone."""


class DataPlace(NamedTuple):
    """Path of a file or folder that a data set reads, and whether it is remote."""

    path: str
    is_remote: bool
    """True if the file or folder is read by another backend than the local disk's."""


def locate_work_dir(config: Mapping[str, Any], path: Path) -> str:
    """Returns the folder that a config's training writes to, as in ``tools/train.py``.

    Args:
        config: As loaded.
        path: Of the config.
    """
    return str(config.get('work_dir') or os.path.join('work_dirs', path.stem))


def locate_data(config: Mapping[str, Any]) -> list[DataPlace]:
    """Lists the annotation files and image folders that a config's training reads."""
    found: list[DataPlace] = []
    for name in _READ_IN_TRAINING:
        for part in _each_dict(config.get(name)):
            found += _list_paths(part)
    return list(dict.fromkeys(found))


def _each_dict(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the config dicts of data sets, wrapped ones too, or of metrics."""
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _each_dict(item)
    elif isinstance(value, Mapping):
        yield value
        for key in ('dataset', 'datasets', 'metrics'):
            yield from _each_dict(value.get(key))


def _list_paths(part: Mapping[str, Any]) -> Iterator[DataPlace]:
    root, prefix = _text(part.get('data_root')), part.get('data_prefix')
    folders = list(prefix.values()) if isinstance(prefix, Mapping) else [prefix]
    names = [name for name in map(_text, [part.get('ann_file'), *folders]) if name]
    if root and not names:
        names, root = [root], ''
    is_local = _is_local(part)
    for name in names:
        # as MMEngine joins them: what is absolute, or an address, stays
        path = name if '://' in name else os.path.join(root, name)
        yield DataPlace(path, is_remote=not is_local or '://' in path)


def _is_local(part: Mapping[str, Any]) -> bool:
    """True if the backend of a data set reads files of this host."""
    arguments = part.get('backend_args')
    backend = arguments.get('backend') if isinstance(arguments, Mapping) else None
    return backend in (None, 'local')


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ''


def read_open_files_limit(config: Mapping[str, Any]) -> int:
    """Returns the number of open files to which MMEngine raises a lower soft limit."""
    environment = config.get('env_cfg')
    limit = environment.get('resource_limit') if isinstance(environment, dict) else None
    if isinstance(limit, int) and 0 < limit < 2**63:
        return limit
    return MMENGINE_OPEN_FILES


def find_unregistered(config: Mapping[str, Any], place: KeyPath) -> bool:
    """True if MMEngine cannot resolve a config's ``type`` of GPUEfficiencyHook.

    A name without its package is known only after the package was imported.

    Args:
        config: As loaded.
        place: Of the hook, of `settings.find_hooks`.
    """
    node: Any = config
    for key in place:
        if isinstance(node, (list, tuple)):
            node = node[int(key)]
        else:
            # a key may be no text, or have a dot in it
            node = next(value for name, value in node.items() if str(name) == key)
    if node.get('type') != HOOK_TYPE.rpartition('.')[2]:
        return False
    imports = config.get('custom_imports')
    named = imports.get('imports') if isinstance(imports, Mapping) else imports
    listed = named if isinstance(named, (list, tuple)) else [named]
    return not any(str(name).partition('.')[0] == 'mmgpu_hooks' for name in listed)
