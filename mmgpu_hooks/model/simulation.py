"""Discrete-event simulation of PyTorch's ``DataLoader`` and the training loop.

Batch i is made by worker ``i mod W``; each worker has ``prefetch_factor`` batches to
make, and the next is given out when the loop has taken one. Batches are handed over in
order, so a late one holds up those behind it. All tasks that want a core (workers, the
threads of the step, other processes) share the cores equally, none having more than
one: processor sharing, followed on a clock that runs at the speed of one task. A step
on several threads whose threads wait for each other loses more than each of them.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from statistics import NormalDist

import numpy as np

from mmgpu_hooks.model.workload import Cost, Workload


@dataclass(frozen=True)
class Loop:
    """Input of a loader simulation; its sequences of seconds are repeated endlessly."""

    workers: int
    """Number of loader workers to simulate, at least one."""
    prefetch_factor: int
    cores: float
    """Number of cores that the training loop and its workers may use together."""
    host_cores: float
    """Number of cores that the training, its workers and other processes share."""
    other_tasks: float
    batch_cpu_s: Sequence[float]
    batch_wait_s: Sequence[float]
    """Seconds that a worker waits for each batch without using CPU, as for storage.

    As many as ``batch_cpu_s``."""
    fetch_s: float
    """CPU seconds of fetching a ready batch: of the training loop and of the worker."""
    fetch_busy_s: float
    """Extra seconds of fetching a ready batch when no core is free."""
    step_cpu_s: float
    """CPU seconds of the train step over all of its threads, spinning left out."""
    step_threads: int
    step_spin_s: float
    step_wait_s: float
    wake_s: float = 0.0
    """Seconds until a worker that wakes up gets a core, when no core is free.

    It has to wait for a turn."""
    step_factors: Sequence[float] = (1.0,)
    step_power: float = 1.0
    """Exponent that turns a thread's share of a core into the train step's speed.

    See `Workload.step_power`."""
    start_s: float = 0.0
    """CPU seconds of the training process to start one worker, before any batch."""
    batches: int | None = None
    """Number of batches per epoch; ``None`` for an endless epoch."""


@dataclass(frozen=True)
class Trace:
    """Result of a loader simulation: summed seconds of waits, steps and worker time."""

    ends_s: Sequence[float]
    """Seconds from the simulation's start to the end of each iteration, in order."""
    iterations: int
    """Number of simulated iterations that the result's sums are over."""
    seconds: float
    wait_s: float
    """Seconds that the training loop waited for batches, summed over iterations."""
    step_s: float
    fetch_s: float
    busy_s: float
    """Seconds in which workers had a batch to make, summed over all workers."""
    others_cpu_s: float


_SEED = 20240521
_NORMAL = NormalDist()


# settings are compared under the same costs
@functools.lru_cache(maxsize=64)
def draw_costs(cost: Cost, count: int, stream: int) -> tuple[float, ...]:
    """Draws a stratified sample of durations (s) that has exactly the given mean.

    Log-normal, and the rare ones of the cost on top, each as long as their mean.

    Args:
        cost: What is drawn from.
        count: How many.
        stream: Different ones are independent. Two costs of one stream are large and
            small at the same places.
    """
    rare = round(cost.rare_share * count)
    if cost.rare_share > 0.0:
        # one at least: without it the mean would be another
        rare = min(max(rare, 1), count)
    sigma = math.sqrt(math.log1p(max(cost.variation, 0.0) ** 2))
    usual = count - rare
    normals = [_NORMAL.inv_cdf((index + 0.5) / usual) for index in range(usual)]
    drawn_s = np.exp(sigma * np.array(normals))
    if usual:
        drawn_s *= cost.usual_s / drawn_s.mean()
    if rare:
        rest_s = count * cost.mean_s - drawn_s.sum()
        drawn_s = np.append(drawn_s, np.full(rare, max(rest_s / rare, 0.0)))
    ascending: list[float] = drawn_s.tolist()
    random.Random(_SEED + stream).shuffle(ascending)
    return tuple(ascending)


_MAIN = -1
_SUMS = ('start_s', 'wait_s', 'fetch_s', 'step_s', 'busy_s', 'others_cpu_s')
"""Names of the durations (data waits, train steps etc.) that the simulation sums.

All but the first are in a `Trace`; the first four are of the training process.
"""


def simulate_loop(loop: Loop, iterations: int, skip: int = 0) -> Trace:
    """Simulates a training loop and its workers from their start; returns a `Trace`.

    Args:
        loop: With at least one worker.
        iterations: Iterations to take sums over; an epoch may end before.
        skip: Iterations to leave out of the sums first.
    """
    whole = iterations + skip
    if loop.batches is not None:
        whole = min(whole, loop.batches)
    simulation = _Simulation(loop)
    before = simulation.run_until(skip)
    after = simulation.run_until(whole)
    spent = {name: after[name] - before[name] for name in after}
    del spent['start_s']
    return Trace(ends_s=simulation.ends_s, iterations=whole - skip, **spent)


class _Simulation:
    """Simulates the training process and its workers (generators) on shared cores.

    A generator asks for a core or a time and yields until it has had it.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._now_s = 0.0
        self._served_s = 0.0  # CPU that a task which always wants a core has had
        self._wanting = 0
        self._rate = 1.0
        self._running: list[tuple[float, int]] = []
        self._timed: list[tuple[float, int]] = []
        self._queues: list[deque[int]] = [deque() for _ in range(loop.workers)]
        self._is_idle = [True] * loop.workers
        self._made: set[int] = set()
        self._sent = 0
        self._busy = 0
        self._part = 'start_s'
        self._is_computing = self._is_starving = False
        self._sums_s = dict.fromkeys(_SUMS, 0.0)
        self.ends_s: list[float] = []
        self._tasks = {worker: self._make(worker) for worker in range(loop.workers)}
        for task in self._tasks.values():
            next(task)
        self._tasks[_MAIN] = self._train()
        next(self._tasks[_MAIN])

    def run_until(self, iterations: int) -> dict[str, float]:
        """Simulates up to an iteration count; returns seconds of waits, steps etc."""
        while len(self.ends_s) < iterations:
            next(self._tasks[self._advance()])
            if self._is_starving and len(self.ends_s) in self._made:
                next(self._tasks[_MAIN])
        return {**self._sums_s, 'seconds': self._now_s}

    def _advance(self) -> int:
        """Advances the clock until a task has computed or slept; returns that task."""
        timed, running, rate = self._timed, self._running, self._rate
        seconds = math.inf
        if running:
            seconds = (running[0][0] - self._served_s) / rate
        if timed and timed[0][0] - self._now_s < seconds:
            when, task = heapq.heappop(timed)
            seconds = when - self._now_s
            self._now_s = when
            self._served_s += seconds * rate if running else 0.0
        else:
            self._served_s, task = heapq.heappop(running)
            self._now_s += seconds
        self._sums_s[self._part] += seconds
        self._sums_s['busy_s'] += self._busy * seconds
        self._sums_s['others_cpu_s'] += self._loop.other_tasks * rate * seconds
        return task

    def _compute(self, task: int, seconds: float) -> Iterator[None]:
        """Makes a task use a simulated core for a number of CPU seconds."""
        self._want(1)
        heapq.heappush(self._running, (self._served_s + seconds, task))
        yield
        self._want(-1)

    def _sleep(self, task: int, seconds: float) -> Iterator[None]:
        heapq.heappush(self._timed, (self._now_s + seconds, task))
        yield

    def _want(self, tasks: int) -> None:
        """Adds or removes tasks that need a core; updates the speed of all tasks."""
        loop = self._loop
        self._wanting = wanting = self._wanting + tasks
        rate = 1.0
        if wanting > loop.cores:
            rate = loop.cores / wanting
        if wanting + loop.other_tasks > loop.host_cores:
            rate = min(rate, loop.host_cores / (wanting + loop.other_tasks))
        if rate != self._rate:
            if self._is_computing and loop.step_power != 1.0:
                self._stretch_step(rate / self._rate)
            self._rate = rate

    def _stretch_step(self, change: float) -> None:
        """Rescales a train step's remaining time when demand for cores changes."""
        running, served_s = self._running, self._served_s
        for index, (end_s, task) in enumerate(running):
            if task == _MAIN:
                stretch = change ** (1.0 - self._loop.step_power)
                running[index] = (served_s + (end_s - served_s) * stretch, task)
                heapq.heapify(running)
                break

    def _is_crowded(self) -> bool:
        """True if a task that wakes up now finds all cores in use."""
        # half a task more or less is within what is known of other processes
        loop, wanting = self._loop, self._wanting
        if wanting > loop.cores - 0.5:
            return True
        return wanting + loop.other_tasks > loop.host_cores - 0.5

    def _send(self) -> None:
        batch = self._sent
        if self._loop.batches is not None and batch >= self._loop.batches:
            return
        self._sent += 1
        worker = batch % self._loop.workers
        self._queues[worker].append(batch)
        if self._is_idle[worker]:
            next(self._tasks[worker])

    def _make(self, worker: int) -> Iterator[None]:
        """Simulates one worker of the loader, which makes batches."""
        loop, queue = self._loop, self._queues[worker]
        cpus, waits = loop.batch_cpu_s, loop.batch_wait_s
        while True:
            self._is_idle[worker] = not queue
            if not queue:
                yield
                self._is_idle[worker] = False
            batch = queue.popleft()
            self._busy += 1
            if loop.wake_s > 0.0 and self._is_crowded():
                yield from self._sleep(worker, loop.wake_s)
            yield from self._compute(worker, cpus[batch % len(cpus)])
            wait_s = waits[batch % len(waits)]
            if wait_s > 0.0:
                yield from self._sleep(worker, wait_s)
            self._busy -= 1
            self._made.add(batch)

    def _train(self) -> Iterator[None]:
        """Simulates the training process: waits for batches, and train steps."""
        loop = self._loop
        if loop.start_s > 0.0:
            yield from self._compute(_MAIN, loop.start_s * loop.workers)
        for _ in range(loop.prefetch_factor * loop.workers):
            self._send()
        for iteration in count():
            self._part = 'wait_s'
            if iteration not in self._made:
                self._is_starving = True
                yield
                self._is_starving = False
            self._made.discard(iteration)
            self._part = 'fetch_s'
            busy_s = loop.fetch_busy_s if self._is_crowded() else 0.0
            yield from self._sleep(_MAIN, busy_s)
            yield from self._compute(_MAIN, loop.fetch_s)
            self._part = 'step_s'
            yield from self._step(loop.step_factors[iteration % len(loop.step_factors)])
            self.ends_s.append(self._now_s)

    def _step(self, factor: float) -> Iterator[None]:
        """Simulates a train step on its threads, which delay each other."""
        loop = self._loop
        self._want(loop.step_threads)
        seconds = factor * loop.step_cpu_s / loop.step_threads
        seconds *= self._rate ** (1.0 - loop.step_power)
        heapq.heappush(self._running, (self._served_s + seconds, _MAIN))
        self._is_computing = True
        # the loop goes on, and has its core, while the worker wakes up
        self._send()
        yield
        self._is_computing = False
        self._want(1 - loop.step_threads)
        yield from self._sleep(_MAIN, factor * loop.step_spin_s)
        self._want(-1)
        yield from self._sleep(_MAIN, factor * loop.step_wait_s)


WAKE_S = 0.0025
"""Seconds that a woken worker waits for a core that others use."""

_MOST_IN_FLIGHT = 2048
"""Maximum number of prefetched batches to simulate; more have no effect."""

_LOADING, _STEPS = 0, 1  # streams of random numbers


def make_loop(
    workload: Workload, num_workers: int, prefetch_factor: int, draws: int
) -> Loop:
    """Makes the simulation's input for a number of workers and a prefetch factor.

    Args:
        workload: Costs without waiting for cores.
        num_workers: At least one.
        prefetch_factor: At least one.
        draws: Different batches and steps.
    """
    # one image is costly in CPU and in waiting alike: both from the same deviates
    wholes, cpus = (
        np.array(draw_costs(cost, draws, _LOADING))
        for cost in (workload.batch_time, workload.batch_cpu)
    )
    waits = np.maximum(wholes - cpus, 0.0)
    # a batch may have more CPU than its whole: what was cut off is taken elsewhere
    waiting_s = draws * (workload.batch_time.mean_s - workload.batch_cpu.mean_s)
    if waits.sum() > max(waiting_s, 0.0):
        waits *= max(waiting_s, 0.0) / waits.sum()
    threads, compute_s = workload.step_threads, workload.compute_s
    left_s = workload.step.mean_s - compute_s / threads - workload.spin_s
    return Loop(
        workers=num_workers,
        prefetch_factor=min(prefetch_factor, max(_MOST_IN_FLIGHT // num_workers, 1)),
        cores=workload.usable_cores,
        host_cores=workload.host_cores,
        other_tasks=workload.other_tasks,
        batch_cpu_s=cpus.tolist(),
        batch_wait_s=waits.tolist(),
        fetch_s=workload.fetch_s,
        fetch_busy_s=workload.fetch_busy_s,
        wake_s=WAKE_S,
        step_cpu_s=compute_s,
        step_threads=threads,
        step_spin_s=workload.spin_s,
        step_wait_s=max(left_s, 0.0),
        step_power=workload.threads_power,
        step_factors=draw_costs(Cost(1.0, workload.step.variation), draws, _STEPS),
    )


def settle(workers: int, prefetch: int, draws: int) -> int:
    """Returns the number of iterations after which a simulated loop is steady.

    All workers start at once.
    """
    return min(3 * workers * prefetch, draws) + 16
