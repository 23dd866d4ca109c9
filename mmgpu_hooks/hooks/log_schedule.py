"""Decides at which iterations a log line is printed and a log interval ends."""

from __future__ import annotations

from typing import Any, NamedTuple

from mmengine.hooks import LoggerHook

from mmgpu_hooks.measure.loader.settings import read_length

DEFAULT_INTERVAL = 10
"""Number of iterations per log line for trainings without a LoggerHook."""

MOST_ITERATIONS = 10_000
"""Maximum length of a log interval, in iterations; a longer one is cut."""

MOST_SKIPPED = 64
"""Maximum number of iterations without a check if a log line or interval end is due."""


class Due(NamedTuple):
    """Decision on one iteration: if it prints a log line, if it ends an interval."""

    is_logged: bool
    """True if LoggerHook prints a log line after the iteration."""
    is_end: bool
    """True if the iteration is the last of its log interval."""


class LogSchedule:
    """Decides after which iterations log lines are printed and log intervals end.

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
        self._most = MOST_ITERATIONS
        self.begin_epoch()
        logged = self._logger.interval if self._logger else DEFAULT_INTERVAL
        self.interval = logged if interval is None else interval

    def begin_epoch(self) -> None:
        """Reads the train loader's number of batches, at the start of an epoch.

        Reading it in each iteration would cost more.
        """
        self._batches = read_length(self._runner.train_dataloader)

    def cut_at(self, most: int | None) -> None:
        """Limits the length of log intervals, in iterations, from now on.

        Args:
            most: Iterations at which one is cut; ``None`` is `MOST_ITERATIONS`.
        """
        self._most = MOST_ITERATIONS if most is None else most

    def is_due(self, batch_idx: int, iterations: int) -> Due:
        """Decides if an iteration prints a log line, and if it ends its log interval.

        Args:
            batch_idx: Of the iteration, in its epoch.
            iterations: Iterations since the last interval ended.
        """
        logger = self._logger
        is_logged = False
        if logger is not None:
            done, interval = batch_idx + 1, logger.interval
            is_logged = done % interval == 0 or (
                done == self._batches and (not logger.ignore_last or done <= interval)
            )
            if self._own_interval is None:
                return Due(is_logged, is_logged or iterations >= self._most)
        return Due(is_logged, iterations >= min(self.interval, self._most))

    def find_next(self, batch_idx: int, iterations: int) -> int:
        """Returns the next batch index at which a log line or interval end may be due.

        Args:
            batch_idx: Of the iteration that :meth:`is_due` was called for.
            iterations: Iterations since the last interval ended.
        """
        ahead = [MOST_SKIPPED, (self._batches or 0) - 1 - batch_idx]
        if self._logger is not None:
            line = self._logger.interval
            ahead.append(line - (batch_idx + 1) % line)
        if self._logger is None or self._own_interval is not None:
            ahead.append(self.interval - iterations)
        ahead.append(self._most - iterations)
        return batch_idx + min(count for count in ahead if count > 0)
