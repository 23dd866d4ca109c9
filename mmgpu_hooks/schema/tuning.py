"""What a training asks the child process that tunes its loader, and what that answers.

A line of JSON each, through pipes.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from mmgpu_hooks.schema.recorded import TunedRecord
from mmgpu_hooks.schema.text import Text


class TuneQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """What the evidence does not say of a training that is on."""

    iterations_left: int
    """Until training ends."""
    may_persist: bool = True
    """False where a hook of the user's own may change the data set between epochs:
    workers that live on would not see it."""
    can_change: bool = True
    """False where a change that was made is only to be judged."""


class TuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be done now."""

    proposed: Optional[TunedRecord] = None
    """A change that is worth it; the iteration is filled in where it is made."""
    judged: Optional[TunedRecord] = None
    """What the last change gave; likewise."""
    cost_s: float = 0.0
    """What a change is expected to cost."""
    why: Text = Text('')
    """Why nothing is to be done yet, as a clause; empty where something is."""


class TuneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What rank 0 tells the other ranks."""

    record: TunedRecord
    """A change that all are to make, or what the last one gave (``keep``)."""
    salt: int = 0
    """Is added to the seeds of all ranks' new workers."""
