"""When an interval ends, and when LoggerHook will print what we publish."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import LoggerHook

DEFAULT_INTERVAL = 10
"""LoggerHook's own default, for runs that have none."""


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
        if interval is not None:
            self.interval = interval
        else:
            self.interval = self._logger.interval if self._logger else DEFAULT_INTERVAL

    def is_logged(self, batch_idx: int) -> bool:
        """Whether LoggerHook prints a line for this iteration."""
        logger = self._logger
        if logger is None:
            return False
        if logger.every_n_inner_iters(batch_idx, logger.interval):
            return True
        loader = self._runner.train_dataloader
        at_end: bool = logger.end_of_epoch(loader, batch_idx)
        return at_end and (not logger.ignore_last or len(loader) <= logger.interval)

    def ends_interval(self, is_logged: bool, iterations: int) -> bool:
        """Whether an interval ends with this iteration.

        Args:
            is_logged: Whether LoggerHook prints a line for it.
            iterations: Iterations since the last interval ended.
        """
        if self._own_interval is None and self._logger is not None:
            return is_logged
        return iterations >= self.interval
