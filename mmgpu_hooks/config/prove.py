"""Makes an edit and proves it, by the text and by loading it. Writes nothing."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path

from mmgpu_hooks.config.consistency import verify_known, verify_present
from mmgpu_hooks.config.draft import Draft
from mmgpu_hooks.config.edit import edit_settings, parse_resting
from mmgpu_hooks.config.loading import FlatConfig, LoadError, read_config
from mmgpu_hooks.config.outcome import REMOVE, RefusedError, Setting
from mmgpu_hooks.config.overlay import render_overlay
from mmgpu_hooks.config.request import LOADERS
from mmgpu_hooks.config.source import SourceText, render_diff
from mmgpu_hooks.config.spelled import parse_spelled
from mmgpu_hooks.config.verify import is_held, verify_config
from mmgpu_hooks.config.verify_text import verify_step

_DYNAMIC = frozenset(('exec', 'eval', 'globals', 'locals', 'vars', 'setattr'))


@dataclass
class Job:
    """One rewrite under way."""

    source: Path
    """The config that is trained."""

    edited: Path
    """The file that is edited: the source, or a base of it."""

    original: SourceText
    """What the edited file holds."""

    target: Path
    """The file to write."""

    overlay: bool = False
    lazy: bool = False
    text: str | None = None
    diff: str = ''
    changes: dict[str, Setting] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def shared(self) -> bool:
        """Whether other configs may inherit the file that is edited."""
        return self.edited != self.source

    def keep(self, text: str) -> None:
        """Keeps a new text, so that a refusal can show it too."""
        old = '' if self.overlay else self.original.text
        self.text, self.diff = None, ''
        if text != old:
            self.text = text
            self.diff = render_diff(old, text, self.edited, self.target)


def sketch(job: Job, changes: Mapping[str, Setting]) -> None:
    """Makes the edit without any proof, to be shown in a refusal."""
    if job.overlay:
        job.keep(render_overlay(job.source, job.target, changes, job.lazy))
    else:
        draft = edit_settings(job.original.text, changes, shared=job.shared)
        job.keep(draft.text)


def prove_static(job: Job, changes: Mapping[str, Setting]) -> bool:
    """Makes the edit and proves what can be proven without loading.

    Returns:
        Whether anything has to change.
    """
    tree = ast.parse(job.original.text)
    dynamic = _find_dynamic(tree)
    if dynamic is not None:
        raise RefusedError(
            'expected a config that can be judged without loading, found '
            f'{ast.unparse(dynamic.func)}(...); let it be loaded',
            dynamic.lineno,
        )
    _verify_named(tree, changes)
    types = {dotted.rpartition('.')[0] + '.type' for dotted in changes}
    said = parse_spelled(job.original.text, {*changes, *types})
    verify_known(changes, {tuple(dotted.split('.')) for dotted in said})
    job.changes = dict(changes)
    if job.overlay:
        sketch(job, changes)
        return bool(changes)
    draft = edit_settings(job.original.text, changes, shared=job.shared)
    job.keep(draft.text)
    _verify_draft(draft, job, changes)
    job.notes += draft.notes
    return bool(draft.steps)


def _find_dynamic(tree: ast.Module) -> ast.Call | None:
    """Finds a call that may set names in a way that nobody can read."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', '') in _DYNAMIC:
            return node
    return None


def _verify_named(tree: ast.Module, changes: Mapping[str, Setting]) -> None:
    """Refuses loaders that neither the config nor a base of it names."""
    names = {getattr(node, 'id', '') for node in ast.walk(tree)}
    for dotted in changes:
        root = dotted.partition('.')[0]
        if root in LOADERS and not names & {root, '_base_', 'read_base'}:
            dynamic = _find_dynamic(tree)
            raise RefusedError(
                f'expected a {root} in the config or its bases, found neither'
                + (', but code that is executed' if dynamic else '')
                + '; name the config that is trained',
                dynamic.lineno if dynamic else None,
            )


def prove_loaded(job: Job, before: FlatConfig, settings: Mapping[str, Setting]) -> bool:
    """Makes the edit and proves it by loading the result.

    Args:
        job: The rewrite; it keeps the text even where the proof fails.
        before: The config as it loads now.
        settings: What is asked for.

    Returns:
        Whether anything has to change.
    """
    pending = {k: v for k, v in settings.items() if not is_held(before, k, v)}
    if not pending:
        return False
    verify_present(before, pending)
    verify_known(pending, before)
    _verify_named(ast.parse(job.original.text), pending)
    if job.overlay:
        _prove_overlay(job, before, pending)
        return True
    try:
        _prove_edit(job, before, pending, apart=False)
    except _NotOnlyError as first:
        text, diff = job.text, job.diff
        try:
            # What sees the edit does not see a statement behind everything.
            _prove_edit(job, before, pending, apart=True)
        except RefusedError:
            job.text, job.diff = text, diff
            raise first from None
    return True


class _NotOnlyError(RefusedError):
    """The edit is sound, but the loaded config shows more or less than was asked."""


def _prove_overlay(
    job: Job, before: FlatConfig, pending: Mapping[str, Setting]
) -> None:
    sketch(job, pending)
    assert job.text is not None
    job.changes = {}
    for dotted, value in pending.items():
        root, *path = dotted.split('.')
        job.changes[dotted] = parse_resting(root, tuple(path), value)
    after = _load(job, job.target, job.text)
    reason = verify_config(before, after, job.changes)
    if reason is not None:
        raise RefusedError(reason)


def _prove_edit(
    job: Job, before: FlatConfig, pending: Mapping[str, Setting], apart: bool
) -> None:
    changes, popped = dict(pending), frozenset[str]()
    fresh = {k.partition('.')[0] for k in changes}
    fresh = {root for root in fresh if (root,) not in before}
    draft, after = _edit_and_load(job, changes, apart, fresh, popped)
    kept = [
        k
        for k, value in changes.items()
        if value is REMOVE
        and not _is_element(k, value)
        and not is_held(after, k, REMOVE)
    ]
    for dotted in kept:
        root, *path = dotted.split('.')
        if root == 'default_hooks':
            popped |= {dotted}
        else:
            changes[dotted] = parse_resting(root, tuple(path), REMOVE)
    if kept:
        draft, after = _edit_and_load(job, changes, apart, fresh, popped)
    _allow_own_name(job, before, after)
    reason = verify_config(before, after, {**changes, **draft.variables})
    if reason is not None:
        raise _NotOnlyError(reason)
    _verify_draft(draft, job, changes, fresh, popped)
    job.changes = changes
    job.notes += draft.notes


def _allow_own_name(job: Job, before: FlatConfig, after: FlatConfig) -> None:
    """Lets a copy log to a folder of its own name, and refuses any other use of it.

    Raises:
        RefusedError: If MMEngine fills the file's name into another value.
    """
    old, new = job.source.stem, job.target.stem
    for path, value in after.items():
        was = before.get(path)
        if not (isinstance(value, str) and isinstance(was, str)) or value == was:
            continue
        if value.replace(new, old) != was:
            continue
        if path != ('work_dir',):
            raise RefusedError(
                f'expected a config that means the same in a copy, found the name of '
                f'the file in {".".join(path)}; edit it in place'
            )
        after[path] = was
        note = f'work_dir has the name of the file: the copy trains in {value}.'
        if note not in job.notes:
            job.notes.append(note)


def _edit_and_load(
    job: Job,
    changes: Mapping[str, Setting],
    apart: bool,
    fresh: AbstractSet[str],
    popped: AbstractSet[str],
) -> tuple[Draft, FlatConfig]:
    draft = edit_settings(
        job.original.text,
        changes,
        apart=apart,
        fresh=fresh,
        popped=popped,
        shared=job.shared,
    )
    job.keep(draft.text)
    if job.edited != job.source:
        return draft, _load(job, job.edited, draft.text)
    # MMEngine fills the file's name into configs: the one that it will have.
    return draft, _load(job, job.target, draft.text)


def _load(job: Job, path: Path, text: str) -> FlatConfig:
    loaded = job.source if job.edited != job.source else path
    try:
        return read_config(loaded, {path: job.original.encode(text)})
    except LoadError as error:
        hint = 'change the settings by hand'
        if not path.parent.samefile(job.source.parent):
            hint = 'relative bases do not resolve there, write it beside the original'
        raise _NotOnlyError(
            f'expected the result to load from {path.parent}, it does not '
            f'({error}); {hint}'
        ) from error


def _verify_draft(
    draft: Draft,
    job: Job,
    changes: Mapping[str, Setting],
    fresh: AbstractSet[str] = frozenset(),
    popped: AbstractSet[str] = frozenset(),
) -> None:
    text = job.original.text
    for step in draft.steps:
        if step.before != text:
            raise RefusedError('expected the steps of the edit to follow each other')
        reason = verify_step(
            step.before, step.after, step.root, step.values, step.variable
        )
        if reason is not None:
            raise RefusedError(reason)
        text = step.after
    # Taken out of a list, the next element has its number.
    lasting = {k: v for k, v in changes.items() if not _is_element(k, v)}
    again = edit_settings(
        draft.text, lasting, fresh=fresh, popped=popped, shared=job.shared
    )
    if text != draft.text or again.text != text:
        raise RefusedError('expected a second pass to change nothing, it does')


def _is_element(dotted: str, value: Setting) -> bool:
    return value is REMOVE and dotted.rpartition('.')[2].isdigit()
