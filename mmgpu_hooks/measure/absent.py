"""Absence as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """A source that this host, or this run, does not have."""

    reason: str
    """One sentence: what was found and, where it helps, what to do."""
