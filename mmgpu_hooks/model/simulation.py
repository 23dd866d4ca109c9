"""A discrete-event simulation of PyTorch's ``DataLoader`` and the loop it feeds.

Batch i is made by worker ``i mod W``; each worker has ``prefetch_factor`` batches to
make, and the next is given out when the loop has taken one. Batches are handed over in
order, so a late one holds up those behind it. All tasks that want a core (workers, the
threads of the step, other processes) share the cores equally, none having more than
one: processor sharing, followed on a clock that runs at the speed of one task. A step
on several threads whose threads wait for each other loses more than each of them. Where
every task has a core of its own, one pass over the batches gives the same in a tenth of
the time.

Durations are a stratified sample, the same for every setting, so that settings compare:
the n quantiles in the middles of n equal strata, shuffled. Their mean is exact, so a
loop that waits for its workers all the time comes out at S / W without noise.
"""

from __future__ import annotations

import functools
import heapq
import math
import random
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from operator import add
from statistics import NormalDist


@dataclass(frozen=True)
class Loop:
    """What is simulated; seconds. Sequences are gone through in turn, over and over."""

    workers: int
    """At least one."""
    prefetch_factor: int
    cores: float
    """That the loop and its workers may use together."""
    host_cores: float
    """That they and the strangers share."""
    stranger_tasks: float
    batch_cpu_s: Sequence[float]
    batch_wait_s: Sequence[float]
    """Of a worker for each batch, beside its CPU; as many as ``batch_cpu_s``."""
    fetch_s: float
    """CPU of fetching a ready batch, of the loop and of the worker in turn."""
    fetch_busy_s: float
    """What it takes longer when no core is free."""
    step_cpu_s: float
    """CPU of the step, spinning left out, over its threads."""
    step_threads: int
    step_spin_s: float
    step_wait_s: float
    wake_s: float = 0.0
    """How long a worker that gets a batch to make waits for a core when none is free:
    it has to wait for a turn."""
    step_factors: Sequence[float] = (1.0,)
    step_power: float = 1.0
    """See `LoaderWorkload.step_power`."""
    start_s: float = 0.0
    """CPU of the training process to start one worker, before the first batch."""
    batches: int | None = None
    """Batches of the epoch; ``None`` for one without end."""
    pauses: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """CPU and waiting of saves, by the number of iterations done before them."""


@dataclass(frozen=True)
class Trace:
    """What came of it; the sums are over the iterations that were asked for."""

    ends_s: Sequence[float]
    """When each iteration ended, the first ones included."""
    iterations: int
    """That the sums are over."""
    seconds: float
    wait_s: float
    """The loop had no batch."""
    step_s: float
    fetch_s: float
    pause_s: float
    busy_s: float
    """Workers had a batch to make, summed over them."""
    stranger_cpu_s: float


_SEED = 20240521
_NORMAL = NormalDist()


@functools.lru_cache(maxsize=8)
def draw_normals(count: int, stream: int) -> tuple[float, ...]:
    """Standard normal deviates in random order.

    Args:
        count: How many.
        stream: Different ones are independent.
    """
    values = [_NORMAL.inv_cdf((index + 0.5) / count) for index in range(count)]
    random.Random(_SEED + stream).shuffle(values)
    return tuple(values)


# settings are compared under the same costs
@functools.lru_cache(maxsize=32)
def draw_factors(normals: tuple[float, ...], variation: float) -> tuple[float, ...]:
    """Log-normal factors of mean 1, such as the costs of images relative to their mean.

    Args:
        normals: From :func:`draw_normals`.
        variation: Standard deviation over mean.
    """
    if variation <= 0.0:
        return (1.0,) * len(normals)
    sigma = math.sqrt(math.log1p(variation * variation))
    factors = [math.exp(sigma * z) for z in normals]
    mean = math.fsum(factors) / len(factors)
    return tuple(factor / mean for factor in factors)


def has_free_cores(loop: Loop) -> bool:
    """Whether no task ever waits for a core, or slows down another one."""
    tasks = loop.workers + max(loop.step_threads, 1)
    return tasks <= loop.cores and tasks + loop.stranger_tasks <= loop.host_cores


def follow_batches(loop: Loop, iterations: int, skip: int = 0) -> Trace:
    """Follow a loop that has free cores from its start.

    Args:
        loop: With at least one worker.
        iterations: Iterations to take sums over; an epoch may end before.
        skip: Iterations to leave out of the sums first.
    """
    workers, in_flight = loop.workers, loop.workers * loop.prefetch_factor
    whole = iterations + skip
    batches = whole + in_flight
    if loop.batches is not None:
        whole, batches = min(whole, loop.batches), min(batches, loop.batches)
    making_s = _repeat(map(add, loop.batch_cpu_s, loop.batch_wait_s), batches)
    step_s = loop.step_cpu_s / loop.step_threads + loop.step_spin_s + loop.step_wait_s
    steps_s = _repeat((step_s * factor for factor in loop.step_factors), whole)
    now_s = loop.start_s * workers
    begins_s: list[float] = []
    made_s: list[float] = []
    ends_s: list[float] = []
    waits_s: list[float] = []
    for batch in range(min(in_flight, batches)):
        begin_s = now_s if batch < workers else made_s[batch - workers]
        begins_s.append(begin_s)
        made_s.append(begin_s + making_s[batch])
    for iteration, step_s in enumerate(steps_s):
        wait_s = made_s[iteration] - now_s
        if wait_s > 0.0:
            now_s += wait_s
        else:
            wait_s = 0.0
        waits_s.append(wait_s)
        now_s += loop.fetch_s
        batch = iteration + in_flight
        if batch < batches:
            # the batch that was taken makes room for one more
            begin_s = max(now_s, made_s[batch - workers])
            begins_s.append(begin_s)
            made_s.append(begin_s + making_s[batch])
        now_s += step_s
        ends_s.append(now_s)
        if loop.pauses:
            now_s += sum(loop.pauses.get(iteration + 1, ()))
    from_s, until_s = ends_s[skip - 1] if skip else 0.0, ends_s[-1]
    return Trace(
        ends_s=ends_s,
        iterations=whole - skip,
        seconds=until_s - from_s,
        wait_s=math.fsum(waits_s[skip:]),
        fetch_s=loop.fetch_s * (whole - skip),
        step_s=math.fsum(steps_s[skip:]),
        pause_s=math.fsum(
            sum(pause) for done, pause in loop.pauses.items() if skip <= done < whole
        ),
        busy_s=_overlap_s(begins_s, made_s, from_s, until_s),
        stranger_cpu_s=loop.stranger_tasks * (until_s - from_s),
    )


def _repeat(values: Iterable[float], count: int) -> list[float]:
    """So many values, which are gone through over and over."""
    return list(islice(cycle(values), count))


def _overlap_s(
    begins_s: Sequence[float], ends_s: Sequence[float], from_s: float, until_s: float
) -> float:
    """How long the pieces of work take of a stretch of time, summed over them."""
    pieces = zip(begins_s, ends_s)
    return math.fsum(
        min(end_s, until_s) - max(begin_s, from_s)
        for begin_s, end_s in pieces
        if end_s > from_s and begin_s < until_s
    )


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
