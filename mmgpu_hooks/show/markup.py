"""Markup that text cannot break out of: whatever is not :class:`Markup` is escaped."""

from __future__ import annotations

import json
import re
from html import escape
from typing import Any

_VOID = frozenset({'meta', 'link', 'br', 'hr', 'input'})
# XML 1.0 and HTML have no way to write these
_CONTROL = re.compile('[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]')
# of these, a script element or an old script engine would end
_IN_SCRIPT = {
    '<': '\\u003c',
    '>': '\\u003e',
    '&': '\\u0026',
    '\u2028': '\\u2028',
    '\u2029': '\\u2029',
}


class Markup(str):
    """Text that is markup already; made here alone."""

    __slots__ = ()


def text(value: object) -> Markup:
    """Any value as text that reads as itself, in an element or a quoted attribute."""
    if isinstance(value, Markup):
        return value
    return Markup(escape(_CONTROL.sub('\ufffd', str(value)), quote=True))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element.

    Args:
        name: Of the element.
        *children: Text, which is escaped, or markup; ``None`` is left out.
        **attributes: ``class_`` is written ``class``, ``aria_label`` ``aria-label``;
            ``None`` and ``False`` are left out, ``True`` has no value.
    """
    opened = f'<{name}{_attributes(attributes)}>'
    if name in _VOID:
        return Markup(opened)
    return Markup(f'{opened}{join(*children)}</{name}>')


def join(*parts: object) -> Markup:
    """Parts one after another."""
    return Markup(''.join(text(part) for part in parts if part is not None))


def _attributes(attributes: dict[str, Any]) -> str:
    written = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        # of SVG, viewBox and its like keep their capitals
        name = key.rstrip('_').replace('_', '-')
        written.append(f' {name}' if value is True else f' {name}="{text(value)}"')
    return ''.join(written)


def script_json(value: Any) -> Markup:
    """JSON for the inside of a script element, whatever its strings hold.

    Raises:
        ValueError: For a figure that JSON has not, such as NaN.
    """
    dumped = json.dumps(value, allow_nan=False, separators=(',', ':'))
    return Markup(''.join(_IN_SCRIPT.get(letter, letter) for letter in dumped))
