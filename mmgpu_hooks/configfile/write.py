"""Writes a proven config: in one atomic step, or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from mmgpu_hooks.configfile.outcome import RefusedError
from mmgpu_hooks.configfile.source import SourceText
from mmgpu_hooks.configfile.target import locate_backup


def write_config(
    path: Path, original: SourceText, target: Path, content: bytes
) -> Path | None:
    """Writes the new content of a config.

    Args:
        path: The config that was edited.
        original: What it held when the edit was made.
        target: The file to write; ``path`` itself for an edit in place.
        content: The new bytes.

    Returns:
        The backup of what was overwritten, if that had other content.

    Raises:
        RefusedError: If the config is not what it was.
        OSError: If something cannot be written; then nothing has changed.
    """
    if path.read_bytes() != original.raw:
        raise RefusedError(
            'expected the config to stay as it was, it changed meanwhile; run again'
        )
    if target != path:
        return _write_beside(target, original, content)
    real = path.resolve()
    backup = locate_backup(real, original.raw)
    fresh = not backup.exists()
    write_atomic(backup, original.raw, original.status)
    try:
        write_atomic(real, content, original.status)
    except BaseException:
        if fresh:
            backup.unlink()
        raise
    return backup


def _write_beside(target: Path, original: SourceText, content: bytes) -> Path | None:
    """Writes the copy; one that says otherwise may be hand-made, and is kept."""
    backup = None
    old = target.read_bytes() if target.exists() else content
    if old != content:
        backup = locate_backup(target, old)
        write_atomic(backup, old, target.stat())
    write_atomic(target, content, original.status)
    return backup


def write_atomic(
    path: Path, content: bytes, like: os.stat_result | None = None
) -> None:
    """Puts a whole file in place in one step.

    Args:
        path: The file; its folder must be there.
        content: All of it.
        like: Of the file whose mode and group it takes. Defaults to what the process
            gives a new file.

    Raises:
        OSError: If it cannot be written; then nothing has changed.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.stem}-')
    try:
        with os.fdopen(handle, 'wb') as stream:
            stream.write(content)
            stream.flush()
            if like is None:
                os.umask(umask := os.umask(0))
                os.chmod(name, 0o666 & ~umask)
            else:
                # Only root may keep a foreign owner; others own what they write.
                with contextlib.suppress(PermissionError):
                    os.chown(name, like.st_uid, like.st_gid)
                os.chmod(name, stat.S_IMODE(like.st_mode))
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
