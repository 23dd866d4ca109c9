"""Applies one optimisation to several optimizers, or to several averaged models."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol

from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.text import Text, phrase

OnFailure = Callable[[Exception], None]
"""Callback that receives the exception that made an optimisation fail."""


class Part(Protocol):
    """Interface of an optimisation that is on for one object, such as one optimizer."""

    changed: Text
    """Text for the log on what the optimisation changed."""

    @property
    def spared(self) -> SparedTime | None:
        """CPU seconds of an optimised call, without and with optimisation, if timed."""

    def close(self) -> None:
        """Ends the optimisation of one object, and restores the object."""


class Opener(NamedTuple):
    """Function that starts the optimisation of one object, and the object's name."""

    name: str
    """Name of the optimised object for the log; empty if there is a single object."""
    open: Callable[[], Part]


class Several:
    """Runs one optimisation on several objects, leaving out those it cannot optimise.

    Args:
        openers: One for each place.

    Raises:
        RefusalError: If no part could be opened.
    """

    def __init__(self, openers: Iterable[Opener]) -> None:
        self._parts: list[Part] = []
        outcomes: list[Text] = []
        for opener in openers:
            try:
                part = opener.open()
            except RefusalError as refusal:
                outcome = refusal.said
            else:
                self._parts.append(part)
                outcome = part.changed
            if opener.name:
                outcome = phrase('{name}: {outcome}', name=opener.name, outcome=outcome)
            outcomes.append(outcome)
        self.changed = phrase('{outcomes:;}', outcomes=outcomes)
        """Text for the log on what was optimised in each object, or why not."""
        if not self._parts:
            raise RefusalError(self.changed)

    @property
    def spared(self) -> SparedTime | None:
        """CPU seconds of one call per object, summed, without and with optimisation."""
        known = [part.spared for part in self._parts if part.spared is not None]
        if not known:
            return None
        return SparedTime(
            plain_s=sum(spared.plain_s for spared in known),
            ours_s=sum(spared.ours_s for spared in known),
            calls=min(spared.calls for spared in known),
        )

    def close(self) -> None:
        """Ends the optimisation of all objects."""
        for part in self._parts:
            part.close()
