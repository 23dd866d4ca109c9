"""``python -m mmgpu_hooks`` is ``mmgpu``, and so is the console script."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; Ctrl-C ends it without a traceback while Python imports, too."""
    try:
        from mmgpu_hooks.commands.main import main as run

        return run(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
