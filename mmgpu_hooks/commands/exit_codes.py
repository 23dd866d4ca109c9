"""What the exit codes of every command mean."""

from __future__ import annotations

OK = 0
"""Done, or there was nothing to do."""

NO = 1
"""The answer of a judging command is no: ``--check`` found something to change,
``compare`` a slowdown past the limit, ``demo`` no gain, ``pick-gpu`` too few free
cards."""

BAD_INPUT = 2
"""Input that cannot be used; one sentence on standard error says why."""

INCOMPARABLE = 3
"""``compare`` was given runs whose speeds say nothing about each other."""

INTERRUPTED = 130
"""Ctrl-C, as shells have it."""

CLOSED_PIPE = 141
"""The reader of standard output (``| head``) has gone, as shells have it."""
