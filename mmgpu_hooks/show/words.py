"""Translates texts to the user's language, if there is a catalog of it.

``MMGPU_LANG`` names it; commands also heed ``LANG`` and its like. What a training
writes into its log heeds ``MMGPU_LANG`` alone: the language of a server must not change
its logs. Catalogs are those of the standard library's gettext, in ``locale/``.
"""

from __future__ import annotations

import contextlib
import gettext
import locale
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from mmgpu_hooks.schema.text import ENGLISH, Text, Wording, phrase, quoted

DOMAIN = 'mmgpu_hooks'
PSEUDO = 'pseudo'
"""Test language that puts each translatable sentence in brackets."""
MARKS = '\u27e6', '\u27e7'
"""Brackets put around each sentence in the test language :data:`PSEUDO`."""

ROOMY = 'utf', 'gb18030', 'gbk', 'cp936'
"""Beginnings of names of encodings that have the letters of every catalog."""

_SHORT = {'zh': 'zh_CN'}
"""Catalog names by the short language names that ``MMGPU_LANG`` accepts."""
_LOCALES = 'LANGUAGE', 'LC_ALL', 'LC_MESSAGES', 'LANG'
"""Environment variables for the language, in order of precedence."""


def list_languages(
    environ: Mapping[str, str], *, heeds_locale: bool = True
) -> list[str]:
    """Lists the languages that the user asks for, best first; empty for English.

    Args:
        environ: Environment variables.
        heeds_locale: False where ``MMGPU_LANG`` alone counts.

    Examples:
        >>> list_languages({'MMGPU_LANG': 'zh', 'LANG': 'de_DE.UTF-8'})
        ['zh_CN']
        >>> list_languages({'LANG': 'zh_TW.UTF-8'})
        ['zh_TW']
    """
    asked = environ.get('MMGPU_LANG', '')
    if not asked and heeds_locale:
        asked = next((environ[name] for name in _LOCALES if environ.get(name)), '')
    names = [name.partition('.')[0].partition('@')[0] for name in asked.split(':')]
    if 'MMGPU_LANG' in environ:
        names = [_SHORT.get(name, name) for name in names]
    return [name for name in names if name and name not in ('C', 'POSIX')]


def find_folder() -> Path:
    """Returns the path of the folder that holds the translation catalogs."""
    return Path(__file__).parents[1] / 'locale'


def make_wording(languages: list[str]) -> Wording:
    """Returns the translator to the first wanted language with a catalog, or English.

    Args:
        languages: As :func:`list_languages` returns them.

    Returns:
        That of English where none has one.
    """
    if not languages:
        return ENGLISH
    if languages[0] == PSEUDO:
        return Wording(marks=MARKS)
    catalog = gettext.translation(
        DOMAIN, str(find_folder()), languages=languages, fallback=True
    )
    is_found = isinstance(catalog, gettext.GNUTranslations)
    if not is_found:
        return ENGLISH
    name = catalog.info().get('language', languages[0])
    return Wording(catalog, language=name.replace('_', '-'))


_wording: Wording | None = None
"""Wording (language of texts) of this process, which is set once."""


def speak(environ: Mapping[str, str] | None = None) -> None:
    """Sets this process's language from its environment, for click's messages, too.

    Without it ``MMGPU_LANG`` alone counts, as in a training.

    Args:
        environ: Environment variables; those of the process by default.
    """
    global _wording
    languages = list_languages(os.environ if environ is None else environ)
    _wording = make_wording(languages)
    if _wording is not ENGLISH and languages[0] != PSEUDO:
        # click asks gettext when it writes a word
        os.environ['LANGUAGE'] = ':'.join(languages)
        gettext.bindtextdomain(DOMAIN, str(find_folder()))
        gettext.textdomain(DOMAIN)


def current() -> Wording:
    """Returns the `Wording` (translator) to this process's language.

    Until a command calls :func:`speak` it is that of a training: English where the
    console, or a log file, has no room for other letters.
    """
    global _wording
    if _wording is None:
        _wording = make_wording(list_languages(os.environ, heeds_locale=False))
        console = getattr(sys.stdout, 'encoding', None) or 'ascii'
        encodings = (console, locale.getpreferredencoding(False))
        if not all(encoding.lower().startswith(ROOMY) for encoding in encodings):
            _wording = ENGLISH
    return _wording


def is_english() -> bool:
    """True if this process's language is English."""
    return current() is ENGLISH


@contextlib.contextmanager
def in_english() -> Iterator[None]:
    """Context in which texts of this process are worded in English."""
    global _wording
    before, _wording = _wording, ENGLISH
    try:
        yield
    finally:
        _wording = before


def say(said: object) -> str:
    """Translates a text to this process's language; returns other values unchanged."""
    return current().say(said)


_STATUS_NAMES: dict[str, Text] = {
    'completed': phrase('completed'),
    'interrupted': phrase('interrupted'),
    'failed': phrase('failed'),
    'killed': phrase('killed'),
    'not_started': phrase('not started'),
    'out_of_memory': phrase('out of memory'),
    'timed_out': phrase('timed out'),
}


def phrase_status(status: str) -> Text:
    """Phrases how a training or a trial ended, by its recorded status."""
    return _STATUS_NAMES.get(status) or quoted(status.replace('_', ' '))
