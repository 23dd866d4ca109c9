"""Compiles regexes of console lines, and finds words that every match contains."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from mmgpu_hooks.judge.console_patterns import PATTERNS, Pattern

_LEAST_WORD = 2
"""Smallest length, in letters, of a word that is used to preselect console lines."""


class Matcher(NamedTuple):
    """Compiled pattern of a console line; each match contains one of ``words``."""

    sign: Pattern
    expression: re.Pattern[str]
    words: frozenset[str]
    """Lower-case words, one of which is in each line that the pattern matches."""


_ATOM = re.compile(r'\[\^?\]?(?:\\.|[^\]\\])*\]|\\[A-Za-z]|[.^$]|\\?(?P<letter>.)')
_REPEAT = re.compile(r'[*+?]\??|\{[\d,]+\}')
_OPENING = re.compile(r'\((?:\?(?:i?:|P<\w+>))?(?!\?)')
"""Regex for the start of a regex group that consumes text: no lookaround."""


def find_words(pattern: str) -> set[str]:
    """Returns lower-case words, one of which is in each line that a pattern matches.

    For each alternative one word that it cannot do without, or the words of a group
    that it cannot do without: the longest. Digits are in none of them.

    Args:
        pattern: A regular expression that uses what `PATTERNS` do.

    Raises:
        ValueError: An alternative has no such word, so no line could be passed over.
    """
    words = set()
    for choices in _list_choices(pattern):
        best = max(choices, key=lambda choice: (min(map(len, choice)), -len(choice)))
        if min(map(len, best)) < _LEAST_WORD:
            raise ValueError(f'no word that each match of {pattern!r} holds')
        words |= {word.lower() for word in best}
    return words


def _list_choices(pattern: str) -> Iterator[list[set[str]]]:
    """Yields, for each alternative of a regex, words that its matches contain.

    A match contains one word of each set.
    """
    choices, run, place = list[set[str]](), '', 0
    while place < len(pattern):
        if pattern[place] == '|':
            yield [*choices, {run}]
            choices, run, place = [], '', place + 1
            continue
        letter, group = '', set[str]()
        if pattern[place] == '(':
            end = _end_of_group(pattern, place)
            group, place = _find_words_of_group(pattern[place:end]), end
        else:
            atom = _ATOM.match(pattern, place)
            assert atom is not None  # any letter is one
            letter, place = atom['letter'] or '', atom.end()
        if repeat := _REPEAT.match(pattern, place):
            letter, group, place = '', set(), repeat.end()
        if letter and not letter.isdigit():
            run += letter
            continue
        choices.append({run})
        run = ''
        if group:
            choices.append(group)
    yield [*choices, {run}]


def _find_words_of_group(group: str) -> set[str]:
    """Returns words, one of which is in each match of a regex group (no lookaround)."""
    opening = _OPENING.match(group)
    if opening is None:
        return set()
    try:
        return find_words(group[opening.end() : -1])
    except ValueError:
        return set()


def _end_of_group(pattern: str, place: int) -> int:
    """Returns the index at which the regex group that starts at an index ends."""
    depth = 0
    while True:
        if pattern[place] in '[\\':
            atom = _ATOM.match(pattern, place)
            assert atom is not None  # any letter is one
            place = atom.end()
            continue
        depth += {'(': 1, ')': -1}.get(pattern[place], 0)
        place += 1
        if not depth:
            return place


def _make_matcher(pattern: Pattern) -> Matcher:
    source = pattern.pattern
    return Matcher(pattern, re.compile(source), frozenset(find_words(source)))


def blur(pattern: str) -> str:
    """Rewrites a regex to match lines in which each digit is replaced by 0.

    Args:
        pattern: A regular expression that uses what `PATTERNS` do.
    """
    parts, place = list[str](), 0
    while place < len(pattern):
        token = _REPEAT.match(pattern, place)
        if token is None:
            token = _ATOM.match(pattern, place)
            assert token is not None  # any letter is one
            is_class = token[0].startswith('[')
            digits = r'\d-\d|\d' if is_class else r'^\d$'
            parts.append(re.sub(digits, '0', token[0]))
        else:
            parts.append(token[0])
        place = token.end()
    return ''.join(parts)


def any_word(words: set[str]) -> re.Pattern[str]:
    """Compiles literal words into one regex, grouped by their first two letters."""
    starts = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for word in sorted(words):
        starts[word[0]][word[1:2]].append(re.escape(word[2:]))
    firsts = []
    for first, seconds in starts.items():
        rest = (
            f'{re.escape(second)}(?:{"|".join(ends)})'
            for second, ends in seconds.items()
        )
        firsts.append(f'{re.escape(first)}(?:{"|".join(rest)})')
    return re.compile('|'.join(firsts))


MATCHERS = tuple(map(_make_matcher, PATTERNS))


@cache
def blur_matcher(place: int) -> re.Pattern[str]:
    """Compiles a matcher's regex for lines in which each digit is replaced by 0."""
    return re.compile(blur(MATCHERS[place].expression.pattern))


WORDS = {
    word: [place for place, matcher in enumerate(MATCHERS) if word in matcher.words]
    for word in sorted({word for matcher in MATCHERS for word in matcher.words})
}
