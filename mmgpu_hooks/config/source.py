"""Reads the config that is to be rewritten."""

from __future__ import annotations

import ast
import codecs
import difflib
import io
import os
import re
import stat
import tokenize
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.config.outcome import RefusedError

_LIMIT_BYTES = 200_000
"""The longest config of MMDetection has 40 000 bytes; reading takes long beyond."""


@dataclass(frozen=True)
class SourceText:
    """A config as it is on disk."""

    raw: bytes
    """The bytes of the file."""

    text: str
    """Its text, newlines untouched, without a byte-order mark."""

    encoding: str
    """Encoding by byte-order mark, PEP 263 cookie, or UTF-8."""

    bom: bytes
    """The byte-order mark, mostly empty."""

    status: os.stat_result
    """Mode and owner, of the file a symbolic link points to."""

    def encode(self, text: str) -> bytes:
        """Encodes another text the way the file is encoded."""
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise RefusedError(
                f'expected settings that {self.encoding} can hold, found '
                f'{error.object[error.start : error.end]!r}; save the file as UTF-8'
            ) from error


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
    if stat.S_ISDIR(status.st_mode):
        raise RefusedError(
            'expected a config file, found a directory; name a file in it'
        )
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError(
            'expected a regular file, found a device or pipe; copy it first'
        )
    if path.suffix != '.py':
        raise RefusedError(
            f'expected a Python config (.py), found {path.suffix or "no suffix"!r}; '
            'JSON and YAML configs are to be changed by hand'
        )
    if status.st_size > _LIMIT_BYTES:
        raise RefusedError(
            f'expected a config of at most {_LIMIT_BYTES // 1000} KB, found '
            f'{status.st_size // 1000} KB; name the config, not data'
        )
    raw = path.read_bytes()
    if not raw.strip():
        raise RefusedError('expected a config, found an empty file; name the right one')
    if b'\0' in raw:
        raise RefusedError(
            'expected a text file, found binary data; name the right one'
        )
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise RefusedError(
            f'expected text in the declared encoding, found other bytes '
            f'({render_error(error)}); save the file as UTF-8'
        ) from error
    bom = codecs.BOM_UTF8 if encoding == 'utf-8-sig' else b''
    encoding = 'utf-8' if bom else encoding
    _check_syntax(text)
    return SourceText(raw, text, encoding, bom, status)


def _check_syntax(text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as error:
        raise RefusedError(
            f'expected valid Python, found a syntax error ({error.msg}); mend it first',
            error.lineno,
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise RefusedError(
            f'expected valid Python, it cannot be parsed ({render_error(error)})'
        ) from error


def render_diff(before: str, after: str, source: Path, target: Path) -> str:
    """Renders a unified diff that ``patch -p0`` accepts, newlines untouched.

    Without a text before, it creates the target, and the source is not named.
    """
    lines: list[str] = []
    old, new = _split_lines(before), _split_lines(after)
    names = _name(source) if before else os.devnull, _name(target)
    for line in difflib.unified_diff(old, new, *names):
        ended = line.endswith(('\n', '\r'))
        lines.append(line if ended else f'{line}\n\\ No newline at end of file\n')
    return ''.join(lines)


def _name(path: Path) -> str:
    # patch refuses absolute names, and ends a name at a blank without the tab.
    relative = os.path.relpath(path)
    name = str(path) if relative.startswith(os.pardir) else relative
    return f'{name}\t' if re.search(r'\s', name) else name


def _split_lines(text: str) -> list[str]:
    # str.splitlines would also split at form feeds and Unicode separators.
    return re.findall(r'[^\r\n]*(?:\r\n|\n|\r)|[^\r\n]+\Z', text)


def render_error(error: BaseException) -> str:
    """Folds an error of the operating system or a codec into a few words."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return ' '.join(str(error).split())
