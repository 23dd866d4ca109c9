"""Exit codes of the ``mmgpu`` commands."""

from __future__ import annotations

OK = 0
"""Exit code of a command that did its work, or had nothing to do."""

NO = 1
"""Exit code for a negative result, such as no free GPU in ``pick-gpu``.

``--check`` found something to change, ``compare`` a slowdown past the limit, ``demo``
no gain, ``pick-gpu`` too few free cards.
"""

BAD_INPUT = 2
"""Exit code for unusable input; a sentence on standard error says what is wrong."""

INCOMPARABLE = 3
"""Exit code of ``compare`` for two runs whose speeds cannot be compared."""

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells report it."""

CLOSED_PIPE = 141
"""Exit code when the reader of standard output, such as ``head``, has closed it."""
