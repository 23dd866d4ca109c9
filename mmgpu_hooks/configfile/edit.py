"""Rewrites dataloader settings in the text of a config. Pure: ``str -> str``."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

import libcst as cst

from mmgpu_hooks.configfile.display import (
    AnyEntry,
    Display,
    Entries,
    edit_entries,
    edit_insert,
    edit_remove,
    parse_entries,
)
from mmgpu_hooks.configfile.locate import Site, locate_loader
from mmgpu_hooks.configfile.outcome import REMOVE, RefusedError, Setting
from mmgpu_hooks.configfile.survey import render_found

_WIDTH = 79
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
"""Keys that OpenMMLab's configs put before the sampler and the dataset."""


def edit_settings(text: str, settings: Mapping[str, Setting]) -> str:
    """Changes settings in a config.

    Args:
        text: Source of the config.
        settings: Values by dotted key, such as ``train_dataloader.num_workers``.

    Returns:
        The new source, equal to ``text`` where every setting is spelled already.

    Raises:
        RefusedError: If a loader is spelled in a way that cannot be edited safely.
    """
    loaders: dict[str, dict[str, Setting]] = {}
    for dotted, value in settings.items():
        loader, _, key = dotted.partition('.')
        loaders.setdefault(loader, {})[key] = value
    for loader, changes in loaders.items():
        text = edit_loader(text, loader, changes)
    return text


def edit_loader(text: str, loader: str, changes: Mapping[str, Setting]) -> str:
    """Changes the settings of one loader; see :func:`edit_settings`."""
    site = locate_loader(text, loader, changes.keys())
    if site.display is None:
        return _edit_end(text, site, loader, changes)
    entries = parse_entries(site.display)
    for key, value in changes.items():
        entries = _edit_entry(entries, site, site.display, key, value)
    if entries == parse_entries(site.display):
        return text
    edited = edit_entries(site.display, entries)
    module = site.module.deep_replace(site.display, edited)
    assert isinstance(module, cst.Module)
    return module.code


def _edit_entry(
    entries: Entries, site: Site, display: Display, key: str, value: Setting
) -> Entries:
    found = [index for index, slot in enumerate(entries.slots) if slot.key == key]
    if not found:
        for slot in entries.slots:
            if slot.key is None:
                raise RefusedError(
                    f'expected {key} or only literal keys in the dict, found '
                    f'{render_entry(slot.node)} that may hold it; write {key} as a '
                    'literal key, or change it by hand',
                    site.line(slot.value),
                )
        if value is REMOVE:
            return entries
        return edit_insert(entries, _place(entries), _entry(display, key, value))
    slot = entries.slots[found[0]]
    line = site.line(slot.value)
    if len(found) > 1:
        raise RefusedError(f'expected {key} once, found it {len(found)} times', line)
    present = parse_literal(slot.value)
    if present is None:
        raise RefusedError(
            f'expected {key} as a literal, found {render_found(slot.value)}; write '
            'the value there as a literal, or change it by hand',
            line,
        )
    if value is REMOVE:
        return edit_remove(entries, found[0])
    if present == (type(value), value):
        return entries
    node = slot.node.with_changes(value=cst.parse_expression(repr(value)))
    slots = list(entries.slots)
    slots[found[0]] = type(slot)(node, slot.comma, slot.gap)
    return Entries(entries.lead, tuple(slots))


def _place(entries: Entries) -> int:
    """Finds where a new key goes: behind the last of the short settings."""
    known = [i + 1 for i, slot in enumerate(entries.slots) if slot.key in _LEADING_KEYS]
    return max(known, default=0)


def _entry(display: Display, key: str, value: Setting) -> AnyEntry:
    literal = cst.parse_expression(repr(value))
    if isinstance(display, cst.Dict):
        quote = _quote(display)
        return cst.DictElement(cst.SimpleString(f'{quote}{key}{quote}'), literal)
    equal = cst.AssignEqual(cst.SimpleWhitespace(''), cst.SimpleWhitespace(''))
    return cst.Arg(literal, keyword=cst.Name(key), equal=equal)


def _quote(display: cst.Dict) -> str:
    for element in display.elements:
        key = element.key if isinstance(element, cst.DictElement) else None
        if isinstance(key, cst.SimpleString):
            return key.quote[0]
    return "'"


def render_entry(node: AnyEntry) -> str:
    """Shows an entry without a literal key, for a refusal."""
    star = node.star if isinstance(node, cst.Arg) else ''
    if isinstance(node, cst.StarredDictElement):
        star = '**'
    if isinstance(node, cst.DictElement):
        return f'the computed key {cst.Module([]).code_for_node(node.key)}'
    return f'{star}{cst.Module([]).code_for_node(node.value)}'


def parse_literal(node: cst.BaseExpression) -> tuple[type, object] | None:
    """Reads a literal as its type and value, ``None`` for any other expression."""
    try:
        value = ast.literal_eval(cst.Module([]).code_for_node(node).strip())
    except (ValueError, SyntaxError):
        return None
    return type(value), value


def _edit_end(
    text: str, site: Site, loader: str, changes: Mapping[str, Setting]
) -> str:
    """Overrides inherited settings in a statement behind the last one."""
    pairs: list[str] = [
        f'{key}={value!r}' for key, value in changes.items() if value is not REMOVE
    ]
    if not pairs:
        return text
    newline = site.module.default_newline
    opening = f'{loader}.update(' if site.lazy else f'{loader} = dict('
    statement = f'{opening}{", ".join(pairs)})'
    if len(statement) > _WIDTH:
        joined = f',{newline}    '.join(pairs)
        statement = f'{opening}{newline}    {joined})'
    ended = not text or text.endswith(('\n', '\r'))
    blank = re.search(r'(?:\r\n|\n|\r(?!\n))[ \t]*(?:\r\n|\n|\r)\Z', text) is not None
    gap = '' if blank or not text else newline
    gap = gap if ended else newline + newline
    return f'{text}{gap}{statement}{newline if ended else ""}'
