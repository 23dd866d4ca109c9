"""Errors for input that cannot be used, each with a one-sentence message."""

from __future__ import annotations

from mmgpu_hooks.schema.text import Text, said_by


class SaidError(Exception):
    """Base of the errors whose message is one sentence for the user."""

    @property
    def said(self) -> Text:
        """Message of the error as a `Text`: a ``str`` that also keeps named values."""
        return said_by(self)


class UserError(SaidError):
    """Error in the user's input: says what was expected and found, and what to do.

    The exit code is 2.
    """


class NoPredictionError(SaidError):
    """Error if a training cannot be predicted: says what is missing, and what helps."""
