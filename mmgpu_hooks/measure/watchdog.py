"""Notices that a training makes no progress for long, and calls back; never ends it.

A thread checks now and then what is running and when that last went on. Time in which
the thread itself did not run (the process was stopped, the host asleep) does not count,
nor does the time in which a debugger holds it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import math
import os
import re
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.validation_parts import PartCall

WATCHDOG_THREAD = 'mmgpu-watchdog'

USUAL_TIMES = 20
"""Multiple of a training part's usual duration after which an alarm is raised."""
UNKNOWN_TIMES = 10
"""Multiple of ``stuck_after_s`` until an alarm, if the usual duration is unknown."""
IDLE_TIMES = 2
"""Multiple of a part's usual duration until an alarm, if idle or proven to hang.

It computes nothing for so long: a usual call may wait, too."""
AGAIN_S = (0.0, 600.0, 3600.0, math.inf)
"""Delays in seconds, after a standstill's first alarm, at which alarms are raised.

After these there is none.
"""

_MOST_GAP = 3.0
"""Longest gap between checks, in periods, that counts as time without progress."""
_DEBUGGERS = re.compile(r'(?:pdb|bdb|pydevd)\.py:')


_arming = threading.Lock()
_armed: list[Any] = []
"""Watchdog whose ``faulthandler`` timer runs (there is one timer per process)."""


def _disarm() -> None:
    """Cancels ``faulthandler``'s timer before a fork, and blocks its restart."""
    _arming.acquire()
    if _armed:
        faulthandler.cancel_dump_traceback_later()
        _armed.clear()


@functools.cache
def _watch_forks() -> None:
    if not hasattr(os, 'register_at_fork'):  # Windows forks nothing
        return
    # a child would wait for the timer's thread when it ends, and that is not copied
    os.register_at_fork(
        before=_disarm, after_in_parent=_arming.release, after_in_child=_arming.release
    )


class Running(NamedTuple):
    """Part of training, or hook, that runs now, with its usual duration in seconds."""

    part: str
    """Name of the part of training that runs, or class name of the hook that runs."""
    beat: float
    """Counter or time that changes whenever training makes progress."""
    usual_s: float | None
    """Usual seconds of the part that runs; ``None`` until it has ended once."""
    inside: PartCall | None = None
    """Running call inside a validation; ``None`` outside a validation."""


@dataclass
class Watchdog:
    """Thread that calls back when the training has made no progress for too long.

    It watches the thread that makes it.

    Args:
        stuck_after_s: The least time without progress that is too long.
        read: Gives what runs.
        on_stuck: Called in the thread with what runs and for how long, s; once per
            time in `AGAIN_S`.
        on_freed: Called in the thread when that went on after all, with the same.
        is_proven: Asked once about what has not ended once and stands for the least
            time: whether it needs no more patience.
        ask_others: Asked at each check from the least time on: True where this is late
            by what other ranks do, False where one of them works and knows its own
            patience, ``None`` where they say nothing.
        read_idle_s: Asked at each check for how long nothing has used a core; 0 where
            that is unknown, or proves nothing of what runs.
        stack_path: Gets the stacks of all threads when C code holds Python's lock for
            too long, so that this thread cannot run; gone when it never did.
        clock: Monotonic seconds.
    """

    stuck_after_s: float
    read: Callable[[], Running]
    on_stuck: Callable[[Running, float], Any]
    on_freed: Callable[[Running, float], Any]
    is_proven: Callable[[Running], bool] = lambda _: False
    ask_others: Callable[[Running, float], bool | None] = lambda *_: None
    read_idle_s: Callable[[Running], float] = lambda _: 0.0
    stack_path: Path | None = None
    clock: Clock = monotonic_s

    def __post_init__(self) -> None:
        self._period_s = min(max(self.stuck_after_s / 20, 0.05), 1.0)
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._stack_file: Any = None
        self._pid, self._trainer = os.getpid(), threading.get_ident()
        self._running: Running | None = None
        self._stands_s, self._alarms = 0.0, 0
        self.idle_s = 0.0
        """Seconds without progress, up to now, in which the training used no core."""
        self._proof: bool | None = None
        """True if this standstill is proven to be a hang; ``None`` if not checked."""
        self._alarmed_s = 0.0
        """Seconds without progress after which the first alarm was raised."""
        self._checked_s = self.clock()

    def start(self) -> None:
        """Starts the watchdog's thread."""
        self._checked_s = self.clock()
        if self.stack_path is not None:
            self._stack_file = self.stack_path.open('ab', buffering=0)
            _watch_forks()
        self._thread = threading.Thread(
            target=self._run, name=WATCHDOG_THREAD, daemon=True
        )
        self._thread.start()

    def _run(self) -> None:
        # a worker that is forked has no such thread: nothing to do there
        while not self._ended.wait(self._period_s):
            try:
                self.check()
            except Exception:  # noqa: BLE001, the training must not see it
                return

    def check(self) -> None:
        """Checks the training's progress; raises an alarm after too long without it."""
        now_s = self.clock()
        passed_s, self._checked_s = now_s - self._checked_s, now_s
        if self._stack_file is not None:
            if passed_s > self.stuck_after_s:
                self._stack_file.truncate(0)
            after_s = self.stuck_after_s + self._period_s
            with _arming:
                _armed[:] = [self]
                faulthandler.dump_traceback_later(after_s, file=self._stack_file)
        running = self.read()
        before, self._running = self._running, running
        idle_s = self.read_idle_s(running)
        if before is None or running.beat != before.beat:
            if self._alarms and before is not None:
                self.on_freed(before, self._stands_s)
            self._stands_s, self._alarms, self._proof = 0.0, 0, None
            self.idle_s = 0.0
            return
        if passed_s > _MOST_GAP * self._period_s:
            return
        if any(_DEBUGGERS.search(call) for call in self.read_stack()):
            return
        self._stands_s += passed_s
        self.idle_s = min(idle_s, self._stands_s)
        # what others do may change after the first alarm
        since_s = self._alarmed_s if self._alarms else self._patience_s(running)
        if self._stands_s >= since_s + AGAIN_S[self._alarms]:
            if not self._alarms:
                self._alarmed_s = since_s
            self._alarms += 1
            self.on_stuck(running, self._stands_s)
            # the alarm itself takes seconds, and nothing went on meanwhile
            self._checked_s = self.clock()
            alarm_s = self._checked_s - now_s
            self._stands_s += alarm_s
            if self._stack_file is not None and alarm_s > self.stuck_after_s:
                # the timer ran out within the alarm
                self._stack_file.truncate(0)

    def _patience_s(self, running: Running) -> float:
        """Returns after how many seconds without progress an alarm is to be raised."""
        is_late = None
        if self._stands_s >= self.stuck_after_s:
            is_late = self.ask_others(running, self._stands_s)
        if is_late is not None:
            return self.stuck_after_s * (1 if is_late else UNKNOWN_TIMES)
        least_s = max(self.stuck_after_s, IDLE_TIMES * (running.usual_s or 0))
        if self.idle_s >= least_s:
            return self._stands_s
        if self._proof is None and self._stands_s >= least_s:
            self._proof = self.is_proven(running)
        if self._proof:
            return least_s
        if running.usual_s is not None:
            return max(self.stuck_after_s, USUAL_TIMES * running.usual_s)
        return self.stuck_after_s * UNKNOWN_TIMES

    def read_stack(self) -> tuple[str, ...]:
        """Reads the stack of the thread that trains, the innermost call first."""
        return format_stack(sys._current_frames().get(self._trainer))

    def stop(self) -> None:
        """Stops the watchdog's thread; a second call does nothing."""
        self._ended.set()
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._pid:
            return
        thread.join(1.0)
        file, self._stack_file = self._stack_file, None
        if file is not None and self.stack_path is not None:
            _disarm()
            _arming.release()
            file.close()
            with contextlib.suppress(OSError):
                self.stack_path.unlink()


def format_stack(frame: FrameType | None) -> tuple[str, ...]:
    """Formats a thread's stack as ``file:line in function``, innermost first."""
    return (
        tuple(
            f'{call.f_code.co_filename}:{line} in {call.f_code.co_name}'
            for call, line in traceback.walk_stack(frame)
        )
        if frame is not None
        else ()
    )
