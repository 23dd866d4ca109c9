"""Ends a recording well when the process is told to go (SIGTERM: SLURM, torchrun)."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any, Callable


class TerminationWatch:
    """Calls back on SIGTERM, then lets the process die of it as it would have.

    Only where nobody else handles the signal, and only in the main thread, where
    Python can. A forked loader worker inherits the handler until PyTorch sets its own:
    there it only dies.

    Args:
        on_terminate: Called once, between two bytecodes of the main thread.
    """

    def __init__(self, on_terminate: Callable[[], None]) -> None:
        self._on_terminate = on_terminate
        self._pid = os.getpid()
        self._is_set = False

    def start(self) -> None:
        """Watch, if the signal still has its default effect."""
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
            self._is_set = True

    def close(self) -> None:
        """Give the signal its default effect back; a second call does nothing."""
        if self._is_set and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_set = False

    def _handle(self, number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._is_set = False
        try:
            if os.getpid() == self._pid:
                self._on_terminate()
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
