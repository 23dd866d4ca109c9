"""The driver, held while it is in use and let go once nobody is in it."""

from __future__ import annotations

import os
import threading
from typing import Callable


class DriverLease:
    """Ends with `close`, or when the thread that is in the driver comes out of it.

    Enter it around every use of the driver. A forked child must leave it alone,
    except for :meth:`close`, which does nothing there.

    Args:
        let_go: Gives back what was taken; called once, never while in use.
    """

    def __init__(self, let_go: Callable[[], None]) -> None:
        self.is_closing = False
        """Whether nothing may be asked any more."""
        self._let_go = let_go
        self._pid = os.getpid()
        self._closed = False
        # held while the driver is in use; no child ever takes it
        self._in_use = threading.Lock()

    def __enter__(self) -> DriverLease:
        self._in_use.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._in_use.release()
        if self.is_closing:  # while we were in the driver
            self._end()

    def close(self) -> None:
        """Let the driver go. May be called twice; never blocks.

        When another thread is in the driver, that thread lets it go on its way out.
        """
        if os.getpid() != self._pid:
            return
        self.is_closing = True
        self._end()

    def _end(self) -> None:
        if not self._in_use.acquire(blocking=False):
            return
        try:
            if not self._closed:
                self._closed = True
                self._let_go()
        finally:
            self._in_use.release()
