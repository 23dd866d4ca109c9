"""Folds looks at the GPU into the figures of one interval."""

from __future__ import annotations

import math
from collections import Counter

from mmgpu_hooks.measure.gpu.gpu import GpuSample
from mmgpu_hooks.schema import GpuWindow

_LARGEST = ('temperature_c', 'others_mem_bytes')
"""Figures of which the largest counts; of the others it is the mean."""
_WHOLE = ('others_mem_bytes',)


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


class GpuFold:
    """Adds up looks at the GPU."""

    def __init__(self) -> None:
        self._samples = 0
        self._util = UtilisationIntegral()
        self._buffered_s = 0.0
        self._mem_used: int | None = None
        self._sums: dict[str, float] = {}
        self._counts: Counter[str] = Counter()
        self._throttle_looks = 0
        self._throttled = 0
        self._reasons: Counter[str] = Counter()

    def add(self, seconds: float, sample: GpuSample) -> None:
        """Count one look.

        Args:
            seconds: Since the look before; what a polled figure stands for.
            sample: What was read at the end of that time.
        """
        self._add_util(seconds, sample)
        if sample.mem_used_bytes is not None:
            self._mem_used = max(self._mem_used or 0, sample.mem_used_bytes)
        for figure, value in sample.figures.items():
            self._counts[figure] += 1
            before = self._sums.get(figure)
            if figure in _LARGEST:
                self._sums[figure] = value if before is None else max(before, value)
            else:
                self._sums[figure] = value + (before or 0.0)
        if sample.throttle_reasons is not None:
            self._throttle_looks += 1
            self._throttled += bool(sample.throttle_reasons)
            self._reasons.update(sample.throttle_reasons)

    def _add_util(self, seconds: float, sample: GpuSample) -> None:
        if sample.spans is not None:
            for span in sample.spans:
                self._samples += 1
                self._util.add(*span)
                self._buffered_s += span.seconds
            return
        if sample.util_pct is None and sample.mem_used_bytes is None:
            return
        self._samples += 1
        if sample.util_pct is not None:
            self._util.add(seconds, sample.util_pct)

    def window(self) -> GpuWindow:
        """Return the figures; ``None`` where nothing was given."""
        util = self._util
        source = None
        if util.seconds:
            source = 'buffer' if 2 * self._buffered_s > util.seconds else 'polled'
        figures = {
            figure: total if figure in _LARGEST else total / self._counts[figure]
            for figure, total in self._sums.items()
        }
        looks = self._throttle_looks
        return GpuWindow(
            samples=self._samples,
            util_pct=util.mean_pct,
            zero_pct=util.zero_pct,
            util_std_pct=util.std_pct,
            mem_used_bytes=self._mem_used,
            source=source,
            sampled_s=util.seconds or None,
            throttled_pct=100.0 * self._throttled / looks if looks else None,
            throttle_reasons_pct={
                reason: 100.0 * count / looks
                for reason, count in sorted(self._reasons.items())
            },
            **{
                figure: int(value) if figure in _WHOLE else value
                for figure, value in figures.items()
            },  # type: ignore[arg-type]
        )
