"""How configs spell a setting: the first match wins.

Each module lists its ``MATCHES``, functions of the parsed config, a setting's path and
its new value. They return the edit, or ``None`` where the config spells the setting in
another way. A new spelling is a module, and its name here. Pure.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mmgpu_hooks.config.edits import REBIND, Edit, append, render_statement
from mmgpu_hooks.config.loading import KeyPath, Setting
from mmgpu_hooks.config.syntax import Module

_NAMES = ('usual',)

SPELLINGS: tuple[Callable[[Module, KeyPath, Setting], Edit | None], ...] = tuple(
    match
    for name in _NAMES
    for match in importlib.import_module(f'{__name__}.{name}').MATCHES
)


@dataclass
class Draft:
    """The text of a config after edits."""

    text: str
    notes: list[str] = field(default_factory=list)
    variables: dict[str, Setting] = field(default_factory=dict)
    """Those that were changed in place of a setting."""

    def apply(self, edit: Edit, value: Setting) -> None:
        """Replaces a piece of the text."""
        if edit.span is not None:
            start, stop, code = edit.span
            self.text = self.text[:start] + code + self.text[stop:]
        if edit.note is not None:
            self.notes.append(edit.note)
        if edit.variable is not None:
            self.variables[edit.variable] = value


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
    """
    original, draft = original or Module(text), Draft(text)
    for dotted, value in settings.items():
        path, edit = tuple(dotted.split('.')), None
        if form is None:
            module = Module(draft.text, original)
            edits = (match(module, path, value) for match in SPELLINGS)
            edit = next(edit for edit in edits if edit is not None)
        else:
            statement, note = render_statement(form, path, value), None
            if form == REBIND:
                note = (
                    f'Other statements use {path[0]} too and are to see no change, so '
                    'it gets a statement of its own at the end.'
                )
            edit = Edit(append(text, original.newline, statement), note)
            # the others are added to that statement
            form = None
        draft.apply(edit, value)
    return draft
