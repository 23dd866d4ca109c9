"""Exception of an optimisation that refuses to change a training."""

from __future__ import annotations


class RefusalError(Exception):
    """Raised when an optimisation cannot be used here, or would gain nothing.

    It is a reason and no failure. Its text is the rest of a sentence for the log: what
    was found.
    """
