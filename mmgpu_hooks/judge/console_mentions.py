"""Distinguishes log lines that report a failure from lines that mention one."""

from __future__ import annotations

import re
from functools import lru_cache

_WISH = re.compile(
    r'(?i)(?<![\w/.-])(?:may(?! {1,2}\d)|might|can|would|should|must|if|when|whenever'
    r'|unless|could(?! not)|hint|note|tip|news|policy|faq)\b(?![\'/.-])'
)
"""Regex for words that mark a line as a warning of a possible failure.

In a path, a host's name or a date they do not count.
"""
_GENERAL = re.compile(
    r'(?i)(?<![\w/.-])(?:known|issues|e\.g|i\.e|examples?|such as|like|see|means?|avoid'
    r'|help|docs|documentation|manual|guide|wiki|motd|message of the day|welcome'
    r'|announcement|reminder|remember|maintenance|troubleshooting|typical|typically'
    r'|common|commonly|frequent|often|sometimes|usually|always|never|yesterday'
    r'|last|previous|previously|former|resolved|fixed|solved|messages|errors|codes|jobs'
    r'|users|please|search for|look for|we|our|you)\b(?![/-])'
)
"""Regex for words that mark a line as general talk of failures, as in manuals."""
_EXPLAINED = re.compile(
    r'(?i)["\'`)\]*]{0,3}\s{1,9}(?:means?|meaning|indicates?|says|is|are|was|were|errors?'
    r'|messages?|lines?|usually|often|happens|appears|stands for)\b'
    r'|["\'`)\]*.,]{0,4}\s{0,9}(?:[→—?]|=>|->)'
)
"""Regex for words that mark a line as an explanation of an error text."""
_LISTED = re.compile(r'\s*(?:[-*•·‣◦>#+]|\d{1,2}[.)]|\(?[a-z][.)]|[QA]:)\s+\S')
"""Regex for the start of a line of a list, quotation, comment or shell trace."""
_QUOTED = re.compile(
    r'"([^"]*)"|`([^`]*)`|“([^”]*)”|«([^»]*)»'
    r"|(?:(?<=[\s(\[:=])|^)'([^']*)'(?![\w])"
)
_VALUE = re.compile(r'\s*(?:\{|["\']?[\w.-]+["\']?\s*[:=]\s*["\'][^"\']*$)')
"""Regex for the start of a JSON or YAML line, where quoted text is a value."""


@lru_cache(maxsize=2**12)
def is_mentioned(text: str, start: int, end: int, is_exception: bool) -> bool:
    """True if a line only mentions an error, as banners, help texts and lists do.

    Args:
        text: The line, or its shape.
        start: Where the sign begins in it.
        end: Where it ends.
        is_exception: The line is an exception, whose message may have any words.
    """
    if _LISTED.match(text) or _EXPLAINED.match(text, end):
        return True
    if is_exception:
        return False
    if _WISH.search(text, 0, end) or _GENERAL.search(text, 0, start):
        return True
    if _VALUE.match(text[:start]):
        return False
    return any(
        quoted.start(quoted.lastindex or 0) <= start
        and end <= quoted.end(quoted.lastindex or 0)
        for quoted in _QUOTED.finditer(text)
    )
