"""Rewrites a config file: the functions that scripts and commands call.

Everything is proven in memory first; the target then appears in one atomic step
or not at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from mmgpu_hooks.config.edits import INHERIT, REBIND, edit_settings
from mmgpu_hooks.config.files import (
    locate_target,
    read_source,
    render_diff,
    render_error,
    write_config,
)
from mmgpu_hooks.config.loading import (
    FlatConfig,
    LoadError,
    RefusedError,
    Setting,
    check_edit,
    is_held,
    read_config,
)
from mmgpu_hooks.config.settings import (
    complete_settings,
    describe_recipe,
    enabling_settings,
    parse_settings,
    render_options,
    verify_changes,
)
from mmgpu_hooks.config.syntax import Module

SUFFIX: Final = '_recommended'
"""What the name of a rewritten copy ends in."""


@dataclass(frozen=True)
class Options:
    """Where a rewrite goes; see ``rewrite_config``."""

    output: Path | None = None
    in_place: bool = False
    dry_run: bool = False
    suffix: str = SUFFIX


@dataclass(frozen=True)
class RewriteOutcome:
    """The result of one rewrite; a config that cannot be rewritten is one, too."""

    status: Literal['rewritten', 'unchanged', 'refused']
    """``unchanged``: every setting already holds in the loaded config."""

    source: Path
    """The config that was read, as the caller named it."""

    target: Path | None = None
    """The file written (in a dry run: that would be), ``None`` if there is none."""

    text: str | None = None
    """The whole new text without a byte-order mark, ``None`` if no edit was made."""

    diff: str = ''
    """Unified diff from source to target, empty without an edit."""

    reason: str | None = None
    """Why it was refused, in one sentence."""

    backup: Path | None = None
    """The copy kept of what was overwritten, when that had other content."""

    changes: Mapping[str, Setting] = field(default_factory=dict)
    """What the edit sets, by dotted key: what was asked and what that entails."""

    notes: tuple[str, ...] = ()
    """What the reader should know about the edit, a sentence each."""

    cfg_options: str | None = None
    """The same as an argument of ``tools/train.py`` over the original, quoted for a
    shell; ``None`` where nothing changes."""

    proven: bool = False
    """Whether MMEngine loaded the result and only the changes differed."""


_Choose = Callable[[FlatConfig], Mapping[str, Setting]]
"""What to set in the loaded config."""


def rewrite_config(
    source: Path,
    settings: Mapping[str, Setting],
    *,
    output: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    suffix: str = SUFFIX,
) -> RewriteOutcome:
    """Changes settings of a config, proven by loading the result.

    The edit touches nothing else in the text. In the config as MMEngine loads it only
    the settings change, and a variable that holds one of them where nothing else uses
    it. Otherwise it is refused and nothing is written.
    Loading executes the config, as MMEngine does; the edit never does.

    Args:
        source: The ``.py`` config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
            Besides keys of the three dataloaders: arguments of our hook.
        output: The file to write. Default: ``<stem><suffix>.py`` beside the source,
            where relative bases stay valid.
        in_place: Edit the source itself and keep ``<name>.py.bak``.
        dry_run: Prove the edit, but write nothing.
        suffix: What the name of a copy ends in; a source that ends so already, with
            the original beside it, is edited in place.

    Returns:
        What came of it. What cannot be rewritten is refused there, never raised.

    Example:
        >>> outcome = rewrite_config(
        ...     Path('configs/mine.py'),
        ...     {'train_dataloader.num_workers': 8},
        ...     dry_run=True,
        ... )
        >>> outcome.status, outcome.diff, outcome.reason
    """
    options = Options(output, in_place, dry_run, suffix)
    return _rewrite(source, lambda before: parse_settings(settings), options)


def enable_hook(source: Path, options: Options) -> RewriteOutcome:
    """Adds ``GPUEfficiencyHook`` to a config, and drops no other hook.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, enabling_settings, options)


def _rewrite(source: Path, choose: _Choose, options: Options) -> RewriteOutcome:
    source = Path(source)
    try:
        # parsing an old config may warn of its escape sequences
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return _prove_and_write(source, choose, options)
    except RefusedError as refusal:
        place = f'{source}:{refusal.line}' if refusal.line else f'{source}'
        reason = f'{place}: {refusal}'
    except OSError as error:
        path = error.filename or source
        reason = f'{source}: nothing was written, {path}: {render_error(error)}'
    except RecursionError:
        reason = f'{source}: expected a config, found nesting too deep to edit'
    return RewriteOutcome('refused', source, reason=reason)


def _prove_and_write(source: Path, choose: _Choose, options: Options) -> RewriteOutcome:
    original = read_source(source)
    text = original[0].decode()
    target = locate_target(source, options.output, options.in_place, options.suffix)
    job = _Job(source, target, Module(text), text)
    job.prove(choose)
    if job.text == text:
        return RewriteOutcome('unchanged', source, proven=True)
    backup = None
    if not options.dry_run:
        backup = write_config(source, original, target, job.text.encode())
    return RewriteOutcome(
        'rewritten',
        source,
        target,
        job.text,
        render_diff(text, job.text, source, target),
        backup=backup,
        changes=job.changes,
        notes=tuple(dict.fromkeys(job.notes)),
        cfg_options=render_options(job.changes),
        proven=True,
    )


class _NotOnlyError(RefusedError):
    """The edit is sound, but the loaded config shows more or less than was asked."""


@dataclass
class _Job:
    """One rewrite under way: edits and their proof. Writes nothing."""

    source: Path
    target: Path
    original: Module
    text: str
    """As it is after the edits so far."""

    changes: dict[str, Setting] = field(default_factory=dict)
    done: dict[str, Setting] = field(default_factory=dict)
    """The changes so far, and the variables that were changed in their place."""
    notes: list[str] = field(default_factory=list)

    def prove(self, choose: _Choose) -> None:
        """Makes the edits, and proves each by loading the result.

        Raises:
            RefusedError: If one cannot be made, or its proof fails.
        """
        try:
            before = after = read_config(self.source)
        except LoadError as error:
            raise RefusedError(
                f'expected a config that MMEngine loads, it does not ({error}); '
                'mend it, or run where MMEngine and its bases are'
            ) from error
        settings = complete_settings(before, choose(before))
        self.changes = {
            key: value
            for key, value in settings.items()
            if not is_held(before, key, value)
        }
        verify_changes(before, self.changes)
        for group in self._group():
            # a name may stand for the dict that an edit before this one changed
            if not all(is_held(after, key, value) for key, value in group.items()):
                after = self._edit(before, group)
        again = complete_settings(after, choose(after))
        if not all(is_held(after, key, value) for key, value in again.items()):
            raise RefusedError('expected a second pass to change nothing, it does')
        self.notes += describe_recipe(before, self.changes)

    def _group(self) -> list[dict[str, Setting]]:
        """Groups the changes by top-level name."""
        groups: dict[str, dict[str, Setting]] = {}
        for dotted, value in self.changes.items():
            groups.setdefault(dotted.partition('.')[0], {})[dotted] = value
        # `test_dataloader = val_dataloader` follows where both are asked for alike
        order = sorted(groups, key=lambda root: root == 'test_dataloader')
        return [groups[root] for root in order]

    def _edit(self, before: FlatConfig, group: Mapping[str, Setting]) -> FlatConfig:
        """Edits one top-level name where it is spelled, or else at the end."""
        root = next(iter(group)).partition('.')[0]
        try:
            return self._try(before, group, None)
        except _NotOnlyError as first:
            form, original = INHERIT, self.original
            if (root,) in before and (original.is_bound(root) or original.is_lazy):
                form = REBIND
            try:
                # what sees the edit does not see a statement after everything
                return self._try(before, group, form)
            except RefusedError:
                raise first from None

    def _try(
        self, before: FlatConfig, group: Mapping[str, Setting], form: str | None
    ) -> FlatConfig:
        draft = edit_settings(self.text, group, form, self.original)
        after = self._load(draft.text)
        self._allow_own_name(before, after)
        done = {**self.done, **group, **draft.variables}
        reason = check_edit(before, after, done, self.changes)
        if reason is not None:
            raise _NotOnlyError(reason)
        self.text, self.done = draft.text, done
        self.notes += draft.notes
        return after

    def _load(self, text: str) -> FlatConfig:
        # MMEngine fills the file's name into configs: the one that it will have
        try:
            return read_config(self.target, {self.target: text.encode()})
        except LoadError as error:
            hint = 'change the settings by hand'
            if not self.target.parent.samefile(self.source.parent):
                hint = 'relative bases do not resolve there; write beside the original'
            raise _NotOnlyError(
                f'expected the result to load from {self.target.parent}, it does not '
                f'({error}); {hint}'
            ) from error

    def _allow_own_name(self, before: FlatConfig, after: FlatConfig) -> None:
        """Lets a copy log to a folder of its own name, and refuses any other use of it.

        Raises:
            RefusedError: If MMEngine fills the file's name into another value.
        """
        old, new = self.source.stem, self.target.stem
        for path, value in after.items():
            was = before.get(path)
            if not isinstance(value, str) or value == was:
                continue
            if value.replace(new, old) != was:
                continue
            if path != ('work_dir',):
                raise RefusedError(
                    'expected a config that means the same in a copy, found the name '
                    f'of the file in {".".join(path)}; edit it in place'
                )
            after[path] = was
            self.notes.append(
                f'work_dir has the name of the file: the copy trains in {value}.'
            )
