"""Entry point of ``mmgpu`` and of ``python -m mmgpu_hooks``."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs an ``mmgpu`` command; returns its exit code, 130 after Ctrl-C."""
    try:
        from mmgpu_hooks.commands.main import main as run

        return run(argv)
    except KeyboardInterrupt:
        return 130


if __name__ == '__main__':
    sys.exit(main())
