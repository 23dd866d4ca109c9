"""Figures of a run by what they are of: its loader, its host, its card."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge.columns import (
    Column,
    Intervals,
    average,
    count_all,
    filled,
    largest,
    median,
    pooled_std,
    smallest,
    sum_known,
    total,
)
from mmgpu_hooks.schema import SlowSample

_FAR = 3.0
"""How many times what is usual among the others is remarked on."""
_LEAST_S = 1.0
"""Below that over the whole run, nothing is said of a worker's seconds."""
_LEAST_PCT = 10.0
"""Share of its time that a worker waits for a core, beyond that of the others."""


class OddWorker(NamedTuple):
    """One worker of the loader that stands out of the others."""

    worker: int
    """Its id, from 0."""
    figure: str
    """``affinity_cpus``: CPUs it may run on; ``run_delay_pct``: share of its time that
    it waited for a core; ``batch_cpu_s``: its CPU for a batch."""
    own: float
    others: float
    """Median of the others."""


def find_odd_worker(windows: Intervals) -> OddWorker | None:
    """The worker that is confined to fewer CPUs, waits for a core or burns far more.

    Args:
        windows: Intervals that have workers.

    Returns:
        ``None`` when none stands out, or nothing is known of each.
    """
    table = windows.lists('workers.worker_affinity_cpus')
    # workers that were never known are not in the table at all
    cpus = [float(np.nanmin(column)) for column in table.T]
    if len(cpus) > 1 and min(cpus) < max(cpus):
        return _odd('affinity_cpus', cpus, cpus.index(min(cpus)))
    known, delays_s = _by_worker(windows, 'workers.worker_run_delay_s')
    window_s = total(known.column('workers.window_s'))
    if delays_s and max(delays_s) >= _LEAST_S and window_s > 0:
        # of all threads of a worker, which may wait at the same time
        shares_pct = [min(100 * one / window_s, 100.0) for one in delays_s]
        odd = _odd('run_delay_pct', shares_pct, shares_pct.index(max(shares_pct)))
        if odd.own >= max(_FAR * odd.others, odd.others + _LEAST_PCT):
            return odd
    known, _ = _by_worker(windows, 'workers.worker_cpu_s')
    known, batches = _by_worker(known, 'workers.worker_batches')
    cpu_s = _by_worker(known, 'workers.worker_cpu_s')[1]
    if not cpu_s or len(cpu_s) != len(batches) or not all(batches):
        return None
    each_s = [seconds / count for seconds, count in zip(cpu_s, batches)]
    odd = _odd('batch_cpu_s', each_s, each_s.index(max(each_s)))
    return odd if max(cpu_s) >= _LEAST_S and odd.own >= _FAR * odd.others else None


def _by_worker(windows: Intervals, field: str) -> tuple[Intervals, list[float]]:
    """The windows that know a figure of each worker, and its sums.

    No sums of fewer than two workers, and where their number changed.
    """
    known = windows.where([bool(one) for one in windows.values(field)])
    table = known.lists(field)
    if table.shape[1] < 2 or np.isnan(table).any():
        return known, []
    return known, [total(column) for column in table.T]


def _odd(figure: str, figures: Sequence[float], worker: int) -> OddWorker:
    others = [one for number, one in enumerate(figures) if number != worker]
    return OddWorker(worker, figure, figures[worker], statistics.median(others))


MIN_CALM = 3
"""Intervals without a validation or a save, from which means are over them alone."""

_SLOWEST = 5
_BLOCKS = 8
_LEAST_CREEP_BYTES = 2**20
"""The allocator's large blocks come in steps of this: less is none."""


class Figures:
    """Figures of some intervals of a run, ``None`` where unknown.

    Args:
        every: Extremes and sums are taken over these.
        steady: Means are taken over these.
    """

    def __init__(self, every: Intervals, steady: Intervals) -> None:
        self.every = every
        self.steady = steady


def mean_of(field: str, weight: str = 'duration_s') -> cached_property[float | None]:
    """The mean of a field, weighted by another one."""

    def mean(figures: Figures) -> float | None:
        steady = figures.steady
        return average(steady.column(field), steady.column(weight))

    return cached_property(mean)


def seldom_mean_of(field: str) -> cached_property[float | None]:
    """The mean of a field that short intervals lack; over all where steady ones do."""

    def mean(figures: Figures) -> float | None:
        means = (
            average(some.column(field), some.column('duration_s'))
            for some in (figures.steady, figures.every)
        )
        return next((value for value in means if value is not None), None)

    return cached_property(mean)


def median_of(field: str) -> cached_property[float | None]:
    """The median over intervals, of a median or a percentile: the usual interval's."""
    return cached_property(lambda figures: median(figures.steady.column(field)))


def largest_of(field: str) -> cached_property[int | None]:
    """The largest of a field that counts something."""
    return cached_property(lambda figures: largest(figures.every.column(field)))


def smallest_of(field: str) -> cached_property[int | None]:
    """The smallest of a field that counts something."""
    return cached_property(lambda figures: smallest(figures.every.column(field)))


def sum_of(field: str) -> cached_property[int | None]:
    """The sum of a field that counts something, where it is known."""

    def whole(figures: Figures) -> int | None:
        known = sum_known(figures.every.column(field))
        return None if known is None else int(known)

    return cached_property(whole)


class TransformFigures(NamedTuple):
    """One transform of the pipeline, over the samples that were timed."""

    name: str
    calls: int
    total_s: float
    image_s: float | None
    """``total_s`` over the samples timed, those that skipped it included."""


class LoaderFigures(Figures):
    """The loader's workers.

    Where no time per batch is known in steady intervals (an epoch whose batches were
    all made in the first one), that interval is taken too.
    """

    batches = cached_property(
        lambda self: count_all(self.steady.column('workers.occupancy.count'))
    )
    """Batches the occupancy is taken over."""
    occupancy_s = mean_of('workers.occupancy.mean_s', 'workers.occupancy.count')
    """How long a worker was busy with one batch, mean; ``None`` from outside."""
    occupancy_p95_s = median_of('workers.occupancy.p95_s')
    batch_cpu_s = mean_of('workers.batch_cpu.mean_s', 'workers.batch_cpu.count')
    """CPU of the worker for one batch, mean; ``None`` from outside."""
    ready_mean = mean_of('workers.ready_mean', 'workers.asks')
    """Batches that stood ready when the loop asked."""
    ready_zero_pct = mean_of('workers.ready_zero_pct', 'workers.asks')
    """Share of the asks at which none stood ready."""
    affinity_cpus = smallest_of('workers.affinity_cpus')
    """CPUs that the most confined worker may run on."""
    pss_bytes = largest_of('workers.pss_bytes')
    """Memory of all workers."""

    @cached_property
    def source(self) -> str:
        """``inside``, ``outside``, or ``mixed`` when intervals differ."""
        return _same_or_mixed(self.steady.values('workers.source')) or 'outside'

    @cached_property
    def occupancy_std_s(self) -> float | None:
        """Its standard deviation over all batches, not the mean over intervals."""
        return pooled_std(
            self.steady.column('workers.occupancy.mean_s'),
            self.steady.column('workers.occupancy_std_s'),
            self.steady.column('workers.occupancy.count'),
        )

    @cached_property
    def _asked(self) -> Intervals:
        return self.steady.having('workers.ready_mean')

    @cached_property
    def asks(self) -> int:
        """Iterations at which it was asked how many batches stood ready."""
        return count_all(self._asked.column('workers.asks'))

    @cached_property
    def out_of_order(self) -> int | None:
        """Batches that came before their turn, over the asks."""
        early = sum_known(self._asked.column('workers.out_of_order'))
        return None if early is None else int(early)

    @cached_property
    def _shares_pct(self) -> list[float]:
        made = made_by_worker(self.steady)
        return [100 * one / sum(made) for one in made] if sum(made) else []

    @cached_property
    def share_min_pct(self) -> float | None:
        """Share of the batches made by the worker that made fewest."""
        return min(self._shares_pct, default=None)

    @cached_property
    def share_max_pct(self) -> float | None:
        """Share of the batches made by the worker that made most."""
        return max(self._shares_pct, default=None)

    @cached_property
    def odd_worker(self) -> OddWorker | None:
        """One that is confined or starved far more than the others."""
        return find_odd_worker(self.steady)

    @cached_property
    def timed_samples(self) -> int:
        """Samples whose transforms were timed."""
        return count_all(self.steady.column('workers.timed_samples'))

    @cached_property
    def transforms(self) -> tuple[TransformFigures, ...]:
        """Most expensive first."""
        calls: Counter[str] = Counter()
        seconds: Counter[str] = Counter()
        for costs in self.steady.values('workers.transforms'):
            for name, cost in (costs or {}).items():
                calls[name] += cost.calls
                seconds[name] += cost.total_s
        samples = self.timed_samples
        return tuple(
            TransformFigures(
                name, calls[name], total_s, total_s / samples if samples else None
            )
            for name, total_s in seconds.most_common()
        )

    @cached_property
    def slowest(self) -> tuple[SlowSample, ...]:
        """Slowest samples of the whole run, each dataset index once."""
        found: dict[int, SlowSample] = {}
        samples = (s for one in self.every.values('workers.slowest') for s in one or ())
        for sample in sorted(samples, key=lambda sample: -sample.seconds):
            found.setdefault(sample.index, sample)
        return tuple(found.values())[:_SLOWEST]


def made_by_worker(windows: Intervals) -> list[float]:
    """Batches that each worker made which counted them, by worker id."""
    made = windows.lists('workers.worker_batches')
    return [total(column) for column in made.T if not np.isnan(column).all()]


class HostFigures(Figures):
    """What the host did to everybody on it; sums and extremes are of the whole run."""

    cpu_pressure_pct = mean_of('host.cpu_pressure_pct')
    io_pressure_pct = mean_of('host.io_pressure_pct')
    memory_pressure_pct = mean_of('host.memory_pressure_pct')
    ram_available_bytes = smallest_of('host.ram_available_bytes')
    """Least at the end of an interval."""
    shm_free_bytes = smallest_of('host.shm_free_bytes')
    """Least at the end of an interval."""

    @cached_property
    def seconds(self) -> float:
        """Steady seconds that the pressure is taken over."""
        return total(self.steady.column('duration_s'))

    @cached_property
    def throttled_s(self) -> float | None:
        """How long the CPU quota held tasks back, over the intervals that know it."""
        return sum_known(self.every.column('host.throttled_s'))

    @cached_property
    def throttled_pct(self) -> float | None:
        """`throttled_s` over the seconds of those intervals."""
        known = self.every.having('host.throttled_s')
        whole_s = total(known.column('duration_s'))
        if self.throttled_s is None or not whole_s:
            return None
        return 100 * self.throttled_s / whole_s


class GpuFigures(Figures):
    """The card that this rank trains on.

    Means are of plain training, where it has `MIN_CALM` intervals; what was largest is
    of all intervals with samples.
    """

    mem_used_bytes = largest_of('gpu.mem_used_bytes')
    sm_clock_mhz = seldom_mean_of('gpu.sm_clock_mhz')
    throttled_pct = seldom_mean_of('gpu.throttled_pct')
    sm_active_pct = seldom_mean_of('gpu.sm_active_pct')

    @cached_property
    def samples(self) -> int:
        """Samples of the utilisation."""
        return count_all(self.steady.column('gpu.samples'))

    @cached_property
    def _sampled_s(self) -> Column:
        sampled_s = self.steady.column('gpu.sampled_s')
        whole_s = self.steady.column('duration_s')
        return np.where(np.isnan(sampled_s), whole_s, sampled_s)

    @cached_property
    def util_pct(self) -> float | None:
        """Time-weighted NVML utilisation."""
        return average(self.steady.column('gpu.util_pct'), self._sampled_s)

    @cached_property
    def zero_pct(self) -> float | None:
        """Share of the sampled time at 0 %."""
        return average(self.steady.column('gpu.zero_pct'), self._sampled_s)

    @cached_property
    def util_std_pct(self) -> float | None:
        """Time-weighted standard deviation over all samples."""
        return pooled_std(
            self.steady.column('gpu.util_pct'),
            self.steady.column('gpu.util_std_pct'),
            self._sampled_s,
        )

    @cached_property
    def temperature_c(self) -> float | None:
        """Largest."""
        known = [c for c in self.every.values('gpu.temperature_c') if c is not None]
        return max(known, default=None)

    @cached_property
    def throttle_reasons_pct(self) -> dict[str, float]:
        """Mean share of each reason, largest first; what an interval lacks was 0."""
        known = self.steady.having('gpu.throttled_pct')
        known = known if len(known) else self.every.having('gpu.throttled_pct')
        field = 'gpu.throttle_reasons_pct'
        names = sorted({name for one in known.values(field) for name in one})
        seconds = known.column('duration_s')
        shares = {
            name: average(filled(known.column(field, name)), seconds) or 0.0
            for name in names
        }
        largest_first = sorted(shares.items(), key=lambda item: -item[1])
        return {name: share for name, share in largest_first if share}


def gpu_figures(
    intervals: Intervals, every: Intervals | None = None
) -> GpuFigures | None:
    """Of steady intervals; ``None`` where no sample was taken.

    Args:
        intervals: Means are taken over these.
        every: What is read every few seconds only is looked for in these.
    """
    sampled = intervals.where(filled(intervals.column('gpu.samples')))
    if not len(sampled):
        return None
    calm = sampled.calm()
    steady = sampled.where(calm) if calm.sum() >= MIN_CALM else sampled
    return GpuFigures(sampled if every is None else every.having('gpu'), steady)


class CudaMemoryFigures(Figures):
    """What the CUDA allocator went through; sums and extremes are of the whole run."""

    retries = sum_of('cuda_memory.retries')
    ooms = sum_of('cuda_memory.ooms')
    inactive_bytes = largest_of('cuda_memory.inactive_bytes')
    """Most at the end of an interval (fragmentation)."""

    @cached_property
    def creep_bytes_per_1000(self) -> float | None:
        """Growth of live tensors per 1000 iterations over the run's second half."""
        known = self.every.having('cuda_memory.allocated_bytes')
        iterations = known.column('iteration').tolist()
        allocated = known.column('cuda_memory.allocated_bytes').tolist()
        return find_creep(list(zip(iterations, allocated)))


def find_creep(points: Sequence[tuple[float, float]]) -> float | None:
    """Growth of live tensors over the second half of a run.

    Half a run is eight blocks; only when the median of each is above the one before
    does something grow. Batches of different size make it rise so often by chance once
    in 8! = 40320 runs, and a single jump (a new stage of training) is no growth.

    Args:
        points: Iteration and bytes at the end of each interval.

    Returns:
        Bytes per 1000 iterations; ``None`` when it does not stand out of the noise, is
        below 1 MiB in all, or there are fewer than eight intervals to see it in.
    """
    half = points[len(points) // 2 :]
    if len(half) < _BLOCKS:
        return None
    bounds = [len(half) * number // _BLOCKS for number in range(_BLOCKS + 1)]
    blocks = [half[begin:end] for begin, end in zip(bounds, bounds[1:])]
    sizes = [statistics.median(size for _, size in block) for block in blocks]
    if any(later <= earlier for earlier, later in zip(sizes, sizes[1:])):
        return None
    growth = sizes[-1] - sizes[0]
    middles = [statistics.median(iteration for iteration, _ in b) for b in blocks]
    iterations = middles[-1] - middles[0]
    if growth < _LEAST_CREEP_BYTES or iterations <= 0:
        return None
    return 1000 * growth / iterations


def _same_or_mixed(words: Sequence[str | None]) -> str | None:
    """The word they all have, else ``mixed``."""
    known = {word for word in words if word is not None}
    return known.pop() if len(known) == 1 else 'mixed' if known else None
