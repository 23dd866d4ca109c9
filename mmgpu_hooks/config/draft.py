"""Edits settings in the text of a config. Pure: ``str -> str``.

One step per setting: the first spelling that matches makes the edit, so all other
bytes stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmgpu_hooks.config.edit import (
    INHERIT,
    REBIND,
    Edit,
    append,
    render_statement,
)
from mmgpu_hooks.config.entries import Span
from mmgpu_hooks.config.outcome import Setting
from mmgpu_hooks.config.spellings import SPELLINGS
from mmgpu_hooks.config.syntax import Module


@dataclass
class Draft:
    """An edit in the making, and in the end its result."""

    text: str
    original: Module
    """Before the first edit."""

    notes: list[str] = field(default_factory=list)
    variables: dict[str, Setting] = field(default_factory=dict)
    """Those that were changed in place of a setting."""

    def apply(self, span: Span) -> None:
        """Replaces a piece of the text."""
        start, stop, code = span
        self.text = self.text[:start] + code + self.text[stop:]

    def append(self, statement: str) -> None:
        """Adds a statement at the end."""
        self.apply(append(self.text, self.original.newline, statement))

    def edit(self, settings: Mapping[str, Setting]) -> None:
        """Changes settings where the config spells them.

        Raises:
            RefusedError: If one is spelled in a way that cannot be edited safely.
        """
        for dotted, value in settings.items():
            edit = match_setting(Module(self.text, self.original), dotted, value)
            if edit.span is not None:
                self.apply(edit.span)
            if edit.note is not None:
                self.notes.append(edit.note)
            if edit.variable is not None:
                self.variables[edit.variable] = value


def match_setting(module: Module, dotted: str, value: Setting) -> Edit:
    """Finds the edit that gives one setting a value.

    Raises:
        RefusedError: If the config spells it in a way that cannot be edited safely.
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
        RefusedError: If a setting is spelled in a way that cannot be edited safely.
    """
    draft, rest = Draft(text, original or Module(text)), dict(settings)
    if form is not None:
        dotted, value = next(iter(settings.items()))
        draft.append(render_statement(form, tuple(dotted.split('.')), value))
        del rest[dotted]
    if form == REBIND:
        draft.notes.append(
            f'Other statements use {dotted.partition(".")[0]} too and are to see no '
            'change, so it gets a statement of its own at the end.'
        )
    draft.edit(rest)
    return draft


def choose_form(module: Module, root: str) -> str:
    """Says which statement at the end sets keys of a name that is there."""
    bound = any(
        touch.how in ('bind', 'change') and not touch.path and not touch.inherited
        for touch in module.touches(root)
    )
    return REBIND if bound or module.is_lazy else INHERIT
