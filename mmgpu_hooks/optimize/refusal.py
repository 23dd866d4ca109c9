"""The exception of an optimisation that leaves a training as it is."""

from __future__ import annotations


class RefusalError(Exception):
    """An optimisation cannot be used here, or would gain nothing.

    It is a reason and no failure. Its text is the rest of a sentence for the log: what
    was found.
    """
