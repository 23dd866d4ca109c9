"""Exception for an optimisation that refuses a training."""

from __future__ import annotations


class RefusalError(Exception):
    """Raised if an optimisation cannot be used in this training, or would gain nothing.

    It is a reason and no failure. Its text is the rest of a sentence for the log: what
    was found.
    """
