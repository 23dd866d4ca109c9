"""Loads configs by MMEngine, and compares and checks the loaded values.

Compares two that are loaded: with what a run was started with, and to prove that a
rewrite changed what was asked for.

The proof of a rewrite gives MMEngine the new text. During a load, the name ``open`` in
MMEngine's config module returns the edited text in place of the file. So nothing is
written before it is proven, read-only folders are no obstacle, and a killed proof
leaves nothing behind. A version of MMEngine that read in another way would not see the
edit, and the proof would refuse it.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import re
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from reprlib import repr as short
from typing import IO, Any, NamedTuple, Union

from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import Text, phrase

KeyPath = tuple[str, ...]
"""Type: keys from a config's top-level name down to a value; list indices as digits."""

SettingValue = Union[bool, int, float, str, None]
"""Type of the values that a config setting may be changed to."""

FlatConfig = dict[KeyPath, object]
"""Type: values of a loaded config, containers included, by key path."""

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')

_LOCK = threading.RLock()
PLAIN = (bool, int, float, str, type(None))
"""Types of a config's plain values: bool, int, float, str and None."""


class Container(NamedTuple):
    """Placeholder for a dict, list or tuple in a flattened config."""

    kind: str
    size: int
    """Number of items of a list or tuple; 0 for a dict."""


class RefusedError(UserError):
    """Raised when a config cannot be rewritten safely; the message is for the user.

    Inside this package only.

    Args:
        reason: What was expected, what was found, what to do.
        line: Line of the config the reason is about, from 1.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.line = line


class LoadError(Exception):
    """Raised when MMEngine cannot load a config; the message is one line."""


def expect_file(path: Path) -> None:
    """Raises a `UserError` if the path of a config is not a file."""
    if not path.is_file():
        found = phrase('a folder') if path.is_dir() else phrase('nothing there')
        raise UserError(
            phrase(
                '{path}: expected a config file, found {found}.', path=path, found=found
            )
        )


def import_mmengine() -> None:
    """Imports MMEngine's config module in advance, as the import takes seconds.

    Where it cannot be imported nothing is said: loading a config says why.
    """
    with _LOCK, silence(), contextlib.suppress(Exception):
        importlib.import_module('mmengine.config')


def read_config(
    path: Path,
    contents: Mapping[Path, bytes] | None = None,
    changes: Mapping[str, SettingValue] | None = None,
) -> FlatConfig:
    """Loads a config, bases merged, and flattens it to values by key path.

    Loading executes the file, as MMEngine does; what it prints is dropped and
    its ``custom_imports`` are left alone.

    Args:
        path: The ``.py`` file.
        contents: What MMEngine is to read instead of these files, which need not
            exist; so an edit is proven before anything is written.
        changes: Values by dotted key that MMEngine merges into it, as it does with
            ``--cfg-options``.

    Returns:
        Its values by path.

    Raises:
        LoadError: With MMEngine's reason in one line.
    """
    return parse_flat(load_config(path, contents, changes))


def load_config(
    path: Path,
    contents: Mapping[Path, bytes] | None = None,
    changes: Mapping[str, SettingValue] | None = None,
    opened: list[Path] | None = None,
) -> dict[str, Any]:
    """Loads a config with its bases merged; returns nested values.

    Args:
        path: The config.
        contents: What MMEngine is to read instead of these files.
        changes: Values by dotted key that MMEngine merges into it.
        opened: Filled with the files that MMEngine reads, in order: the config, and
            each base before its own bases.

    Raises:
        LoadError: With MMEngine's reason in one line.
    """
    # What silences, and what supplies, is the same for all threads.
    with _LOCK, silence():
        try:
            from mmengine.config import Config

            with _supply(contents or {}, opened):
                config = Config.fromfile(
                    os.path.abspath(path), import_custom_modules=False
                )
            if changes:
                config.merge_from_dict(dict(changes))
            loaded: dict[str, Any] = config.to_dict(keep_imported=True)
        except KeyboardInterrupt:
            raise
        # A config is a program: whatever it raises, an exit included, is a reason.
        except BaseException as error:
            raise LoadError(_phrase(error)) from error
    return loaded


def parse_flat(config: Mapping[str, Any]) -> FlatConfig:
    """Flattens nested dicts, lists and tuples to a mapping from key path to value."""
    return dict(_walk((), config))


def _find_names(path: KeyPath, value: object) -> list[str]:
    """Lists the names in GPUEfficiencyHook's argument ``optimize``; empty if none."""
    is_ours = path[:1] in (('default_hooks',), ('custom_hooks',)) and path[2:] == (
        'optimize',
    )
    if not is_ours or not isinstance(value, (list, tuple)):
        return []
    names = [name for name in value if isinstance(name, str)]
    return names if len(names) == len(value) else []


def _walk(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, dict):
        yield path, Container('dict', 0)
        for key, item in value.items():
            yield from _walk((*path, str(key)), item)
    elif names := _find_names(path, value):
        # the same as one string: so a command line gives it
        yield path, ','.join(names)
    elif isinstance(value, (list, tuple)):
        yield path, Container(type(value).__name__, len(value))
        for index, item in enumerate(value):
            yield from _walk((*path, str(index)), item)
    else:
        yield path, value


@contextlib.contextmanager
def _supply(
    contents: Mapping[Path, bytes], opened: list[Path] | None = None
) -> Iterator[None]:
    """Context in which MMEngine's config module reads given bytes in place of files.

    It opens files by the name ``open`` of its own module, so one put there is
    found before the built-in. If a version of MMEngine reads in another way, the
    loaded config lacks the edit, and the proof refuses it. The path of each file that
    it reads goes to ``opened``.
    """
    if not contents and opened is None:
        yield
        return
    module: Any = importlib.import_module('mmengine.config.config')
    supplied = {os.path.realpath(path): raw for path, raw in contents.items()}
    check = module.check_file_exist

    def open_supplied(file: Any, mode: str = 'r', **options: Any) -> IO[Any]:
        raw = supplied.get(os.path.realpath(file))
        if opened is not None and mode == 'r':
            opened.append(Path(file))
        if raw is None or mode != 'r':
            # the caller closes it
            return open(file, mode, **options)
        return io.TextIOWrapper(io.BytesIO(raw), **options)

    def check_supplied(file: str, *rest: Any) -> None:
        if os.path.realpath(file) not in supplied:
            check(file, *rest)

    module.open = open_supplied
    module.check_file_exist = check_supplied
    try:
        yield
    finally:
        del module.open
        module.check_file_exist = check


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Context that suppresses prints, log messages and warnings in all threads."""
    disabled = logging.root.manager.disable
    sink = io.StringIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(sink):
        warnings.simplefilter('ignore')
        logging.disable(logging.CRITICAL)
        try:
            with contextlib.redirect_stderr(sink):
                yield
        finally:
            logging.disable(disabled)


def _phrase(error: BaseException) -> str:
    text = ' '.join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + '...'
    name = type(error).__name__
    return f'{name}: {text}' if text else name


def read_drift(config: Path, copy: Path) -> Text | None:
    """Phrases how a config's DataLoaders differ from those in a run's copy of it.

    Args:
        config: The config as it is on disk now.
        copy: The flattened copy in the run's folder.

    Returns:
        A sentence on what differs; ``None`` if nothing does or one does not load.
    """
    try:
        now, then = read_config(config), read_config(copy)
    except LoadError:
        return None

    def differs(path: KeyPath) -> bool:
        old, new = then.get(path), now.get(path)
        # a dump spells types and tuples in its own way; plain values it keeps
        is_plain = isinstance(old, PLAIN) and isinstance(new, PLAIN)
        return is_plain and old != new and path[0] in LOADERS and path[-1][:1] != '_'

    odd = [
        f'{".".join(path)} {short(then.get(path))} -> {short(now.get(path))}'
        for path in sorted({*now, *then} - {()})
        if differs(path)
    ]
    if not odd:
        return None
    facts = {'config': str(config), 'differences': tuple(odd[:3])}
    if len(odd) > 3:
        return phrase(
            '{config} is not what the run was started with ({differences} and {more} '
            'more): it was edited since, or --cfg-options were given.',
            more=len(odd) - 3,
            **facts,
        )
    return phrase(
        '{config} is not what the run was started with ({differences}): it was edited '
        'since, or --cfg-options were given.',
        **facts,
    )


def bare_name(kind: object) -> str:
    """Returns a class's name without its module, given the class or its name.

    Args:
        kind: The class, or its name.
    """
    name = kind if isinstance(kind, str) else getattr(kind, '__name__', kind)
    return str(name).rpartition('.')[2]


def is_held(config: FlatConfig, dotted: str, value: SettingValue) -> bool:
    """True if a setting in a loaded config has the given value, of the same type."""
    path = tuple(dotted.split('.'))
    return path in config and is_same(config[path], value)


def check_edit(
    before: FlatConfig,
    after: FlatConfig,
    settings: Mapping[str, SettingValue],
    others: Iterable[str] = (),
) -> str | None:
    """Returns why an edit did not change exactly the asked settings, or ``None``.

    Args:
        before: Without the edit.
        after: With it.
        settings: What it is to have set.
        others: Keys that may differ, too, as their edit is still to come.

    Returns:
        ``None`` if exactly the asked settings differ, else what is wrong.
    """
    missed = [key for key, value in settings.items() if not is_held(after, key, value)]
    if missed:
        return phrase(
            'expected the edit to set {key}, MMEngine loads another value; something '
            'later in the file overrides it',
            key=missed[0],
        )
    asked = [
        tuple(dotted.split('.')) for dotted in {**settings, **dict.fromkeys(others)}
    ]
    # The first setting of a dict brings the dict.
    parents = {path[:count] for path in asked for count in range(1, len(path))}
    fresh = {path for path in parents if (path in before) != (path in after)}
    changed = [
        path
        for path in list_differences(before, after)
        if path not in fresh and not any(path[: len(key)] == key for key in asked)
    ]
    if changed:
        facts = {'keys': tuple(sorted(settings)), 'other': '.'.join(changed[0])}
        if len(changed) > 1:
            return phrase(
                'expected only {keys} to change, but {other} would change too (and '
                '{more} more); change the settings by hand',
                more=len(changed) - 1,
                **facts,
            )
        return phrase(
            'expected only {keys} to change, but {other} would change too; change the '
            'settings by hand',
            **facts,
        )
    return None


def list_differences(before: FlatConfig, after: FlatConfig) -> list[KeyPath]:
    """Lists the key paths at which two loaded configs differ."""
    return [
        path
        for path in sorted({*before, *after})
        if not (path in before and path in after)
        or not is_same(before[path], after[path])
    ]


def is_same(left: object, right: object) -> bool:
    """True if two values of loaded configs have equal type and content."""
    if left is right:
        return True
    if type(left) is not type(right):
        return False
    if hasattr(left, '__qualname__'):
        return _identity(left) == _identity(right)
    # a config may hold arrays, whose comparison raises
    with contextlib.suppress(Exception):
        if bool(left == right):
            return True
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
