"""Errors for input that cannot be used, each one sentence for the user."""

from __future__ import annotations

from mmgpu_hooks.schema.text import Text, quoted


class _SaidError(Exception):
    """An error that is one sentence."""

    @property
    def said(self) -> Text:
        """Sentence of the error, with its facts where it was made of some."""
        words = self.args[0] if self.args else ''
        return quoted(words if isinstance(words, str) else str(words))


class UserError(_SaidError):
    """Error in the user's input: expected, found, what to do. Exit code 2."""


class NoPredictionError(_SaidError):
    """Error when nothing can be predicted: what is missing, and what helps."""
