"""Types and ranges of settings: which values pass, and how an error names them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from mmgpu_hooks.schema.text import phrase

FAST_METRIC = 'mmgpu_hooks.FastCocoMetric'
"""Value of a config's ``type`` for FastCocoMetric, a faster CocoMetric.

The config needs no import.
"""

LARGEST = 2**31 - 1
"""Largest whole number that PyTorch and OpenCV take as a setting."""


class Values(Protocol):
    """Values that a config setting may have: a type and a range."""

    @property
    def expected(self) -> str:
        """Allowed values in words, for an error: ``a whole number from 0 to 8``."""

    def takes(self, value: Any) -> bool:
        """True if the config setting may have ``value``."""


@dataclass(frozen=True)
class Whole:
    """Type of a config setting that is a whole number within a range."""

    least: int
    most: int = LARGEST
    is_optional: bool = False
    """True if ``None`` is allowed: a default that is no number."""

    @property
    def expected(self) -> str:
        """Allowed values in words, for an error: ``a whole number from 0 to 8``."""
        return phrase(
            'a whole number from {least_value} to {most_value}',
            least_value=self.least,
            most_value=self.most,
        )

    def takes(self, value: Any) -> bool:
        """Returns True for a whole number in the range; a bool counts as no number."""
        if value is None:
            return self.is_optional
        return type(value) is int and self.least <= value <= self.most


@dataclass(frozen=True)
class Flag:
    """Type of a config setting that is on or off."""

    is_optional: bool = False
    """True if ``None`` is allowed: it leaves the choice to PyTorch."""

    @property
    def expected(self) -> str:
        """Allowed values in words, for an error: ``True or False``."""
        return phrase('True or False')

    def takes(self, value: Any) -> bool:
        """Returns True for a bool; for ``None`` only if that is allowed."""
        return self.is_optional if value is None else type(value) is bool


NICENESS = Whole(0, 19, is_optional=True)
"""Nice values that POSIX lets an unprivileged process give itself."""
