"""Utilisation out of the driver's own buffer, weighted by its time stamps.

The driver keeps a sample each 1/6 to 1 s for some 20 s, so reading once a second
misses none. Some drivers keep none while the card idles: what their buffer is silent
about is to be polled. Its stamps are wall-clock time: where that clock was set, nothing
is known of the time in between, rather than something wrong.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s, wall_unix_s

_GPU_UTILISATION = 1  # NVML_GPU_UTILIZATION_SAMPLES
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT
_NO_NEWS = (0, 6, 21)  # of a list: no error at all, not found, no data

_LONGEST_SPAN_US = 1_500_000
"""The driver says at most 1 s; what is longer is a gap in what it kept."""
_SHORTEST_SILENCE_US = 500_000
_STEP_S = 0.25
"""A wall clock that gained or lost so much between two samples was set."""
_BUFFER_S = 120.0
"""Longer than any driver keeps a sample."""


class GarbageError(Exception):
    """The driver answered with something that cannot be true.

    Args:
        text: What it was.
        is_odd: Whether a figure is to be given up after some of them in a row.
    """

    def __init__(self, text: str, *, is_odd: bool = False) -> None:
        super().__init__(text)
        self.is_odd = is_odd


def checked_util(util: int) -> float:
    """Per cent as the driver gave it.

    Raises:
        GarbageError: If it is none.
    """
    if not 0 <= util <= 100:
        raise GarbageError(f'the driver reported {util} % utilisation')
    return float(util)


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
    entries: Iterable[tuple[int, int]],
    last_us: int | None,
    now_us: int,
    period_us: int | None = None,
) -> Folded:
    """Weigh samples by the time since the one before.

    Args:
        entries: Stamp in microseconds and per cent, as the driver gave them.
        last_us: Stamp of the newest sample seen before; ``None`` at the start,
            where the first sample stands for nothing known.
        now_us: Wall clock now.
        period_us: Of a driver that keeps no samples while the card idles: what one
            stands for. ``None`` where that is unknown.

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
    for stamp_us, value in sorted(fresh):  # stamps, not places, give the order
        if not 0 <= value <= 100:
            garbage = f'the driver reported {value} % utilisation'
        elif last_us is not None and 0 < stamp_us - last_us <= _LONGEST_SPAN_US:
            gap_us = stamp_us - last_us
            if period_us is not None and gap_us > 1.5 * period_us:
                spans.append(UtilSpan((gap_us - period_us) / 1e6, 0.0))
                gap_us = period_us
            spans.append(UtilSpan(gap_us / 1e6, float(value)))
        last_us = stamp_us
    return Folded(tuple(spans), last_us, garbage)


class UtilBuffer:
    """The buffer of one card, read so that each sample is seen once.

    Args:
        queries: Sorts what goes wrong.
        handle: The card.
        clock: Monotonic clock.
        wall: Wall clock, the one that the driver stamps with.
    """

    FIGURE = 'util_buffer'

    def __init__(
        self,
        queries: Any,
        handle: Any,
        *,
        clock: Clock = monotonic_s,
        wall: Clock = wall_unix_s,
    ) -> None:
        self._queries = queries
        self._handle = handle
        self._clock = clock
        self._wall = wall
        self._last_us: int | None = None
        self._gaps_s: deque[float] = deque(maxlen=31)
        """Between the newest samples of this driver."""
        self._is_silent = False
        self.is_quiet_when_idle = False
        """Whether it was silent while the card was polled to be idle."""
        self.silent_s = 0.0
        """Of the time up to the last :meth:`read`, the newest, of which the driver
        kept nothing: it is to be polled."""
        self._read_at_s, self._read_at_wall_s = self._read_clocks()
        self._distrust_until_s = self._read_at_s
        # what is there by now is none of ours: the next sample has one before it
        self._take(int(self._wall() * 1e6))

    def read(self) -> tuple[UtilSpan, ...] | None:
        """Return what is new, or ``None`` where the driver is to be polled.

        Raises:
            SourceError: If the card or the driver was lost.
        """
        self.silent_s = 0.0
        now_s, wall_s = self._read_clocks()
        step_s = (wall_s - self._read_at_wall_s) - (now_s - self._read_at_s)
        self._read_at_s, self._read_at_wall_s = now_s, wall_s
        if abs(step_s) > _STEP_S:
            self._queries.miss(self.FIGURE, f'the clock was set by {step_s:.1f} s')
            # old stamps that lie ahead must pass, or leave the buffer, first
            self._distrust_until_s = now_s + min(max(-step_s, 0.0), _BUFFER_S)
            self._last_us = None
        if now_s < self._distrust_until_s:
            return None
        now_us = int(wall_s * 1e6)
        is_primed = self._last_us is not None
        spans = self._take(now_us)
        if spans is None or not is_primed:
            return None
        # the first one after a silence begins where that was polled last
        gaps = spans[1:] if self._is_silent else spans
        self._gaps_s.extend(span.seconds for span in gaps)
        self._is_silent &= not spans
        self._note_silence(now_us)
        return spans

    def _period_us(self) -> int:
        if not self._gaps_s:
            return _LONGEST_SPAN_US
        return int(1e6 * statistics.median(self._gaps_s))

    def _note_silence(self, now_us: int) -> None:
        assert self._last_us is not None
        limit_us = max(3 * self._period_us(), _SHORTEST_SILENCE_US)
        silent_us = now_us - self._last_us
        if self._is_silent or silent_us > min(limit_us, _LONGEST_SPAN_US):
            self._is_silent = True
            self.silent_s = max(silent_us, 0) / 1e6
            self._last_us = now_us

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
        age_us = now_us - (self._last_us or 0)
        return spans if spans and age_us < 2 * _LONGEST_SPAN_US else None

    def _read_clocks(self) -> tuple[float, float]:
        """Both clocks at one moment, however busy the cores are."""
        before_s = self._clock()
        for _ in range(3):
            wall_s, after_s = self._wall(), self._clock()
            if after_s - before_s < _STEP_S / 10:
                break
            before_s = after_s
        return after_s, wall_s

    def _take(self, now_us: int) -> tuple[UtilSpan, ...] | None:
        entries = self._queries.ask(self.FIGURE, self._entries)
        if entries is None:
            return None
        period_us = self._period_us() if self.is_quiet_when_idle else None
        spans, self._last_us, garbage = fold_buffer(
            entries, self._last_us, now_us, period_us
        )
        if garbage is not None:
            self._queries.miss(self.FIGURE, garbage)
        return spans

    def _entries(self) -> list[tuple[int, int]]:
        nvml = self._queries.nvml
        try:
            kind, rows = nvml.nvmlDeviceGetSamples(
                self._handle, _GPU_UTILISATION, self._last_us or 0
            )
        except nvml.NVMLError as error:
            if error.value in _NO_NEWS:
                return []
            raise
        if rows and kind != _UNSIGNED_INT:
            self._queries.refuse(self.FIGURE, f'the driver gave values of type {kind}')
            return []
        return [(int(row.timeStamp), int(row.sampleValue.uiVal)) for row in rows]


class UtilisationIntegral:
    """Time-weighted mean, spread and zero share of utilisation.

    Mean and variance are updated as in D. H. D. West, "Updating mean and
    variance estimates", CACM 22(9), 1979: equal samples give exactly zero.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._zero_seconds = 0.0
        self._mean = 0.0
        self._squares = 0.0

    def add(self, seconds: float, pct: float) -> None:
        """Count one sample.

        Args:
            seconds: The time it stands for, that is since the sample before:
                the driver's figure looks back.
            pct: Utilisation.
        """
        if seconds <= 0.0:
            return
        self.seconds += seconds
        if pct == 0.0:
            self._zero_seconds += seconds
        offset = pct - self._mean
        self._mean += offset * seconds / self.seconds
        self._squares += seconds * offset * (pct - self._mean)

    @property
    def mean_pct(self) -> float | None:
        """``None`` where no time was sampled, as are the other figures."""
        return self._mean if self.seconds else None

    @property
    def zero_pct(self) -> float | None:
        """Share of the time at 0 %."""
        return 100.0 * self._zero_seconds / self.seconds if self.seconds else None

    @property
    def std_pct(self) -> float | None:
        """Standard deviation."""
        if not self.seconds:
            return None
        return math.sqrt(max(0.0, self._squares / self.seconds))
