"""Fake key-value store of torch's process group."""

from __future__ import annotations

from collections.abc import Sequence


class Store:
    """Fake key-value store of torch; getting a missing key fails instead of waiting."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def set(self, key: str, value: bytes) -> None:
        self.kept[key] = value

    def check(self, keys: Sequence[str]) -> bool:
        return all(key in self.kept for key in keys)

    def get(self, key: str) -> bytes:
        assert key in self.kept, 'this would wait'
        return self.kept[key]
