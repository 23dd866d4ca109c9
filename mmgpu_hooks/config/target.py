"""Chooses where a rewritten config and its backup go. Reads, never writes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from mmgpu_hooks.config.outcome import RefusedError


def locate_target(
    source: Path, output: Path | None, in_place: bool, suffix: str, overlay: bool
) -> Path:
    """Names the file to write.

    A source ``x<suffix>.py`` with an ``x.py`` beside it is a copy of ours: it is
    written again.

    Raises:
        RefusedError: If it is no ``.py`` file in a folder, or something in the way of
            it is not a regular file, or is the source itself.
    """
    if in_place and output is not None:
        raise RefusedError(
            'expected either in_place or an output, found both; drop one'
        )
    if in_place and overlay:
        raise RefusedError(
            'expected either an overlay or an in-place edit, found both; drop one'
        )
    own = output is None and not overlay and _is_copy(source, suffix)
    if in_place or own:
        return source
    target = source.with_name(f'{source.stem}{suffix}.py')
    target = target if output is None else Path(output)
    if target.suffix != '.py':
        raise RefusedError(f'expected an output that ends in .py, found {target}')
    if not target.parent.is_dir():
        raise RefusedError(
            f'expected a folder at {target.parent}, found none; create it'
        )
    if not os.path.lexists(target):
        return target
    if not stat.S_ISREG(target.lstat().st_mode):
        raise RefusedError(
            f'expected a regular file or nothing at {target}, found a directory, '
            'link or device; choose another output'
        )
    if os.path.samefile(source, target):
        raise RefusedError(
            'expected an output beside the original, found the original '
            'itself; ask for an in-place rewrite'
        )
    return target


def _is_copy(source: Path, suffix: str) -> bool:
    stem = source.stem.removesuffix(suffix)
    return stem not in ('', source.stem) and source.with_name(f'{stem}.py').is_file()


def locate_backup(real: Path, raw: bytes) -> Path:
    """Names the backup; an earlier one with other content is never overwritten."""
    backup, number = real.with_name(f'{real.name}.bak'), 0
    while os.path.lexists(backup):
        if backup.is_file() and not backup.is_symlink() and backup.read_bytes() == raw:
            break
        number += 1
        backup = real.with_name(f'{real.name}.bak.{number}')
    return backup
