"""Attributes that this project replaces: set and taken back in one place."""

from __future__ import annotations

import weakref
from typing import Any, Callable, NamedTuple

_ABSENT = object()


class Patch(NamedTuple):
    """One attribute in whose place something of ours stands."""

    find_owner: Callable[[], Any]
    """Gives the object, or ``None`` once it is gone: patches keep nothing alive."""
    name: str
    ours: Any
    before: Any
    why: str


class Patches:
    """Attributes of live objects, modules or classes, replaced for a while.

    What somebody else put in the place of ours is left alone when ours are taken back.
    """

    def __init__(self) -> None:
        self._table: list[Patch] = []

    def set(self, owner: Any, name: str, ours: Any, why: str) -> None:
        """Put ``ours`` in the place of ``owner.name``, until :meth:`close`.

        Args:
            owner: An object with attributes of its own.
            name: Of the attribute.
            ours: What stands there from now on.
            why: What it is for, in a few words.

        Raises:
            TypeError: If the object takes no attributes.
            AttributeError: Likewise.
        """
        before = vars(owner).get(name, _ABSENT)
        setattr(owner, name, ours)
        try:
            find_owner: Callable[[], Any] = weakref.ref(owner)
        except TypeError:
            find_owner = lambda: owner  # noqa: E731
        self._table.append(Patch(find_owner, name, ours, before, why))

    def close(self) -> None:
        """Take everything back, newest first; a second call does nothing."""
        while self._table:
            one = self._table.pop()
            if not _stands(one):
                continue
            if one.before is _ABSENT:
                delattr(one.find_owner(), one.name)
            else:
                setattr(one.find_owner(), one.name, one.before)


def _stands(one: Patch) -> bool:
    owner = one.find_owner()
    return owner is not None and vars(owner).get(one.name) is one.ours
