"""Collects the iterations of one validation, as their loop goes through them."""

from __future__ import annotations

import math
from array import array
from typing import Any, Callable

from mmgpu_hooks.measure.durations import fold_durations


class ValidationFolder:
    """Times the waits and steps of one validation.

    A loop may go through its loader several times. Of a pass whose beginning nobody
    saw, the first batch is left out.

    Args:
        clock: Monotonic seconds.
        loading_cpu: CPU seconds of whoever loads inside a wait.
        process_cpu: CPU seconds of the whole process.
        run_delay: What the thread that trains has waited for a core, in seconds;
            ``None`` where that is not known.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        loading_cpu: Callable[[], float],
        process_cpu: Callable[[], float],
        run_delay: Callable[[], float | None],
    ) -> None:
        self._clock = clock
        self._loading_cpu = loading_cpu
        self._process_cpu = process_cpu
        self._run_delay = run_delay
        self._began_delay_s = run_delay()
        self._began_cpu_s = process_cpu()
        self._began_s = clock()
        self._first_asked_s: float | None = self._began_s
        self._asked_s: float | None = None
        self._asked_cpu_s = self._booked_cpu_s = 0.0
        self._wait_s: float | None = None
        self._step_began_s = 0.0
        self._waits = array('d')
        self._steps = array('d')
        self._first_waits = 0
        self._first_wait_s = self._wait_cpu_s = self._cpu_s = 0.0

    @property
    def iterations(self) -> int:
        """Batches so far."""
        return len(self._steps)

    @property
    def wall_s(self) -> float:
        """Seconds since it was made."""
        return self._clock() - self._began_s

    def fold_whole(self) -> dict[str, Any]:
        """Fields of the record that are of all of it, the metrics included."""
        wall_s, cpu_s = self.wall_s, self._process_cpu() - self._began_cpu_s
        before_s, after_s = self._began_delay_s, self._run_delay()
        delay_s = None
        if before_s is not None and after_s is not None:
            delay_s = max(after_s - before_s, 0.0)
        return {'wall_s': wall_s, 'whole_cpu_s': cpu_s, 'run_delay_s': delay_s}

    def ask_first(self) -> None:
        """The loop is about to ask for the first batch of a pass."""
        self._first_asked_s = self._clock()

    def get(self, is_first: bool) -> None:
        """The loop has a batch in hand; ``is_first`` of a pass by its number."""
        now_s = self._clock()
        asked_s, self._asked_s = self._asked_s, None
        # numbers need not begin at 0, nor anew with each pass
        is_first = is_first or self._first_asked_s is not None
        if is_first:
            asked_s, self._first_asked_s = self._first_asked_s, None
        self._wait_s = None if asked_s is None else now_s - asked_s
        if is_first or self._wait_s is None:
            self._booked_cpu_s = self._process_cpu()
        if self._wait_s is None:
            return
        if is_first:
            self._first_waits += 1
            self._first_wait_s += self._wait_s
        else:
            self._wait_cpu_s += self._loading_cpu() - self._asked_cpu_s

    def begin_step(self) -> None:
        """What was looked at is looked at; the loop goes on with its batch."""
        self._step_began_s = self._clock()

    def end_step(self) -> None:
        """The loop is about to ask for the next batch."""
        cpu_s = self._process_cpu()
        self._asked_cpu_s = self._loading_cpu()
        self._asked_s = now_s = self._clock()
        if self._wait_s is not None:
            self._waits.append(self._wait_s)
            self._steps.append(now_s - self._step_began_s)
            self._cpu_s += cpu_s - self._booked_cpu_s
        self._booked_cpu_s = cpu_s

    @property
    def untold(self) -> str | None:
        """Why nothing can be told of the iterations, if so."""
        if not self._steps:
            return 'the loop never called its run_iter'
        if math.fsum((*self._waits, *self._steps)) > self.wall_s:
            return 'waits and steps took longer than the whole validation'
        return None

    def fold(self) -> dict[str, Any]:
        """Fields of a :class:`~mmgpu_hooks.schema.ValidationRecord`, if any."""
        if self.untold is not None:
            return {}
        return {
            'iterations': len(self._steps),
            'data_wait': fold_durations(self._waits),
            'step': fold_durations(self._steps),
            'iter': fold_durations([w + s for w, s in zip(self._waits, self._steps)]),
            'first_waits': self._first_waits,
            'first_wait_s': self._first_wait_s,
            'data_wait_cpu_s': self._wait_cpu_s,
            'process_cpu_s': self._cpu_s,
        }
