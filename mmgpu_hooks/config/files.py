"""Reads config files, and writes them atomically with a backup."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import errno
import os
import re
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.config.loading import RefusedError
from mmgpu_hooks.config.syntax import split_lines
from mmgpu_hooks.schema.text import phrase

_LIMIT_BYTES = 200_000
"""Largest size in bytes of a config file that is still read.

MMDetection's longest has 40 000 bytes, and reading takes long beyond."""


def verify_source(path: Path) -> os.stat_result:
    """Raises a `RefusedError` if a path cannot be a Python config; does not open it.

    Returns:
        The status of the file a symbolic link points to.

    Raises:
        RefusedError: If it is missing, or no regular ``.py`` file of a config's size.
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise RefusedError(
            phrase(
                'expected a config file, found none ({error}); check the path',
                error=render_error(error),
            )
        ) from error
    found = None
    if not stat.S_ISREG(status.st_mode):
        found = phrase('a directory, device or pipe; name a regular file')
    elif path.suffix != '.py':
        found = phrase(
            '{suffix!r}; change JSON and YAML by hand',
            suffix=path.suffix or phrase('no suffix'),
        )
    elif status.st_size > _LIMIT_BYTES:
        found = phrase('{kb} KB; name the config, not data', kb=status.st_size // 1000)
    if found is not None:
        raise _refuse_source(found)
    return status


class SourceFile(NamedTuple):
    """Content and file status of a config when it was read."""

    content: bytes
    status: os.stat_result
    """Result of ``os.stat`` on the config file, with symbolic links followed."""

    @property
    def text(self) -> str:
        """Text of the config file, which is UTF-8."""
        return self.content.decode()


def read_source(path: Path) -> SourceFile:
    """Reads a Python config as UTF-8, as MMEngine does, whatever encoding it declares.

    Raises:
        RefusedError: If it is no regular ``.py`` file, unreadable or not text.
    """
    status = verify_source(path)
    raw, found = path.read_bytes(), None
    if raw.startswith(codecs.BOM_UTF8):
        found = phrase(
            'a byte-order mark, which MMEngine does not read; save it without'
        )
    elif raw.decode(errors='ignore').encode() != raw:
        found = phrase('other bytes; save it as UTF-8')
    if found is not None:
        raise _refuse_source(found)
    return SourceFile(raw, status)


def _refuse_source(found: str) -> RefusedError:
    return RefusedError(
        phrase(
            'expected a Python config (.py) in UTF-8 of at most {kb} KB, found {found}',
            kb=_LIMIT_BYTES // 1000,
            found=found,
        )
    )


def render_diff(before: str, after: str, source: Path, target: Path) -> str:
    """Returns a config's old and new text as a unified diff for ``patch -p0``."""
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
    """Returns a few words on an error of the operating system or of decoding."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return ' '.join(str(error).split())


def locate_target(
    source: Path, output: Path | None, in_place: bool, suffix: str
) -> Path:
    """Returns the path of the file that a config rewrite is to write.

    A source ``x<suffix>.py`` with an ``x.py`` beside it is a copy of ours: it is
    written again.

    Raises:
        RefusedError: If it is no ``.py`` file in a folder, or something in the way of
            it is not a regular file, or is the source itself.
    """
    if in_place and output is not None:
        raise RefusedError(
            phrase('expected either in_place or an output, found both; drop one')
        )
    if in_place or (output is None and _is_copy(source, suffix)):
        return source
    target = source.with_name(f'{source.stem}{suffix}.py')
    target = target if output is None else Path(output)
    if target.suffix != '.py':
        raise RefusedError(
            phrase('expected an output that ends in .py, found {target}', target=target)
        )
    if not target.parent.is_dir():
        raise RefusedError(
            phrase(
                'expected a folder at {parent}, found none; create it',
                parent=target.parent,
            )
        )
    verify_output(target)
    if target.exists() and os.path.samefile(source, target):
        raise RefusedError(
            phrase(
                'expected an output beside the original, found the original '
                'itself; ask for an in-place rewrite'
            )
        )
    return target


def _is_copy(source: Path, suffix: str) -> bool:
    stem = source.stem.removesuffix(suffix)
    return stem not in ('', source.stem) and source.with_name(f'{stem}.py').is_file()


def locate_real(source: Path, target: Path) -> Path:
    """Returns the file that a config rewrite replaces, symbolic links followed."""
    return source.resolve() if target == source else target


def locate_backup(real: Path, raw: bytes) -> Path:
    """Returns a free path for a config's backup, so that no older backup is lost."""
    backup, number = real.with_name(f'{real.name}.bak'), 0
    while os.path.lexists(backup):
        if backup.is_file() and not backup.is_symlink() and backup.read_bytes() == raw:
            break
        number += 1
        backup = real.with_name(f'{real.name}.bak.{number}')
    return backup


def write_config(
    path: Path, original: SourceFile, target: Path, content: bytes
) -> Path | None:
    """Writes a config's new content, unless the file changed since it was read.

    Args:
        path: The config that was edited.
        original: Of :func:`read_source`, when the edit was made.
        target: The file to write; ``path`` itself for an edit in place.
        content: The new bytes.

    Returns:
        The backup of what was overwritten, if that had other content.

    Raises:
        RefusedError: If the config is not what it was.
        OSError: If something cannot be written; then nothing has changed.
    """
    if path.read_bytes() != original.content:
        raise RefusedError(
            phrase(
                'expected the config to stay as it was, it changed meanwhile; run again'
            )
        )
    return replace_config(locate_real(path, target), content, original.status)


def replace_config(
    path: Path, content: bytes, like: os.stat_result | None = None
) -> Path | None:
    """Writes a config file, and keeps a backup of its old content if that differs.

    Args:
        path: The file to write, which need not be there.
        content: The new bytes.
        like: As :func:`write_atomic` takes it.

    Returns:
        The backup of what was overwritten, if that had other content.

    Raises:
        OSError: If something cannot be written; then nothing has changed.
    """
    verify_output(path)  # before a backup is made of it
    # what says otherwise, a copy too, may be hand-made, and is kept
    old = path.read_bytes() if path.exists() else content
    backup = locate_backup(path, old) if old != content else None
    fresh = backup is not None and not backup.exists()
    if backup is not None:
        write_atomic(backup, old, path.stat())
    try:
        write_atomic(path, content, like)
    except BaseException:
        if backup is not None and fresh:
            backup.unlink()
        raise
    return backup


def verify_output(path: Path) -> None:
    """Raises an `OSError` if a folder, link, device or read-only file is at a path.

    Raises:
        OSError: If something else than a regular file is there, or it is read-only.
    """
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        found = phrase('a folder, link, device or pipe in the place of a file')
        raise FileExistsError(errno.EEXIST, found, str(path))
    # root may write to every file, and a file in a folder of ours can be replaced
    if not mode & 0o222 or not os.access(path, os.W_OK):
        found = phrase('a read-only file (mode {mode:04o})', mode=stat.S_IMODE(mode))
        raise PermissionError(errno.EACCES, found, str(path))


def write_atomic(
    path: Path, content: bytes, like: os.stat_result | None = None
) -> None:
    """Writes a file atomically: to a temporary file that is then renamed.

    The writer of every output.

    Args:
        path: The file; its folder must be there.
        content: All of it.
        like: Of the file whose mode and group it takes. Defaults to what the process
            gives a new file.

    Raises:
        OSError: If it cannot be written; then nothing has changed.
    """
    verify_output(path)
    handle, name = tempfile.mkstemp('.mmgpu', f'.{path.name}-', dir=path.parent)
    try:
        with os.fdopen(handle, 'wb') as stream:
            stream.write(content)
            stream.flush()
            if like is None:
                os.umask(umask := os.umask(0))
                os.chmod(name, 0o666 & ~umask)
            else:
                # Only root may keep a foreign owner; others own what they write, and
                # Windows has no such call.
                with contextlib.suppress(PermissionError, AttributeError):
                    os.chown(name, like.st_uid, like.st_gid)
                # a copy of a read-only config is written again one day
                os.chmod(name, stat.S_IMODE(like.st_mode) | stat.S_IWUSR)
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
