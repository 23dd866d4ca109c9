"""Edits settings in a config's text, in place or by statements appended to it.

An entry of a ``dict(...)`` or ``{...}`` is added in its style. The others are
read with what follows it up to the next entry or the bracket: perhaps a comma, and the
gap (blanks, newlines, comments).

A variable that only one setting uses is changed, others never. Both it and the setting
then differ in the loaded config; a literal beside an idle ``train_num_workers = 4``
would mislead the next reader. The outcome says so.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from mmgpu_hooks.config.loading import KeyPath, SettingValue
from mmgpu_hooks.config.syntax import (
    Display,
    Entry,
    Module,
    SettingPlace,
    is_constant,
    is_literal,
    locate_setting,
    parse_chain,
    parse_entries,
    parse_string,
)
from mmgpu_hooks.schema.text import phrase


class Replacement(NamedTuple):
    """Range of a config's text, by start and stop index, and the code to put there."""

    start: int
    stop: int
    """Index in the text after the last replaced character."""
    code: str

    def apply(self, text: str) -> str:
        """Returns a config's text with the range replaced by the new code."""
        return text[: self.start] + self.code + text[self.stop :]


INHERIT, UPDATE, REBIND = '{0} = dict({1})', '{0}.update({1})', '{0} = dict({0}, {1})'
"""Templates of the statements that set a key of a config's top-level dict.

MMEngine merges the first over the base's; what else stands for the same dict does not
see the last."""

HOOK_ROOTS = ('default_hooks', 'custom_hooks')
"""Top-level config names under which hooks are listed."""

CONFIG_WIDTH = 79
"""Maximum width of a config line in columns, as in OpenMMLab's configs."""

_LEADING_KEYS = (
    '_delete_',
    'batch_size',
    'num_workers',
    'persistent_workers',
    'prefetch_factor',
    'pin_memory',
    'pin_memory_device',
    'multiprocessing_context',
    'timeout',
    'drop_last',
)
"""DataLoader keys that OpenMMLab's configs write before sampler and dataset."""

_TOKEN = re.compile(r'#[^\r\n]*|.', re.DOTALL)
_BREAK = re.compile(r'\r\n|\n|\r')


@dataclass(frozen=True)
class Edit:
    """One edit of a config's text: the replacement, and a note for the user."""

    replacement: Replacement
    note: str | None = None
    variable: str | None = None
    """Name of the config variable that was edited instead of the setting.

    Nothing else in the config uses it."""


@dataclass
class Draft:
    """Text of a config after edits, with notes on them and the edited variables."""

    text: str
    notes: list[str] = field(default_factory=list)
    variables: dict[str, SettingValue] = field(default_factory=dict)
    """New values of config variables edited in place of settings, by name."""


def edit_settings(
    text: str,
    settings: Mapping[str, SettingValue],
    form: str | None = None,
    original: Module | None = None,
) -> Draft:
    """Changes settings below one top-level name in a config's text.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.
        form: Of a statement at the end, which no other statement can see. Default:
            the settings are changed where the config spells them.
        original: The config before all edits. Default: this one.
    """
    original, draft = original or Module(text), Draft(text)
    for dotted, value in settings.items():
        path, module = tuple(dotted.split('.')), Module(draft.text, original)
        if form is None:
            edit = _edit_where_spelled(module, path, value)
        else:
            edit = _append_statement(module, form, path, value)
            if form == REBIND:
                draft.notes.append(
                    phrase(
                        'Other statements use {name} too and are to see no change, so '
                        'it gets a statement of its own at the end.',
                        name=path[0],
                    )
                )
            # the others are added to that statement
            form = None
        draft.text = edit.replacement.apply(draft.text)
        if edit.note is not None:
            draft.notes.append(edit.note)
        if edit.variable is not None:
            draft.variables[edit.variable] = value
    return draft


def _edit_where_spelled(module: Module, path: KeyPath, value: SettingValue) -> Edit:
    place = locate_setting(module, path)
    if place.kind == 'value':
        edit = _edit_variable(module, place, path, value)
        return edit or _edit_value(module, place, path, value)
    if place.kind == 'missing':
        # a key is added to train_dataloader = dict(batch_size=2), in its style
        return Edit(insert_entry(module, place.node, place.rest, value))
    form = UPDATE if module.is_lazy else INHERIT
    if module.is_bound(path[0]):
        # what else an inner dict holds stays
        form = UPDATE if len(path) > 2 else REBIND
    return _append_statement(module, form, path, value)


def _append_statement(
    module: Module, form: str, path: KeyPath, value: SettingValue
) -> Edit:
    """Makes the edit that appends a statement to a config's text, to set a key."""
    statement = render_statement(form, path, value)
    return Edit(append(module.text, module.original.newline, statement))


def _edit_variable(
    module: Module, place: SettingPlace, path: KeyPath, value: SettingValue
) -> Edit | None:
    """Edits the config variable that a setting is set to, if nothing else uses it."""
    if not isinstance(place.node, ast.Name):
        return None
    name = place.node.id
    # an edit before this one may have taken another use away
    uses = [len(state.list_uses(name)) for state in (module.original, module)]
    if uses != [2, 2]:
        return None
    note = phrase(
        '{key} is the variable {name}, which nothing else in the file uses, so that '
        'was changed.',
        key='.'.join(path),
        name=name,
    )
    for statement in module.body:
        if not isinstance(statement, ast.Assign) or not is_literal(statement.value):
            continue
        if parse_chain(statement.targets[0]) == (name,):
            return Edit(_replace(module, statement.value, value), note, name)
    return None


def _edit_value(
    module: Module, place: SettingPlace, path: KeyPath, value: SettingValue
) -> Edit:
    """Replaces a setting's value (such as ``2`` or ``2 * n``) by a literal."""
    note = None
    if not is_constant(place.node):
        was = ' '.join(module.code(place.node).split())
        note = phrase(
            '{key} was {was} and no longer follows it.', key='.'.join(path), was=was
        )
    return Edit(_replace(module, place.node, value), note)


def _replace(module: Module, node: ast.expr, value: SettingValue) -> Replacement:
    """Makes a replacement of an expression in a config's text by a value's literal."""
    start, stop = module.span(node)
    return Replacement(start, stop, repr(value))


class Layout:
    """Entries of a ``dict(...)`` or list in a config's text, and the text between."""

    def __init__(self, module: Module, display: Display | ast.List) -> None:
        self.text, self.newline = module.text, module.newline
        start, stop = module.span(display)
        if isinstance(display, ast.Call):
            start = self.text.index('(', module.span(display.func)[1])
        self.start, self.stop = start + 1, stop - 1
        """Text indices right after the opening bracket and of the closing bracket."""
        self.lead = self._parse_gap(self.start)
        self.slots = [
            self._parse_slot(entry, module.span(entry.value)[1])
            for entry in parse_entries(display)
        ]

    def _parse_gap(self, start: int) -> str:
        stop = start
        for token in _TOKEN.finditer(self.text, start, self.stop):
            if token.group()[0] != '#' and not token.group().isspace():
                break
            stop = token.end()
        return self.text[start:stop]

    def _parse_slot(self, entry: Entry, stop: int) -> Entry:
        comma = None
        for token in _TOKEN.finditer(self.text, stop, self.stop):
            if token.group() == ',':
                comma = token.start()
                break
            stop = token.end() if token.group() == ')' else stop
        gap = self._parse_gap(stop if comma is None else comma + 1)
        return Entry(entry.key, entry.value, stop, comma, gap)

    def insert(self, place: int, code: str) -> Replacement:
        """Makes the edit that adds an entry to a dict, in the style of its entries."""
        if not self.slots:
            return Replacement(self.stop, self.stop, code)
        left = self.slots[place - 1]
        start, gap, comma = left.tail, left.gap, left.comma is not None
        if place == 0:
            start, gap, comma = self.start, self.lead, True
        is_last = place == len(self.slots)
        style = gap
        if is_last:
            style = self.slots[-2].gap if place > 1 else self.lead or ' '
        ahead, behind = '' if comma else ',', ',' if comma or not is_last else ''
        stop = start + len(gap)
        if is_broken(style):
            own_line = _bare_gap(style)
            line, rest = split_gap(gap)
            code = f'{ahead}{line}{own_line}{code}{behind}{rest}'
            return Replacement(start, stop, code)
        before, after = style, gap
        if place == 0:
            before, after = self.lead, _bare_gap(self.slots[0].gap)
            after = ' ' if len(self.slots) == 1 else after
        one_line = f'{ahead}{before}{code}{behind}{after}'
        replacement = Replacement(start, stop, one_line)
        if self._is_too_long(replacement):
            # the line is broken behind the entry, or before it where it is the last
            margin = self.newline + ' ' * self._find_margin()
            before, after = (margin, after) if is_last else (before, margin)
            broken = f'{ahead}{before}{code}{behind}{after}'
            replacement = Replacement(start, stop, broken)
        return replacement

    def _is_too_long(self, replacement: Replacement) -> bool:
        head = _BREAK.split(self.text[: replacement.start])[-1]
        tail = _BREAK.split(self.text[replacement.stop :])[0]
        return len(head) + len(_BREAK.split(replacement.code + tail)[0]) > CONFIG_WIDTH

    def _find_margin(self) -> int:
        """Returns the column in which the entries of a multi-line dict start."""
        return len(_BREAK.split(self.text[: self.start + len(self.lead)])[-1])


def insert_entry(
    module: Module, display: Display, rest: tuple[str, ...], value: SettingValue
) -> Replacement:
    """Makes the edit that adds a missing key to a ``dict(...)`` of a config.

    It goes behind the last of the short settings, or to the end where it is none of
    them; never before a ``**x`` or a positional dict, which may hold the key as well.
    """
    layout = Layout(module, display)
    place = len(layout.slots)
    if rest[0] in _LEADING_KEYS:
        short = (None, *_LEADING_KEYS)
        before = [
            number for number, slot in enumerate(layout.slots, 1) if slot.key in short
        ]
        place = max(before, default=0)
    key = f'{rest[0]}='
    if isinstance(display, ast.Dict):
        spelled = [module.code(name) for name in display.keys if parse_string(name)]
        quote = spelled[0][-1] if spelled else "'"
        key = f'{quote}{rest[0]}{quote}: '
    return layout.insert(place, key + render_value(rest[1:], value))


def render_value(keys: tuple[str, ...], value: SettingValue) -> str:
    """Returns the code of a value, nested in ``dict(...)`` for each given key."""
    code = repr(value)
    for key in reversed(keys):
        code = f'dict({key}={code})'
    return code


def render_statement(form: str, path: KeyPath, value: SettingValue) -> str:
    """Returns a statement that sets a key in a top-level dict of a config."""
    if form == UPDATE and len(path) > 2 and path[0] not in HOOK_ROOTS:
        # what else the inner dict holds stays
        holder = ''.join(f'.setdefault({key!r}, dict())' for key in path[1:-1])
        return form.format(path[0] + holder, f'{path[-1]}={value!r}')
    code = render_value(path[2:], value)
    return form.format(path[0], f'{path[1]}={code}')


def append(text: str, newline: str, statement: str) -> Replacement:
    """Makes the edit that adds a statement to a config's end, after a blank line."""
    ended = not text or text.endswith(('\n', '\r'))
    gap = '' if not text else newline if ended else newline + newline
    code = f'{gap}{statement}{newline if ended else ""}'
    return Replacement(len(text), len(text), code)


def is_broken(gap: str) -> bool:
    """True if the text after an entry of a dict has a line break."""
    return _BREAK.search(gap) is not None


def split_gap(gap: str) -> tuple[str, str]:
    """Splits the text after an entry of a dict at its first line break.

    The comment ahead of the break stays left.
    """
    found = _BREAK.search(gap)
    return ('', gap) if found is None else (gap[: found.start()], gap[found.start() :])


def _bare_gap(gap: str) -> str:
    """Strips comments and empty lines from the text that follows an entry of a dict.

    The last line break and the indentation stay.
    """
    found = re.search(r'(\r\n|\n|\r)[^\r\n]*\Z', gap)
    return found.group() if found else gap
