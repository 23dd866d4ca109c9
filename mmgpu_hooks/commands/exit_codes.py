"""Exit codes of all commands."""

from __future__ import annotations

OK = 0
"""Exit code: done, or there was nothing to do."""

NO = 1
"""Exit code: the answer of a judging command is no.

``--check`` found something to change, ``compare`` a slowdown past the limit, ``demo``
no gain, ``pick-gpu`` too few free cards.
"""

BAD_INPUT = 2
"""Exit code: unusable input; one sentence on standard error says why."""

INCOMPARABLE = 3
"""Exit code: ``compare`` was given runs whose speeds say nothing about each other."""

INTERRUPTED = 130
"""Exit code: interrupted by Ctrl-C, as shells report it."""

CLOSED_PIPE = 141
"""Exit code: the reader of standard output (``| head``) closed the pipe."""
