"""The exceptions that a source may raise: what is not there, and what fails."""

from __future__ import annotations


class AbsentError(Exception):
    """A source that this host, or this run, does not have.

    It is a reason and no failure. Its text is one sentence: what was found and,
    where it helps, what to do.
    """


class SourceError(Exception):
    """A source that worked, or was expected to, can give no more figures.

    The caller switches the source off with one warning. Its text is one sentence for
    the user: what failed and what is known of it.
    """
