"""Input that cannot be used."""

from __future__ import annotations


class UserError(Exception):
    """One sentence for the user: expected, found, what to do. Exit code 2."""
