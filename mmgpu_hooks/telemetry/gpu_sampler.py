"""Samples the GPU in the background and folds the samples by time.

Loader workers are forked while the thread lives, so the thread and its owner
share no lock of ours: samples pass through a deque, whose ends are atomic. In
a forked child, where the thread does not exist, the sampler does nothing.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from typing import Callable

from mmgpu_hooks.records import GpuWindow
from mmgpu_hooks.telemetry.clock import Clock, monotonic_s
from mmgpu_hooks.telemetry.nvml import GpuSample
from mmgpu_hooks.telemetry.source_error import SourceError

Wait = Callable[[threading.Event, float], bool]
"""Waits for the event at most so many seconds; true once it is set."""

THREAD_NAME = 'mmgpu-gpu-sampler'

_MAX_PENDING = 36_000
"""Samples kept for a drain that never comes: two hours of the default period."""


class UtilisationIntegral:
    """Time-weighted mean, spread and zero share of utilisation samples.

    Mean and variance are updated as in D. H. D. West, "Updating mean and
    variance estimates", CACM 22(9), 1979: equal samples give exactly zero.
    """

    def __init__(self) -> None:
        self._samples = 0
        self._seconds = 0.0
        self._zero_seconds = 0.0
        self._mean = 0.0
        self._squares = 0.0
        self._mem_used: int | None = None

    def add(self, seconds: float, sample: GpuSample) -> None:
        """Count one sample.

        Args:
            seconds: The time it stands for, that is since the sample before:
                the driver's figure looks back.
            sample: What was read at the end of that time.
        """
        if sample.util_pct is None and sample.mem_used_bytes is None:
            return
        self._samples += 1
        if sample.mem_used_bytes is not None:
            self._mem_used = max(self._mem_used or 0, sample.mem_used_bytes)
        if sample.util_pct is None or seconds <= 0.0:
            return
        self._seconds += seconds
        if sample.util_pct == 0.0:
            self._zero_seconds += seconds
        offset = sample.util_pct - self._mean
        self._mean += offset * seconds / self._seconds
        self._squares += seconds * offset * (sample.util_pct - self._mean)

    def window(self) -> GpuWindow:
        """Return the figures; ``None`` where no time was sampled."""
        if self._seconds <= 0.0:
            return GpuWindow(samples=self._samples, mem_used_bytes=self._mem_used)
        return GpuWindow(
            samples=self._samples,
            util_pct=self._mean,
            zero_pct=100.0 * self._zero_seconds / self._seconds,
            util_std_pct=math.sqrt(max(0.0, self._squares / self._seconds)),
            mem_used_bytes=self._mem_used,
        )


class GpuSampler:
    """Calls ``read_sample`` every period from a daemon thread.

    Args:
        read_sample: Looks at the GPU; may raise `SourceError`.
        period_s: Seconds between two looks, above 0. Default: 0.2.
        clock: Monotonic clock.
        wait: Waits for the stop event.

    Raises:
        ValueError: If ``period_s`` is not above 0.
    """

    def __init__(
        self,
        read_sample: Callable[[], GpuSample],
        period_s: float = 0.2,
        *,
        clock: Clock = monotonic_s,
        wait: Wait = threading.Event.wait,
    ) -> None:
        if not period_s > 0.0:
            raise ValueError(f'period_s must be above 0, found {period_s}')
        self.failure: str | None = None
        """Why the source stopped giving samples; ``None`` while it works."""
        self._read_sample = read_sample
        self._period_s = period_s
        self._clock = clock
        self._wait = wait
        self._pid = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending: deque[tuple[float, GpuSample]] = deque(maxlen=_MAX_PENDING)

    def start(self) -> None:
        """Start sampling; does nothing when it runs or in a forked child."""
        if self._thread is not None or os.getpid() != self._pid:
            return
        # an event per thread: one that is stuck in a read cannot come back
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._run,
            args=(self._stop, self._clock()),
            name=THREAD_NAME,
            daemon=True,
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
        ended = not self._thread.is_alive()
        self._thread = None
        return ended

    def drain(self) -> GpuWindow:
        """Return the samples since the last drain, folded, and forget them.

        Time between the last sample and now belongs to the next window.
        """
        integral = UtilisationIntegral()
        if os.getpid() == self._pid:
            # only those here now: a fast sampler must not hold us in the loop
            for _ in range(len(self._pending)):
                integral.add(*self._pending.popleft())
        return integral.window()

    def _run(self, stop: threading.Event, last_s: float) -> None:
        while not self._wait(stop, self._period_s):
            try:
                sample = self._read_sample()
            except SourceError as error:
                self._fail(stop, error.reason)
                return
            except Exception as error:  # noqa: BLE001, the training must go on
                self._fail(stop, f'{type(error).__name__}: {error}')
                return
            now_s = self._clock()
            if stop.is_set():
                return
            self._pending.append((now_s - last_s, sample))
            last_s = now_s

    def _fail(self, stop: threading.Event, reason: str) -> None:
        if not stop.is_set():  # a source closed after the stop is no failure
            self.failure = reason
