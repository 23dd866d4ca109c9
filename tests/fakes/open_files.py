"""What this process holds open."""

from __future__ import annotations

import contextlib
import os


def kept_files() -> int:
    """Open descriptors of files that tell of a process."""
    links = []
    for name in os.listdir('/proc/self/fd'):
        with contextlib.suppress(OSError):  # the listing's own
            links.append(os.readlink(f'/proc/self/fd/{name}'))
    return sum(link.endswith('/schedstat') for link in links)
