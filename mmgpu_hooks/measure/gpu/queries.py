"""Asks the driver and sorts its refusals: for good, for now, or the card is gone.

It never imports pynvml, which is handed in by :mod:`mmgpu_hooks.measure.gpu.nvml`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.measure.absent import SourceError

# Return codes of nvml.h; pynvml names only those that its version knows.
NOT_FOUND = (2, 6, 28)  # invalid argument, not found, GPU not found
NO_NEWS = (0, 6, 21)  # of a list: no error at all, not found, no data
NEVER = (3, 4, 13, 25, 26)  # not supported, no permission, no such function, ...
# timeout, IRQ, in use, host memory, no data, no resources, not ready
_NOT_NOW = (10, 11, 19, 20, 21, 23, 27)
# driver not started or unloaded, card off the bus or to be reset, driver replaced
_LOST = (1, 9, 15, 16, 18)

_PATIENCE = 3
"""Odd answers in a row after which a figure is given up."""


class GarbageError(Exception):
    """The driver answered with something that cannot be true."""


@dataclass(frozen=True)
class Missed:
    """Looks at which the driver did not give a figure that it has."""

    looks: int
    reason: str
    """The first one."""


class Queries:
    """Sorts what goes wrong when the driver is asked about one card.

    Args:
        nvml: The pynvml module.
        essential: Figures that end the source once all of them were given up for
            an odd answer: then it is the card.
        under_mig: Whether the card is sliced, which explains refusals.
    """

    def __init__(
        self, nvml: Any, essential: Iterable[str] = (), under_mig: bool = False
    ) -> None:
        self.nvml = nvml
        self.under_mig = under_mig
        self.refused: dict[str, str] = {}
        """Why a figure is ``None`` for the whole run, by its name."""
        self.missed: dict[str, Missed] = {}
        """Figures that were not given at some looks, and are asked for again."""
        self._sound = set(essential)
        """Essential figures that were not given up for an odd answer."""
        self._in_a_row: dict[str, int] = {}

    def ask(self, figure: str, query: Callable[[], Any]) -> Any:
        """Return the query's answer, or ``None`` with the reason kept.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        if figure in self.refused:
            return None
        try:
            answer = query()
        except SourceError:
            raise
        except Exception as error:  # noqa: BLE001, drivers answer garbage too
            self._sort(figure, error)
            return None
        self._in_a_row.pop(figure, None)
        return answer

    def refuse(self, figure: str, reason: str) -> None:
        """Give a figure up for the run; the first reason stays."""
        self.refused.setdefault(figure, reason)

    def miss(self, figure: str, reason: str, *, patience: int | None = None) -> None:
        """Count a look without the figure.

        Args:
            figure: Its name.
            reason: Why, in a sentence.
            patience: Misses in a row after which it is given up. Default: never.
        """
        before = self.missed.get(figure, Missed(0, reason))
        self.missed[figure] = Missed(before.looks + 1, before.reason)
        in_a_row = self._in_a_row[figure] = self._in_a_row.get(figure, 0) + 1
        if patience is not None and in_a_row >= patience:
            self.refuse(figure, reason)

    def found(self, figure: str) -> None:
        """The figure is there: earlier misses were not in a row with later ones."""
        self._in_a_row.pop(figure, None)

    def reasons(
        self, figures: Iterable[str], behind: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Why figures are missing now; may be called from another thread.

        Args:
            figures: Which.
            behind: Queries that figures come from, where they have another name.

        Returns:
            Reasons by figure; one that was given when it was last asked for has none.
        """
        # copies at once: the thread that asks may be adding to them
        refused, missed, now = (
            self.refused.copy(),
            self.missed.copy(),
            self._in_a_row.copy(),
        )
        told = {}
        for figure in figures:
            name = figure if figure in now else (behind or {}).get(figure)
            if figure in refused:
                told[figure] = refused[figure]
            elif name in now and name in missed and name not in refused:
                looks, reason = missed[name].looks, missed[name].reason
                told[figure] = f'missed at {looks} looks: {reason}'
        return told

    def _sort(self, figure: str, error: Exception) -> None:
        text = describe(error)
        under = ' under MIG' if self.under_mig else ''
        code = getattr(error, 'value', None)
        if isinstance(error, GarbageError):
            self.miss(figure, text)
        elif isinstance(error, AttributeError):
            self.refuse(figure, f'the installed nvidia-ml-py cannot ask for it: {text}')
        elif code in NEVER:
            self.refuse(figure, f'the driver does not give it{under}: {text}')
        elif code in _NOT_NOW:
            self.miss(figure, f'the driver could not give it: {text}')
        elif code in _LOST or self._is_last(figure, text):
            raise SourceError(f'NVML stopped answering for this GPU: {text}') from error

    def _is_last(self, figure: str, text: str) -> bool:
        """Count an odd answer; true when no essential figure is left after it."""
        self.miss(figure, f'the driver could not give it: {text}', patience=_PATIENCE)
        if figure not in self.refused or figure not in self._sound:
            return False
        self._sound.remove(figure)
        return not self._sound


def describe(error: Exception) -> str:
    """Text of an error of pynvml, which asks the driver for it, who may fail too."""
    try:
        text = ' '.join(str(error).split())
    except Exception:  # noqa: BLE001, bytes that are no text, a missing symbol
        text = ''
    code = getattr(error, 'value', None)
    return text or f'{type(error).__name__} {"" if code is None else code}'.rstrip()
