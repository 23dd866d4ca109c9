"""Finds why a training run ended, in the lines of its console log.

Pure: lines in, events out; memory does not grow with the log. A line is cleaned of
colours, time stamps and rank prefixes first. An event that training survived, because
iterations went on after it, is dropped, and so is one of an earlier attempt in the same
log.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable
from functools import cache
from typing import BinaryIO, NamedTuple

from mmgpu_hooks.judge.console_encoding import make_decoder
from mmgpu_hooks.judge.console_mentions import is_mentioned
from mmgpu_hooks.judge.console_patterns import SURVIVED, Order, Sign
from mmgpu_hooks.judge.console_shapes import (
    FRAME,
    IN_CONFIG,
    OWN,
    PROGRESS,
    RICH_FRAME,
    ROOT_RANK,
    Kind,
    Reading,
    read_path,
    read_quickly,
    read_shape,
    shape_of,
    take_apart,
)

MOST_LOG_BYTES = 64 * 2**20
"""Maximum bytes of a console log that are read, counted from the log's end.

Training survived what was before. Reading takes up to 15 s, and 10 us a line where
lines are shorter than 40 bytes.
"""

_CHUNK_BYTES = 2**18
_HEAD_LETTERS, _TAIL_LETTERS = 3 * 2**10, 2**10
"""Number of characters kept of a long console line, at its start and at its end.

The expressions that search the line may take quadratic time.
"""
_CUT = ' ... '

_MOST_STRANGE = 0.2
"""Largest share (0 to 1) of undecodable or NUL characters in a readable log.

A crash of the host may leave a block of zeros in a log that can be read.
"""

_CONTEXT = 400
"""Maximum number of log lines between a traceback's last frame and its exception."""

_NEAR = 5
"""Distance in log lines below which lines count as parts of the same traceback."""

_ANSI = re.compile(
    r'\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])'
)
_UNSEEN = re.compile('[\0\b]+')
"""Regex for invisible characters in a console log: NUL bytes and backspaces.

NUL bytes are left by a crash, or by UTF-16 that was added to UTF-8; backspaces by old
progress bars.
"""
_LOSS = re.compile(
    r'(?i)(?:^|[\s,{\'"(])(?:total_)?loss[\'"]?\s*[:=]\s*\[?(?:tensor\()?'
    r'(nan|[-+]?inf|[-+.\d]+)'
)
_RANK_LABEL = re.compile(r'(?<=\S)(?=\[(?:default|rank)\d{1,4}\]:)')
"""Regex for a rank label in the middle of a line, after another rank's output."""


class Event(NamedTuple):
    """Line of a console log that may show why the training run ended."""

    sign: Sign
    line: int
    """Line number in the log file, counted from 1; 0 if the line is not from a file."""
    text: str
    order: int
    """Position of the event's line among all lines read, to find the earliest event."""
    progress: int
    """Number of iterations logged before the event."""
    calm: int
    """Number of all earlier console lines with no error, outside any traceback."""
    rank: int | None = None
    frame: str | None = None
    """Innermost frame of the user's code in the traceback above the event."""
    is_traced: bool = False
    """True if the event is an exception with a traceback above it."""


class _Traceback:
    """State of a traceback while the lines of one rank are read."""

    def __init__(self) -> None:
        self.flags: set[str] = set()
        self.seen = -_CONTEXT
        self.frame: str | None = None
        self.innermost = ''
        self.ignored = -_CONTEXT
        """Position of the line where Python last printed ``Exception ignored in``."""
        self.chained = -_CONTEXT
        """Position of the line in which Python last reported a chained exception."""
        self.is_chained = False
        self.is_of_program: bool | None = None
        """True if the traceback starts at the program's top level; ``None``: unknown.

        Such an exception ends the program. Not known before the first frame.
        """
        self.is_in_frames = False
        """True if the next line that is not indented is the exception."""
        self.indent = ''
        """Text before each line of the traceback in the console log."""

    def begin(self, order: int, is_worker: bool, indent: str = '') -> None:
        self.indent = indent
        kept = self.flags & {'worker', 'root'} if is_worker else set()
        if order - self.ignored < _NEAR:
            kept = {'ignored'}
        self.flags, self.seen, self.frame, self.innermost = kept, order, None, ''
        self.is_chained = order - self.chained < _NEAR
        self.is_of_program = False if is_worker else None

    def add(self, order: int, file: str, line: str, function: str | None) -> None:
        self.seen, self.is_in_frames = order, True
        read = read_path(file)
        if self.is_of_program is None:
            # a child of multiprocessing begins in <string>
            is_string = read.path.startswith('<')
            self.is_of_program = function == '<module>' and not is_string
        if not read.is_standard:
            self.innermost = read.path
        self.flags |= read.flags
        if function in ('_worker_loop', '__getitem__'):
            self.flags.add('data')
        if not read.is_library:
            place = f' in {function}' if function else ''
            self.frame = f'{read.path}:{line}{place}'


class ConsoleLog:
    """Reads console lines, and keeps the events that may have ended the training.

    At most two events of each sign are kept: the first, and the last.
    """

    def __init__(self) -> None:
        self.lines = 0
        """Line number, from 1, of the last console line that was read."""
        self.progress = 0
        """Number of distinct iterations that the console log shows."""
        self.last_progress = 0
        """Line number of the last logged iteration; 0 if none was logged."""
        self.unread_bytes = 0
        """Number of bytes of the log before the first line that was read."""
        self.is_text = True
        """True unless too much of the console log could not be decoded."""
        self.failed_rank: int | None = None
        """Rank that failed first, where torchrun's summary names one."""
        self._done_line = self._done_progress = 0
        self._order = 0
        self._frame = -_NEAR
        self._recent: deque[str] = deque(maxlen=64)
        self._tracebacks: dict[int | None, _Traceback] = defaultdict(_Traceback)
        self._events: dict[Sign, list[Event]] = {}
        self._calm = 0
        self._nans: list[Event] = []
        self._has_started = self._has_ended = self._has_ranks = False
        """Three flags: if a start, a fatal exception, or several ranks were logged."""

    def feed(self, line: int, text: str) -> None:
        """Reads one line of a console log, given without its line end."""
        self.lines = line
        text = _ANSI.sub('', text) if '\x1b' in text else text
        if '\0' in text or '\b' in text:
            text = _UNSEEN.sub('', text).lstrip('\ufffd')
        if len(text) > _HEAD_LETTERS:
            text = shorten(text)
        if ']:' in text and (
            ends := [label.start() for label in _RANK_LABEL.finditer(text)]
        ):
            for start, end in zip([0, *ends], [*ends, len(text)]):
                self._feed_line(line, text[start:end])
        else:
            self._feed_line(line, text)

    def _feed_line(self, line: int, text: str) -> None:
        self._order += 1
        shape = shape_of(text)
        quick = read_quickly(shape)
        parts = quick.parts
        if parts is None:
            if self._order - self._frame >= _NEAR:
                self._calm += 1
                if quick.has_progress:
                    self._note_progress(line, text)
                return
            parts = take_apart(shape)
        for bar in parts.bars:
            self._note_progress(line, text[bar])
        label, text = text[parts.label], text[parts.rest]
        if not text:
            return
        if parts.reading.has_progress:
            self._note_progress(line, text)
        else:
            self._read(line, text, parts.reading, int(label) if label else None)

    def _read(self, line: int, text: str, read: Reading, rank: int | None) -> None:
        order, traceback = self._order, self._tracebacks[rank]
        if traceback.indent and order - traceback.seen <= _CONTEXT:
            text = text.removeprefix(traceback.indent)
            read = read_shape(shape_of(text))
        self._has_ranks |= read.is_of_ranks or rank is not None
        kind = read.kind
        if kind is Kind.HEADER:
            indent = text[: len(text) - len(text.lstrip())]
            traceback.begin(order, 'Original Traceback' in text, indent)
        elif kind is Kind.FRAME:
            frame = FRAME.match(text) or RICH_FRAME.match(text)
            assert frame is not None  # as its shape has it
            traceback.add(order, *frame.groups())
            self._frame = order
        elif kind is Kind.IGNORED:
            traceback.ignored = order
        elif kind is Kind.CHAINED:
            traceback.chained = order
        elif kind is Kind.ROOT:
            traceback.begin(order, False)
            traceback.flags.add('root')
        elif kind is Kind.DONE:
            self._done_line, self._done_progress = line, self.progress
            self._events.clear()
        elif kind is Kind.START:
            self._note_start()
        elif kind is Kind.RESTART or (kind is Kind.USAGE and self._has_ended):
            self._forget()
        elif kind is Kind.ROOT_RANK and 'root' in traceback.flags:
            found = ROOT_RANK.match(text)
            assert found is not None  # as its shape has it
            self.failed_rank = int(found[1])
        elif not self._note_sign(line, text, read, rank, traceback):
            self._calm += order - traceback.seen > _CONTEXT

    def _note_start(self) -> None:
        """Notes that a training starts; discards the events of an earlier training."""
        if self._has_started or self._has_ended or self.progress:
            self._forget()
        elif not self._has_ranks:
            # a banner; another rank may have raised before rank 0 came so far
            for kept in self._events.values():
                kept[:] = [event for event in kept if event.is_traced]
        self._has_started = True

    def _forget(self) -> None:
        """Discards the events of an earlier training in the same log."""
        self._events.clear()
        self._nans = []
        self._has_ended, self.failed_rank = False, None
        self._done_line = 0

    def _note_sign(
        self,
        line: int,
        text: str,
        read: Reading,
        rank: int | None,
        traceback: _Traceback,
    ) -> bool:
        is_open = self._order - traceback.seen <= _CONTEXT
        is_first = is_open and traceback.is_in_frames
        sign, is_exception = self._find_sign(text, read, traceback, is_open)
        if sign is None:
            return False
        is_traced = is_open and is_exception
        if is_traced and is_first and rank is None:
            self._note_end(sign, traceback)
        # a line of another program was raised nowhere
        frame = traceback.frame if is_traced or (is_open and sign.is_raised) else None
        event = self._event(sign, line, text, rank, frame, is_traced)
        kept = self._events.setdefault(sign, [])
        if len(kept) == 2 and self._is_alive(kept[0]):
            kept[1] = event
        else:
            kept[:] = [*[old for old in kept if self._is_alive(old)][:1], event]
        return True

    def _note_end(self, sign: Sign, traceback: _Traceback) -> None:
        """Notes that an uncaught exception ended the training program.

        Launchers raise because a rank did, and ranks may raise one after the other.
        """
        is_launcher = sign.order is Order.WRAPPER or sign.victim == 'rank'
        if is_launcher or not traceback.is_of_program or 'ignored' in traceback.flags:
            return
        if self._has_ended and not self._has_ranks and not traceback.is_chained:
            self._forget()
        self._has_ended = True

    def _find_sign(
        self, text: str, read: Reading, traceback: _Traceback, is_open: bool
    ) -> tuple[Sign | None, bool]:
        """Returns the failure cause of a line, and True if the line is an exception."""
        if is_open and read.glued:
            text = text[read.glued :]
            read = read_shape(shape_of(text))
        raised = read.decorated if is_open else read.plain
        said = text[read.decoration :] if is_open else text
        is_exception = raised.is_exception
        may_raise = is_exception or said.startswith('KeyboardInterrupt')
        if is_open and not read.is_indented:
            # below frames an exception, garbled at times, or more of its message
            may_raise |= traceback.is_in_frames or not text[0].isalpha()
        if traceback.is_in_frames and not read.is_indented:
            traceback.is_in_frames = False
            is_exception |= is_open and read.is_named
        flags = traceback.flags if is_open else set[str]()
        sign = _match_sign(text, said, read, flags, is_exception, may_raise)
        if read.is_worker:
            traceback.flags.add('worker')
        if sign is None and is_exception and not raised.is_quiet:
            sign = _UNNAMED if is_open else _BARE
            # by where it was raised
            if is_open and traceback.flags & {'data', 'worker'}:
                sign = _SAMPLE
            elif is_open and 'pin' in traceback.flags:
                sign = _PIN_THREAD
            elif is_open and re.search(IN_CONFIG, traceback.innermost):
                sign = _CONFIG
        is_ignored = is_open and 'ignored' in traceback.flags
        if sign and is_ignored and sign.order not in (Order.STATED, Order.ENDED):
            return None, is_exception
        return sign, is_exception

    def _event(
        self,
        sign: Sign,
        line: int,
        text: str,
        rank: int | None = None,
        frame: str | None = None,
        is_traced: bool = False,
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
            is_traced=is_traced,
        )

    def _note_progress(self, line: int, text: str) -> None:
        is_new = False
        # a bar may be glued to the line of a log
        for found in PROGRESS.finditer(text):
            self.last_progress = line
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

    def _is_alive(self, event: Event) -> bool:
        if self._calm - event.calm >= _CALM.get(event.sign, self._order):
            return False
        return self.progress - event.progress < event.sign.survives

    @property
    def done(self) -> int:
        """Number of the line that reports the training as complete; 0 if no line does.

        A line after which training went on does not count.
        """
        went_on = self.progress - self._done_progress >= SURVIVED
        return 0 if went_on else self._done_line

    def events(self) -> list[Event]:
        """Returns the log lines of failures that training did not survive, in order."""
        found = [
            event
            for kept in self._events.values()
            for event in kept
            if self._is_alive(event)
        ]
        nans = self._nans
        if len(nans) > 1 and nans[-1].progress - nans[0].progress > 1:
            found.append(nans[0])
        if self.done:
            # workers and threads that complain while Python ends
            found = [event for event in found if event.sign.order <= Order.RESOURCE]
        return sorted(found, key=lambda event: event.order)


def _match_sign(
    text: str,
    said: str,
    read: Reading,
    flags: set[str],
    is_exception: bool,
    may_raise: bool,
) -> Sign | None:
    own = OWN.match(text) if read.is_own else None
    if own is not None:
        return _own_sign(own[1], own[2] == 'sure')
    is_warning = read.is_warning and not is_exception
    for matcher in read.matchers:
        sign = matcher.sign
        if sign.needs and sign.needs not in flags:
            continue
        if sign.is_raised and (is_warning or not may_raise):
            continue
        line = said if sign.is_raised else text
        found = matcher.expression.search(line)
        if found:
            shape = read.shape[-len(line) :]
            is_text = is_mentioned(shape, *found.span(), is_exception)
            return None if is_text else sign
    return None


@cache
def _own_sign(cause: str, is_sure: bool) -> Sign:
    """Returns the `Sign` of a failure cause that GPUEfficiencyHook's watchdog found."""
    return Sign(cause=cause, order=Order.WATCHED, is_sure=is_sure)


_SAMPLE = Sign(cause='sample_raised', order=Order.WORKER, is_sure=True)
_CONFIG = Sign(cause='config_error', order=Order.HINTED)
_PIN_THREAD = Sign(cause='pin_thread_lost', order=Order.RAISED)
_UNNAMED = Sign(cause='unknown', order=Order.RAISED)
_BARE = Sign(cause='unknown', order=Order.WRAPPER, survives=1)
_NAN = Sign(cause='nan_loss', order=Order.RESOURCE, is_sure=True)
_CALM = {_UNNAMED: 200, _BARE: 5}
"""Number of ordinary lines after an exception that show that it was caught."""


def shorten(text: str) -> str:
    """Cuts the middle out of a line that is too long; returns others unchanged."""
    if len(text) <= _HEAD_LETTERS + len(_CUT) + _TAIL_LETTERS:
        return text
    return text[:_HEAD_LETTERS] + _CUT + text[-_TAIL_LETTERS:]


def read_log(
    file: BinaryIO, size: int = 0, report: Callable[[float], None] | None = None
) -> ConsoleLog:
    """Reads a console log to its end and closes it; undecodable bytes are replaced.

    UTF-16 and UTF-32 are taken too, with a byte-order mark, as PowerShell writes, or
    without. Parts that only ``\\r`` ends share the number of a line.

    Args:
        file: The log.
        size: Its bytes where they are known: no more are read, as a log may grow
            faster than it is read, and of more than `MOST_LOG_BYTES` the last count.
        report: Called with the share that has been read, where the size is known.
    """
    log, number, at = ConsoleLog(), 1, 0
    with file:
        chunk = start = file.read(min(size or _CHUNK_BYTES, _CHUNK_BYTES))
        while log.unread_bytes <= size - MOST_LOG_BYTES - _CHUNK_BYTES and chunk:
            number += chunk.count(b'\n')
            log.unread_bytes += len(chunk)
            chunk = file.read(_CHUNK_BYTES)
        at = log.unread_bytes
        decoder = make_decoder(start[:1024])
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
    """Splits decoded text into lines and feeds the lines to a `ConsoleLog`."""

    def __init__(self, log: ConsoleLog, number: int) -> None:
        self._log, self._number, self._rest = log, number, ''
        self.letters = self.strange_letters = 0

    def add(self, text: str) -> None:
        self.letters += len(text)
        self.strange_letters += text.count('\ufffd') + 2 * text.count('\0\0')
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
