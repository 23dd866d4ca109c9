"""What the exit codes of every command mean."""

from __future__ import annotations

OK = 0
"""Done, or there was nothing to do."""

WOULD_CHANGE = 1
"""``--check`` found something to change."""

NOT_FASTER = 1
"""``demo`` measured no gain."""

REGRESSION = 1
"""``compare`` found the second run slower than allowed."""

NO_FREE_CARD = 1
"""``pick-gpu`` found fewer free cards than it was asked for."""

BAD_INPUT = 2
"""Input that cannot be used; one sentence on standard error says why."""

INCOMPARABLE = 3
"""``compare`` was given runs whose speeds say nothing about each other."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""
