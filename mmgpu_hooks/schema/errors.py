"""Input that cannot be used."""

from __future__ import annotations


class UserError(Exception):
    """One sentence for the user: expected, found, what to do. Exit code 2."""


class NoPredictionError(Exception):
    """One sentence: what is missing or absurd for a prediction, and what helps."""
