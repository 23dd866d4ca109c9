"""Rewrites settings of a config file, and proves by loading that only they changed.

Everything is proven in memory first; the target then appears in one atomic step
or not at all.

One rewrite from the command to the file: ``commands/set_values.py`` calls this module.
``files.py`` reads the file, ``loading.py`` has MMEngine load it, ``settings.py`` checks
what is asked and adds what that entails. ``edits.py`` edits setting by setting:
``syntax.py`` reads the text and finds the statement that decides, and how it spells the
setting gives the edit, in the style of the text. ``loading.py`` compares both loaded
configs, ``accepted.py`` asks PyTorch, ``files.py`` writes while ``locks.py`` holds the
folder. ``removal.py`` takes our hook out; ``lock_holders.py`` says who holds up a
rewrite.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, Optional

from mmgpu_hooks.config.accepted import find_refusal
from mmgpu_hooks.config.edits import INHERIT, REBIND, edit_settings
from mmgpu_hooks.config.files import (
    SourceFile,
    locate_real,
    locate_target,
    read_source,
    render_diff,
    render_error,
    replace_config,
    verify_output,
    verify_source,
    write_config,
)
from mmgpu_hooks.config.loading import (
    FlatConfig,
    KeyPath,
    LoadError,
    RefusedError,
    SettingValue,
    check_edit,
    import_mmengine,
    is_held,
    list_differences,
    read_config,
)
from mmgpu_hooks.config.locks import hold_folder, remove_leftovers
from mmgpu_hooks.config.removal import (
    append_pops,
    list_bases,
    remove_from_config,
    remove_hooks,
)
from mmgpu_hooks.config.settings import (
    complete_settings,
    describe_metric,
    describe_recipe,
    enabling_settings,
    find_hooks,
    parse_settings,
    render_cfg_options,
    verify_changes,
)
from mmgpu_hooks.config.syntax import Module
from mmgpu_hooks.schema.text import Text, phrase

SUFFIX: Final = '_recommended'
"""Suffix of a rewritten config's file name, before ``.py``."""


@dataclass(frozen=True)
class Options:
    """Options of a config rewrite: where the result goes, and if it is written."""

    output: Path | None = None
    in_place: bool = False
    dry_run: bool = False
    suffix: str = SUFFIX


@dataclass(frozen=True)
class RewriteOutcome:
    """Result of a config rewrite: status, texts, changes, or why it was refused."""

    status: Literal['rewritten', 'unchanged', 'refused']
    """Outcome of the config rewrite: new text, no change needed, or refused.

    ``unchanged``: every setting already holds in the loaded config."""

    source: Path
    """Path of the config that was read, as the caller named it."""

    target: Path | None = None
    """Config file written (in a dry run: to be written); ``None`` if there is none."""

    text: str | None = None
    """New text of the config without a byte-order mark; ``None`` without an edit."""

    diff: str = ''
    """Unified diff from source to target; empty without an edit."""

    reason: Text | None = None
    """Reason why the rewrite was refused, in one sentence."""

    backup: Path | None = None
    """Path of the backup of the overwritten file; ``None`` if none was needed."""

    changes: Mapping[str, SettingValue] = field(default_factory=dict)
    """New values of requested settings and of settings they entail, by dotted key."""

    notes: tuple[str, ...] = ()
    """Sentences for the user about the rewrite."""

    cfg_options: str | None = None
    """Options of ``tools/train.py`` with the same effect as the config rewrite.

    Quoted for a shell; ``None`` where nothing changes."""

    proven: bool = False
    """True if MMEngine loaded the new config, and nothing but the settings changed."""


_HOOKS = ('default_hooks',)

_Choose = Callable[[FlatConfig], Mapping[str, SettingValue]]
"""Type: function that returns the settings to change in a loaded config."""

_Write = Callable[[SourceFile, bytes], Optional[Path]]
"""Type: function that writes a config's new bytes and returns the backup's path."""


def rewrite_config(
    source: Path,
    settings: Mapping[str, SettingValue],
    *,
    output: Path | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    suffix: str = SUFFIX,
) -> RewriteOutcome:
    """Changes settings of a config file, and proves by loading that only they changed.

    The edit touches nothing else in the text. In the config as MMEngine loads it only
    the settings change, and a variable that holds one of them where nothing else uses
    it. Otherwise it is refused and nothing is written.
    Loading executes the config, as MMEngine does; the edit never does.

    Args:
        source: The ``.py`` config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
            Besides keys of the three dataloaders: arguments of our hook, OpenCV's
            threads, and the type of a CocoMetric in ``val_evaluator``.
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
    return _rewrite(
        source, lambda job: job.prove(lambda before: parse_settings(settings)), options
    )


def write_variant(
    text: str, loaded: FlatConfig, output: Path, settings: Mapping[str, SettingValue]
) -> RewriteOutcome:
    """Writes a copy of a config's text with changed settings, proven by loading.

    The proof is that of :func:`rewrite_config`: against what the text itself loads as.

    Args:
        text: Of the config without the settings; it need be in no file.
        loaded: The same, as MMEngine loads it.
        output: The file to write. Other content of it is kept as ``.bak``.
        settings: As :func:`rewrite_config` takes them.

    Returns:
        What came of it. What cannot be written is refused there, never raised.
    """
    return _or_refused(output, lambda: _edit_text(text, loaded, output, settings))


def enable_hook(
    source: Path, options: Options, *, is_tuned: bool = False
) -> RewriteOutcome:
    """Adds GPUEfficiencyHook to a config file, and proves that other hooks stay.

    See :func:`rewrite_config` for the options and the result.

    Args:
        source: The ``.py`` config.
        options: Where it goes.
        is_tuned: Whether the hook is to tune the loader, too; where the hook is on
            already, that alone is set.
    """
    choose = partial(enabling_settings, is_tuned=is_tuned)
    return _rewrite(source, lambda job: job.prove(choose), options)


def disable_hook(source: Path, options: Options) -> RewriteOutcome:
    """Removes GPUEfficiencyHook from a config file, wherever it is named there.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, lambda job: job.disable(), options)


def _rewrite(
    source: Path, edit: Callable[[_Job], None], options: Options
) -> RewriteOutcome:
    source = Path(source)
    return _or_refused(source, lambda: _edit_and_write(source, edit, options))


def _or_refused(source: Path, work: Callable[[], RewriteOutcome]) -> RewriteOutcome:
    try:
        # parsing an old config may warn of its escape sequences
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')
            return work()
    except RefusedError as refusal:
        place = f'{source}:{refusal.line}' if refusal.line else f'{source}'
        reason = phrase('{place}: {refusal}', place=place, refusal=refusal.said)
    except OSError as error:
        path = error.filename or source
        reason = phrase(
            '{source}: nothing was written, {path}: {error}',
            source=source,
            path=path,
            error=render_error(error),
        )
    except RecursionError:
        reason = phrase(
            '{source}: expected a config, found nesting too deep to edit', source=source
        )
    return RewriteOutcome('refused', source, reason=reason)


def _edit_and_write(
    source: Path, edit: Callable[[_Job], None], options: Options
) -> RewriteOutcome:
    verify_source(source)
    target = locate_target(source, options.output, options.in_place, options.suffix)
    if options.dry_run:
        return _prove(source, target, edit, write=None)
    # others wait for as long as the config loads, and no longer
    import_mmengine()
    folder = locate_real(source, target).parent
    with hold_folder(folder) as unheld:

        def write(original: SourceFile, content: bytes) -> Path | None:
            if unheld is None:
                remove_leftovers(folder)
            return write_config(source, original, target, content)

        outcome = _prove(source, target, edit, write)
    if outcome.status == 'rewritten' and unheld is not None:
        note = phrase(
            '{folder} could not be locked ({unheld}): of two rewrites of one file at '
            'once, one may be lost.',
            folder=folder,
            unheld=unheld,
        )
        outcome = replace(outcome, notes=(*outcome.notes, note))
    return outcome


def _edit_text(
    text: str, loaded: FlatConfig, output: Path, settings: Mapping[str, SettingValue]
) -> RewriteOutcome:
    """Edits a config's text that is in no file, and writes the result to a file."""
    import_mmengine()
    job = _Job(output, output, Module(text), text, loaded)
    try:
        verify_output(output)
        with hold_folder(output.parent) as unheld:
            job.prove(lambda before: parse_settings(settings))
            if job.text == text:
                return RewriteOutcome('unchanged', output, proven=True)
            if unheld is None:
                remove_leftovers(output.parent)
            backup = replace_config(output, job.text.encode())
    except OSError as error:
        # it is the only file there is
        raise RefusedError(render_error(error)) from error
    return RewriteOutcome(
        'rewritten',
        output,
        output,
        job.text,
        backup=backup,
        changes=job.changes,
        notes=tuple(dict.fromkeys(job.notes)),
        proven=True,
    )


def _prove(
    source: Path, target: Path, edit: Callable[[_Job], None], write: _Write | None
) -> RewriteOutcome:
    """Reads and edits a config, proves the edit by loading, and writes if asked."""
    original = read_source(source)
    text, module = original.text, Module(original.text)
    if module.is_script:
        raise RefusedError(
            phrase(
                'expected a config, found a Python file that sets nothing; name the '
                'config that is trained'
            )
        )
    job = _Job(source, target, module, text)
    edit(job)
    if job.text == text:
        return RewriteOutcome('unchanged', source, proven=True)
    backup = None if write is None else write(original, job.text.encode())
    return RewriteOutcome(
        'rewritten',
        source,
        target,
        job.text,
        render_diff(text, job.text, source, target),
        backup=backup,
        changes=job.changes,
        notes=tuple(dict.fromkeys(job.notes)),
        cfg_options=job.cfg_options,
        proven=True,
    )


def _root(dotted: str) -> str:
    """Returns the part of a dotted key before the first dot."""
    return dotted.partition('.')[0]


class _NotOnlyError(RefusedError):
    """Raised when an edited config differs in more than the requested settings."""


@dataclass
class _Job:
    """Rewrite of a config in memory: edits the text, proves each edit by loading."""

    source: Path
    target: Path
    original: Module
    text: str
    """Text of the config after the edits so far."""

    loaded: FlatConfig | None = None
    """Original config's values, as MMEngine loads them; ``None`` until loaded."""
    changes: dict[str, SettingValue] = field(default_factory=dict)
    done: dict[str, SettingValue] = field(default_factory=dict)
    """New values of settings and variables that were edited so far, by key."""
    notes: list[str] = field(default_factory=list)
    cfg_options: str | None = None

    def prove(self, choose: _Choose) -> None:
        """Edits settings in a config's text, and proves each edit by loading it.

        Raises:
            RefusedError: If one cannot be made, or its proof fails.
        """
        before = after = self._load_source()
        settings = complete_settings(before, choose(before))
        self.changes = {
            key: value
            for key, value in settings.items()
            if not is_held(before, key, value)
        }
        verify_changes(before, self.changes, self.original)
        for group in self._group():
            # a name may stand for the dict that an edit before this one changed
            if not all(is_held(after, key, value) for key, value in group.items()):
                after = self._edit(before, group)
        again = complete_settings(after, choose(after))
        if not all(is_held(after, key, value) for key, value in again.items()):
            raise RefusedError(
                phrase('expected a second pass to change nothing, it does')
            )
        reason = find_refusal(before, after, self.changes)
        if reason is not None:
            raise RefusedError(phrase('{reason}; choose another value', reason=reason))
        self.cfg_options = render_cfg_options(self.changes)
        self.notes += describe_recipe(before, self.changes)
        self.notes += describe_metric(self.changes)

    def disable(self) -> None:
        """Removes GPUEfficiencyHook, and proves by loading that nothing else changed.

        Raises:
            RefusedError: If it cannot be taken out in this file alone.
        """
        before = self._load_source()
        places = find_hooks(before)
        if not places:
            return
        expected = remove_from_config(before, places)
        text = self._find_disabled(before, expected, places)
        if text is None:
            names = tuple('.'.join(place) for place in places)
            bases = list_bases(self.original)
            where = phrase('a base')
            if bases:
                where = phrase('a base ({bases})', bases=bases)
            raise RefusedError(
                phrase(
                    'expected {names:&} to stand in this file, found '
                    'GPUEfficiencyHook in {where} or in a statement that other '
                    'values depend on; take it out there by hand',
                    names=names,
                    where=where,
                )
            )
        self.text = text
        self.changes = {'.'.join(place): None for place in places}
        imports = [
            value for path, value in before.items() if path[:1] == ('custom_imports',)
        ]
        is_imported = any(_root(str(name)) == 'mmgpu_hooks' for name in imports)
        if is_imported:
            self.notes.append(
                phrase(
                    'custom_imports still names mmgpu_hooks: take that out before you '
                    'uninstall the package.'
                )
            )

    def _find_disabled(
        self, before: FlatConfig, expected: FlatConfig, places: list[KeyPath]
    ) -> str | None:
        """Returns the least edited config text that loads without GPUEfficiencyHook."""
        listed = [place for place in places if place[0] == 'custom_hooks']
        # what is bound here is merged over a base, or stands in for it
        forms = ('{}',) if self.original.is_lazy else ('_base_.{}', '{}')
        for spelled in (places, listed):
            text = remove_hooks(self.text, before, spelled)
            left = self._prove_disabled(before, expected, text)
            if left is None:
                return text
            named = [place for place in left if place[0] == 'default_hooks']
            for form in forms if named else ():
                popped = append_pops(text, form, named)
                if self._prove_disabled(before, expected, popped) is None:
                    return popped
        return None

    def _prove_disabled(
        self, before: FlatConfig, expected: FlatConfig, text: str
    ) -> list[KeyPath] | None:
        """Returns the hook's remaining key paths; ``None`` if only the hook is gone."""
        try:
            after = self._load(text)
        except RefusedError:
            return []
        self._allow_own_name(before, after)
        differing = list_differences(expected, after)
        # a dict of this hook alone goes with it
        is_own = not any(path[:1] == _HOOKS and path != _HOOKS for path in expected)
        if not differing or (is_own and differing == [_HOOKS]):
            return None
        return find_hooks(after)

    def _load_source(self) -> FlatConfig:
        if self.loaded is not None:
            return self.loaded
        try:
            return read_config(self.source)
        except LoadError as error:
            missing = getattr(error.__cause__, 'name', None) or ''
            if _root(missing) == 'mmengine':
                raise RefusedError(
                    phrase(
                        'expected MMEngine, which proves a rewrite by loading it, '
                        'found none here; install it (`pip install mmengine`), or run'
                        ' where the training runs'
                    )
                ) from error
            raise RefusedError(
                phrase(
                    'expected a config that MMEngine loads, it does not '
                    '({error}); mend it, or run where MMEngine and its bases are',
                    error=error,
                )
            ) from error

    def _group(self) -> list[dict[str, SettingValue]]:
        """Returns the changed settings grouped by their top-level config name."""
        groups: dict[str, dict[str, SettingValue]] = {}
        for dotted, value in self.changes.items():
            groups.setdefault(_root(dotted), {})[dotted] = value
        # `test_dataloader = val_dataloader` follows where both are asked for alike
        order = sorted(groups, key=lambda root: root.startswith('test_'))
        return [groups[root] for root in order]

    def _edit(
        self, before: FlatConfig, group: Mapping[str, SettingValue]
    ) -> FlatConfig:
        """Edits settings of one top-level name; returns the newly loaded config."""
        root = _root(next(iter(group)))
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
        self, before: FlatConfig, group: Mapping[str, SettingValue], form: str | None
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
            hint = phrase('change the settings by hand')
            if not self.target.parent.samefile(self.source.parent):
                hint = phrase(
                    'relative bases do not resolve there; write beside the original'
                )
            raise _NotOnlyError(
                phrase(
                    'expected the result to load from {parent}, it does not '
                    '({error}); {hint}',
                    parent=self.target.parent,
                    error=error,
                    hint=hint,
                )
            ) from error

    def _allow_own_name(self, before: FlatConfig, after: FlatConfig) -> None:
        """Accepts a ``work_dir`` named after the new file; refuses other such values.

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
                    phrase(
                        'expected a config that means the same in a copy, found the '
                        'name of the file in {key}; edit it in place',
                        key='.'.join(path),
                    )
                )
            after[path] = was
            self.notes.append(
                phrase(
                    'work_dir has the name of the file: the copy trains in {folder}.',
                    folder=value,
                )
            )
