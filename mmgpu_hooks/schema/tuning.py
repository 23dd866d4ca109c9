"""Messages between a training and the child process that tunes its loader.

Question and answer are a line of JSON each, through pipes.
"""

from __future__ import annotations

from typing import Optional

import msgspec

from mmgpu_hooks.schema.recorded import TunedLoader, TunedRecord
from mmgpu_hooks.schema.text import Text


class TuneQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Question of a training to its tuning child process: which loader change to make.

    It has what the evidence lacks.
    """

    iterations_left: int
    """Number of iterations from now to the end of training."""
    loader: TunedLoader = 'train'
    """Loader that may be changed: ``train`` or ``validation``."""
    may_persist: bool = True
    """True if loader workers may stay alive from one epoch to the next.

    False where a hook of the user's own may change the data set between epochs: workers
    that live on would not see it."""
    can_change: bool = True
    """True if a change of the loader may be proposed.

    False where a change that was made is only to be judged."""


class TuneAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of the tuning process: a loader change, or judgement of the last one."""

    proposed: Optional[TunedRecord] = None
    """Change of loader settings that is worth making.

    The iteration is filled in where it is made."""
    judged: Optional[TunedRecord] = None
    """Judgement of the last change of loader settings.

    The iteration is filled in where it is made."""
    cost_s: float = 0.0
    """Predicted seconds for which making the proposed change blocks training."""
    cpu_s: float = 0.0
    """CPU seconds that the tuning process took to find the answer."""
    why: Text = Text('')
    """Reason, as a clause, why no tuning action is due yet; empty if one is due."""


class TuneOffer(msgspec.Struct, frozen=True, kw_only=True):
    """Message of rank 0 to the other ranks about a change of loader settings."""

    record: TunedRecord
    """Loader change that all ranks are to make, or judgement of the last change."""
    salt: int = 0
    """Number to add to the random seeds of new loader workers, on all ranks."""
