"""Sentences as a template and named values, to be worded in any language.

A template is an English sentence with named fields. The unit of a fact is the end of
its name (``iter_s``, ``free_bytes``, ``wait_share``, ``throttled_pct``), or a noun that
is counted (``steady_iterations``); a format after a colon says otherwise.

A function that finds something out returns a `Text`, never a sentence that is put
together; ``show/`` words it where it is shown. A `Text` is a ``str``, which is its
English sentence: logs, evidence, JSON and exceptions need nothing else, and a plain
string among texts is shown as it is. Only what passes ``say`` is translated, and only
templates are looked up, so that no name or path is. gettext of the standard library
has the catalogs; a test holds that each template is one literal with the names of its
facts.
"""

from __future__ import annotations

import gettext
import string
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Callable, NamedTuple, Optional, Tuple

from mmgpu_hooks.schema.figures import (
    format_bytes,
    format_count,
    format_hours,
    format_long,
    format_numbers,
    format_pct,
    format_seconds,
    format_signed,
    format_sum,
)

_FORMATTER = string.Formatter()
_NO_FACTS: Mapping[str, Any] = {}
_LISTED = '{listed}'
"""Template of a comma-separated list of names, without words to translate."""
_PARTS = 'parts'
"""Key among a `Text`'s named values that holds the sentences joined in the text.

It is the only value of such a text, which has no template.
"""


class Noun(NamedTuple):
    """A counted noun, singular and plural, both with the number as ``{n}``."""

    single: str
    several: str


NOUNS: dict[str, Noun] = {
    'allocations': Noun('{n} allocation', '{n} allocations'),
    'batches': Noun('{n} batch', '{n} batches'),
    'blocks': Noun('{n} block', '{n} blocks'),
    'boxes': Noun('{n} box', '{n} boxes'),
    'cards': Noun('{n} card', '{n} cards'),
    'cores': Noun('{n} core', '{n} cores'),
    'cpus': Noun('{n} CPU', '{n} CPUs'),
    'days': Noun('{n} day', '{n} days'),
    'epochs': Noun('{n} epoch', '{n} epochs'),
    'evaluations': Noun('{n} evaluation', '{n} evaluations'),
    'files': Noun('{n} file', '{n} files'),
    'gpus': Noun('{n} GPU', '{n} GPUs'),
    'images': Noun('{n} image', '{n} images'),
    'intervals': Noun('{n} interval', '{n} intervals'),
    'iterations': Noun('{n} iteration', '{n} iterations'),
    'lines': Noun('{n} line', '{n} lines'),
    'months': Noun('{n} month', '{n} months'),
    'nodes': Noun('{n} node', '{n} nodes'),
    'pairs': Noun('{n} pair', '{n} pairs'),
    'places': Noun('{n} place', '{n} places'),
    'processes': Noun('{n} process', '{n} processes'),
    'ranks': Noun('{n} rank', '{n} ranks'),
    'readings': Noun('{n} reading', '{n} readings'),
    'results': Noun('{n} result', '{n} results'),
    'rows': Noun('{n} row', '{n} rows'),
    'runs': Noun('{n} run', '{n} runs'),
    'samples': Noun('{n} sample', '{n} samples'),
    'saves': Noun('{n} save', '{n} saves'),
    'scalars': Noun('{n} scalar', '{n} scalars'),
    'sets': Noun('{n} data set', '{n} data sets'),
    'settings': Noun('{n} setting', '{n} settings'),
    'sizes': Noun('{n} padded size', '{n} padded sizes'),
    'starts': Noun('{n} start', '{n} starts'),
    'tasks': Noun('{n} task', '{n} tasks'),
    'tensors': Noun('{n} tensor', '{n} tensors'),
    'things': Noun('{n} thing', '{n} things'),
    'threads': Noun('{n} thread', '{n} threads'),
    'times': Noun('{n} time', '{n} times'),
    'trainings': Noun('{n} training', '{n} trainings'),
    'trials': Noun('{n} trial', '{n} trials'),
    'validations': Noun('{n} validation', '{n} validations'),
    'weeks': Noun('{n} week', '{n} weeks'),
    'workers': Noun('{n} worker', '{n} workers'),
}
"""Singular and plural nouns, by the last word of a value's name, such as ``workers``.

A format for numbers (``{workers:d}``) leaves the noun out.
"""

_UNITS: dict[str, Callable[[Any], str]] = {
    's': format_seconds,
    'sum': format_sum,
    'long': format_long,
    'hours': format_hours,
    'signed': format_signed,
    'bytes': format_bytes,
    'share': lambda share: f'{100 * share:.0f} %',
    'pct': lambda pct: f'{pct:.0f} %',
    'exact': format_pct,
    'count': format_count,
    'numbers': format_numbers,
}
"""Functions that format a value in a template, by end of the value's name or format.

``sum`` is a sum of seconds over a run, ``long`` over a whole training, ``exact`` per
cent as exact as a small share needs, ``count`` what may come in millions, ``numbers`` a
list as the kernel writes CPUs.
"""

SEPARATORS = {';': '; ', ',': ', ', '+': ' + ', '&': ' and ', '/': ' or '}
"""Separators that join a list's items in a sentence, by format of the list's field."""

SPACE = 'between sentences', '| |'
"""Context and message, for gettext, of the space between two sentences.

It stands between bars: a language without it translates them as ``||``, since an empty
translation would be none.
"""

UNKNOWN = 'unknown'


class Text(str):
    """Sentence (``str``) that keeps its template and the values in it.

    As a string it is the sentence in English, so that logs, evidence and JSON need
    nothing else. :meth:`Wording.say` words it anew. A plain string is a text without
    facts that is shown as it is: a name, a path, words of another program.
    """

    __slots__ = ('facts', 'template')
    template: str
    facts: Mapping[str, Any]

    def __new__(
        cls, english: str, template: str = '', facts: Mapping[str, Any] = _NO_FACTS
    ) -> Text:
        """Makes a text from an English sentence, its template and its named values.

        Args:
            english: The sentence.
            template: In English, with the names of facts; empty for what is quoted,
                which no language translates.
            facts: By name; without any the template is no format.
        """
        made = super().__new__(cls, english)
        made.template = template
        made.facts = facts
        return made


def phrase(template: str, /, *sources: object, **facts: Any) -> Text:
    """Makes a text from a template and the named values that fill it.

    Args:
        template: One literal, which catalogs of languages are made of.
        sources: Records with the figures that are named in the template and not given
            as ``facts``.
        facts: Figures, names and other texts, by name.

    Examples:
        >>> phrase('{share} of {iter_s} with {workers}', share=0.5, iter_s=2, workers=1)
        '50 % of 2.000 s with 1 worker'
    """
    if sources:
        for _, name, _ in _parse(template):
            if name and name not in facts:
                owner = next(source for source in sources if hasattr(source, name))
                facts[name] = getattr(owner, name)
    for name, value in facts.items():
        if isinstance(value, BaseException):
            # it would keep the frames that it passed, and what is open in them
            facts[name] = said_by(value)
    return Text(ENGLISH.fill(template, facts), template, facts)


def said_by(error: BaseException) -> Text:
    """Returns an error's message as a `Text`; a plain string stays untranslated.

    ``str(error)`` is the English sentence alone, which no language translates.
    """
    words = error.args[0] if len(error.args) == 1 else None
    return words if isinstance(words, Text) else quoted(str(error))


def sentences(*parts: Optional[str]) -> Text:
    """Joins sentences to one text with spaces; empty ones and ``None`` are left out."""
    said = tuple(part for part in parts if part)
    if len(said) == 1:
        return quoted(said[0])
    return Text(' '.join(said), '', {_PARTS: said})


def listed(values: Iterable[str]) -> Text:
    """Joins names or texts to one text, with commas."""
    facts = {'listed': tuple(values)}
    return Text(ENGLISH.fill(_LISTED, facts), _LISTED, facts)


def quoted(words: str) -> Text:
    """Makes a text of another program's words, which are never translated."""
    return words if isinstance(words, Text) else Text(words)


def worded(words: str) -> Text:
    """Makes a translatable text from a sentence written elsewhere, as in a docstring.

    A paragraph of a docstring, a help message, an argument of a decorator: catalogs
    are made of them where they stand.
    """
    return words if isinstance(words, Text) else Text(words, words)


def encode_text(value: object) -> object:
    """Encodes a text as a plain ``str`` or ``dict``, for msgspec's ``enc_hook``.

    Raises:
        NotImplementedError: Of any other type, as msgspec asks for.
    """
    if isinstance(value, Text):
        if not value.template and not value.facts:
            return str(value)
        return {'template': value.template, 'facts': dict(value.facts)}
    raise NotImplementedError(type(value).__name__)


def decode_text(expected: type, value: Any) -> Any:
    """Decodes the result of :func:`encode_text` to a text, for msgspec's ``dec_hook``.

    Raises:
        NotImplementedError: Of any other type, as msgspec asks for.
    """
    if expected is Text:
        return _revive(value) if isinstance(value, dict) else quoted(str(value))
    raise NotImplementedError(expected.__name__)


def _revive(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_revive, value))
    if not isinstance(value, dict) or value.keys() != {'template', 'facts'}:
        return value
    facts = {name: _revive(fact) for name, fact in value['facts'].items()}
    if not value['template'] and _PARTS in facts:
        return sentences(*facts[_PARTS])
    return Text(ENGLISH.fill(value['template'], facts), value['template'], facts)


def facts_of(said: str) -> dict[str, Any]:
    """Returns the named values of a text for JSON; values of nested texts are nested.

    Sentences in a row have one group of facts, in which the first of a name counts.
    """
    if not isinstance(said, Text):
        return {}
    if not said.template and _PARTS in said.facts:
        together: dict[str, Any] = {}
        for part in reversed(said.facts[_PARTS]):
            together.update(facts_of(part))
        return together
    return {name: _plain(value) for name, value in said.facts.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Text):
        return facts_of(value) or str(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(entry) for entry in value]
    # a path, a date: as it is shown
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return value if is_plain else str(value)


@cache
def _parse(template: str) -> Tuple[Tuple[str, Optional[str], str], ...]:
    """Splits a template into literals, each with the field after it and its format.

    A conversion (``!s``, ``!r``) stands for a format.
    """
    return tuple(
        (literal, name, f'!{how}' if how else spec or '')
        for literal, name, spec, how in _FORMATTER.parse(template)
    )


class Wording:
    """Translator of each `Text` into sentences of one language."""

    def __init__(
        self,
        catalog: Optional[gettext.NullTranslations] = None,
        marks: Tuple[str, str] = ('', ''),
        language: str = 'en',
    ) -> None:
        """Sets the gettext catalog of the language that texts are worded in.

        Args:
            catalog: Its sentences by those in English; English by default.
            marks: What is put before and after each sentence that is looked up.
            language: Tag of the language, as in ``lang`` of a page.
        """
        self.language = language
        self._catalog = catalog or gettext.NullTranslations()
        self._before, self._after = marks

    def say(self, said: object) -> str:
        """Words a text in the catalog's language; returns anything else as a string."""
        if not isinstance(said, Text):
            return str(said)
        if not said.template and _PARTS in said.facts:
            return self._join(map(self.say, said.facts[_PARTS]))
        if not said.template:
            return str(said)
        if said.template == _LISTED:
            return self._list(said.facts['listed'], '')
        return self._mark(self.fill(self._catalog.gettext(said.template), said.facts))

    def fill(self, template: str, facts: Mapping[str, Any]) -> str:
        """Fills a template in the catalog's language with named values.

        Raises:
            KeyError: If a fact that is named in it is missing.
        """
        if not facts:
            return template
        pieces = []
        for literal, name, spec in _parse(template):
            pieces.append(literal)
            if name is not None:
                pieces.append(self._figure(facts[name], name, spec))
        return ''.join(pieces)

    def count(self, number: float, noun: str) -> str:
        """Formats a number with its noun: ``1 worker``, ``8 workers``.

        Args:
            number: How many; a fraction is cut as by ``g``.
            noun: A name of :data:`NOUNS`.
        """
        single, several = NOUNS[noun]
        # 1.5 is in the plural, as 2 is
        whole = number if isinstance(number, int) else 1 if number == 1 else 2
        counted = self._catalog.ngettext(single, several, whole)
        shown = f'{number:g}' if isinstance(number, float) else str(number)
        return self._mark(counted.replace('{n}', shown))

    def _figure(self, value: Any, name: str, spec: str) -> str:
        if isinstance(value, Text):
            return self.say(value)
        if spec == '!r':
            return repr(value)
        if spec == '!s':
            return str(value)
        if value is None:
            return self._mark(self._catalog.gettext(UNKNOWN))
        if isinstance(value, str):
            return value
        if spec == 'numbers':
            return format_numbers(value)
        if isinstance(value, (list, tuple)):
            return self._list(value, spec)
        unit = spec or name.rpartition('_')[2]
        if unit in NOUNS:
            return self.count(value, unit)
        if unit in _UNITS:
            return _UNITS[unit](value)
        if spec.endswith('%'):
            # per cent of a share, with a space before the sign
            return f'{100 * value:{spec[:-1]}f} %'
        return f'{value:{spec}}'

    def _list(self, values: Iterable[Any], spec: str) -> str:
        separator = self._catalog.gettext(SEPARATORS.get(spec, ', '))
        return separator.join(self._figure(value, '', '') for value in values)

    def _join(self, parts: Iterable[str]) -> str:
        """Joins sentences; puts a space after each that ends in an ASCII character."""
        space = self._catalog.pgettext(*SPACE).strip('|')
        joined = ''
        for part in parts:
            joined += (' ' if joined[-1:].isascii() else space) if joined else ''
            joined += part
        return joined

    def _mark(self, worded: str) -> str:
        return f'{self._before}{worded}{self._after}' if worded else worded


ENGLISH = Wording()
"""Wording in English: templates stay as they are."""
