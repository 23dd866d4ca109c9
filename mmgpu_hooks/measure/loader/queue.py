"""The waits for a loader's batches, and what stands ready when the loop asks.

What lies between two hook points holds more than a wait: freeing the last batch,
``model.train()``, the fork of workers and their end. The live iterator's own
``_next_data`` is exact, and the same in torch 2.1 to 2.13.
"""

from __future__ import annotations

import random
import weakref
from typing import Any, Callable

from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.ledger import FIRST_WAIT, TimeLedger
from mmgpu_hooks.measure.patches import Patches

CPU_EVERY = 8
"""Waits from one whose CPU is read to the next, on average, where workers load: two
reads are 30 us of the kernel's on cold caches, most of what an iteration costs."""


class WaitTimer:
    """Stamps the waits of one loader's iterators on a ledger.

    Args:
        ledger: Gets the waits.
        cpu_clock: CPU seconds of what loads inside a wait: the thread that trains, or
            the whole process where it loads without workers.
        cpu_every: Waits from one whose CPU is read to the next, on average.
        skipped: First waits of a resumed run whose batches are thrown away.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        cpu_clock: Callable[[], float],
        cpu_every: int = 1,
        skipped: int = 0,
    ) -> None:
        self._ledger = ledger
        self._cpu_clock = cpu_clock
        self._cpu_every = cpu_every
        # drawn: waits for several workers come in turns
        self._lots = random.Random(0)
        self._skipped = skipped
        self._patches = Patches()
        self.is_open = True
        """While false, waits are not timed."""
        self.before: Callable[[Any], Any] | None = None
        """Called before each wait with the iterator, until it raises."""
        self.on_error: Callable[[Exception], Any] = lambda error: None
        """Gets what that raised."""

    def follow(self, iterator: Any) -> None:
        """Time the waits of an iterator from now on.

        Raises:
            AttributeError: If it is no iterator of a PyTorch ``DataLoader``.
        """
        self._patches.set(iterator, '_next_data', self._time(iterator))

    def _time(self, iterator: Any) -> Callable[[], Any]:
        next_data = type(iterator)._next_data
        # a cycle would keep workers alive until the garbage collector comes by
        find_iterator = weakref.ref(iterator)
        ledger, cpu_clock = self._ledger, self._cpu_clock
        stamp, note, clock = ledger.times.append, ledger.ended.append, ledger.clock
        running = ledger.running
        draw, longest = self._lots.randint, 2 * self._cpu_every - 1
        until_cpu = draw(1, longest)

        def timed() -> Any:
            nonlocal until_cpu
            live: Any = find_iterator()
            if not self.is_open:
                return next_data(live)
            if self.before is not None:
                try:
                    self.before(live)
                except Exception as error:  # noqa: BLE001, never harm training
                    self.before = None
                    self.on_error(error)
            part = 'data_wait' if live._num_yielded else FIRST_WAIT
            if self._skipped > 0:
                self._skipped -= 1
                part = 'resume'
            depth = len(running)
            stamp(clock())
            note(running[-1])
            running.append(part)
            until_cpu -= 1
            cpu_s = None if until_cpu > 0 else cpu_clock()
            try:
                return next_data(live)
            except StopIteration:
                # the epoch is over: this was the end of its workers
                part = 'teardown'
                raise
            finally:
                if cpu_s is not None and part == 'data_wait':
                    ledger.add_wait_cpu(cpu_clock() - cpu_s)
                    until_cpu = draw(1, longest)
                stamp(clock())
                note(part)
                del running[depth:]

        return timed

    def close(self) -> None:
        """Leave every iterator as it was; a second call does nothing."""
        self._patches.close()


class QueueWatch:
    """Counts the ready batches right before each wait for one.

    Ready is what was parked because its turn had not come, and what stands in the
    queue. A worker's batch counts as soon as the worker has made it, so one that
    is still being written to the pipe is ready. While the loop waits, parked batches
    become more by those that came before their turn, and by nothing else.

    Args:
        on_last: Called before the wait that ends an epoch; it must not raise.
    """

    def __init__(self, on_last: Callable[[], None]) -> None:
        self._on_last = on_last
        self._parked = 0
        self._asks = self._zeros = self._ready_sum = self._early = 0

    def ask(self, iterator: Any) -> None:
        """The loop is about to ask an iterator for a batch.

        Raises:
            SourceError: Where a queue does not know its size (macOS).
        """
        tasks = getattr(iterator, '_task_info', None)
        if tasks is None:  # it loads without workers
            return
        if not tasks:  # the epoch ends; its workers are still there
            self._on_last()
        parked = len(tasks) - iterator._tasks_outstanding
        try:
            ready = parked + iterator._data_queue.qsize()
        except NotImplementedError as error:
            raise SourceError('the queue does not know its size (macOS)') from error
        if parked > self._parked:
            self._early += parked - self._parked
        self._parked = parked
        self._asks += 1
        self._ready_sum += ready
        if ready <= 0:
            self._zeros += 1

    def drain(self) -> dict[str, Any]:
        """Fields of a `WorkersWindow` since the last call; none before an ask."""
        asks = self._asks
        figures = {
            'ready_mean': self._ready_sum / max(asks, 1),
            'ready_zero_pct': 100.0 * self._zeros / max(asks, 1),
            'out_of_order': self._early,
        }
        self._asks = self._zeros = self._ready_sum = self._early = 0
        return figures if asks else {}
