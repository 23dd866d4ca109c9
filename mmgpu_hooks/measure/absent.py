"""Exceptions for a source of measured values that is absent or fails."""

from __future__ import annotations

from mmgpu_hooks.schema.errors import SaidError


class AbsentError(SaidError):
    """Raised when this host, or this training, lacks a source of measured values.

    It is a reason and no failure. Its text is one sentence: what was found and,
    where it helps, what to do.
    """


class SourceError(SaidError):
    """Raised when a source of measured values exists but fails during use.

    The caller switches the source off with one warning. Its text is one sentence for
    the user: what failed and what is known of it.
    """
