"""Times of a run's loading and steps, and time bounds that need no simulation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.text import Text, phrase

DEFAULT_PREFETCH = 2
"""PyTorch's default ``prefetch_factor``: batches in flight per worker."""

_LEAST_CORES = 0.5
"""Smallest number of cores that a run is assumed to get on a busy host."""


_MOST_RARE = 0.25
"""Largest share (0 to 1) of slow durations that is modelled as rare outliers.

With more of them, one spread says it all.
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of one kind of work: their mean, spread, and the error of the mean."""

    mean_s: float
    std_s: float = 0.0
    """Standard deviation of the durations in seconds, rare slow ones left out."""
    error_s: float = 0.0
    """Standard error of the mean duration in seconds."""
    count: int = 0
    """Number of measured durations of the work that the mean is taken over."""
    rare_share: float = 0.0
    """Share (0 to 1) of the work's durations that are rare and far above the others.

    Such as a huge file, or a cold cache. 0 where there are none; the mean is of all."""
    rare_s: float = 0.0
    """Mean of the work's rare, slow durations in seconds."""

    @property
    def variation(self) -> float:
        """Coefficient of variation of the work's durations, rare slow ones left out.

        ``std_s`` over ``usual_s``; 0 if that is 0.
        """
        return self.std_s / self.usual_s if self.usual_s > 0 else 0.0

    @property
    def relative_error(self) -> float:
        """Relative standard error of the mean duration; 0 if the mean is 0."""
        return self.error_s / self.mean_s if self.mean_s > 0 else 0.0

    @property
    def usual_s(self) -> float:
        """Mean of the work's durations in seconds, rare slow ones left out."""
        left_s = self.mean_s - self.rare_share * self.rare_s
        return max(left_s / (1.0 - self.rare_share), 0.0)

    @property
    def whole_std_s(self) -> float:
        """Standard deviation of the durations in seconds, rare slow ones included."""
        usual_square = self.std_s**2 + self.usual_s**2
        square = (1.0 - self.rare_share) * usual_square
        square += self.rare_share * self.rare_s**2
        return math.sqrt(max(square - self.mean_s**2, 0.0))

    def with_mean(self, mean_s: float) -> Cost:
        """Returns a copy with the given mean (s), by more or fewer rare slow durations.

        How many there are in a run is known far less well than the usual ones.
        """
        usual_s = self.usual_s
        if self.rare_share and usual_s < mean_s < self.rare_s:
            share = (mean_s - usual_s) / (self.rare_s - usual_s)
            return replace(self, mean_s=mean_s, rare_share=share)
        return replace(self, mean_s=mean_s)

    def times(self, factor: float) -> Cost:
        """Returns a copy with all durations, in seconds, multiplied by a factor."""
        return replace(
            self,
            mean_s=self.mean_s * factor,
            std_s=self.std_s * factor,
            error_s=self.error_s * factor,
            rare_s=self.rare_s * factor,
        )

    def of_images(self, factor: float) -> Cost:
        """Returns the durations of a batch with ``factor`` times as many images.

        Their times add up: the spread grows with the root, and a rare image makes rare
        batches more frequent and no longer.
        """
        longer = self.times(factor)
        rare_share = self.rare_share * factor
        if rare_share > _MOST_RARE:
            std_s = self.whole_std_s * math.sqrt(factor)
            return replace(longer, std_s=std_s, rare_share=0.0, rare_s=0.0)
        return replace(
            longer,
            std_s=self.std_s * math.sqrt(factor),
            rare_share=rare_share,
            rare_s=(self.rare_s + (factor - 1.0) * self.usual_s if rare_share else 0.0),
        )


@dataclass(frozen=True)
class BatchLine:
    """Line of train step seconds to batch size: ``constant_s + image_s x size``."""

    constant_s: float
    image_s: float
    image_error_s: float = 0.0
    """Standard error of the train step's seconds per image, ``image_s``."""
    batch_sizes: tuple[int, ...] = ()
    """Batch sizes of the measured train steps that the line was fitted to."""


class LocalLoading(NamedTuple):
    """CPU and wall clock seconds of loading a batch in the training process."""

    cpu_s: float
    whole_s: float


@dataclass(frozen=True)
class Workload:
    """Times of one run's loading and steps, as if each task had a core of its own.

    Seconds per iteration or batch. Waiting for a core is left out everywhere: a
    prediction adds what its own setting causes.
    """

    num_workers: int
    """Number of loader workers of the run.

    The next three settings are the run's, too."""
    prefetch_factor: int
    persistent_workers: bool
    batch_size: int | None
    iterations: int
    """Number of iterations that the mean times are taken over."""
    iter_time: Cost
    """Measured seconds from the end of one iteration to the next, waits included."""
    batch_time: Cost
    """Seconds that a worker is busy with one batch: loading, collating and sending it.

    It is S in the bounds."""
    batch_cpu: Cost
    """CPU seconds of a worker for one batch, a part of ``batch_time``.

    It is P in the bounds."""
    step: Cost
    """Seconds of train step and hooks, from receiving the batch to the iteration's end.

    It is G in the bounds."""
    step_cpu_s: float
    """CPU seconds of the training process per iteration, data waits left out.

    It is m in the bounds."""
    fetch_s: float
    """CPU seconds of fetching a ready batch, of training process and worker.

    It is f in the bounds: for each tensor the training process asks the worker that
    made it."""
    fetch_busy_s: float
    """Extra seconds of fetching a ready batch when no core is free."""
    usable_cores: float
    """Number of cores that this rank may use.

    It is C in the bounds."""
    host_cores: float
    """Number of logical CPUs of the host."""
    other_tasks: float = 0.0
    """Mean number of other processes' tasks that want a core."""
    spin_s: float = 0.0
    """CPU seconds per iteration that the training process busy-waits for the GPU.

    A part of ``step_cpu_s``.

    It takes a core from the workers, but the step does not get longer when they take it
    back."""
    step_power: float = 1.0
    """Exponent that turns a thread's share of a core into the train step's speed.

    When each thread gets a share r of a core, the step goes on at r to this power. 1
    where the threads do not wait for each other, more where they do."""
    transfer_s: float = 0.0
    """Seconds that collating and sending a batch takes, a part of ``batch_time``.

    Without workers there is none."""
    transfer_cpu_s: float = 0.0
    """CPU seconds of collating and sending a batch, a part of ``batch_cpu``."""
    transfer_cpu_error: float = 0.5
    """Relative standard error of the CPU seconds of collating and sending a batch."""
    worker_start_s: float = 0.0
    """Seconds that one worker adds to the start of an epoch."""
    step_line: BatchLine | None = None
    """Line of train step seconds against batch size.

    ``None`` until several sizes were seen: none other is predicted then."""
    measured_batch_size: int | None = None
    """Measured batch size, if the times were scaled to another ``batch_size``."""
    fetch_error: float = 0.0
    """Relative standard error of the time of fetching a ready batch."""
    is_transfer_known: bool = True
    """True if workers that sent batches to the training process were measured."""
    is_batch_time_known: bool = True
    """True if the batch time was measured; False if it is the middle of two bounds."""
    turns_s: float = 0.0
    """Extra seconds per batch of loading without workers on a busy host.

    PyTorch has a thread for each core there, and all wait for the one that shares its
    core. Not what the share of a core explains."""
    step_waits_s: float = 0.0
    """Seconds that the main thread waited for a core in the measured train step.

    0 once ``step`` is freed from it."""
    held_up_s: float = 0.0
    """Seconds by which workers delayed the measured step by using its cores."""
    is_step_power_known: bool = True
    """True if the run shows how workers delay a step on several threads."""
    notes: tuple[Text, ...] = ()
    """Sentences for the user on times that were left out or assumed."""

    @property
    def step_threads(self) -> int:
        """Fewest threads that can use the step's CPU seconds in its wall time."""
        # a thread that waits for a core uses none meanwhile
        running_s = self.step.mean_s - self.step_waits_s
        if running_s <= 0.0:
            return 1
        # a tenth of a core was seen to be within what is measured, and twice that may
        # be; threads that spin on for a while after the step would else pass for more
        threads = math.ceil(self.step_cpu_s / running_s - 0.2)
        return max(min(threads, math.ceil(self.usable_cores)), 1)

    @property
    def threads_power(self) -> float:
        """Exponent that turns core share into step speed, smaller if few threads work.

        ``step_power`` for the part of the step that has many threads.

        One thread alone is not affected, and a second that has little to do hardly.
        """
        threads = self.step_threads
        if threads < 2:
            return 1.0
        beside = self.step_cpu_s / self.step.mean_s - 1.0
        return 1.0 + (self.step_power - 1.0) * min(beside / (threads - 1), 1.0)

    @property
    def compute_s(self) -> float:
        """CPU seconds of the train step, spinning for a GPU left out."""
        return max(self.step_cpu_s - self.spin_s, 0.0)

    @property
    def cpu_s(self) -> float:
        """CPU seconds that an iteration needs, without spinning for a GPU."""
        return self.batch_cpu.mean_s + self.compute_s + self.fetch_s

    @property
    def free_cores(self) -> float:
        """Number of cores that other processes leave to the run."""
        left = self.host_cores - self.other_tasks
        return min(self.usable_cores, max(left, _LEAST_CORES))

    @property
    def cpu_floor_s(self) -> float:
        """Lower bound on an iteration's seconds: its CPU seconds over the free cores.

        ``(P + m + f) / C``, with the cores that are free for it as C.
        """
        return self.cpu_s / self.free_cores

    @property
    def ready_s(self) -> float:
        """Seconds of an iteration if a batch were always ready, and cores free."""
        return self.step.mean_s + self.fetch_s

    @property
    def local_loading(self) -> LocalLoading:
        """CPU and wall clock seconds of loading a batch in the training process itself.

        Without ``turns_s``.
        """
        cpu_s = max(self.batch_cpu.mean_s - self.transfer_cpu_s, 0.0)
        whole_s = max(self.batch_time.mean_s - self.transfer_s, cpu_s)
        return LocalLoading(cpu_s, whole_s)

    def core_share(self, tasks: int) -> float:
        """Returns the share (0 to 1) of a core that each of a number of tasks gets."""
        return min(
            1.0,
            self.usable_cores / max(tasks, 1),
            self.host_cores / max(tasks + self.other_tasks, 1.0),
        )

    @property
    def local_step_s(self) -> float:
        """Seconds of the train step when no worker competes for cores."""
        return self.step.mean_s + self.step_delay_s

    @property
    def step_delay_s(self) -> float:
        """Seconds by which other processes delay the step of a run without workers."""
        threads = self.step_threads
        rate = self.core_share(threads) ** self.threads_power
        return float(self.compute_s / threads * (1 / rate - 1.0))

    def bound_iter_s(self, num_workers: int) -> float:
        """Returns a lower bound on an iteration's seconds with a number of workers.

        No loader with these costs is faster: ``max(G + f, S / W, (P + m + f) / C)``;
        G + S without workers.
        """
        if num_workers == 0:
            return self.step.mean_s + self.local_loading.whole_s
        cpu_s = self.cpu_s / self.usable_cores
        return max(self.ready_s, self.batch_time.mean_s / num_workers, cpu_s)


def at_batch_size(workload: Workload, batch_size: int | None) -> Workload:
    """Scales the times of a run's loading and steps to another batch size.

    Raises:
        NoPredictionError: If no run shows the step against batch size.
    """
    old, line = workload.batch_size, workload.step_line
    if batch_size is None or batch_size == old:
        return workload
    old_s = line.constant_s + line.image_s * old if line and old else 0.0
    new_s = line.constant_s + line.image_s * batch_size if line else 0.0
    if not old or line is None or old_s <= 0.0 or new_s <= 0.0:
        raise NoPredictionError(
            phrase(
                'What a step takes with a batch size of {batch_size} is unknown: runs '
                'with several batch sizes that go together are needed.',
                batch_size=batch_size,
            )
        )
    size, slower = batch_size / old, new_s / old_s
    measured = workload.measured_batch_size or old
    step = workload.step.times(slower)
    slip_s = abs(batch_size - old) * line.image_error_s
    return replace(
        workload,
        batch_size=batch_size,
        measured_batch_size=None if batch_size == measured else measured,
        batch_time=workload.batch_time.of_images(size),
        batch_cpu=workload.batch_cpu.of_images(size),
        step=replace(step, error_s=math.hypot(step.error_s, slip_s)),
        step_cpu_s=workload.step_cpu_s * slower,
        spin_s=workload.spin_s * slower,
        transfer_s=workload.transfer_s * size,
        transfer_cpu_s=workload.transfer_cpu_s * size,
        fetch_s=workload.fetch_s * size,
        fetch_busy_s=workload.fetch_busy_s * size,
        turns_s=workload.turns_s * size,
    )


THREADS_WASTE, THREADS_ERROR = 0.025, 0.025
"""Share of worker CPU time that OpenCV wastes per doubling of threads, and its error.

Doublings count from the number of cores; the error is a standard error. With 4
to 64 threads in each of 2 and 4 workers on two cores, decoding, resizing, warping,
blurring and changing colours took 0.96 to 1.31 times the CPU of one thread each.
"""

MOST_DOUBLINGS = 5
"""Largest log2 of the ratio of OpenCV threads to cores that measurements cover."""


def with_one_thread(workload: Workload, saved: float) -> Workload:
    """Copies a `Workload` as if each worker had one OpenCV thread.

    Args:
        workload: What the run says.
        saved: Share of a batch's CPU; below 0 where threads hid a part of it.
    """
    cpu = workload.batch_cpu.times(1 - saved)
    wait_s = max(workload.batch_time.mean_s - workload.batch_cpu.mean_s, 0.0)
    whole = replace(workload.batch_time, mean_s=cpu.mean_s + wait_s)
    return replace(workload, batch_cpu=cpu, batch_time=whole)


def with_spared_host(
    workload: Workload, *, step_s: float, received_s: float, sent_s: float
) -> Workload:
    """Copies a `Workload` without the CPU seconds that optimisations save.

    Args:
        workload: What the run says.
        step_s: Less in the training thread's step and hooks, for each iteration.
        received_s: Less in the training thread for receiving a batch.
        sent_s: Less in a worker for sending one.
    """
    step = workload.step
    batch_s, cpu_s = workload.batch_time.mean_s, workload.batch_cpu.mean_s
    # what a worker burns is a part of what it takes
    less_s = min(sent_s, 0.9 * cpu_s)
    # a batch crosses while both sides take turns
    crossed_s = min(_FETCH_SIDES * received_s, max(workload.fetch_s - _FETCH_S, 0.0))
    return replace(
        workload,
        step=step.with_mean(max(step.mean_s - step_s, 0.0)),
        step_cpu_s=max(workload.step_cpu_s - step_s, 0.0),
        fetch_s=workload.fetch_s - crossed_s,
        batch_time=workload.batch_time.with_mean(batch_s - less_s),
        batch_cpu=workload.batch_cpu.with_mean(cpu_s - less_s),
    )


GAP_S = 0.0005
"""Seconds between the end of one batch and the start of the next in a busy worker."""

TRANSFER_CPU_S, TRANSFER_TENSOR_S, _TRANSFER_BYTE_S = 0.0008, 0.00025, 1e-9
"""CPU seconds of a worker to send a batch: per batch, per tensor and per byte."""

_MEASURED_ERROR, _ASSUMED_ERROR = 0.25, 0.5
"""Relative error of a worker's CPU seconds per sent batch, if measured and if assumed.

Loading may burn more in the training process than in a worker, since libraries use
several threads there. Real loaders of 1 to 480 tensors and 0.05 to 100 MB took 0.8 to
1.9 times what is assumed.
"""

_FETCH_S, _FETCH_TENSOR_S, _FETCH_BUSY_S = 0.0003, 0.0003, 0.003
"""Seconds of fetching a batch: fixed, per tensor, and extra when no core is free.

On both sides. The extra is some turns of the scheduler.
"""

_FETCH_SIDES = 2.0
"""Ratio of a tensor's fetching time to the training process's CPU time for it.

A thread of the worker answers each of its requests, and they run in turns. Batches of 1
to 64 tensors took 1.7 to 2.2 times that CPU.
"""

_FETCH_ERROR, _FETCH_ASSUMED_ERROR = 0.15, 1.0
"""Relative standard error of a batch's fetching time, if measured and if assumed.

From run to run the same batches of 32 tensors took 11.8 to 16.8 ms: it is made of
hundreds of wake-ups, whose cost depends on the cores that the threads are on, and on
the host: a tensor took 0.25 to 0.3 ms on a virtual machine of one maker's processors,
0.5 to 1 ms on one of another's.
"""

_USUAL_TENSORS, _MOST_TENSORS, _MOST_BYTES = 4, 512, 10**8
"""Usual number of tensors in a batch, and the most tensors and bytes measured.

The usual number is assumed of a batch whose own were not counted.
"""


class Transfer(NamedTuple):
    """Seconds of collating, sending and fetching a batch, with their errors."""

    cpu_s: float
    whole_s: float
    """Seconds that sending a batch adds to loading it, with the gap before the next."""
    fetch_s: float
    fetch_busy_s: float
    cpu_error: float
    """Relative standard error of the CPU seconds of collating and sending a batch."""
    fetch_error: float
    """Relative standard error of the time of fetching a ready batch."""


def estimate_transfer(
    tensors: int | None,
    size: int | None,
    batch_time: Cost,
    batch_cpu: Cost,
    sent_cpu_s: float | None = None,
    wait_s: float = math.inf,
    wait_cpu_s: float | None = None,
) -> Transfer:
    """Estimates the seconds of collating, sending and fetching one batch, with errors.

    A worker pickles each batch, copies it to shared memory and passes a file descriptor
    for each tensor, which the training process asks a thread of that worker for. The
    figures were measured on a 2.x GHz server core with PyTorch 2. A run with workers
    shows the training process's part of the fetching, and one whose loop does not
    starve corrects the whole by its own measure.

    Args:
        tensors: In a batch; ``None`` when unknown.
        size: Bytes of a batch; ``None`` when unknown.
        batch_time: Of loading it.
        batch_cpu: The CPU of that.
        sent_cpu_s: CPU of sending a batch, as the workers measured it.
        wait_s: Wait of the training process for a batch: fetching is part of it.
        wait_cpu_s: CPU of the training process in that wait, where workers load;
            ``None`` when unknown.
    """
    count = _USUAL_TENSORS if tensors is None else min(tensors, _MOST_TENSORS)
    share = 0.0
    if sent_cpu_s is None:
        bytes_s = _TRANSFER_BYTE_S * min(size or 0, _MOST_BYTES)
        cpu_s = TRANSFER_CPU_S + TRANSFER_TENSOR_S * count + bytes_s
        error = _ASSUMED_ERROR
    else:
        cpu_s, error = sent_cpu_s, _MEASURED_ERROR
    if batch_time.mean_s > 0.0:
        # where the loading waits anyway, the transfer goes on beside it
        share = min(batch_cpu.mean_s / batch_time.mean_s, 1.0)
    fetch_s, fetch_error = _FETCH_S + _FETCH_TENSOR_S * count, _FETCH_ASSUMED_ERROR
    if wait_cpu_s is not None:
        # to sleep and wake up takes as much CPU as is assumed of any batch
        shown_s = _FETCH_S + _FETCH_SIDES * (wait_cpu_s - _FETCH_S)
        fetch_s = max(fetch_s, min(shown_s, wait_s))
        fetch_error = _FETCH_ERROR
    whole_s = GAP_S + share * cpu_s
    return Transfer(cpu_s, whole_s, fetch_s, _FETCH_BUSY_S, error, fetch_error)
