"""One optimisation at several places of a training: each optimizer, each average."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.recorded import SparedTime

OnFailure = Callable[[Exception], None]
"""Called with what failed when an optimisation cannot go on."""


class Part(Protocol):
    """An optimisation at one place, from when it is made until it is closed."""

    changed: str
    """What it changed: the rest of a sentence for the log."""

    @property
    def spared(self) -> SparedTime | None:
        """What one call took in both ways; ``None`` if unknown."""

    def close(self) -> None:
        """Take it back."""


class Opener(NamedTuple):
    """How the part of one place is made."""

    prefix: str
    """Words before what it says; empty where there is one place."""
    open: Callable[[], Part]


class Several:
    """The parts that could be opened; the others leave training as it is.

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
        """What each part changed, or why it was refused."""
        if not self._parts:
            raise RefusalError(self.changed)

    @property
    def spared(self) -> SparedTime | None:
        """What one call of each part took in both ways, added up."""
        known = [part.spared for part in self._parts if part.spared is not None]
        if not known:
            return None
        return SparedTime(
            plain_s=sum(spared.plain_s for spared in known),
            ours_s=sum(spared.ours_s for spared in known),
            calls=min(spared.calls for spared in known),
        )

    def close(self) -> None:
        """Take all parts back."""
        for part in self._parts:
            part.close()
