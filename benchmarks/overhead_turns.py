"""Trainings that live side by side in one thread and take turns.

A machine's speed drifts by more than a hook costs, within a second: what is compared
must have been measured within less. And on the same core: of two equal trainings in
threads of their own, one was faster by 1 % for a minute, because the kernel had given
it the better place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Callable

from mmengine.registry import LOOPS
from mmengine.runner import EpochBasedTrainLoop, Runner

from benchmarks.overhead_loop import train


@LOOPS.register_module()
class SteppedLoop(EpochBasedTrainLoop):
    """MMEngine's loop, of one epoch, whose iterations somebody else asks for."""

    on_begun: Callable[[], None]
    """Called when it has begun; the epoch ends when it returns."""

    def run_epoch(self) -> None:
        self.runner.call_hook('before_train_epoch')
        self.runner.model.train()
        self._batches: Any = enumerate(self.dataloader)
        self.on_begun()
        self.runner.call_hook('after_train_epoch')
        self._epoch += 1

    def take(self) -> float:
        """Train one iteration, with the loading of its batch.

        Returns:
            Seconds that it took once it had the batch.
        """
        index, batch = next(self._batches)
        begin_s = time.perf_counter()
        self.run_iter(index, batch)
        return time.perf_counter() - begin_s


def train_side_by_side(runners: Sequence[Runner], drive: Callable[[], None]) -> None:
    """Train all at once: one begins within the other, and the last one drives.

    Args:
        runners: With loops that have ``on_begun`` and ``take``.
        drive: Asks the loops for iterations; when it returns, all trainings end.
    """

    def begin(index: int) -> None:
        if index == len(runners):
            with _keep_cores_apart(runners):
                drive()
            return
        runners[index].train_loop.on_begun = lambda: begin(index + 1)
        train(runners[index])

    begin(0)


@contextmanager
def _keep_cores_apart(runners: Sequence[Runner]) -> Iterator[None]:
    """Give this thread one core, and the workers of all trainings the others.

    Else a training is slower for a minute when its workers happen to sit on this core.
    Threads that a hook starts later share the one: none of their work is hidden.
    """
    cores = os.sched_getaffinity(0)
    own = {min(cores)}
    for runner in runners:
        iterator = runner.train_loop.dataloader._iterator
        for worker in iterator._workers:
            _set_cores(worker.pid, cores - own or own)
    os.sched_setaffinity(0, own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def _set_cores(pid: int, cores: set[int]) -> None:
    # first the main thread, from which threads that start meanwhile take theirs
    os.sched_setaffinity(pid, cores)
    for task in Path(f'/proc/{pid}/task').iterdir():
        with suppress(ProcessLookupError):  # it has just ended
            os.sched_setaffinity(int(task.name), cores)
