"""How counted things are written."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """``1 save``, ``2 saves``."""
    return f'{count} {noun}{"" if count == 1 else "s"}'
