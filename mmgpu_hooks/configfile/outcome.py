"""What a rewrite was asked to do and what came of it. Pure records."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Union


class Remove(enum.Enum):
    """The type of :data:`REMOVE`, so that type checkers can tell it apart."""

    REMOVE = 'REMOVE'


REMOVE: Final = Remove.REMOVE
"""Asks for a key to vanish, instead of giving it a value."""

Setting = Union[bool, int, float, str, None, Remove]
"""What a dataloader key may be set to."""


class RefusedError(Exception):
    """A rewrite that cannot be done safely; inside this room only.

    Args:
        reason: What was expected, what was found, what to do.
        line: Line of the config the reason is about, from 1.
    """

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class RewriteOutcome:
    """The result of one rewrite; bad input is an outcome, never an exception."""

    status: Literal['rewritten', 'unchanged', 'refused']
    """``unchanged``: every setting already holds in the loaded config."""

    source: Path
    """The config that was read, as the caller named it."""

    target: Path | None
    """The file written (in a dry run: that would be), ``None`` if there is none."""

    text: str | None
    """The whole new text without a byte-order mark, ``None`` if no edit was made."""

    diff: str
    """Unified diff from source to target, empty without an edit."""

    reason: str | None = None
    """Why it was refused, in one sentence."""

    backup: Path | None = None
    """The copy kept of what was overwritten, when that had other content."""
