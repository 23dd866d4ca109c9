"""Times the training loop's waits for the DataLoader's batches.

What lies between two hook points holds more than a wait: freeing the last batch,
``model.train()``, the fork of workers and their end. The live iterator's own
``_next_data`` is exact, and the same in torch 2.1 to 2.13.

The rest is booked by name: ``loop``, ``startup`` (the fork of workers and the first
batch), ``teardown`` (their end), ``resume`` (batches that a resumed loop throws away).
Where batches come from no PyTorch iterator, all between two steps is the wait.
"""

from __future__ import annotations

import random
import weakref
from typing import Any, Callable

from mmgpu_hooks.measure.ledger import FIRST_WAIT, TimeLedger
from mmgpu_hooks.measure.loop_listener import NO_LISTENER, LoopListener
from mmgpu_hooks.measure.patches import Patches

CPU_EVERY = 8
"""Mean number of data waits per reading of CPU time inside a wait, if workers load.

Two reads are 30 us of the kernel's on cold caches, most of what an iteration costs."""


class WaitTimer:
    """Books the training loop's waits for a DataLoader's batches on the time ledger.

    Args:
        ledger: Gets the waits.
        cpu_clock: CPU seconds of what loads inside a wait: the thread that trains, or
            the whole process where it loads without workers.
        cpu_every: Waits from one whose CPU is read to the next, on average.
        skipped: First waits of a resumed run whose batches are thrown away.
        listener: Hears of waits that are not plain: the last of an epoch, and those
            whose batches are thrown away.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        cpu_clock: Callable[[], float],
        cpu_every: int = 1,
        skipped: int = 0,
        listener: LoopListener = NO_LISTENER,
    ) -> None:
        self._ledger = ledger
        self._cpu_clock = cpu_clock
        self._cpu_every = cpu_every
        # drawn: waits for several workers come in turns
        self._lots = random.Random(0)
        # the first of all, lest a short run's CPU is unknown
        self._until_cpu = 1
        self.skipped = skipped
        """Number of batches that a resumed training has still to load and drop."""
        self._listener = listener
        self._patches = Patches()
        self._is_open = True

    def read_cpu_by(self, cpu_clock: Callable[[], float], cpu_every: int) -> None:
        """Sets the clock that reads CPU time inside waits, and how often it is read."""
        self._cpu_clock, self._cpu_every = cpu_clock, cpu_every

    def expect_skipped(self, count: int) -> None:
        """Records the next ``count`` waits as `resume`: their batches are dropped."""
        self.skipped = count

    def follow(self, iterator: Any) -> None:
        """Begins to time the waits for the batches of a DataLoader iterator.

        Raises:
            AttributeError: If it is no iterator of a PyTorch ``DataLoader``.
        """
        next_data = type(iterator)._next_data
        has_workers = hasattr(iterator, '_task_info')
        # a cycle would keep workers alive until the garbage collector comes by
        find_iterator = weakref.ref(iterator)
        ledger, cpu_clock = self._ledger, self._cpu_clock
        stamp, clock = ledger.stamps.extend, ledger.clock
        running, listener = ledger.running, self._listener
        draw, longest = self._lots.randint, 2 * self._cpu_every - 1

        def timed() -> Any:
            live: Any = find_iterator()
            if not self._is_open:
                return next_data(live)
            if has_workers and not live._task_info:
                listener.on_last_wait(live)
            part = 'data_wait' if live._num_yielded else FIRST_WAIT
            if self.skipped > 0:
                listener.on_skipped_wait(self.skipped)
                self.skipped -= 1
                part = 'resume'
            depth = len(running)
            stamp((clock(), running[-1]))
            running.append(part)
            self._until_cpu -= 1
            cpu_s = None if self._until_cpu > 0 else cpu_clock()
            try:
                return next_data(live)
            except StopIteration:
                # the epoch is over: this was the end of its workers
                self.skipped += part == 'resume'
                part = 'teardown'
                raise
            finally:
                if cpu_s is not None and part == 'data_wait':
                    ledger.add_wait_cpu(cpu_clock() - cpu_s)
                    self._until_cpu = draw(1, longest)
                stamp((clock(), part))
                del running[depth:]

        self._patches.set(iterator, '_next_data', timed)

    def stop(self) -> None:
        """Stops timing waits for batches, but leaves the replaced methods in place.

        Somebody may have wrapped what was put in the place of ``_next_data``.
        """
        self._is_open = False

    def close(self) -> None:
        """Restores the ``_next_data`` of all timed iterators; may be called twice."""
        self._patches.close()
