"""A reader of console logs by `console_patterns`: what ended the run.

Pure: lines in, events out; memory does not grow with the log. A line is cleaned of
colours, time stamps and rank prefixes first. An event that training survived, because
iterations went on after it, is dropped. Most lines are passed over by one expression
of the words that the table's patterns need, which is derived from them.
"""

from __future__ import annotations

import codecs
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from mmgpu_hooks.judge.console_patterns import (
    PATTERNS,
    SHARED_MEMORY,
    SURVIVED,
    Order,
    Pattern,
    Sign,
)

MOST_BYTES = 64 * 2**20
"""Of a longer log the end is read: 10 s; what was before, training survived."""

_CHUNK_BYTES = 2**18
_MARKS = {
    codecs.BOM_UTF32_LE: 'utf-32-le',
    codecs.BOM_UTF32_BE: 'utf-32-be',
    codecs.BOM_UTF16_LE: 'utf-16-le',
    codecs.BOM_UTF16_BE: 'utf-16-be',
}
"""Byte-order marks; the longer ones first, as one begins with another."""

_HEAD_LETTERS, _TAIL_LETTERS = 3 * 2**10, 2**10
"""Of a long line its start and its end are read: expressions may be quadratic."""
_CUT = ' ... '

_MOST_STRANGE = 0.2
"""Share of letters that could not be decoded, or are zero, above which it is no text:
a crash of the host may leave a block of zeros in a log that can be read."""

_CONTEXT = 400
"""Lines after a traceback's last frame within which it may end; ranks interleave."""

_LEAST_WORD = 2
"""Letters of a word that tells lines apart."""

_NEAR = 5
"""Lines within which one belongs to the next, though ranks interleave."""


class Matcher(NamedTuple):
    """A pattern, ready to be looked for."""

    sign: Pattern
    expression: re.Pattern[str]
    words: frozenset[str]
    """Lower-case words of which each line that the pattern matches has one."""


_ATOM = re.compile(r'\[\^?\]?(?:\\.|[^\]\\])*\]|\\[A-Za-z]|[.^$]|\\?(?P<letter>.)')
_REPEAT = re.compile(r'[*+?]\??|\{[\d,]+\}')


def find_words(pattern: str) -> set[str]:
    """Return lower-case words of which each line that a pattern matches has one.

    One word for each alternative, the longest that stands outside groups and
    repetitions. `(?i:...)` is read as its content.

    Args:
        pattern: A regular expression that uses what `PATTERNS` do.

    Raises:
        ValueError: An alternative has no such word, so no line could be passed over.
    """
    words = set()
    for runs in _split_runs(pattern):
        word = max(runs, key=len, default='')
        if len(word) < _LEAST_WORD:
            raise ValueError(f'no word that each match of {pattern!r} holds')
        words.add(word.lower())
    return words


def _split_runs(pattern: str) -> Iterator[list[str]]:
    """For each alternative at the top, its runs of plain letters."""
    if pattern.startswith('(?i:') and _end_of_group(pattern, 0) == len(pattern):
        pattern = pattern[4:-1]
    runs, place = [''], 0
    while place < len(pattern):
        if pattern[place] == '|':
            yield runs
            runs, place = [''], place + 1
            continue
        letter = ''
        if pattern[place] == '(':
            place = _end_of_group(pattern, place)
        else:
            atom = _ATOM.match(pattern, place)
            assert atom is not None  # any letter is one
            letter, place = atom['letter'] or '', atom.end()
        if repeat := _REPEAT.match(pattern, place):
            letter, place = '', repeat.end()
        if letter:
            runs[-1] += letter
        else:
            runs.append('')
    yield runs


def _end_of_group(pattern: str, place: int) -> int:
    """Where the group ends that begins at a place."""
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
    expression = re.compile(pattern.pattern.replace('SHM', SHARED_MEMORY))
    return Matcher(pattern, expression, frozenset(find_words(pattern.pattern)))


def _any(patterns: str, form: str = '(?:{})') -> re.Pattern[str]:
    """One expression of several, each on a line of its own."""
    return re.compile(form.format('|'.join(patterns.strip('\n').splitlines())))


def _any_word(words: set[str]) -> re.Pattern[str]:
    """One expression of plain words, grouped by their first two letters for speed."""
    starts = defaultdict[str, dict[str, list[str]]](lambda: defaultdict(list))
    for word in sorted(words):
        starts[word[0]][word[1:2]].append(re.escape(word[2:]))
    firsts = []
    for first, seconds in starts.items():
        rest = (f'{re.escape(two)}(?:{"|".join(r)})' for two, r in seconds.items())
        firsts.append(f'{re.escape(first)}(?:{"|".join(rest)})')
    return re.compile('|'.join(firsts))


MATCHERS = tuple(map(_make_matcher, PATTERNS))

_ANSI = re.compile(
    r'\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])'
)
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
_IN_CONFIG = (
    r'(?:mmengine|mmcv/utils)/(?:config|registry)|/addict/|argparse\.py'
    r'|mmengine/optim/optimizer/(?:builder|default_constructor)'
)
_STANDARD = re.compile(r'/lib/python\d[\d.]*/(?!site-packages|dist-packages|argparse)')
_HEADER = re.compile(r'Traceback \(most recent call last\)|╭─+ Traceback')
_FRAME = re.compile(r'^\s*(?:\|\s*)?File "([^"]+)", line (\d+)(?:, in (\S+))?')
_RICH_FRAME = re.compile(r'^\s*│ (\S+\.py):(\d+)\s+(?:in (\S+))?')
_EXCEPTION = re.compile(
    r'^(?:[A-Za-z_]\w*\.)*(?:\w*(?:Error|Exception|Exit|Failure|Invalid\w*)|error'
    r'|Timeout(?:Expired)?|StopIteration)(?::|$)'
)
_NAMED_FREELY = re.compile(
    r'^(?:[A-Za-z_]\w{0,80}\.){0,9}[A-Z]\w{0,80}[a-z]\w{0,80}(?:: |$)'
)
"""An exception of any name, where only an exception can stand."""
_DECORATION = re.compile(r'^[│╰─ ]*(?:E +)?')
"""What rich and pytest put before an exception."""
_QUIET = re.compile(
    r'^(?:\w+\.)*(?:Empty|SystemExit|ModuleNotFoundError: No module named .(?:apex'
    r'|tensorboard|flash_attn))'
)
_PROGRESS = _any(r"""
(?:Epoch|Iter) ?\((?:train|val|test)\) +((?:\[ *\d+(?:/ *\d+)?\] *)+)
Epoch:? ?(\[\d+\] ?\[ *\d+/\d+\])|Iter \[ *(\d+/\d+)\]|(?:%\|[^|]*\||[━─]) *(\d+/\d+)[ ]
(?i:(?:step|iter(?:ation)?|epoch)\w{0,20}[ :=#\[]{1,8}\d{1,12})(.{0,40}loss)
^(?:\{'loss': ([^,]+),.*'epoch': [\d.]+| *(\d+/\d+) +[\d.]+G[ ])
""")
_LOSS = re.compile(
    r'(?i)(?:^|[\s,{\'"(])(?:total_)?loss[\'"]?\s*[:=]\s*\[?(?:tensor\()?'
    r'(nan|[-+]?inf|[-+.\d]+)'
)
_DONE_LINES = r"""
`?Trainer\.fit`? stopped: `?max_|Total training time:|'train_runtime':
^\d+ epochs completed in
(?i:^\W*training (?:completed?|finished|(?:is )?done)\b)
"""
_DONE = _any(_DONE_LINES)
_START_LINE = r'^System environment:|^Environment info:'
_START = re.compile(_START_LINE)
_WISH = re.compile(
    r'(?i)(?<![\w/.-])(?:may|might|can|would|should|must|if|when|whenever|unless'
    r'|could(?! not)|hint|note|tip|news|policy|faq)\b(?![\'/.-])'
)
"""Before the words of a sign: a banner says what can happen, not what did. In a path or
a host's name they are no words."""
_WARNING = re.compile(r'(?:^|[\s\[])(?:WARN(?:ING)?\b|\w*Warning:)')
_OWN_LINE = r'\s*Cause: (\w+) \((sure|likely)\); mmgpu explain \1$'
_OWN = re.compile(_OWN_LINE)
"""What the hook's own warning says of a run that stands still."""
_RANK_LABEL = re.compile(r'(?<=\S)(?=\[(?:default|rank)\d{1,4}\]:)')
"""Where the next rank's line begins, when ranks wrote into one line."""
_GLUED = re.compile(
    r'(?<=[)\]\'"])(?=(?:[a-z_]\w{0,40}\.){0,5}[A-Z]\w{0,60}(?:Error|Exception): )'
)
"""Where an exception begins that was written behind another rank's line of code."""
_FLAGS = {
    'data': r'torch/utils/data/_utils/(?:fetch|worker)\.py',
    'loader': r'torch/utils/data/|multiprocessing/(?:conn|queue|reso|redu)',
    'shm': r'multiprocessing/(?:synchronize|shared_memory)\.py',
    'config': _IN_CONFIG,
    # torch.multiprocessing.spawn names what ended a rank
    'spawn': r'(?<!torch/)multiprocessing/spawn\.py',
    'pin': r'torch/utils/data/_utils/pin_memory\.py',
    'terminal': r'/logging/__init__\.py|/tqdm/|mmengine/utils/progressbar',
}
"""What a frame of such a file says of its traceback."""
_LIBRARY = re.compile(
    r'site-packages|dist-packages|/lib/python\d|<frozen|lib/python3|mmgpu_hooks/hooks/'
)


_WORDS = {
    word: [place for place, matcher in enumerate(MATCHERS) if word in matcher.words]
    for word in sorted({word for matcher in MATCHERS for word in matcher.words})
}
"""For each word of the table the matchers that have it, by their place in it."""

_TRIGGER = _any_word(
    {
        *_WORDS,
        *(w for line in _DONE_LINES.strip().split('\n') for w in find_words(line)),
        *find_words(_START_LINE),
        *find_words(_OWN_LINE),
        *('traceback', 'file "', '│', 'root cause (first observed failure)'),
        *('error', 'exception', 'exit', 'failure', 'invalid', 'timeout'),
        'stopiteration',
    }
)
"""A line of which nothing matches in lower case can only be progress: no sign's
pattern, traceback or exception does without one of these words."""


class Event(NamedTuple):
    """A line that counts against the run."""

    sign: Sign
    line: int
    """In the file, from 1 on; 0 where it stands in none."""
    text: str
    order: int
    """Of all lines read, so that what came first is known."""
    progress: int
    """Iterations seen before it."""
    calm: int
    """Lines before it that are no part of a traceback."""
    rank: int | None = None
    frame: str | None = None
    """Innermost frame of the user's code in the traceback above it."""


class _Traceback:
    """Where one stream of lines stands in a traceback."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.seen = -_CONTEXT
        self.frame: str | None = None
        self.innermost = ''
        self.ignored = -_CONTEXT
        """Where Python said that it ignores the next one, as at its end."""
        self.is_in_frames = False
        """The next line that is not indented is the exception."""
        self.indent = ''
        """What stands before each of its lines."""

    def begin(self, order: int, is_worker: bool, indent: str = '') -> None:
        self.indent = indent
        kept = self.flags & {'worker', 'root'} if is_worker else set()
        if order - self.ignored < _NEAR:
            kept = {'ignored'}
        self.flags, self.seen, self.frame, self.innermost = kept, order, None, ''

    def add(self, order: int, path: str, line: str, function: str | None) -> None:
        self.seen, self.is_in_frames = order, True
        path = path.replace('\\', '/')
        if not _STANDARD.search(path):
            self.innermost = path
        self.flags |= {name for name, file in _FLAGS.items() if re.search(file, path)}
        if function in ('_worker_loop', '__getitem__'):
            self.flags.add('data')
        if not _LIBRARY.search(path):
            self.frame = f'{path}:{line}' + (f' in {function}' if function else '')


class ConsoleLog:
    """Reads lines and keeps the events that training did not survive.

    At most two events of each sign are kept: the first, and the last.
    """

    def __init__(self) -> None:
        self.lines = 0
        """Number of the last line."""
        self.progress = 0
        """Distinct iterations that were logged."""
        self.last_progress = 0
        """The line of the last one; 0 where none was logged."""
        self.unread_bytes = 0
        """Before the first line that was read."""
        self.is_text = True
        """False if much of what was read is in no encoding that is known here."""
        self._done_line = self._done_progress = 0
        self._order = 0
        self._frame = -_NEAR
        self._recent: deque[str] = deque(maxlen=64)
        self._tracebacks: dict[int | None, _Traceback] = defaultdict(_Traceback)
        self._events: dict[Sign, list[Event]] = {}
        self._calm = 0
        self._nans: list[Event] = []

    def feed(self, line: int, text: str) -> None:
        """Take one line, without its end."""
        self.lines = line
        text = _ANSI.sub('', text) if '\x1b' in text else text
        text = shorten(text)
        if ']:' in text and (ends := [m.start() for m in _RANK_LABEL.finditer(text)]):
            for start, end in zip([0, *ends], [*ends, len(text)]):
                self._feed_line(line, text[start:end])
        else:
            self._feed_line(line, text)

    def _feed_line(self, line: int, text: str) -> None:
        self._order += 1
        if not _TRIGGER.search(text.lower()) and self._order - self._frame >= _NEAR:
            self._calm += 1
            if '[' in text or 'loss' in text or '%' in text or 'it/s' in text:
                self._note_progress(line, text)
            return
        text = text.rstrip()
        while '[' in text and '/' in text and (bar := _BAR.match(text)) is not None:
            self._note_progress(line, bar[0])
            text = text[bar.end() :]
        prefix = _PREFIX.match(text)
        assert prefix is not None  # it may be empty
        label = next(filter(None, prefix.groups()), None)
        rank, text = None if label is None else int(label), text[prefix.end() :]
        if text and not self._note_progress(line, text):
            self._read(line, text, rank, self._tracebacks[rank])

    def _read(
        self, line: int, text: str, rank: int | None, traceback: _Traceback
    ) -> None:
        order = self._order
        if traceback.indent and order - traceback.seen <= _CONTEXT:
            text = text.removeprefix(traceback.indent)
        if _HEADER.search(text):
            indent = text[: len(text) - len(text.lstrip())]
            traceback.begin(order, 'Original Traceback' in text, indent)
        elif frame := _FRAME.match(text) or _RICH_FRAME.match(text):
            traceback.add(order, *frame.groups())
            self._frame = order
        elif 'Exception ignored in' in text:
            traceback.ignored = order
        elif 'Root Cause (first observed failure)' in text:
            traceback.begin(order, False)
            traceback.flags.add('root')
        elif _DONE.search(text):
            self._done_line, self._done_progress = line, self.progress
            self._events.clear()
        elif _START.search(text) and self.progress:
            # another attempt in the same log: what ended the last one is past
            self._events.clear()
            self._nans = []
        elif sign := self._find_sign(text, traceback):
            event = self._event(sign, line, text, rank, traceback.frame)
            kept = self._events.setdefault(sign, [])
            kept[:] = [old for old in kept if self._is_alive(old)][:1]
            kept.append(event)
        elif order - traceback.seen > _CONTEXT:
            self._calm += 1

    def _find_sign(self, text: str, traceback: _Traceback) -> Sign | None:
        is_open = self._order - traceback.seen <= _CONTEXT
        if is_open and text[0].isspace() and (glued := _GLUED.search(text)):
            text = text[glued.start() :]
        raised = _DECORATION.sub('', text) if is_open else text
        is_exception = bool(_EXCEPTION.match(raised))
        if traceback.is_in_frames and not text[0].isspace():
            traceback.is_in_frames = False
            is_exception |= is_open and bool(_NAMED_FREELY.match(text))
        sign = _match_sign(text, raised, traceback, is_open, is_exception)
        if 'DataLoader worker process' in text:
            traceback.flags.add('worker')
        if sign is None and is_exception and not _QUIET.match(raised):
            sign = _UNNAMED if is_open else _BARE
            # by where it was raised
            if is_open and traceback.flags & {'data', 'worker'}:
                sign = _SAMPLE
            elif is_open and 'pin' in traceback.flags:
                sign = _PIN_THREAD
            elif is_open and re.search(_IN_CONFIG, traceback.innermost):
                sign = _CONFIG
        is_ignored = is_open and 'ignored' in traceback.flags
        if sign and is_ignored and sign.order not in (Order.STATED, Order.ENDED):
            return None
        return sign

    def _event(
        self,
        sign: Sign,
        line: int,
        text: str,
        rank: int | None = None,
        frame: str | None = None,
    ) -> Event:
        return Event(
            sign=sign,
            line=line,
            text=text[:400],
            order=self._order,
            progress=self.progress,
            calm=self._calm,
            rank=rank,
            frame=frame,
        )

    def _note_progress(self, line: int, text: str) -> bool:
        is_progress = is_new = False
        # a bar may be glued to the line of a log
        for found in _PROGRESS.finditer(text):
            is_progress, self.last_progress = True, line
            key = next(filter(None, found.groups()), found[0])
            if key not in self._recent or 'loss' in key:
                self._recent.append(key)
                self.progress += 1
                is_new = True
        loss = _LOSS.search(text) if is_new else None
        if loss is not None:
            is_nan = loss[1][-1].lower() in 'nf'
            nan = self._event(_NAN, line, text.strip())
            self._nans = [*self._nans[:1], nan] if is_nan else []
        return is_progress

    def _is_alive(self, event: Event) -> bool:
        if self._calm - event.calm >= _CALM.get(event.sign, self._order):
            return False
        return self.progress - event.progress < event.sign.survives

    @property
    def done(self) -> int:
        """Line that says training is complete; 0 for none, or where it went on."""
        went_on = self.progress - self._done_progress >= SURVIVED
        return 0 if went_on else self._done_line

    def events(self) -> list[Event]:
        """What training did not survive, in the order it was read."""
        found = [e for kept in self._events.values() for e in kept if self._is_alive(e)]
        nans = self._nans
        if len(nans) > 1 and nans[-1].progress - nans[0].progress > 1:
            found.append(nans[0])
        if self.done:
            # workers and threads that complain while Python ends
            found = [event for event in found if event.sign.order <= Order.RESOURCE]
        return sorted(found, key=lambda event: event.order)


def _match_sign(
    text: str, raised: str, traceback: _Traceback, is_open: bool, is_exception: bool
) -> Sign | None:
    own = _OWN.match(text)
    if own is not None:
        is_sure = own[2] == 'sure'
        return Sign(cause=own[1], order=Order.WATCHED, is_sure=is_sure)
    is_warning = bool(_WARNING.search(text[:60])) and not is_exception
    may_raise = is_exception or (is_open and not text.startswith((' ', '\t')))
    may_raise = may_raise or raised.startswith('KeyboardInterrupt')
    lowered = text.lower()
    places = {place for word in _WORDS if word in lowered for place in _WORDS[word]}
    for matcher in (MATCHERS[place] for place in sorted(places)):
        sign = matcher.sign
        if sign.needs and not (is_open and sign.needs in traceback.flags):
            continue
        if sign.is_raised and (is_warning or not may_raise):
            continue
        said = raised if sign.is_raised else text
        found = matcher.expression.search(said)
        if found and (is_exception or not _WISH.search(said, 0, found.end())):
            return sign
    return None


_SAMPLE = Sign(cause='sample_raised', order=Order.WORKER, is_sure=True)
_CONFIG = Sign(cause='config_error', order=Order.HINTED)
_PIN_THREAD = Sign(cause='pin_thread_lost', order=Order.RAISED)
_UNNAMED = Sign(cause='unknown', order=Order.RAISED)
_BARE = Sign(cause='unknown', order=Order.WRAPPER, survives=1)
_NAN = Sign(cause='nan_loss', order=Order.RESOURCE, is_sure=True)
_CALM = {_UNNAMED: 200, _BARE: 5}
"""Ordinary lines after which an exception that no sign knows was caught."""


def shorten(text: str) -> str:
    """Return the start and the end of a long line, any other as it is."""
    if len(text) <= _HEAD_LETTERS + len(_CUT) + _TAIL_LETTERS:
        return text
    return text[:_HEAD_LETTERS] + _CUT + text[-_TAIL_LETTERS:]


def read_log(
    file: BinaryIO, size: int = 0, report: Callable[[float], None] | None = None
) -> ConsoleLog:
    """Read a log to its end and close it; bytes that are no UTF-8 are replaced.

    UTF-16 and UTF-32 are taken too, with a byte-order mark, as PowerShell writes, or
    without. Parts that only ``\\r`` ends share the number of a line.

    Args:
        file: The log.
        size: Its bytes where they are known: no more are read, as a log may grow
            faster than it is read, and of more than `MOST_BYTES` the last count.
        report: Called with the share that has been read, where the size is known.
    """
    log, number, at = ConsoleLog(), 1, 0
    with file:
        chunk = start = file.read(min(size or _CHUNK_BYTES, _CHUNK_BYTES))
        while log.unread_bytes <= size - MOST_BYTES - _CHUNK_BYTES and chunk:
            number += chunk.count(b'\n')
            log.unread_bytes += len(chunk)
            chunk = file.read(_CHUNK_BYTES)
        at = log.unread_bytes
        decoder = codecs.getincrementaldecoder(_find_encoding(start[:1024]))('replace')
        lines = _Lines(log, number)
        while chunk:
            at += len(chunk)
            lines.add(decoder.decode(chunk))
            if size and report is not None:
                report(at / size)
            chunk = file.read(min(_CHUNK_BYTES, size - at) if size else _CHUNK_BYTES)
        lines.add(decoder.decode(b'', final=True) + '\n')
        log.is_text = lines.strange_letters <= lines.letters * _MOST_STRANGE
    return log


class _Lines:
    """Splits decoded text into lines and feeds them to a log."""

    def __init__(self, log: ConsoleLog, number: int) -> None:
        self._log, self._number, self._rest = log, number, ''
        self.letters = self.strange_letters = 0

    def add(self, text: str) -> None:
        self.letters += len(text)
        self.strange_letters += text.count('\ufffd') + text.count('\0')
        *whole, rest = (self._rest + text).split('\n')
        for line in whole:
            for part in line.split('\r'):
                self._feed(part)
            self._number += 1
        *parts, rest = rest.split('\r')
        for part in parts:
            self._feed(part)
        self._rest = shorten(rest)

    def _feed(self, text: str) -> None:
        if text := text.strip('\ufeff'):
            self._log.feed(self._number, text)


def _find_encoding(start: bytes) -> str:
    """The encoding by the byte-order mark, or by where the first bytes are zero."""
    for mark, encoding in _MARKS.items():
        if start.startswith(mark):
            return encoding
    zeros = [start[n::4].count(0) * 8 > len(start) for n in range(4)]
    by_zeros = {
        (False, True, False, True): 'utf-16-le',
        (True, False, True, False): 'utf-16-be',
        (False, True, True, True): 'utf-32-le',
        (True, True, True, False): 'utf-32-be',
    }
    return by_zeros.get((zeros[0], zeros[1], zeros[2], zeros[3]), 'utf-8')
