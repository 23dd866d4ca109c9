"""Absence as a value, and the one exception that a source may raise."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Absent:
    """A source that this host, or this run, does not have."""

    reason: str
    """One sentence: what was found and, where it helps, what to do."""


class SourceError(Exception):
    """A source that worked, or was expected to, can give no more figures.

    The caller switches the source off with one warning. What was never there
    is not an error but an :class:`~mmgpu_hooks.measure.absent.Absent`. Its text is one
    sentence for the user: what failed and what is known of it.
    """
