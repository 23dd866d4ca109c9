"""Memory of this process."""

from __future__ import annotations


def read_process_rss_bytes() -> int | None:
    """Resident memory of this process, in bytes; ``None`` without psutil."""
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.Process().memory_info().rss)
