"""Says how far a sweep is, and how long it still takes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Callable

from mmgpu_hooks.experiment.sweep_trial import SweepOutcome
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.schema import SweepSetting

Progress = Callable[[str, float], None]
"""Called with what goes on and the share of the trials that is done."""


class SweepProgress:
    """Passes on how far the sweep is, and how long it still takes.

    Args:
        on_progress: Whom to tell.
        whole: Trials in all.
        kept: Those that an earlier start had measured.
        at_once: Trials that run side by side.
    """

    def __init__(
        self, on_progress: Progress, whole: int, kept: int, at_once: int = 1
    ) -> None:
        self._on_progress = on_progress
        self._at_once = at_once
        self._whole, self._done = whole, kept
        self._trained, self._seconds = 0, 0.0

    def add(self, seconds: float) -> None:
        """Count a trial that is over."""
        self._done += 1
        self._trained += 1
        self._seconds += seconds

    @contextlib.contextmanager
    def of(self, setting: SweepSetting) -> Iterator[Callable[[SweepOutcome], None]]:
        """What to call while a setting is being trained."""
        begin_s = monotonic_s()

        def tell(outcome: SweepOutcome) -> None:
            iter_s, iterations = outcome.iter_s, outcome.iterations
            words = f'{self._done + 1} of {self._whole}: {setting.name}'
            words += f', iteration {iterations}' if iterations else ', starting'
            if iter_s is not None:
                pct = 100 * iter_s.half_width / iter_s.value
                words += f', {iter_s.value:.3g} s +-{pct:.0f} %'
            self._on_progress(
                words + self._left(monotonic_s() - begin_s), self._done / self._whole
            )

        tell(SweepOutcome())
        yield tell

    def _left(self, passed_s: float) -> str:
        """By what the trials took so far; unknown during the first."""
        if not self._trained:
            return ''
        each_s = self._seconds / self._trained
        left_s = (self._whole - self._done) * each_s / self._at_once
        left_s -= min(passed_s, each_s)
        return f'; about {max(left_s / 60, 0.1):.1f} min left'
