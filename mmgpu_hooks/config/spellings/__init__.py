"""How configs spell a setting: one module each, the first that matches wins.

Each has ``match(module, path, value)``. It returns the edit that gives the setting at
a path the value (``REMOVE`` takes it out), or ``None`` where the config spells it in
another way, and raises :class:`RefusedError` where a key cannot be removed. Pure.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from mmgpu_hooks.config.edit import REBIND, Edit, Match, append, render_statement
from mmgpu_hooks.config.entries import Span
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.syntax import Module

_NAMES = (
    'absent',
    'entry',
    'variable',
    'value',
    'missing_key',
    'at_the_end',
)

SPELLINGS: tuple[Match, ...] = tuple(
    importlib.import_module(f'{__name__}.{name}').match for name in _NAMES
)


@dataclass
class Draft:
    """The text of a config after edits."""

    text: str
    newline: str
    notes: list[str] = field(default_factory=list)
    variables: dict[str, Setting] = field(default_factory=dict)
    """Those that were changed in place of a setting."""

    def append(self, statement: str) -> None:
        """Adds a statement at the end."""
        self.apply(append(self.text, self.newline, statement))

    def apply(self, span: Span) -> None:
        """Replaces a piece of the text."""
        start, stop, code = span
        self.text = self.text[:start] + code + self.text[stop:]


def match_setting(module: Module, dotted: str, value: Setting) -> Edit:
    """Finds the edit that gives one setting a value.

    Raises:
        RefusedError: If it is to be removed, and nothing can stand for that.
    """
    path = tuple(dotted.split('.'))
    edits = (match(module, path, value) for match in SPELLINGS)
    return next(edit for edit in edits if edit is not None)


def edit_settings(
    text: str,
    settings: Mapping[str, Setting],
    form: str | None = None,
    original: Module | None = None,
) -> Draft:
    """Changes settings of one top-level name.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
        form: Of a statement at the end, which no other statement can see. Default:
            the settings are changed where the config spells them.
        original: The config before all edits. Default: this one.

    Raises:
        RefusedError: If one is to be removed, and nothing can stand for that.
    """
    original = original or Module(text)
    draft, rest = Draft(text, original.newline), dict(settings)
    if form is not None:
        dotted, value = next(iter(settings.items()))
        draft.append(render_statement(form, tuple(dotted.split('.')), value))
        del rest[dotted]
    if form == REBIND:
        draft.notes.append(
            f'Other statements use {dotted.partition(".")[0]} too and are to see no '
            'change, so it gets a statement of its own at the end.'
        )
    for dotted, value in rest.items():
        edit = match_setting(Module(draft.text, original), dotted, value)
        if edit.span is not None:
            draft.apply(edit.span)
        if edit.note is not None:
            draft.notes.append(edit.note)
        if edit.variable is not None:
            draft.variables[edit.variable] = value
    return draft
