"""Reads the config that is to be rewritten."""

from __future__ import annotations

import codecs
import difflib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.config.outcome import RefusedError
from mmgpu_hooks.config.syntax import split_lines

_LIMIT_BYTES = 200_000
"""The longest config of MMDetection has 40 000 bytes; reading takes long beyond."""


@dataclass(frozen=True)
class SourceText:
    """A config as it is on disk."""

    raw: bytes
    """The bytes of the file."""

    status: os.stat_result
    """Mode and owner, of the file a symbolic link points to."""

    @property
    def text(self) -> str:
        """Its text, newlines untouched; MMEngine reads UTF-8 whatever it declares."""
        return self.raw.decode()


def read_source(path: Path) -> SourceText:
    """Reads a Python config.

    Raises:
        RefusedError: If it is missing, no regular ``.py`` file, unreadable, empty,
            not text, or not Python.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise RefusedError(
            f'expected a config file, found none ({render_error(error)}); '
            'check the path'
        ) from error
    if not stat.S_ISREG(status.st_mode):
        kind = 'a directory' if stat.S_ISDIR(status.st_mode) else 'a device or pipe'
        raise RefusedError(f'expected a config file, found {kind}; name a regular file')
    raw, found = b'', None
    if path.suffix != '.py':
        found = f'{path.suffix or "no suffix"!r}; change JSON and YAML by hand'
    elif status.st_size > _LIMIT_BYTES:
        found = f'{status.st_size // 1000} KB; name the config, not data'
    else:
        raw = path.read_bytes()
        if not raw.strip():
            found = 'an empty file; name another'
        elif b'\0' in raw:
            found = 'binary data; name another'
        elif raw.startswith(codecs.BOM_UTF8):
            found = (
                'that it starts with a byte-order mark, which MMEngine does not read; '
                'save it without'
            )
    if found is not None:
        raise RefusedError(
            f'expected a Python config (.py) of at most {_LIMIT_BYTES // 1000} KB, '
            f'found {found}'
        )
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise RefusedError(
            f'expected text in UTF-8, found other bytes ({render_error(error)}); save '
            'the file as UTF-8'
        ) from error
    return SourceText(raw, status)


def render_diff(before: str, after: str, source: Path, target: Path) -> str:
    """Renders a unified diff that ``patch -p0`` accepts, newlines untouched."""
    lines: list[str] = []
    old, new = split_lines(before), split_lines(after)
    for line in difflib.unified_diff(old, new, _name(source), _name(target)):
        ended = line.endswith(('\n', '\r'))
        lines.append(line if ended else f'{line}\n\\ No newline at end of file\n')
    return ''.join(lines)


def _name(path: Path) -> str:
    # patch refuses absolute names, and ends a name at a blank without the tab.
    relative = os.path.relpath(path)
    name = str(path) if relative.startswith(os.pardir) else relative
    return f'{name}\t' if re.search(r'\s', name) else name


def render_error(error: BaseException) -> str:
    """Folds an error of the operating system or a codec into a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return ' '.join(str(error).split())
