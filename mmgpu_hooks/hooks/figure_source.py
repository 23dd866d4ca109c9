"""A source of figures: opened once, read whenever an interval ends, closed once.

A new figure of an interval is a field of `IntervalRecord` and a line in the ``read`` of
the source that measures it; a new source is a :class:`FigureSource` that `Sources`
opens. Each fails alone: the guard switches it off for good, says so once, and all
others go on.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from mmgpu_hooks.hooks.recording import Guard


class SourceName(str, enum.Enum):
    """Names of the sources of figures, as warnings and the evidence have them."""

    LOADER_WORKERS = 'loader workers'
    HOST = 'host'
    MEMORY = 'memory'
    GPU = 'GPU'
    GPU_IDLE = 'GPU idle'
    GPU_MEMORY = 'GPU memory'
    BATCH_CONTENTS = 'batch contents'
    HOST_OVERHEAD = 'host overhead'

    def __str__(self) -> str:
        return str(self.value)


class IntervalEnd(NamedTuple):
    """The end of an interval, as sources of figures get it."""

    iteration: int
    """Iterations of the whole training that are done."""
    iterations: int = 0
    """Iterations of the interval; 0 once training is over."""
    batch: Any = None
    """The last batch; ``None`` when it is gone."""
    outputs: Any = None
    """Outputs of the last ``train_step``; ``None`` when they are gone."""


class FigureSource:
    """Gives some fields of each interval's record."""

    name: ClassVar[SourceName]

    def open(self) -> None:
        """Begin to measure.

        Raises:
            AbsentError: If this host or this run has no such source.
            Exception: If it fails: it is switched off.
        """

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        """Fields of the record of an interval that has ended, by name.

        Args:
            interval: The interval.

        Raises:
            Exception: If the source fails: it is switched off.
        """
        raise NotImplementedError

    @property
    def unknown(self) -> Mapping[str, str]:
        """Reasons why a figure is missing, by figure as the evidence names it."""
        return {}

    def close(self) -> None:
        """Leave everything as it was, also where opening failed."""


_Source = TypeVar('_Source', bound=FigureSource)


class SourceList:
    """Sources of figures, of which each fails alone.

    Args:
        guard: Switches off what fails.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: list[FigureSource] = []
        self._opened: list[FigureSource] = []
        """Sources that could be opened."""

    def open(self, source: _Source) -> _Source:
        """Open a source, and keep it: it is closed whatever fails.

        Returns:
            The source itself.
        """
        self._sources.append(source)
        self._guard.run(source.name, source.open)
        if self._guard.is_on(source.name):
            self._opened.append(source)
        return source

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        """Fields of an interval's record by all sources that are on."""
        fields: dict[str, Any] = {}
        for source in self._opened:
            fields |= self._guard.run(source.name, source.read, interval) or {}
        return fields

    @property
    def unknown(self) -> dict[str, str]:
        """Reasons why a figure is missing, by figure as the evidence names it."""
        reasons: dict[str, str] = {}
        for source in self._sources:
            reasons.update(source.unknown)
        return reasons

    def close(self) -> None:
        """Close all of them, the newest first."""
        for source in reversed(self._sources):
            self._guard.clean_up(source.name, source.close)


def prefix_reasons(source: str, reasons: Mapping[str, str]) -> dict[str, str]:
    """Reasons by figure, with the name of their source before each figure."""
    return {f'{source} {figure}': why for figure, why in reasons.items()}
