"""How a trial and whoever started it talk: JSON lines through pipes."""

from __future__ import annotations

import json
import os
import selectors
from typing import Any


class TrialChannel:
    """The trial's end: what it tells.

    Args:
        descriptor: The pipe to write to.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def send(self, event: str, **body: Any) -> None:
        """Tell one event; a reader that has gone away is no error of the training's."""
        line = json.dumps({'event': event, **body}).encode() + b'\n'
        while line:
            try:
                line = line[os.write(self._descriptor, line) :]
            except BrokenPipeError:
                return


class TrialReader:
    """The other end: what a trial has told.

    The pipe's end of file tells nothing, since workers inherit it: whether the trial
    still lives is for the caller to look at.

    Args:
        descriptor: The pipe to read from.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._text = b''
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def read_events(self, timeout_s: float) -> list[dict[str, Any]]:
        """The events told since, after waiting for one at most so long."""
        if self._selector.select(timeout_s):
            self._text += os.read(self._descriptor, 2**16)
        *lines, self._text = self._text.split(b'\n')
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close the pipe."""
        self._selector.close()
        os.close(self._descriptor)
