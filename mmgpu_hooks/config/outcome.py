"""What a rewrite was asked to do and what came of it. Pure records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Union

from mmgpu_hooks.schema.errors import UserError

KeyPath = tuple[str, ...]
"""The keys that lead to a value, a top-level name first, list indices as digits."""

Setting = Union[bool, int, float, str, None]
"""What a dataloader key may be set to."""


class RefusedError(UserError):
    """A rewrite that cannot be done safely; inside this package only.

    Args:
        reason: What was expected, what was found, what to do.
        line: Line of the config the reason is about, from 1.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


SUFFIX: Final = '_recommended'
"""What the name of a rewritten copy ends in."""


@dataclass(frozen=True)
class Options:
    """Where a rewrite goes; see ``rewrite_config``."""

    output: Path | None = None
    in_place: bool = False
    dry_run: bool = False
    suffix: str = SUFFIX


@dataclass(frozen=True)
class RewriteOutcome:
    """The result of one rewrite; bad input is an outcome, never an exception."""

    status: Literal['rewritten', 'unchanged', 'refused']
    """``unchanged``: every setting already holds in the loaded config."""

    source: Path
    """The config that was read, as the caller named it."""

    target: Path | None = None
    """The file written (in a dry run: that would be), ``None`` if there is none."""

    text: str | None = None
    """The whole new text without a byte-order mark, ``None`` if no edit was made."""

    diff: str = ''
    """Unified diff from source to target, empty without an edit."""

    reason: str | None = None
    """Why it was refused, in one sentence."""

    backup: Path | None = None
    """The copy kept of what was overwritten, when that had other content."""

    changes: Mapping[str, Setting] = field(default_factory=dict)
    """What the edit sets, by dotted key: what was asked and what that entails."""

    notes: tuple[str, ...] = ()
    """What the reader should know about the edit, a sentence each."""

    cfg_options: str | None = None
    """The same as an argument of ``tools/train.py`` over the original, quoted for a
    shell; ``None`` where that cannot say it."""

    proven: bool = False
    """Whether MMEngine loaded the result and only the changes differed."""
