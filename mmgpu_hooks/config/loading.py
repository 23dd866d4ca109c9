"""Loads a config the way a training run would: the only importer of MMEngine.

Compares one with what a run was started with.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import threading
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from mmgpu_hooks.config.outcome import KeyPath

FlatConfig = dict[KeyPath, object]
"""Every value of a loaded config by its path, containers included."""

LOADERS = ('train_dataloader', 'val_dataloader', 'test_dataloader')

_LOCK = threading.RLock()
_PLAIN = (bool, int, float, str, type(None))


class Container(NamedTuple):
    """Stands in a :data:`FlatConfig` for a dict, list or tuple."""

    kind: str
    size: int
    """Number of items of a list or tuple; 0 for a dict."""


class LoadError(Exception):
    """MMEngine cannot load the file; the message is one line."""


def read_config(path: Path, contents: Mapping[Path, bytes] | None = None) -> FlatConfig:
    """Loads a config, bases merged, and flattens it.

    Loading executes the file, as MMEngine does; what it prints is dropped and
    its ``custom_imports`` are left alone.

    Args:
        path: The ``.py`` file.
        contents: What MMEngine is to read instead of these files, which need not
            exist; so an edit is proven before anything is written.

    Returns:
        Its values by path.

    Raises:
        LoadError: With MMEngine's reason folded into one line.
    """
    # What silences, and what supplies, is the same for all threads.
    with _LOCK, silence():
        try:
            from mmengine.config import Config

            with _supply(contents or {}):
                config = Config.fromfile(
                    os.path.abspath(path), import_custom_modules=False
                )
            loaded = config.to_dict(keep_imported=True)
        # A config is a program: whatever it raises, an exit included, is a reason.
        except (Exception, SystemExit) as error:
            raise LoadError(_fold(error)) from error
    return parse_flat(loaded)


def parse_flat(config: Mapping[str, Any]) -> FlatConfig:
    """Flattens nested dicts, lists and tuples into values by path."""
    return dict(_walk((), config))


def _walk(path: KeyPath, value: object) -> Iterator[tuple[KeyPath, object]]:
    if isinstance(value, dict):
        yield path, Container('dict', 0)
        for key, item in value.items():
            yield from _walk((*path, str(key)), item)
    elif isinstance(value, (list, tuple)):
        yield path, Container(type(value).__name__, len(value))
        for index, item in enumerate(value):
            yield from _walk((*path, str(index)), item)
    else:
        yield path, value


@contextlib.contextmanager
def _supply(contents: Mapping[Path, bytes]) -> Iterator[None]:
    """Lets MMEngine's config module read the given bytes for some paths.

    It opens files by the name ``open`` of its own module, so one put there is
    found before the built-in. If a version of MMEngine reads in another way, the
    loaded config lacks the edit, and the proof refuses it.
    """
    if not contents:
        yield
        return
    module: Any = importlib.import_module('mmengine.config.config')
    supplied = {os.path.realpath(path): raw for path, raw in contents.items()}
    check = module.check_file_exist

    def open_supplied(file: Any, mode: str = 'r', **options: Any) -> IO[Any]:
        raw = supplied.get(os.path.realpath(file))
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
    """Drop what foreign code prints, logs and warns of; for all threads."""
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


def _fold(error: BaseException) -> str:
    text = ' '.join(str(error).split())
    text = text if len(text) <= 300 else text[:297] + '...'
    name = type(error).__name__
    return f'{name}: {text}' if text else name


def read_drift(config: Path, copy: Path) -> str | None:
    """Compares the loaders of a config with the run's own copy, both loaded.

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
        is_plain = isinstance(old, _PLAIN) and isinstance(new, _PLAIN)
        return is_plain and old != new and path[0] in LOADERS and path[-1][:1] != '_'

    odd = [
        f'{".".join(path)} {_text(then.get(path))} -> {_text(now.get(path))}'
        for path in sorted({*now, *then} - {()})
        if differs(path)
    ]
    if not odd:
        return None
    more = f' and {len(odd) - 3} more' if len(odd) > 3 else ''
    return (
        f'{config} is not what the run was started with ({", ".join(odd[:3])}{more}): '
        'it was edited since, or --cfg-options were given.'
    )


def _text(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f'{text[:37]}...'
