"""Utilisation out of the driver's own buffer, weighed by its time stamps.

The driver keeps a sample each 1/6 to 1 s for some 20 s, so looking once a second
misses none. Its stamps are wall-clock time: where that clock was set, nothing is
known of the time in between, rather than something wrong.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from typing import Any, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s, wall_unix_s
from mmgpu_hooks.measure.gpu.queries import NO_NEWS, Queries
from mmgpu_hooks.measure.gpu.table import Table, function

LOOK_S = 1.0
"""Seconds between two looks while the buffer works."""

_GPU_UTILISATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT

_LONGEST_SPAN_US = 1_500_000
"""The driver says at most 1 s; what is longer is a gap in what it kept."""
_SILENCE_S = 3.0
"""Without a new sample for so long, the driver is polled."""
_STEP_S = 0.25
"""A wall clock that gained or lost so much between two looks was set."""
_BUFFER_S = 120.0
"""Longer than any driver keeps a sample."""


class UtilSpan(NamedTuple):
    """Utilisation over a stretch of time."""

    seconds: float
    pct: float


class Folded(NamedTuple):
    """What is new in the buffer."""

    spans: tuple[UtilSpan, ...]
    last_us: int | None
    """Stamp of the newest sample seen so far."""
    garbage: str | None
    """What was dropped, if anything."""


def fold_buffer(
    entries: Iterable[tuple[int, int]], last_us: int | None, now_us: int
) -> Folded:
    """Weigh samples by the time since the one before.

    Args:
        entries: Stamp in microseconds and per cent, as the driver gave them.
        last_us: Stamp of the newest sample seen before; ``None`` at the start,
            where the first sample stands for nothing known.
        now_us: Wall clock now.

    Examples:
        >>> fold_buffer([(1_200_000, 0), (1_500_000, 80)], 1_000_000, 1_600_000)[0]
        (UtilSpan(seconds=0.2, pct=0.0), UtilSpan(seconds=0.3, pct=80.0))
    """
    garbage: str | None = None
    fresh: list[tuple[int, int]] = []
    for stamp_us, value in entries:
        if last_us is not None and stamp_us <= last_us:
            continue
        if stamp_us > now_us + _STEP_S * 1e6:
            garbage = 'the driver gave a sample of the future'
            continue
        if fresh and stamp_us < fresh[-1][0]:
            garbage = 'the driver gave samples out of order'
        fresh.append((stamp_us, value))
    spans = []
    for stamp_us, value in sorted(fresh):  # stamps, not places, tell the order
        if not 0 <= value <= 100:
            garbage = f'the driver reported {value} % utilisation'
        elif last_us is not None and 0 < stamp_us - last_us <= _LONGEST_SPAN_US:
            spans.append(UtilSpan((stamp_us - last_us) / 1e6, float(value)))
        last_us = stamp_us
    return Folded(tuple(spans), last_us, garbage)


class UtilBuffer:
    """The buffer of one card, read so that each sample is seen once.

    Costs two calls of the driver at the start and one a look.

    Args:
        queries: Sorts what goes wrong.
        handle: The card.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps with.
    """

    FIGURE = 'util_buffer'

    def __init__(
        self,
        queries: Queries,
        handle: Any,
        *,
        clock: Clock = monotonic_s,
        wall: Clock = wall_unix_s,
    ) -> None:
        self._queries = queries
        self._handle = handle
        self._clock = clock
        self._wall = wall
        self._table = Table(queries.nvml, 'c_nvmlSample_t')
        self._last_us: int | None = None
        self._looked_s, self._looked_wall_s = self._read_clocks()
        self._news_s = self._looked_s
        self._distrust_until_s = self._looked_s
        self._prime()

    def read(self) -> tuple[UtilSpan, ...] | None:
        """Return what is new, or ``None`` where the driver is to be polled.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        now_s, wall_s = self._read_clocks()
        step_s = (wall_s - self._looked_wall_s) - (now_s - self._looked_s)
        self._looked_s, self._looked_wall_s = now_s, wall_s
        if abs(step_s) > _STEP_S:
            self._queries.miss(self.FIGURE, f'the clock was set by {step_s:.1f} s')
            # old stamps that lie ahead must pass, or leave the buffer, first
            self._distrust_until_s = now_s + min(max(-step_s, 0.0), _BUFFER_S)
            self._last_us = None
        if now_s < self._distrust_until_s:
            return None
        if self._last_us is None:
            self._prime()
            return None
        spans = self._take(int(wall_s * 1e6))
        if spans is None:
            return None
        if spans:
            self._news_s = now_s
        elif now_s - self._news_s > _SILENCE_S:
            return None
        return spans

    def read_kept(self) -> tuple[UtilSpan, ...] | None:
        """Return all that the driver keeps, seen before or not.

        Returns:
            Some 20 s of utilisation, or ``None`` where the driver is to be polled.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        now_us = int(self._wall() * 1e6)
        self._last_us = None
        spans = self._take(now_us)
        return spans if spans and self._is_fresh(now_us) else None

    def _is_fresh(self, now_us: int) -> bool:
        newest_us = self._last_us
        return newest_us is not None and now_us - newest_us < _SILENCE_S * 1e6

    def _read_clocks(self) -> tuple[float, float]:
        """Both clocks at one moment, however busy the cores are."""
        before_s = self._clock()
        for _ in range(3):
            wall_s, after_s = self._wall(), self._clock()
            if after_s - before_s < _STEP_S / 10:
                break
            before_s = after_s
        return after_s, wall_s

    def _prime(self) -> None:
        """See what is there, of which nothing is ours: the next has one before it."""
        self._take(int(self._wall() * 1e6))

    def _take(self, now_us: int) -> tuple[UtilSpan, ...] | None:
        entries = self._queries.ask(self.FIGURE, self._entries)
        if entries is None:
            return None
        spans, self._last_us, garbage = fold_buffer(entries, self._last_us, now_us)
        if garbage is not None:
            self._queries.miss(self.FIGURE, garbage)
        return spans

    def _entries(self) -> list[tuple[int, int]]:
        nvml = self._queries.nvml
        get_samples = function(nvml, 'nvmlDeviceGetSamples')
        value_type = ctypes.c_uint()
        try:
            rows = self._table.read(
                lambda count, rows: int(
                    get_samples(
                        self._handle,
                        ctypes.c_uint(_GPU_UTILISATION),
                        ctypes.c_ulonglong(self._last_us or 0),
                        ctypes.byref(value_type),
                        count,
                        rows,
                    )
                )
            )
        except nvml.NVMLError as error:
            if error.value in NO_NEWS:
                return []
            raise
        if rows and value_type.value != _UNSIGNED_INT:
            self._queries.refuse(
                self.FIGURE, f'the driver gave values of type {value_type.value}'
            )
            return []
        return [(int(row.timeStamp), int(row.sampleValue.uiVal)) for row in rows]
