"""The simulated loop where every task has a core of its own. Pure.

Then nothing slows anything else: a batch is made when its worker has made the one
before and its own costs have passed. One pass over the batches gives what following the
events would, in a tenth of the time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from operator import add

from mmgpu_hooks.model.loop import Loop, Trace


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
