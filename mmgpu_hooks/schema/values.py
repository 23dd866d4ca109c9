"""Values that a setting may have: what passes, and how an error names it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from mmgpu_hooks.schema.text import phrase

FAST_METRIC = 'mmgpu_hooks.FastCocoMetric'
"""MMDetection's CocoMetric on a fast backend, in a config that needs no import."""

LARGEST = 2**31 - 1
"""Largest whole number that PyTorch and OpenCV take."""


class Values(Protocol):
    """A type and a range."""

    @property
    def expected(self) -> str:
        """All of them, for an error: ``a whole number from 0 to 8``."""

    def takes(self, value: Any) -> bool:
        """True if it is one of them."""


@dataclass(frozen=True)
class Whole:
    """Whole numbers of a range."""

    least: int
    most: int = LARGEST
    is_optional: bool = False
    """True if ``None`` is one of them: a default that is no number."""

    @property
    def expected(self) -> str:
        """``a whole number from 0 to 8``."""
        return phrase('a whole number from {least} to {most}', self)

    def takes(self, value: Any) -> bool:
        """True for such a number; ``True`` is an int in Python, but no number."""
        if value is None:
            return self.is_optional
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True)
class Flag:
    """On or off."""

    is_optional: bool = False
    """True if ``None`` is one of them: it leaves the choice to PyTorch."""

    @property
    def expected(self) -> str:
        """``True or False``."""
        return phrase('True or False')

    def takes(self, value: Any) -> bool:
        """True for a bool."""
        return self.is_optional if value is None else type(value) is bool


NICENESS = Whole(0, 19, is_optional=True)
"""What POSIX lets an unprivileged process give itself."""
