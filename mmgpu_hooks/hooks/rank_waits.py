"""Decides if a rank that stands still only waits for another rank that works.

Only when nothing has gone on for `stuck_after_s`: the rank notes in its evidence that
it waits, and a thread reads the last words of the others' evidence. A rank that works
knows its own patience; so the others need not speak before it does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from mmgpu_hooks.judge.standstill import is_in_collective, is_late_by_others
from mmgpu_hooks.measure.now import read_start
from mmgpu_hooks.measure.watchdog import WATCHDOG_THREAD
from mmgpu_hooks.schema.recorded import RunRecord, StuckRecord
from mmgpu_hooks.schema.run import read_last_word
from mmgpu_hooks.schema.run_ends import read_run_ends
from mmgpu_hooks.schema.run_folder import EvidenceError, find_peers

_PERIOD_S = 1.0
_ANSWER_S = 10.0
"""Longest wait in seconds until other ranks' evidence files have been read once."""


class RankWaits:
    """Reads what other ranks have recorded while this rank stands still.

    Args:
        write: Adds a record to this rank's evidence.
        run: Calls a function, and keeps from training what it raises.
        evidence: This rank's, or what it has of its start.
    """

    def __init__(
        self,
        write: Callable[[StuckRecord], Any],
        run: Callable[..., Any],
        evidence: Path,
    ) -> None:
        self._write, self._run, self._evidence = write, run, evidence
        self._runs: dict[Path, RunRecord] = {}
        self._ended: threading.Event | None = None
        """Event to end the thread that reads other ranks' files; or ``None``."""
        self._is_late: bool | None = None
        self._has_answered = False

    def ask(self, record: StuckRecord, waited_s: float) -> bool | None:
        """True if other ranks' records show that this rank hangs; ``None`` if unknown.

        Args:
            record: Where this rank stands. One in no collective waits for nobody: it is
                late where another rank waits in one.
            waited_s: For how long by now.

        Returns:
            ``None`` where that is unknown: a file system may not answer.
        """
        if self._ended is None:
            self._ended, self._is_late = threading.Event(), None
            self._has_answered = False
            work = partial(self._follow, record, self._ended)
            run = partial(self._run, work)
            name = f'{WATCHDOG_THREAD}-ranks'
            threading.Thread(target=run, name=name, daemon=True).start()
        if not self._has_answered and waited_s < record.waited_s + _ANSWER_S:
            return False
        return self._is_late

    def end(self) -> None:
        """Stops reading other ranks' records: this rank goes on, or training ended."""
        ended, self._ended = self._ended, None
        if ended is not None:
            ended.set()

    def _follow(self, record: StuckRecord, ended: threading.Event) -> None:
        own = self._read_run(self._evidence)
        world_size = 1 if own is None else own.world_size
        is_waiting = is_in_collective(record, world_size)
        if is_waiting:
            self._write(record)
        while True:
            is_late = None
            with contextlib.suppress(OSError):
                is_late = self._read_others(is_waiting)
            if self._ended is ended:
                self._is_late, self._has_answered = is_late, True
            if ended.wait(_PERIOD_S):
                return

    def _read_others(self, is_waiting: bool) -> bool | None:
        run, words, gone = self._read_run(self._evidence), [], 0
        if run is None:
            return None
        for path in find_peers(self._evidence):
            words.append(read_last_word(path))
            other = self._read_run(path)
            if other is not None and other.hostname == run.hostname:
                gone += _is_gone(other)
        if not is_waiting:
            standing = [word for word in words if isinstance(word, StuckRecord)]
            waits = (
                not word.is_over and is_in_collective(word, run.world_size)
                for word in standing
            )
            return any(waits) or None
        # of another host the files may lie elsewhere
        is_one_host = run.host.ranks_on_host == run.world_size
        missing = run.world_size - 1 - len(words)
        if missing and not is_one_host:
            return None
        return bool(missing or gone) or is_late_by_others(words)

    def _read_run(self, path: Path) -> RunRecord | None:
        if path not in self._runs:
            try:
                self._runs[path] = read_run_ends(str(path)).run
            except EvidenceError:  # it has just begun
                return None
        return self._runs[path]


def _is_gone(run: RunRecord) -> bool:
    """True if a rank's process on this host no longer exists, or was stopped."""
    if run.pid is None or run.process_start is None:
        return False
    start = read_start(run.pid)
    return start is None or start.ticks != run.process_start or start.state in 'ZXT'
