"""Base class of sources that measure values for each log interval's record.

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
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.schema.recorded import IntervalRecord
from mmgpu_hooks.schema.text import phrase


class SourceName(str, enum.Enum):
    """Names of the sources of measured values in warnings and the evidence file."""

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
    """Iteration counts, last batch and last outputs at the end of a log interval."""

    iteration: int
    """Number of iterations done so far, counted over the whole training."""
    iterations: int = 0
    """Number of iterations in the log interval; 0 after the end of training."""
    batch: Any = None
    """Last batch of the log interval; ``None`` if it was already freed."""
    outputs: Any = None
    """Return value of the last ``train_step``; ``None`` if it was already freed."""


class FigureSource:
    """Base class of a source that measures values for each log interval's record.

    Making one does nothing that can fail: that is for :meth:`open`, which is guarded.
    """

    name: ClassVar[SourceName]

    def open(self) -> None:
        """Begins to measure the source's values; called once, before training.

        Raises:
            AbsentError: If this host or this run has no such source.
            Exception: If it fails: it is switched off.
        """

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        """Returns the values measured in the log interval, by the record's field name.

        Args:
            interval: The interval.

        Raises:
            Exception: If the source fails: it is switched off.
        """
        raise NotImplementedError

    @property
    def unknown(self) -> Mapping[str, str]:
        """Reasons why values are missing, by the value's name in the evidence file."""
        return {}

    def close(self) -> None:
        """Stops measuring, restores what it patched; called even if `open` failed."""


_FIELDS = frozenset(IntervalRecord.__struct_fields__)
_Source = TypeVar('_Source', bound=FigureSource)


class SourceList:
    """Sources of measured values, read together; one that fails is left out.

    Args:
        guard: Switches off what fails.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._sources: list[FigureSource] = []
        self._opened: list[FigureSource] = []
        """Sources of measured values that opened without an error."""

    def open(self, source: _Source) -> _Source:
        """Opens a source and adds it; a source that fails to open is closed later, too.

        Returns:
            The source itself.
        """
        self._sources.append(source)
        self._guard.run(source.name, source.open)
        if self._guard.is_on(source.name):
            self._opened.append(source)
        return source

    def read(self, interval: IntervalEnd) -> dict[str, Any]:
        """Returns all sources' values for a log interval's record, by field name."""
        fields: dict[str, Any] = {}
        for source in self._opened:
            fields |= self._guard.run(source.name, _read_fields, source, interval) or {}
        return fields

    @property
    def unknown(self) -> dict[str, str]:
        """Reasons why values are missing, by source and name of the value."""
        reasons: dict[str, str] = {}
        for source in self._sources:
            # of one that is switched off, too
            found = self._guard.clean_up(source.name, getattr, source, 'unknown')
            reasons.update(found or {})
        return reasons

    def close(self) -> None:
        """Closes all sources, in the reverse order of opening."""
        for source in reversed(self._sources):
            self._guard.clean_up(source.name, source.close)


def _read_fields(source: FigureSource, interval: IntervalEnd) -> dict[str, Any]:
    """Returns a source's values; raises if the interval's record has no such field."""
    fields = dict(source.read(interval))
    foreign = fields.keys() - _FIELDS
    if foreign:
        raise SourceError(
            phrase('no record has the field {name}', name=', '.join(sorted(foreign)))
        )
    return fields


def prefix_reasons(source: str, reasons: Mapping[str, str]) -> dict[str, str]:
    """Returns reasons for missing values, keyed by source and value together."""
    return {f'{source} {figure}': why for figure, why in reasons.items()}
