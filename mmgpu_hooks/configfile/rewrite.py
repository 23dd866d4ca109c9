"""Rewrites a config file: the only place in this room that writes.

Everything is proven on a short-lived hidden copy first; the target then appears
in one atomic step or not at all.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mmgpu_hooks.configfile.edit import edit_loader, edit_settings
from mmgpu_hooks.configfile.loading import (
    FlatConfig,
    LoadError,
    NoMMEngineError,
    read_config,
)
from mmgpu_hooks.configfile.outcome import REMOVE, RefusedError, RewriteOutcome, Setting
from mmgpu_hooks.configfile.source import (
    SourceText,
    parse_settings,
    read_source,
    render_diff,
    render_error,
)
from mmgpu_hooks.configfile.target import locate_backup, locate_target
from mmgpu_hooks.configfile.verify import (
    NONE_IS_ABSENT,
    is_held,
    verify_config,
    verify_loaders,
    verify_text,
)


@dataclass
class _Job:
    source: Path
    target: Path
    original: SourceText
    trial_name: str
    text: str | None = None
    diff: str = ''

    def sketch(self, changes: Mapping[str, Setting]) -> str:
        """Edits the text and keeps it, so that a refusal can show it too."""
        text = edit_settings(self.original.text, changes)
        if text != self.original.text:
            self.text = text
            self.diff = render_diff(self.original.text, text, self.source, self.target)
        return text


def rewrite_config(
    source: Path,
    settings: Mapping[str, Setting],
    *,
    output: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
) -> RewriteOutcome:
    """Changes dataloader settings of a config, proven by loading the result.

    The edit touches nothing else in the text, and in MMEngine's view of the
    loaded config nothing but the settings changes. Otherwise it is refused and
    nothing is written. Loading executes the config, as MMEngine does.

    Args:
        source: The ``.py`` config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``;
            ``REMOVE`` makes a key vanish.
        output: The file to write. Default: ``<stem>_recommended.py`` beside the
            source, where relative ``_base_`` paths stay valid.
        in_place: Edit the source itself and keep ``<name>.py.bak``.
        dry_run: Prove the edit, but leave no file behind.

    Returns:
        What came of it. Bad input is refused there, never raised.
    """
    source = Path(source)
    job: _Job | None = None
    try:
        # Parsing an old config may warn of its escape sequences.
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            original = read_source(source)
            wanted = parse_settings(settings)
            target = locate_target(source, output, in_place)
            # MMEngine fills file names into configs: every trial has the same.
            trial_name = f'.{source.stem}-{secrets.token_hex(4)}.py'
            job = _Job(source, target, original, trial_name)
            if not _prove(job, wanted):
                return RewriteOutcome('unchanged', source, None, None, '')
            backup = None if dry_run else _write(job, in_place)
        return RewriteOutcome(
            'rewritten', source, target, job.text, job.diff, backup=backup
        )
    except RefusedError as refusal:
        place = f'{source}:{refusal.line}' if refusal.line else f'{source}'
        reason = f'{place}: {refusal.reason}'
    except OSError as error:
        path = error.filename or source
        reason = f'{source}: nothing was written, {path}: {render_error(error)}'
    except RecursionError:
        reason = f'{source}: expected a config, found nesting too deep to edit'
    text, diff = (job.text, job.diff) if job else (None, '')
    return RewriteOutcome('refused', source, None, text, diff, reason)


def _prove(job: _Job, wanted: Mapping[str, Setting]) -> bool:
    """Makes the edit and proves it; ``False`` when everything holds already."""
    try:
        before = _read_original(job)
    except NoMMEngineError as error:
        job.sketch(wanted)
        raise RefusedError(
            f'expected MMEngine to prove the edit, cannot import it ({error}); '
            'install it, or apply the diff by hand'
        ) from error
    except LoadError as error:
        with contextlib.suppress(RefusedError):
            job.sketch(wanted)
        hint = '; it starts with a byte-order mark' if job.original.bom else ''
        raise RefusedError(
            f'expected a config that MMEngine loads, it does not ({error}){hint}; '
            'mend it, or run where its bases are'
        ) from error
    pending = {k: value for k, value in wanted.items() if not is_held(before, k, value)}
    if not pending:
        return False
    verify_loaders(before, pending)
    text, changes, after = _edit_proven(job, pending)
    reason = verify_config(before, after, changes) or _verify_steps(
        job.original.text, text, changes
    )
    if reason is None and edit_settings(text, changes) != text:
        reason = 'expected a second pass to change nothing, it does'
    if reason is not None:
        raise RefusedError(reason)
    return True


def _edit_proven(
    job: _Job, pending: Mapping[str, Setting]
) -> tuple[str, dict[str, Setting], FlatConfig]:
    changes = dict(pending)
    text = job.sketch(changes)
    after = _read_edited(job, text)
    kept = [
        k for k in changes if changes[k] is REMOVE and not is_held(after, k, REMOVE)
    ]
    for dotted in kept:
        if dotted.split('.')[1] not in NONE_IS_ABSENT:
            raise RefusedError(
                f'expected to remove {dotted}, but a base config sets it; '
                'give it another value, or change the base'
            )
        changes[dotted] = None
    if kept:
        text = job.sketch(changes)
        after = _read_edited(job, text)
    return text, changes, after


def _verify_steps(
    before: str, after: str, changes: Mapping[str, Setting]
) -> str | None:
    loaders: dict[str, dict[str, Setting]] = {}
    for dotted, value in changes.items():
        loader, key = dotted.split('.')
        loaders.setdefault(loader, {})[key] = value
    text = before
    for loader, values in loaders.items():
        step = edit_loader(text, loader, values)
        removed = REMOVE in values.values()
        reason = verify_text(text, step, loader, values.keys(), removed)
        if reason is not None:
            return reason
        text = step
    return None if text == after else 'expected the same edit twice, it differs'


def _read_original(job: _Job) -> FlatConfig:
    try:
        return _read_trial(job, job.source, job.original.raw)
    except RefusedError:
        # A read-only folder is no obstacle when the output goes elsewhere.
        return read_config(Path(os.path.abspath(job.source)))


def _read_edited(job: _Job, text: str) -> FlatConfig:
    try:
        return _read_trial(job, job.target, job.original.encode(text))
    except LoadError as error:
        hint = 'change the settings by hand'
        if not os.path.samefile(job.target.parent, job.source.parent):
            hint = 'relative bases do not resolve there, write it beside the original'
        raise RefusedError(
            f'expected the result to load from {job.target.parent}, it does not '
            f'({error}); {hint}'
        ) from error


def _read_trial(job: _Job, beside: Path, content: bytes) -> FlatConfig:
    """Loads a content from a hidden file beside a path, and removes the file."""
    trial = Path(os.path.abspath(beside)).with_name(job.trial_name)
    try:
        stream = trial.open('xb')
    except OSError as error:
        raise RefusedError(
            f'expected a folder to write in, {trial.parent} is not '
            f'({render_error(error)}); choose another output'
        ) from error
    try:
        with stream:
            stream.write(content)
        return read_config(trial)
    except LoadError as error:
        # The hidden name means nothing to the reader.
        raise type(error)(str(error).replace(trial.name, beside.name)) from error
    finally:
        trial.unlink()


def _write(job: _Job, in_place: bool) -> Path | None:
    assert job.text is not None
    content = job.original.encode(job.text)
    if not in_place:
        return _write_beside(job, content)
    real = job.source.resolve()
    if real.read_bytes() != job.original.raw:
        raise RefusedError(
            'expected the config to stay as it was, it changed meanwhile; run again'
        )
    backup = locate_backup(real, job.original.raw)
    fresh = not backup.exists()
    _write_atomic(backup, job.original.raw, job.original.status)
    try:
        _write_atomic(real, content, job.original.status)
    except BaseException:
        if fresh:
            backup.unlink()
        raise
    return backup


def _write_beside(job: _Job, content: bytes) -> Path | None:
    """Writes the copy; one that says otherwise may be hand-made, and is kept."""
    target, backup = job.target, None
    old = target.read_bytes() if target.exists() else content
    if old != content:
        backup = locate_backup(target, old)
        _write_atomic(backup, old, target.stat())
    _write_atomic(target, content, job.original.status)
    return backup


def _write_atomic(path: Path, content: bytes, like: os.stat_result) -> None:
    """Puts a whole file in place in one step, with the mode of another."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f'.{path.stem}-')
    try:
        with os.fdopen(handle, 'wb') as stream:
            stream.write(content)
            stream.flush()
            # Only root may keep a foreign owner; others own what they write.
            with contextlib.suppress(PermissionError):
                os.chown(name, like.st_uid, like.st_gid)
            os.chmod(name, stat.S_IMODE(like.st_mode))
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
