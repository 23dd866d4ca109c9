"""Fake clock that tests set by hand."""

from __future__ import annotations


class HandClock:
    """Fake clock in seconds, which advances only when a test turns it."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def turn(self, seconds: float) -> None:
        self.now += seconds
