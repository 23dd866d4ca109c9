"""Makes text safe to show: control characters, line breaks and file paths.

What is shown passes one function, ``visible``, which writes control and bidi characters
as ``\\x1b``: names come from files, configs and drivers. ``guarded_output`` puts it
around all that a command prints, errors included; the page and the summary call it
themselves; a chart holds words of our own alone.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

_INVISIBLE = (
    '[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069'
    '\ud800-\udfff\ufeff\ufffe\uffff]|\r(?!\n)'
)
"""Regex for control and bidi characters that `visible` replaces.

To compile it takes 15 ms, which most commands do without.
"""


def visible(text: object) -> str:
    r"""Replaces control and bidi characters in a text by escapes, like ``\x1b``.

    A name from a file, a config or a driver may hold any of them: ``\x1b]0;`` sets
    a terminal's title, U+202E reverses what follows. All that is shown passes here:
    lines of a terminal or log, cells of a page, labels of a chart. Tabs and line
    breaks stay.
    """
    shown = str(text)
    # a tenth of the time, for text as it nearly always is
    if shown.replace('\n', ' ').isprintable():
        return shown
    return re.sub(_INVISIBLE, lambda match: ascii(match[0])[1:-1], shown)


_OWN_STYLES = re.compile(r'(\x1b\[(?:0|1|2|1?;?3[1236])m)')
"""Escape sequences for colour and bold type that `terminal.render` writes."""


STANDARD_OUTPUT = 'standard output'


class _Guarded:
    """Output stream that escapes control characters.

    An `OSError` of it has the name of the stream as its ``filename``.
    """

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._name = stream, name
        self._is_terminal = stream.isatty()

    def write(self, text: str) -> int:
        # of bytes, which click tries, this is a TypeError, as of any text stream
        parts = _OWN_STYLES.split(text)
        if not self._is_terminal:
            parts = [text]
        # every second part is a style
        shown = [
            part if place % 2 else visible(part) for place, part in enumerate(parts)
        ]
        with self._named():
            self._stream.write(''.join(shown))
        return len(text)

    def flush(self) -> None:
        with self._named():
            self._stream.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            error.filename = self._name
            raise

    def writelines(self, lines: Sequence[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def guarded_output() -> Iterator[None]:
    """Context in which all output shows control characters as visible escapes."""
    before = sys.stdout, sys.stderr
    for stream in before:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors='backslashreplace')
    # one that is closed is None
    names = (STANDARD_OUTPUT, 'standard error')
    guarded: Any = [
        stream and _Guarded(stream, name) for stream, name in zip(before, names)
    ]
    sys.stdout, sys.stderr = guarded
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


BOUND = '\ue000'
"""Private character for an unbreakable space, as rich breaks lines at real ones."""
_UNIT = re.compile(r'(\d) (%|s|us|ms|min|KiB|MiB|GiB|MHz|W|C)(?![A-Za-z])')


def bind_units(text: str, space: str = BOUND) -> str:
    """Puts unbreakable spaces between numbers and their units."""
    return _UNIT.sub(rf'\1{space}\2', text)


BREAK = '\x1f'
"""Space of no width, at which rich may break a line."""
_JOINED = '\u2060'
"""Filler after a double-width character that must stay with the next character."""
_WIDE = (
    '[\u1100-\u115f\u2e80-\u303e\u3041-\ua4cf\uac00-\ud7a3\uf900-\ufaff'
    '\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]'
)
"""Regex for double-width characters (East Asian Width W and F)."""
_OPENING, _CLOSING = '（《「『【', '，。、；：？！）》」』】%'  # noqa: RUF001
"""Punctuation marks that may not end a line, and that may not begin one."""
_BEFORE_BREAK = re.compile(
    f'(?![{_OPENING}])({_WIDE})(?=[^{_CLOSING}{BOUND}{_JOINED}\\s])|({_WIDE})'
)
_FILLED = re.compile(f'({_WIDE})[ {_JOINED}]')


def break_wide(text: str) -> str:
    """Adds a possible line break between any two double-width characters.

    rich breaks at white space alone; :data:`BREAK` is to be taken out of what it wrote.
    """
    return _fill(text, BREAK, '')


_LONG_PATH = re.compile(r'[^\s/]*/\S{30,}')


def break_paths(text: str) -> str:
    """Adds a possible line break behind each slash of a long path.

    A path that does not fit in a line would be broken in the middle of a name.
    """
    return _LONG_PATH.sub(lambda found: found[0].replace('/', f'/{BREAK}'), text)


def widen(text: str) -> str:
    """Adds a filler after double-width characters, so that ``len`` is the shown width.

    Behind each double-width character is a filler: a space where a line may break, else
    a word joiner. :func:`narrow` takes them out of the lines.
    """
    return _fill(text, ' ', _JOINED)


def _fill(text: str, breaking: str, joined: str) -> str:
    """Adds a filler after each wide character, which allows or forbids a line break."""
    return _BEFORE_BREAK.sub(
        lambda found: found[1] + breaking if found[1] else found[2] + joined, text
    )


def narrow(lines: str) -> str:
    """Removes from wrapped lines the fillers that :func:`widen` added."""
    return _FILLED.sub(r'\1', lines)


def short_path(path: Path | str | None) -> str | None:
    """Makes paths below the working directory relative to it; keeps other paths."""
    if path is None:
        return None
    relative = os.path.relpath(path)
    return str(path) if relative.startswith('..') else relative


def shell_path(path: str | None) -> str | None:
    """Shortens a path as :func:`short_path` does, and quotes it for a shell."""
    short = short_path(path)
    return None if short is None else shlex.quote(short)
