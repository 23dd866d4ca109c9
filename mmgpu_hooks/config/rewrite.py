"""Rewrites a config file: the functions that scripts and commands call.

Everything is proven in memory first; the target then appears in one atomic step
or not at all.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mmgpu_hooks.config.draft import edit_settings
from mmgpu_hooks.config.edit import resting
from mmgpu_hooks.config.loading import (
    FlatConfig,
    LoadError,
    NoMMEngineError,
    read_config,
)
from mmgpu_hooks.config.outcome import (
    REMOVE,
    SUFFIX,
    Options,
    RefusedError,
    RewriteOutcome,
    Setting,
)
from mmgpu_hooks.config.proof import is_element, is_held, verify_config
from mmgpu_hooks.config.settings import (
    complete_settings,
    disabling_settings,
    enabling_settings,
    parse_settings,
    place_settings,
    render_notes,
    render_options,
    verify_changes,
)
from mmgpu_hooks.config.source import (
    SourceText,
    read_source,
    render_diff,
    render_error,
)
from mmgpu_hooks.config.syntax import Module
from mmgpu_hooks.config.write import locate_target, locked, write_config

_Choose = Callable[[FlatConfig], Mapping[str, Setting]]
"""What to set in the loaded config."""

_IN_PLACE = Options(in_place=True)


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

    The edit touches nothing else in the text, and in MMEngine's view of the
    loaded config nothing but the settings changes (and a variable that holds one
    of them and nothing else uses). Otherwise it is refused and nothing is written.
    Loading executes the config, as MMEngine does; the edit never does.

    Args:
        source: The ``.py`` config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``;
            ``REMOVE`` makes a key vanish. Besides keys of the three dataloaders:
            arguments of our hook and of ``auto_scale_lr``.
        output: The file to write. Default: ``<stem><suffix>.py`` beside the source,
            where relative bases stay valid.
        in_place: Edit the source itself and keep ``<name>.py.bak``.
        dry_run: Prove the edit, but write nothing. Where MMEngine is not installed,
            the edit is shown without proof.
        suffix: What the name of a copy ends in; a source that ends so already, with
            the original beside it, is edited in place.

    Returns:
        What came of it. Bad input is refused there, never raised.

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


def rewrite_recommended(
    source: Path, settings: Mapping[str, Setting], options: Options
) -> RewriteOutcome:
    """Does what :func:`rewrite_config` does, wherever our hook is in the config.

    Args:
        source: The ``.py`` config.
        settings: Arguments of our hook are named as those of
            ``default_hooks.gpu_efficiency``. Where the config has no such hook, they
            are left out and a note says so.
        options: Where it goes.
    """
    left_out: list[str] = []

    def choose(before: FlatConfig) -> Mapping[str, Setting]:
        placed, left_out[:] = place_settings(parse_settings(settings), before)
        return placed

    outcome = _rewrite(source, choose, options)
    notes = [
        f'{source} does not say where GPUEfficiencyHook is, so {name} was left out: '
        'add it where the hook is switched on.'
        for name in left_out
    ]
    return replace(outcome, notes=(*outcome.notes, *notes))


def enable_hook(source: Path, options: Options = _IN_PLACE) -> RewriteOutcome:
    """Adds ``GPUEfficiencyHook`` to a config, and drops nobody's hooks.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, enabling_settings, options)


def disable_hook(source: Path, options: Options = _IN_PLACE) -> RewriteOutcome:
    """Takes ``GPUEfficiencyHook`` out of a config.

    See :func:`rewrite_config` for the options and the result.
    """
    return _rewrite(source, disabling_settings, options)


def _rewrite(source: Path, choose: _Choose, options: Options) -> RewriteOutcome:
    job: _Job | None = None
    try:
        source = Path(source)
    except TypeError:
        reason = f'expected the path of a config, found {source!r}'
        return RewriteOutcome('refused', Path(), None, None, '', reason)
    try:
        with contextlib.ExitStack() as held:
            # parsing an old config may warn of its escape sequences
            held.enter_context(warnings.catch_warnings())
            warnings.simplefilter('ignore')
            if not options.dry_run:
                held.enter_context(locked(source))
            original = read_source(source)
            target = locate_target(
                source, options.output, options.in_place, options.suffix
            )
            job = _Job(source, original, target, options)
            if not job.prove(choose):
                return RewriteOutcome('unchanged', source, None, None, '', proven=True)
            assert job.text is not None
            backup = None
            if not options.dry_run:
                backup = write_config(source, original, target, job.text.encode())
        return RewriteOutcome(
            'rewritten',
            source,
            target,
            job.text,
            job.diff,
            backup=backup,
            changes=job.changes,
            notes=tuple(job.notes),
            cfg_options=render_options(job.changes),
            proven=job.proven,
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


class _NotOnlyError(RefusedError):
    """The edit is sound, but the loaded config shows more or less than was asked."""


@dataclass
class _Job:
    """One rewrite under way: an edit and its proof. Writes nothing."""

    source: Path
    original: SourceText
    target: Path
    options: Options
    text: str | None = None
    """The new text, so that a refusal can show it too."""

    diff: str = ''
    changes: Mapping[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    proven: bool = True

    def prove(self, choose: _Choose) -> bool:
        """Makes the edit and proves it; ``False`` when everything holds already.

        Raises:
            RefusedError: If it cannot be made, or the proof fails.
        """
        Module(self.original.text)
        try:
            before = read_config(self.source)
        except NoMMEngineError as error:
            return self._sketch(choose({}), error)
        except LoadError as error:
            raise RefusedError(
                f'expected a config that MMEngine loads, it does not ({error}); '
                'mend it, or run where its bases are'
            ) from error
        settings = complete_settings(before, choose(before))
        pending = {k: v for k, v in settings.items() if not is_held(before, k, v)}
        if not pending:
            return False
        verify_changes(before, pending)
        try:
            after = self._edit(before, pending, apart=False)
        except _NotOnlyError as first:
            text, diff = self.text, self.diff
            try:
                # what sees the edit does not see a statement after everything
                after = self._edit(before, pending, apart=True)
            except RefusedError:
                self.text, self.diff = text, diff
                raise first from None
        again = complete_settings(after, choose(after))
        if not all(is_held(after, key, value) for key, value in again.items()):
            raise RefusedError('expected a second pass to change nothing, it does')
        told = self.options.is_rate_told
        self.notes += render_notes(before, self.changes, is_rate_told=told)
        return True

    def _sketch(self, asked: Mapping[str, Setting], error: LoadError) -> bool:
        """Makes the edit without any proof, to be shown and not written."""
        if not self.options.dry_run:
            raise RefusedError(
                f'expected MMEngine to prove the edit, cannot import it ({error}); '
                'install it, or apply the diff of a dry run by hand'
            ) from error
        self._keep(edit_settings(self.original.text, asked).text)
        self.changes, self.proven = asked, False
        self.notes.append(
            f'Not proven, since MMEngine cannot be imported here ({error}).'
        )
        return self.text is not None

    def _keep(self, text: str) -> None:
        self.text, self.diff = None, ''
        if text != self.original.text:
            self.text = text
            self.diff = render_diff(self.original.text, text, self.source, self.target)

    def _edit(
        self, before: FlatConfig, pending: Mapping[str, Setting], apart: bool
    ) -> FlatConfig:
        """Makes the edit, and proves it by loading the result."""
        changes, popped = dict(pending), set[str]()
        roots = {dotted.partition('.')[0] for dotted in changes}
        fresh = {root for root in roots if (root,) not in before}
        for _ in range(2):
            draft = edit_settings(
                self.original.text, changes, apart=apart, fresh=fresh, popped=popped
            )
            self._keep(draft.text)
            after = self._load(draft.text)
            # what the file does not have any more may be in a base still
            kept = [
                dotted
                for dotted, value in changes.items()
                if value is REMOVE
                and not is_element(dotted)
                and not is_held(after, dotted, REMOVE)
            ]
            if not kept:
                break
            for dotted in kept:
                if dotted.startswith('default_hooks.'):
                    popped.add(dotted)
                else:
                    changes[dotted] = resting(tuple(dotted.split('.')), REMOVE)
        self._allow_own_name(before, after)
        reason = verify_config(before, after, {**changes, **draft.variables})
        if reason is not None:
            raise _NotOnlyError(reason)
        self.changes = changes
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
            if not (isinstance(value, str) and isinstance(was, str)) or value == was:
                continue
            if value.replace(new, old) != was:
                continue
            if path != ('work_dir',):
                raise RefusedError(
                    'expected a config that means the same in a copy, found the name '
                    f'of the file in {".".join(path)}; edit it in place'
                )
            after[path] = was
            note = f'work_dir has the name of the file: the copy trains in {value}.'
            self.notes = [*(one for one in self.notes if one != note), note]
