"""Exception for an optimisation that refuses a training."""

from __future__ import annotations

from mmgpu_hooks.schema.errors import SaidError


class RefusalError(SaidError):
    """Raised if an optimisation cannot be used in this training, or would gain nothing.

    It is a reason and no failure. Its text is the rest of a sentence for the log: what
    was found.
    """
