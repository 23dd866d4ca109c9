"""What ends a trial, or halts it between two blocks. Only a trial imports this."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from mmengine.hooks import Hook

from mmgpu_hooks.experiment.trial_events import TrialChannel
from mmgpu_hooks.measure.clock import monotonic_s
from mmgpu_hooks.measure.proc import read_peak_rss_bytes


class TrialOver(SystemExit):
    """Raised inside a training loop to leave it, since an epoch has no other exit.

    A SystemExit, so that a training's own ``except Exception`` lets it through.
    """


class TrialHook(Hook):
    """Trains a block of iterations, tells what each took, and waits for the next.

    An iteration is timed from the end of one to the end of the next; the time spent
    waiting for a word is in none of them.

    Args:
        channel: Where to tell it.
        iterations: Of the first block.
        words: Iterations of each further block; the training is over when it ends.
    """

    # after every other hook: the last iteration is recorded whole
    priority = 'LOWEST'

    def __init__(
        self, channel: TrialChannel, iterations: int, words: Iterator[int]
    ) -> None:
        self._channel = channel
        self._left = iterations
        self._words = words
        self._last_s: float | None = None
        self._seconds: list[float] = []
        self._starts: list[int] = []
        self._is_start = False
        self._restarts = 0
        self.done = 0

    def before_train_epoch(self, runner: Any) -> None:
        self._is_start = True

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        if self._is_start or self._has_restarted(runner):
            self._is_start = False
            self._starts.append(len(self._seconds))

    def _has_restarted(self, runner: Any) -> bool:
        """Whether an iteration-based loop began its loader again for this batch."""
        endless = getattr(runner.train_loop, 'dataloader_iterator', None)
        restarts = getattr(endless, '_epoch', 0)
        before, self._restarts = self._restarts, restarts
        return bool(restarts != before)

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        now_s = monotonic_s()
        self.done += 1
        # the very first has no beginning that could be told
        self._seconds.append(now_s - self._last_s if self._last_s is not None else 0.0)
        self._last_s = now_s
        self._left -= 1
        if self._left > 0:
            return
        self._channel.send(
            'block',
            seconds=self._seconds,
            starts=self._starts,
            batch_size=getattr(
                runner.train_dataloader.batch_sampler, 'batch_size', None
            ),
            # this hook is called before the loop counts the iteration
            left=runner.max_iters - runner.iter - 1,
            is_loss_finite=_is_loss_finite(runner),
            peak_rss_bytes=read_peak_rss_bytes(),
        )
        following = next(self._words, None)
        if following is None:
            raise TrialOver
        self._left, self._seconds, self._starts = following, [], []
        self._last_s = monotonic_s()


def _is_loss_finite(runner: Any) -> bool | None:
    """Whether every loss so far was a number; ``None`` where none is logged."""
    history = runner.message_hub.log_scalars.get('train/loss')
    if history is None:
        return None
    # MMEngine has read them for its log: no tensor is waited for
    return all(map(math.isfinite, history.data[0]))
