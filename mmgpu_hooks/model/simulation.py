"""A discrete-event simulation of PyTorch's ``DataLoader`` and the loop it feeds.

Batch i is made by worker ``i mod W``; each worker has ``prefetch_factor`` batches to
make, and the next is given out when the loop has taken one. Batches are handed over in
order, so a late one holds up those behind it. All tasks that want a core (workers, the
threads of the step, strangers) share the cores equally, none having more than one:
processor sharing, followed on a clock that runs at the speed of one task. A step on
several threads whose threads wait for each other loses more than each of them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mmgpu_hooks.model.free_cores import follow_batches, has_free_cores
from mmgpu_hooks.model.loop import Loop, Trace

_MAIN = -1
_QUEUING, _LOADING, _BLOCKED = range(3)  # what a worker is in
# what the training process is in
_STATES = 9
(
    _STARVING,
    _ASKING,
    _FETCHING,
    _COMPUTING,
    _SPINNING,
    _WAITING,
    _PAUSE_CPU,
    _PAUSE_WAIT,
    _STARTING,
) = range(_STATES)


def simulate_loop(loop: Loop, iterations: int, skip: int = 0) -> Trace:
    """Follow the loop from its start.

    Args:
        loop: With at least one worker.
        iterations: Iterations to take sums over; an epoch may end before.
        skip: Iterations to leave out of the sums first.
    """
    if has_free_cores(loop):
        return follow_batches(loop, iterations, skip)
    simulation = _Simulation(loop)
    simulation.start()
    before = _Sums()
    whole = iterations + skip
    if loop.batches is not None:
        whole = min(whole, loop.batches)
    if skip:
        simulation.run_until(skip)
        before = simulation.read_sums()
    simulation.run_until(whole)
    after = simulation.read_sums()
    spent = [late - early for late, early in zip(after.spent_s, before.spent_s)]
    return Trace(
        ends_s=simulation.ends_s,
        iterations=whole - skip,
        seconds=after.now_s - before.now_s,
        wait_s=spent[_STARVING],
        fetch_s=spent[_ASKING] + spent[_FETCHING],
        step_s=spent[_COMPUTING] + spent[_SPINNING] + spent[_WAITING],
        pause_s=spent[_PAUSE_CPU] + spent[_PAUSE_WAIT],
        busy_s=after.busy_s - before.busy_s,
        stranger_cpu_s=after.stranger_cpu_s - before.stranger_cpu_s,
    )


@dataclass(frozen=True)
class _Sums:
    now_s: float = 0.0
    spent_s: Sequence[float] = (0.0,) * _STATES
    busy_s: float = 0.0
    stranger_cpu_s: float = 0.0


class _Simulation:
    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._now_s = 0.0
        self._served_s = 0.0  # CPU that a task which always wants a core has had
        self._wanting = 0
        self._rate = 1.0
        self._running: list[tuple[float, int]] = []
        self._timed: list[tuple[float, int]] = []
        self._queues: list[deque[int]] = [deque() for _ in range(loop.workers)]
        self._making = [-1] * loop.workers
        self._stage = [_QUEUING] * loop.workers
        self._made: set[int] = set()
        self._sent = 0
        self._busy = 0
        self._state = _STARVING
        self._iteration = 0
        self._spent_s = [0.0] * _STATES
        self._busy_s = self._stranger_cpu_s = 0.0
        self.ends_s: list[float] = []

    def read_sums(self) -> _Sums:
        return _Sums(
            self._now_s, tuple(self._spent_s), self._busy_s, self._stranger_cpu_s
        )

    def start(self) -> None:
        loop = self._loop
        if loop.start_s > 0.0:
            self._state = _STARTING
            self._take_core(_MAIN, loop.start_s * loop.workers)
        else:
            self._send_first()

    def run_until(self, iterations: int) -> None:
        while len(self.ends_s) < iterations:
            task = self._advance()
            if task == _MAIN:
                self._continue_main()
            else:
                self._continue_worker(task)

    def _advance(self) -> int:
        """Go to the next moment at which a task is done with something."""
        timed, running = self._timed, self._running
        rate = self._rate
        if running:
            seconds = (running[0][0] - self._served_s) / rate
            if timed and timed[0][0] - self._now_s < seconds:
                when, task = heapq.heappop(timed)
                seconds = when - self._now_s
                self._now_s = when
                self._served_s += seconds * rate
            else:
                self._served_s, task = heapq.heappop(running)
                self._now_s += seconds
        else:
            when, task = heapq.heappop(timed)
            seconds = when - self._now_s
            self._now_s = when
        self._spent_s[self._state] += seconds
        self._busy_s += self._busy * seconds
        self._stranger_cpu_s += self._loop.stranger_tasks * rate * seconds
        return task

    def _take_core(self, task: int, seconds: float) -> None:
        self._change_wanting(1)
        heapq.heappush(self._running, (self._served_s + seconds, task))

    def _take_team(self, seconds: float) -> None:
        """Threads that wait for each other go on more slowly than each would."""
        self._change_wanting(self._loop.step_threads)
        stretched_s = seconds * self._rate ** (1.0 - self._loop.step_power)
        heapq.heappush(self._running, (self._served_s + stretched_s, _MAIN))

    def _stretch_team(self, change: float) -> None:
        """Keep what is left of the step true when cores get more or less crowded."""
        running, served_s = self._running, self._served_s
        for index, (end_s, task) in enumerate(running):
            if task == _MAIN:
                stretch = change ** (1.0 - self._loop.step_power)
                running[index] = (served_s + (end_s - served_s) * stretch, task)
                heapq.heapify(running)
                break

    def _change_wanting(self, tasks: int) -> None:
        loop = self._loop
        self._wanting = wanting = self._wanting + tasks
        rate = 1.0
        if wanting > loop.cores:
            rate = loop.cores / wanting
        if wanting + loop.stranger_tasks > loop.host_cores:
            rate = min(rate, loop.host_cores / (wanting + loop.stranger_tasks))
        if rate != self._rate:
            if self._state == _COMPUTING and loop.step_power != 1.0:
                self._stretch_team(rate / self._rate)
            self._rate = rate

    def _wait(self, task: int, seconds: float) -> None:
        heapq.heappush(self._timed, (self._now_s + seconds, task))

    # the workers

    def _send_first(self) -> None:
        for _ in range(self._loop.prefetch_factor * self._loop.workers):
            self._send()

    def _send(self) -> None:
        batch = self._sent
        if self._loop.batches is not None and batch >= self._loop.batches:
            return
        self._sent += 1
        worker = batch % self._loop.workers
        if self._making[worker] < 0:
            self._begin_batch(worker, batch)
        else:
            self._queues[worker].append(batch)

    def _begin_batch(self, worker: int, batch: int) -> None:
        self._making[worker] = batch
        self._busy += 1
        if self._loop.wake_s > 0.0 and self._is_crowded():
            self._stage[worker] = _QUEUING
            self._wait(worker, self._loop.wake_s)
        else:
            self._load(worker, batch)

    def _load(self, worker: int, batch: int) -> None:
        costs = self._loop.batch_cpu_s
        self._stage[worker] = _LOADING
        self._take_core(worker, costs[batch % len(costs)])

    def _is_crowded(self) -> bool:
        """Whether a task that wakes up now finds every core taken."""
        loop, wanting = self._loop, self._wanting
        # half a task more or less is within what is known of strangers
        return (
            wanting > loop.cores - 0.5
            or wanting + loop.stranger_tasks > loop.host_cores - 0.5
        )

    def _continue_worker(self, worker: int) -> None:
        batch, stage = self._making[worker], self._stage[worker]
        if stage == _QUEUING:
            self._load(worker, batch)
            return
        if stage == _LOADING:
            self._stage[worker] = _BLOCKED
            self._change_wanting(-1)
            waits = self._loop.batch_wait_s
            wait_s = waits[batch % len(waits)]
            if wait_s > 0.0:
                self._wait(worker, wait_s)
                return
        self._making[worker] = -1
        self._busy -= 1
        self._made.add(batch)
        if self._queues[worker]:
            self._begin_batch(worker, self._queues[worker].popleft())
        if self._state == _STARVING:
            self._try_fetch()

    # the loop

    def _try_fetch(self) -> None:
        self._state = _STARVING
        if self._iteration in self._made:
            self._made.discard(self._iteration)
            self._state = _ASKING
            self._wait(_MAIN, self._loop.fetch_busy_s if self._is_crowded() else 0.0)

    def _continue_main(self) -> None:
        loop, state = self._loop, self._state
        factor = loop.step_factors[self._iteration % len(loop.step_factors)]
        if state == _ASKING:
            self._state = _FETCHING
            self._take_core(_MAIN, loop.fetch_s)
        elif state == _FETCHING:
            self._change_wanting(-1)
            self._state = _COMPUTING
            self._take_team(factor * loop.step_cpu_s / loop.step_threads)
            # the loop goes on, and has its core, while the worker wakes up
            self._send()
        elif state == _COMPUTING:
            self._change_wanting(-loop.step_threads)
            self._state = _SPINNING
            self._change_wanting(1)
            self._wait(_MAIN, factor * loop.step_spin_s)
        elif state == _SPINNING:
            self._change_wanting(-1)
            self._state = _WAITING
            self._wait(_MAIN, factor * loop.step_wait_s)
        elif state == _WAITING:
            self._end_iteration()
        elif state == _PAUSE_CPU:
            self._change_wanting(-1)
            self._state = _PAUSE_WAIT
            self._wait(_MAIN, loop.pauses[self._iteration][1])
        else:
            if state == _STARTING:
                self._change_wanting(-1)
                self._send_first()
            self._try_fetch()

    def _end_iteration(self) -> None:
        self._iteration += 1
        self.ends_s.append(self._now_s)
        pause = self._loop.pauses.get(self._iteration)
        if pause is None:
            self._try_fetch()
        else:
            self._state = _PAUSE_CPU
            self._take_core(_MAIN, pause[0])
