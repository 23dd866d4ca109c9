"""One optimisation applied at several places: each optimizer, each average."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.recorded import SparedTime

OnFailure = Callable[[Exception], None]
"""Callback with the exception of an optimisation that cannot go on."""


class Part(Protocol):
    """Interface of an optimisation at one place, until it is closed."""

    changed: str
    """Log text on what it changed."""

    @property
    def spared(self) -> SparedTime | None:
        """CPU time of one call in both ways; ``None`` if unknown."""

    def close(self) -> None:
        """Restores the place as it was."""


class Opener(NamedTuple):
    """Makes the optimisation of one place."""

    prefix: str
    """Prefix of its log texts; empty for a single place."""
    open: Callable[[], Part]


class Several:
    """The optimisations of all places where one could be opened.

    Args:
        openers: One for each place.

    Raises:
        RefusalError: If no part could be opened.
    """

    def __init__(self, openers: Iterable[Opener]) -> None:
        self._parts: list[Part] = []
        said = []
        for opener in openers:
            try:
                part = opener.open()
            except RefusalError as refusal:
                said.append(f'{opener.prefix}{refusal}')
            else:
                self._parts.append(part)
                said.append(f'{opener.prefix}{part.changed}')
        self.changed = '; '.join(said)
        """Log text on what each part changed, or why it was refused."""
        if not self._parts:
            raise RefusalError(self.changed)

    @property
    def spared(self) -> SparedTime | None:
        """CPU time of one call of each part in both ways, added up."""
        known = [part.spared for part in self._parts if part.spared is not None]
        if not known:
            return None
        return SparedTime(
            plain_s=sum(spared.plain_s for spared in known),
            ours_s=sum(spared.ours_s for spared in known),
            calls=min(spared.calls for spared in known),
        )

    def close(self) -> None:
        """Closes all parts."""
        for part in self._parts:
            part.close()
