"""Attributes set on live objects for a while, and taken away again."""

from __future__ import annotations

from typing import Any

_NOTHING = object()


class InstancePatches:
    """Sets instance attributes; classes are never touched."""

    def __init__(self) -> None:
        self._set: list[tuple[Any, str, Any, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Set ``owner.name`` until :meth:`close`."""
        before = vars(owner).get(name, _NOTHING)
        setattr(owner, name, value)
        self._set.append((owner, name, value, before))

    def close(self) -> None:
        """Take every attribute away again; a second call does nothing.

        One that somebody replaced since is left alone.
        """
        while self._set:
            owner, name, ours, before = self._set.pop()
            if vars(owner).get(name) is not ours:
                continue
            if before is _NOTHING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
