"""Times the waits for data where they happen: in the live iterator's ``_next_data``.

What lies between two hook points holds more: freeing the last batch, ``model.train()``,
the fork of workers and their end. ``_next_data`` is the same in torch 2.1 to 2.13.
"""

from __future__ import annotations

import weakref
from typing import Any, Callable

from mmgpu_hooks.measure.ledger import FIRST_WAIT, TimeLedger
from mmgpu_hooks.measure.patches import Patches


class WaitTimer:
    """Stamps the waits of one loader's iterators on a ledger.

    Args:
        ledger: Gets the waits.
        cpu_clock: CPU seconds of what loads inside a wait: the thread that trains, or
            the whole process where it loads without workers.
        skipped: First waits of a resumed run whose batches are thrown away.
    """

    def __init__(
        self,
        ledger: TimeLedger,
        cpu_clock: Callable[[], float],
        skipped: int = 0,
    ) -> None:
        self._ledger = ledger
        self._cpu_clock = cpu_clock
        self._skipped = skipped
        self._patches = Patches()
        self.is_open = True
        """While false, waits are not timed."""
        self.before: Callable[[], Any] | None = None
        """Called before each wait; it must not raise."""
        self.after: Callable[[Any], Any] | None = None
        """Likewise after it, with the batch."""

    def follow(self, iterator: Any) -> None:
        """Time the waits of an iterator from now on.

        Raises:
            AttributeError: If it is no iterator of a PyTorch ``DataLoader``.
        """
        self._patches.set(
            iterator, '_next_data', self._time(iterator), 'exact wait for data'
        )

    def _time(self, iterator: Any) -> Callable[[], Any]:
        next_data = type(iterator)._next_data
        # a cycle would keep workers alive until the garbage collector comes by
        find_iterator = weakref.ref(iterator)
        ledger, cpu_clock = self._ledger, self._cpu_clock
        note, clock, running = ledger.tape.extend, ledger.clock, ledger.running

        def timed() -> Any:
            live: Any = find_iterator()
            if not self.is_open:
                return next_data(live)
            part = 'data_wait' if live._num_yielded else FIRST_WAIT
            if self._skipped > 0:
                self._skipped -= 1
                part = 'resume'
            if self.before is not None:
                self.before()
            depth = len(running)
            note((clock(), running[-1]))
            running.append(part)
            cpu_s = cpu_clock()
            try:
                batch = next_data(live)
            except StopIteration:
                # the epoch is over: this was the end of its workers
                part = 'teardown'
                raise
            finally:
                if part == 'data_wait':
                    ledger.wait_cpu_s += cpu_clock() - cpu_s
                note((clock(), part))
                del running[depth:]
            if self.after is not None:
                self.after(batch)
            return batch

        return timed

    def close(self) -> None:
        """Leave every iterator as it was; a second call does nothing."""
        self._patches.close()
