"""When an interval ends, and when LoggerHook will print what we publish."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import LoggerHook

DEFAULT_INTERVAL = 10
"""LoggerHook's own default, for runs that have none."""


MOST_ITERATIONS = 10_000
"""An interval is cut here: each of its iterations is kept until it ends."""

MOST_SKIPPED = 64
"""Iterations; what is kept of them until the next look stays small."""


class LogSchedule:
    """Answers both questions for one runner.

    Args:
        runner: The runner that trains.
        interval: Iterations per interval; ``None`` follows LoggerHook.
    """

    def __init__(self, runner: Any, interval: int | None) -> None:
        loggers = [hook for hook in runner.hooks if isinstance(hook, LoggerHook)]
        self._logger: Any | None = loggers[0] if loggers else None
        self._own_interval = interval
        self._runner = runner
        self._batches: int | None = None
        self.begin_epoch()
        if interval is not None:
            self.interval = interval
        else:
            self.interval = self._logger.interval if self._logger else DEFAULT_INTERVAL

    @property
    def has_lines(self) -> bool:
        """Whether LoggerHook prints any."""
        return self._logger is not None

    def begin_epoch(self) -> None:
        """Look at the length of the epoch; asking for it each time costs more."""
        try:
            self._batches = len(self._runner.train_dataloader)
        except (TypeError, NotImplementedError):
            self._batches = None

    def look(self, batch_idx: int, iterations: int) -> tuple[bool, bool]:
        """What ends with an iteration.

        Args:
            batch_idx: Of the iteration, in its epoch.
            iterations: Iterations since the last interval ended.

        Returns:
            Whether LoggerHook prints a line for it, and whether an interval ends.
        """
        logger = self._logger
        is_logged = False
        if logger is not None:
            done, interval = batch_idx + 1, logger.interval
            is_logged = done % interval == 0 or (
                done == self._batches and (not logger.ignore_last or done <= interval)
            )
            if self._own_interval is None:
                return is_logged, is_logged or iterations >= MOST_ITERATIONS
        return is_logged, iterations >= min(self.interval, MOST_ITERATIONS)

    def find_next(self, batch_idx: int, iterations: int) -> int:
        """The next iteration at which something may end, by its number in the epoch.

        Args:
            batch_idx: Of the iteration that :meth:`look` was called for.
            iterations: Iterations since the last interval ended.
        """
        batches = self._batches
        if not batches:
            return batch_idx + 1
        nexts = [batch_idx + MOST_SKIPPED]
        if batch_idx < batches - 1:
            nexts.append(batches - 1)
        if self._own_interval is not None or self._logger is None:
            nexts.append(batch_idx + max(self.interval - iterations, 1))
        if self._logger is not None:
            interval = self._logger.interval
            nexts.append(((batch_idx + 1) // interval + 1) * interval - 1)
        return min(nexts)
