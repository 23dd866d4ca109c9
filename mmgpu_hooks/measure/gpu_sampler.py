"""Samples the GPU in the background and hands the samples over, folded by time.

Loader workers are forked while the thread lives, so the thread and its owner
share no lock of ours: samples pass through a deque, whose ends are atomic. In
a forked child, where the thread does not exist, the sampler does nothing.
"""

from __future__ import annotations

import os
import random
import threading
from collections import Counter, deque
from typing import Any, Callable

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.gpu import GpuSample, describe
from mmgpu_hooks.measure.gpu_util import UtilisationIntegral

Wait = Callable[[threading.Event, float], bool]
"""Waits for the event at most so many seconds; true once it is set."""

THREAD_NAME = 'mmgpu-gpu-sampler'

_MAX_PENDING = 36_000
"""Samples kept for a drain that never comes: two hours of the default period."""

_LARGEST = ('temperature_c', 'others_mem_bytes')
"""Figures of which the largest counts; of the others it is the mean."""
_WHOLE = ('others_mem_bytes',)


class GpuFold:
    """Adds up samples of the GPU."""

    def __init__(self) -> None:
        self._samples = 0
        self._util = UtilisationIntegral()
        self._buffered_s = 0.0
        self._mem_used: int | None = None
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def add(self, seconds: float, sample: GpuSample) -> None:
        """Count one sample.

        Args:
            seconds: Since the sample before; what a polled figure stands for.
            sample: What was read at the end of that time.
        """
        self._add_util(seconds, sample)
        if sample.mem_used_bytes is not None:
            self._mem_used = max(self._mem_used or 0, sample.mem_used_bytes)
        for figure, value in sample.figures.items():
            self._counts[figure] += 1
            before = self._sums.get(figure, 0.0)
            is_largest = figure in _LARGEST
            self._sums[figure] = max(before, value) if is_largest else before + value
        if sample.throttle_reasons is not None:
            self._counts['throttled_pct'] += 1
            self._counts['throttled'] += bool(sample.throttle_reasons)
            self._reasons.update(sample.throttle_reasons)

    def _add_util(self, seconds: float, sample: GpuSample) -> None:
        if sample.spans is None:
            is_any = (sample.util_pct, sample.mem_used_bytes) != (None, None)
            self._samples += is_any
            if sample.util_pct is not None:
                self._util.add(seconds, sample.util_pct)
            return
        for span in sample.spans:
            self._samples += 1
            self._util.add(*span)
            self._buffered_s += span.seconds
        if sample.util_pct is not None:
            # the newest was polled: the buffer was silent
            self._buffered_s -= sample.spans[-1].seconds

    def window(self) -> dict[str, Any]:
        """The figures by the names of the record; none where nothing was given."""
        util, counts = self._util, self._counts
        figures: dict[str, Any] = {
            figure: total if figure in _LARGEST else total / counts[figure]
            for figure, total in self._sums.items()
        }
        figures.update({name: int(figures[name]) for name in _WHOLE if name in figures})
        looks = counts['throttled_pct']
        if looks:
            figures['throttled_pct'] = 100.0 * counts['throttled'] / looks
            figures['throttle_reasons_pct'] = {
                reason: 100.0 * count / looks
                for reason, count in sorted(self._reasons.items())
            }
        if util.seconds:
            is_kept = 2 * self._buffered_s > util.seconds
            figures['source'] = 'buffer' if is_kept else 'polled'
        return {
            'samples': self._samples,
            'util_pct': util.mean_pct,
            'zero_pct': util.zero_pct,
            'util_std_pct': util.std_pct,
            'mem_used_bytes': self._mem_used,
            'sampled_s': util.seconds or None,
            **figures,
        }


class GpuSampler:
    """Calls ``read_sample`` every period from a daemon thread.

    Args:
        read_sample: Samples the GPU; may raise `SourceError`.
        period_s: Seconds between two samples on average, above 0; each waits half to
            one and a half of it, since iterations as regular as the samples would be
            seen at the same few places again and again. Where the driver keeps
            samples itself, a sample says how long the next may wait at least.
            Default: 0.2.
        close: Lets the GPU go, called by the thread as it ends: never while the
            driver is in use.
        clock: Monotonic clock.
        wait: Waits for the stop event.
        draw: Random numbers from 0 to 1; not of the generators that training uses.

    Raises:
        ValueError: If ``period_s`` is not above 0.
    """

    def __init__(
        self,
        read_sample: Callable[[], GpuSample],
        period_s: float = 0.2,
        *,
        close: Callable[[], None] = lambda: None,
        clock: Clock = monotonic_s,
        wait: Wait = threading.Event.wait,
        draw: Callable[[], float] = random.Random().random,
    ) -> None:
        if not period_s > 0.0:
            raise ValueError(f'period_s must be above 0, found {period_s}')
        self.failure: str | None = None
        """Why the source stopped giving samples; ``None`` while it works."""
        self._read_sample = read_sample
        self._period_s = period_s
        self._close = close
        self._clock = clock
        self._wait = wait
        self._draw = draw
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending: deque[tuple[float, GpuSample]] = deque(maxlen=_MAX_PENDING)

    def start(self) -> None:
        """Start sampling, once; does nothing in a forked child."""
        if self._thread is not None or os.getpid() != self._pid:
            return
        self._thread = threading.Thread(
            target=self._run, args=(self._clock(),), name=THREAD_NAME, daemon=True
        )
        self._thread.start()

    def stop(self, timeout_s: float = 0.5) -> bool:
        """Stop sampling; may be called twice, and in a forked child.

        Samples that were taken stay to be drained.

        Args:
            timeout_s: How long to wait for a read that is under way.

        Returns:
            Whether the thread has ended. One that is stuck in the driver stays
            behind as a daemon, adds nothing more and does not keep the process.
        """
        if os.getpid() != self._pid:
            return True  # the event's lock may be held by a thread not copied
        self._stop.set()
        if self._thread is None:
            return True
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def drain(self) -> dict[str, Any]:
        """Return the samples since the last drain, folded, and forget them.

        Time between the last sample and now belongs to the next window.
        """
        fold = GpuFold()
        if os.getpid() == self._pid:
            # only those here now: a fast sampler must not hold us in the loop
            for _ in range(len(self._pending)):
                fold.add(*self._pending.popleft())
        return fold.window()

    def _run(self, last_s: float) -> None:
        try:
            self._sample(last_s)
        finally:
            self._close()

    def _sample(self, last_s: float) -> None:
        stop, at_least_s = self._stop, 0.0
        while not self._wait(stop, max(self._draw_period_s(), at_least_s)):
            try:
                sample = self._read_sample()
            except Exception as error:  # noqa: BLE001, the training must go on
                if not stop.is_set():  # a source closed after the stop is no failure
                    is_ours = isinstance(error, SourceError)
                    kind = '' if is_ours else f'{type(error).__name__}: '
                    self.failure = kind + describe(error)
                return
            now_s = self._clock()
            if stop.is_set():
                return
            self._pending.append((now_s - last_s, sample))
            last_s = now_s
            at_least_s = sample.next_look_s or 0.0

    def _draw_period_s(self) -> float:
        return self._period_s * (0.5 + self._draw())
