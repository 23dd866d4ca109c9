"""Classifies console lines after replacing each digit by 0, and caches the results.

Lines that differ in their digits alone have one shape: is it a frame, an exception,
progress; which patterns may match. Most lines are passed over by it.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from mmgpu_hooks.judge.console_matchers import (
    MATCHERS,
    WORDS,
    Matcher,
    any_word,
    blur_matcher,
    find_words,
)

_MOST_SHAPES = 2**12
"""Maximum number of distinct console lines (digits as 0) whose class is cached."""


def _any(patterns: str, form: str = '(?:{})') -> re.Pattern[str]:
    """Compiles regexes, given one per line of a text, into one that matches any."""
    return re.compile(form.format('|'.join(patterns.strip('\n').splitlines())))


_DIGITS = str.maketrans('123456789', '0' * 9)
_POINTER = re.compile('(?<=0x)[0-9a-fA-F]+')
_PREFIX = _any(
    r"""
\[?\d{4}[-/]\d\d[-/]\d\d[T _]\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?\]?[ ,:|-]*
\d\d/\d\d \d\d:\d\d:\d\d - \w+ - (?!WARN)[A-Z]+ -[ ]
std(?:out|err)(?: [FP]|:)[ ]
\[?(?:default|[Rr]ank)[ _]?(?P<a>\d{1,4})\]?: ?|(?P<b>\d{1,4}):[ ]|\[(?P<h>\d{1,4})\]:\s
\[\d+,(?P<c>\d{1,4})\]<std(?:err|out)>: ?|\(\w+ pid=\d+[^)]*\)[ ]
(?:[\w.-]+-\d+|worker\S*|node\S*|gpu\S*) +\|[ ]
[\w.-]+-\d+:[ ](?=\S*(?:Error|Trace)|  File)
(?:\w+ - )?(?:ERROR|CRITICAL|FATAL)(?: -|:)? (?=\S*(?:Error|Exception|Interrupt)\b)
""",
    r'(?:\s*(?:{})){{0,4}}',
)
_BAR = re.compile(
    r'^.*?(?:\d{1,3}%\|[^|]{0,400}\|\s{0,9}\S{1,40} \[[^\]]{0,200}\]'
    r'|task/s, elapsed: \d{1,9}s, ETA:\s{1,9}\d{1,9}s|\[\d\d:\d\d<[^\]]{0,200}\])'
)
IN_CONFIG = (
    r'(?:mmengine|mmcv/utils)/(?:config|registry)|/addict/|argparse\.py'
    r'|mmengine/optim/optimizer/(?:builder|default_constructor)'
)
_STANDARD = re.compile(r'/lib/python\d[\d.]*/(?!site-packages|dist-packages|argparse)')
_HEADER = re.compile(r'Traceback \(most recent call last\)|╭─+ Traceback')
_CHAINED = re.compile(
    'During handling of the above exception, another|'
    'The above exception was the direct cause'
)
FRAME = re.compile(r'^\s*(?:\|\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?')
RICH_FRAME = re.compile(r'^\s*│ (\S+\.py):(\d+)\s+(?:in (\S+))?')
_EXCEPTION = re.compile(
    r'^(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Exit|Failure|Invalid\w{0,80})|error'
    r'|Timeout(?:Expired)?|StopIteration)(?::|$)'
)
_RAISED = re.compile(
    r'(?:Error|Exception|Exit|Failure|Timeout|Expired|StopIteration'
    r'|Invalid\w{0,80})(?::|\s*$)'
)
_PLAIN_ERROR = re.compile(r'(?:^|[.\]|:])\s{0,40}error(?::|\s*$)')
"""Quick regex for exceptions named ``error``, tried before the full one."""
_NAMED_FREELY = re.compile(
    r'^(?:[A-Za-z_]\w{0,80}\.){0,9}[A-Z]\w{0,80}[a-z]\w{0,80}(?:: |$)'
)
"""Regex for an exception of any name, for lines that can hold only exceptions."""
_DECORATION = re.compile(r'^[│╰─ ]*(?:E +)?')
"""Regex for the border or mark that rich and pytest print before an exception."""
_QUIET = re.compile(
    r'^(?:\w+\.)*(?:Empty|SystemExit|ModuleNotFoundError: No module named .(?:apex'
    r'|tensorboard|flash_attn))'
)
PROGRESS = _any(r"""
(?:Epoch|Iter) ?\((?:train|val|test)\) +((?:\[ *\d+(?:/ *\d+)?\] *)+)
Epoch:? ?(\[\d+\] ?\[ *\d+/\d+\])|Iter \[ *(\d+/\d+)\]|(?:%\|[^|]*\||[━─]) *(\d+/\d+)[ ]
(?i:(?:step|iter(?:ation)?|epoch)\w{0,20}[ :=#\[]{1,8}\d{1,12})(.{0,40}loss)
^(?:\{'loss': ([^,]+),.*'epoch': [\d.]+| *(\d+/\d+) +[\d.]+G[ ])
""")
_DONE_LINES = r"""
`?Trainer\.fit`? stopped: `?max_|Total training time:|'train_runtime':
^\d+ epochs completed in
(?i:^\W*training (?:completed?|finished|(?:is )?done)\b)
"""
_DONE = _any(_DONE_LINES)
_START_LINE = r'^System environment:|^Environment info:'
_START = re.compile(_START_LINE)
_RESTART_LINE = 'will restart worker group'
_USAGE_LINE = '^usage: '
_RESTART, _USAGE = re.compile(_RESTART_LINE), re.compile(_USAGE_LINE)
_OF_RANKS = re.compile(
    r'(?i:local_rank|torchrun|nccl|\bgloo\b|c10d|torch[./]distributed|mpirun|\bsrun:'
    r'|deepspeed|worker group)'
)
"""Regex for words that occur only in logs of trainings with several ranks."""
_WARNING = re.compile(r'(?:^|[\s\[])(?:WARN(?:ING)?\b|\w*Warning:)')
_OWN_LINE = r'\s*Cause: (\w+) \((sure|likely)\); mmgpu explain \1$'
OWN = re.compile(_OWN_LINE)
"""Regex for the line in which the watchdog names the cause of a hang."""
_ROOT = 'Root Cause (first observed failure)'
ROOT_RANK = re.compile(r'\s*rank\s+: (\d+) \(local_rank: \d+\)')
"""Regex for the line of torchrun's summary that names the rank that failed."""
_GLUED = re.compile(
    r'(?<=[)\]\'"])(?=(?:[a-z_]\w{0,40}\.){0,5}[A-Z]\w{0,60}(?:Error|Exception): )'
)
"""Regex for an exception printed right behind another rank's line of source code."""
_FLAGS = {
    'data': r'torch/utils/data/_utils/(?:fetch|worker)\.py',
    'loader': r'torch/utils/data/|multiprocessing/(?:conn|queue|reso|redu)',
    'shm': r'multiprocessing/(?:synchronize|shared_memory)\.py',
    'config': IN_CONFIG,
    # torch.multiprocessing.spawn names what ended a rank
    'spawn': r'(?<!torch/)multiprocessing/spawn\.py',
    'pin': r'torch/utils/data/_utils/pin_memory\.py',
    'terminal': r'/logging/__init__\.py|/tqdm/|mmengine/utils/progressbar',
}
"""Regexes for paths of traceback frames, by the flag of `FramePath` a match sets."""
_LIBRARY = re.compile(
    r'site-packages|dist-packages|/lib/python\d|<frozen|lib/python3|mmgpu_hooks/hooks/'
)


_TRIGGER = any_word(
    {
        # `_RAISED` finds the lines of the patterns that need no more than these
        *(word for word in WORDS if word not in ('error', 'error:', 'exception')),
        *(
            word
            for line in _DONE_LINES.strip().split('\n')
            for word in find_words(line)
        ),
        *find_words(_START_LINE),
        *find_words(_OWN_LINE.replace(r'\1', '')),
        *find_words(_RESTART_LINE),
        *find_words(_USAGE_LINE),
        'traceback',
        'file "',
        '│',
        _ROOT.lower(),
        '(local_rank: ',
        'above exception',
        'exception ignored in',
    }
)
"""Regex for words; a console line that has any of them is analysed in full.

Every sign's pattern, traceback and exception has one of them, in lower case.
"""


class Parts(NamedTuple):
    """Positions of the parts of a console line: progress bars, rank label and rest."""

    bars: tuple[slice, ...]
    """Positions of the progress bars at the start of the line."""
    label: slice
    """Position of the digits of the rank that wrote the line; empty if not named."""
    rest: slice
    reading: Reading
    """Classification of the console line without its progress bars and rank label."""


class QuickReading(NamedTuple):
    """Result of the quick check for whether a console line needs a full analysis."""

    parts: Parts | None
    """Positions of the line's parts; ``None`` if the line needs no full analysis."""
    has_progress: bool


class Kind(enum.Enum):
    """Kind of a console line: header or frame of a traceback, start, end, restart."""

    HEADER = enum.auto()
    FRAME = enum.auto()
    IGNORED = enum.auto()
    CHAINED = enum.auto()
    ROOT = enum.auto()
    ROOT_RANK = enum.auto()
    DONE = enum.auto()
    START = enum.auto()
    RESTART = enum.auto()
    USAGE = enum.auto()
    OTHER = enum.auto()


_KINDS: dict[Kind, Callable[[str], object]] = {
    Kind.HEADER: _HEADER.search,
    Kind.FRAME: lambda text: FRAME.match(text) or RICH_FRAME.match(text),
    Kind.IGNORED: lambda text: 'Exception ignored in' in text,
    Kind.CHAINED: _CHAINED.search,
    Kind.ROOT: lambda text: _ROOT in text,
    Kind.ROOT_RANK: ROOT_RANK.match,
    Kind.DONE: _DONE.search,
    Kind.START: _START.search,
    Kind.RESTART: _RESTART.search,
    Kind.USAGE: _USAGE.search,
}
"""Test for each kind of console line; the first that matches decides."""


class Raised(NamedTuple):
    """Classification of a text that may begin with the name of an exception."""

    is_exception: bool
    is_quiet: bool


class Reading(NamedTuple):
    """Classification of a console line without progress bars and rank label."""

    shape: str
    has_progress: bool
    kind: Kind
    plain: Raised
    decoration: int
    """Number of characters of rich's or pytest's border before an exception."""
    decorated: Raised
    """Classification of the text after rich's border or pytest's ``E``, if any."""
    is_named: bool
    """True if the line reads as an exception of any name, such as ``Foo: bar``."""
    is_indented: bool
    glued: int
    """Position of an exception written behind a line of code; 0 if there is none."""
    is_warning: bool
    is_worker: bool
    is_own: bool
    is_of_ranks: bool
    matchers: tuple[Matcher, ...]
    """Matchers whose pattern may match the classified console line."""


def shape_of(text: str) -> str:
    """Returns a text with its decimal digits, and a pointer's hex digits, set to 0."""
    shape = text.translate(_DIGITS)
    if '0x' in shape:
        shape = _POINTER.sub(lambda digits: '0' * len(digits[0]), shape)
    return shape


@lru_cache(maxsize=_MOST_SHAPES)
def read_quickly(shape: str) -> QuickReading:
    """Checks quickly if a line (all digits set to 0) needs a full analysis."""
    may_count = _TRIGGER.search(shape.lower()) or _RAISED.search(shape)
    if may_count or ('error' in shape and _PLAIN_ERROR.search(shape)):
        return QuickReading(take_apart(shape), False)
    is_bar = any(mark in shape for mark in ('[', 'loss', '%', 'it/s'))
    return QuickReading(None, is_bar and bool(PROGRESS.search(shape)))


@lru_cache(maxsize=_MOST_SHAPES)
def take_apart(shape: str) -> Parts:
    """Finds progress bars, rank label and rest of a line with all digits set to 0."""
    text, start, bars = shape.rstrip(), 0, list[slice]()
    while '[' in text and '/' in text and (bar := _BAR.match(text)) is not None:
        bars.append(slice(start, start + bar.end()))
        start, text = start + bar.end(), text[bar.end() :]
    prefix = _PREFIX.match(text)
    assert prefix is not None  # it may be empty
    label = slice(0)
    for group, found in enumerate(prefix.groups(), 1):
        if found and label == slice(0):
            label = slice(start + prefix.start(group), start + prefix.end(group))
    rest = slice(start + prefix.end(), start + len(text))
    return Parts(tuple(bars), label, rest, read_shape(shape[rest]))


@lru_cache(maxsize=_MOST_SHAPES)
def read_shape(shape: str) -> Reading:
    """Classifies a console line without rank label, all digits set to 0."""
    lowered = shape.lower()
    decoration = _DECORATION.match(shape)
    assert decoration is not None  # it may be empty
    rest = shape[decoration.end() :]
    is_indented = shape[:1].isspace()
    glued = _GLUED.search(shape) if is_indented else None
    places = {place for word in WORDS if word in lowered for place in WORDS[word]}
    return Reading(
        shape=shape,
        has_progress=bool(PROGRESS.search(shape)),
        kind=_read_kind(shape),
        plain=_read_raised(shape),
        decoration=decoration.end(),
        decorated=_read_raised(rest),
        is_named=bool(_NAMED_FREELY.match(shape)),
        is_indented=is_indented,
        glued=0 if glued is None else glued.start(),
        is_warning=bool(_WARNING.search(shape[:60])),
        is_worker='DataLoader worker process' in shape,
        is_own=bool(OWN.match(shape)),
        is_of_ranks=bool(_OF_RANKS.search(shape)),
        matchers=tuple(
            MATCHERS[place]
            for place in sorted(places)
            if blur_matcher(place).search(shape) or blur_matcher(place).search(rest)
        ),
    )


def _read_kind(shape: str) -> Kind:
    for kind, is_such in _KINDS.items():
        if is_such(shape):
            return kind
    return Kind.OTHER


def _read_raised(text: str) -> Raised:
    return Raised(
        bool(_EXCEPTION.match(text)),
        bool(_QUIET.match(text)),
    )


class FramePath(NamedTuple):
    """Classification of the file of a traceback frame, by its path."""

    path: str
    is_standard: bool
    is_library: bool
    flags: frozenset[str]


@lru_cache(maxsize=_MOST_SHAPES)
def read_path(path: str) -> FramePath:
    """Classifies the file of a traceback frame by its path."""
    path = path.replace('\\', '/')
    flags = frozenset(name for name, file in _FLAGS.items() if re.search(file, path))
    is_standard = bool(_STANDARD.search(path))
    return FramePath(path, is_standard, bool(_LIBRARY.search(path)), flags)
