"""Input that cannot be used."""

from __future__ import annotations

from mmgpu_hooks.schema.text import Text, quoted


class _SaidError(Exception):
    """An error that is one sentence."""

    @property
    def said(self) -> Text:
        """The sentence, with its facts where it was made of some."""
        words = self.args[0] if self.args else ''
        return quoted(words if isinstance(words, str) else str(words))


class UserError(_SaidError):
    """One sentence for the user: expected, found, what to do. Exit code 2."""


class NoPredictionError(_SaidError):
    """One sentence: what is missing or absurd for a prediction, and what helps."""
