"""Thread that calls a function periodically while training runs."""

from __future__ import annotations

import threading
from collections.abc import Callable

_AFTER_FAILURE_S = 2.0


class PeriodicThread:
    """Calls a function periodically in a thread until it is stopped.

    Args:
        name: Of the thread.
        call: Returns the seconds until its next call, or nothing where it failed.
        wait_s: Until the first one.
    """

    def __init__(
        self, name: str, call: Callable[[], float | None], wait_s: float
    ) -> None:
        self._call, self._ended, self._wait_s = call, threading.Event(), wait_s
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait_s = self._wait_s
        while not self._ended.wait(wait_s):
            wait_s = self._call() or _AFTER_FAILURE_S

    def ask_to_end(self) -> None:
        """Asks the periodic thread to end, without waiting until it has.

        On a busy host the wait takes ms.
        """
        self._ended.set()

    def stop(self) -> None:
        """Ends the periodic thread, waiting at most 1 s for a running call."""
        self._ended.set()
        # a call that fails may end its own thread
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)
