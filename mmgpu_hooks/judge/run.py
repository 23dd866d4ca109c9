"""One rank's run: what it recorded, and the figures that follow from that.

The rules, the model, the recommendation and the reports all ask this one object. A
figure is ``None`` where it is unknown. *Steady* figures leave the first interval out,
which holds lazy initialisation, as soon as there are others; their means are over
iterations. A percentile of a run is the median of its intervals' percentiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mmgpu_hooks.judge import thresholds
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
    sum_all,
    sum_known,
    total,
)
from mmgpu_hooks.judge.cpu import (
    CpuEvidence,
    TrainingCpu,
    WorkerThreads,
    find_cpu,
)
from mmgpu_hooks.judge.saves import judge_saves
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.judged import SaveJudgement
from mmgpu_hooks.schema.recorded import PARTS
from mmgpu_hooks.schema.run import RunEvidence, read_evidence

_T = TypeVar('_T')

MIN_CALM = 3
"""Intervals without a validation or a save, from which means are over them alone."""


class IntervalFigures:
    """Figures of some intervals of a run.

    Args:
        every: Extremes and sums are taken over these.
        steady: Means are taken over these.
    """

    def __init__(self, every: Intervals, steady: Intervals) -> None:
        self.every = every
        self.steady = steady


def of_every(reduce: Callable[[Column], _T], field: str) -> cached_property[_T]:
    """A figure of the whole run."""
    return cached_property(lambda figures: reduce(figures.every.column(field)))


def of_steady(reduce: Callable[[Column], _T], field: str) -> cached_property[_T]:
    """A figure of the steady intervals."""
    return cached_property(lambda figures: reduce(figures.steady.column(field)))


def mean_of(field: str, weight: str = 'duration_s') -> cached_property[float | None]:
    """The mean of a field over steady intervals, weighted by another one."""

    def mean(figures: IntervalFigures) -> float | None:
        return average(figures.steady.column(field), figures.steady.column(weight))

    return cached_property(mean)


def per_iteration(field: str, key: str | None = None) -> cached_property[float | None]:
    """The steady mean over iterations of what intervals add up."""

    def mean(run: Run) -> float | None:
        seconds, count = total(run.steady.column(field, key)), run.steady_iterations
        return seconds / count if count else None

    return cached_property(mean)


def per_batch(field: str) -> cached_property[float | None]:
    """A figure of the workers per batch, over the whole run: they make batches ahead.

    An epoch's may all be made in its first interval. Workers that were reached count
    their batches themselves; of the others, those that were taken are known.
    """

    def mean(run: Run) -> float | None:
        windows = run.every.where(run.column('workers.count') > 0)
        made = windows.column('workers.occupancy.count')
        batches = total(np.where(np.isnan(made), windows.column('iterations'), made))
        return total(windows.column(field)) / batches if batches > 0 else None

    return cached_property(mean)


def part_of(group: str, name: str) -> cached_property[float | None]:
    """One of several figures that are found together."""
    return cached_property(lambda run: getattr(getattr(run, group), name))


class TransformCost(NamedTuple):
    """Time of one transform of the pipeline, mean over all samples timed."""

    name: str
    """Name of its class."""
    image_s: float
    """Per image, those that skipped it included."""


class LoaderFigures(IntervalFigures):
    """The loader's workers.

    Where no time per batch is known in steady intervals (an epoch whose batches were
    all made in the first one), that interval is taken too.
    """

    batches = of_steady(count_all, 'workers.occupancy.count')
    """Batches the occupancy is taken over."""
    occupancy_s = mean_of('workers.occupancy.mean_s', 'workers.occupancy.count')
    """Mean time that a worker was busy with one batch; ``None`` from outside."""
    batch_cpu_s = mean_of('workers.batch_cpu.mean_s', 'workers.batch_cpu.count')
    """CPU of the worker for one batch, mean; ``None`` from outside."""
    fetch_cpu_s = mean_of('workers.fetch_cpu_s', 'workers.batch_cpu.count')
    """The part of it that is not spent on sending the batch."""

    @cached_property
    def sent_cpu_s(self) -> float | None:
        """The part that is: copies to shared memory, descriptors of the tensors."""
        if self.batch_cpu_s is None or self.fetch_cpu_s is None:
            return None
        return max(self.batch_cpu_s - self.fetch_cpu_s, 0.0)

    affinity_cpus = of_every(smallest, 'workers.affinity_cpus')
    """CPUs that the most confined worker may run on."""
    opencv_threads = of_every(largest, 'workers.opencv_threads')
    """Threads of OpenCV in a worker."""
    pss_bytes = of_every(largest, 'workers.pss_bytes')
    """Memory of all workers."""
    timed_samples = of_steady(count_all, 'workers.timed_samples')
    """Samples whose transforms were timed."""

    @cached_property
    def occupancy_std_s(self) -> float | None:
        """Its standard deviation over all batches, not the mean over intervals."""
        fields = ('occupancy.mean_s', 'occupancy_std_s', 'occupancy.count')
        return pooled_std(*(self.steady.column(f'workers.{field}') for field in fields))

    @cached_property
    def transforms(self) -> list[TransformCost]:
        """The cost of each transform, most expensive first."""
        seconds: Counter[str] = Counter()
        for costs_s in self.steady.values('workers.transforms_s'):
            seconds.update(costs_s or {})
        if not self.timed_samples:
            return []
        return [
            TransformCost(name, sum_s / self.timed_samples)
            for name, sum_s in seconds.most_common()
            if sum_s
        ]


class GpuFigures(IntervalFigures):
    """The card that this rank trains on.

    Utilisation is of plain training, where it has `MIN_CALM` intervals with samples;
    what is read every few seconds only is of all intervals.
    """

    samples = of_steady(count_all, 'gpu.samples')
    """Samples of the utilisation."""
    mem_used_bytes = of_every(largest, 'gpu.mem_used_bytes')
    temperature_c = of_every(largest, 'gpu.temperature_c')

    util_pct = mean_of('gpu.util_pct', 'gpu.sampled_s')
    """Time-weighted NVML utilisation."""
    zero_pct = mean_of('gpu.zero_pct', 'gpu.sampled_s')
    """Share of the sampled time at 0 %."""

    def _mean(self, field: str) -> float | None:
        return average(self.every.column(field), self.every.column('duration_s'))

    sm_clock_mhz = cached_property(lambda self: self._mean('gpu.sm_clock_mhz'))
    throttled_pct = cached_property(lambda self: self._mean('gpu.throttled_pct'))
    sm_active_pct = cached_property(lambda self: self._mean('gpu.sm_active_pct'))

    @cached_property
    def throttle_reasons(self) -> list[str] | None:
        """The most usual first; ``None`` without one."""
        shares: Counter[str] = Counter()
        for reasons in self.every.values('gpu.throttle_reasons_pct'):
            shares.update(reasons)
        return [name for name, share in shares.most_common() if share] or None


def gpu_figures(intervals: Intervals, every: Intervals) -> GpuFigures | None:
    """Figures of the card; ``None`` where no sample was taken in the intervals.

    Args:
        intervals: The utilisation is taken over these.
        every: The rest is taken over these.
    """
    sampled = intervals.where(filled(intervals.column('gpu.samples')))
    if not len(sampled):
        return None
    calm = sampled.calm()
    steady = sampled.where(calm) if calm.sum() >= MIN_CALM else sampled
    return GpuFigures(every.having('gpu'), steady)


class _FittedWorkload(NamedTuple):
    """The workload of a run."""

    workload: Workload | None
    why_unknown: str = ''
    """Sentence that says why there is none."""


class Run(IntervalFigures):
    """One rank's run.

    Args:
        evidence: As read back, or as a test makes it.
    """

    def __init__(self, evidence: RunEvidence) -> None:
        every = Intervals(evidence.intervals)
        super().__init__(every, every.after(1) if len(every) > 1 else every)
        self.evidence = evidence
        self.path = evidence.path
        self.run = evidence.run
        self.intervals = evidence.intervals
        self.end = evidence.end
        self.save_records = evidence.save_records
        self.save_aftermaths = evidence.save_aftermaths
        self.validations = evidence.validations
        self.notes = evidence.notes
        self.other_ranks: Sequence[Run] = ()
        """Ranks of the same run, where they were read."""
        self._given: Mapping[str, Any] = {}

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read one rank's evidence file.

        Raises:
            EvidenceError: As `read_evidence`.
        """
        return cls(read_evidence(path))

    def since(self, number: int, until: int | None = None) -> Run:
        """From one of its intervals on, as a run of its own that did not end.

        Args:
            number: Intervals to leave out.
            until: The last iteration; by default all.
        """
        intervals = self.intervals[number:]
        if until is not None:
            intervals = tuple(
                interval for interval in intervals if interval.iteration <= until
            )
        part = Run(replace(self.evidence, intervals=intervals, end=None))
        part.other_ranks = self.other_ranks
        return part

    def altered(self, **figures: Any) -> Run:
        """This run with other figures in place of its own, and what follows from them.

        What was measured of CPU and workers is that of the run as it was.
        """
        other = Run(self.evidence)
        other.every, other.steady = self.every, self.steady
        other.other_ranks = self.other_ranks
        other._given = {**self._given, **figures}
        other.__dict__.update(other._given)
        return other

    def column(self, field: str, key: str | None = None) -> Column:
        """One figure of each interval, as `Intervals.column`."""
        return self.every.column(field, key)

    iterations = of_every(count_all, 'iterations')
    """All that were recorded."""
    steady_iterations = of_steady(count_all, 'iterations')
    """Iterations the steady figures are taken over; 0 leaves them unknown."""
    epoch_starts = of_every(count_all, 'first_waits')
    """First waits of epochs."""
    data_wait_p95_s = of_steady(median, 'data_wait.p95_s')
    step_s = per_iteration('step.total_s')
    hooks_s = per_iteration('ledger_s', 'hooks')
    loop_s = per_iteration('ledger_s', 'loop')
    process_rss_bytes = of_every(largest, 'process_rss_bytes')
    batch_bytes = of_every(largest, 'batch_bytes')
    batch_tensors = of_every(largest, 'batch_tensors')
    gpu_mem_peak_bytes = of_every(largest, 'gpu_mem_peak_bytes')
    gpu_mem_reserved_bytes = of_every(largest, 'gpu_mem_reserved_bytes')
    largest_batch_pixels = of_every(largest, 'largest_batch_pixels')
    most_boxes = of_every(largest, 'most_boxes')
    alloc_retries = of_every(count_all, 'cuda_memory.retries')
    """Allocations on the card that failed at first, as far as they were counted."""
    inactive_bytes = of_every(largest, 'cuda_memory.inactive_bytes')
    """Most at the end of an interval (fragmentation)."""
    throttled_s = of_every(sum_known, 'host.throttled_s')
    """Time for which the CPU quota held tasks back, as far as that is known."""
    shm_free_bytes = of_every(smallest, 'host.shm_free_bytes')
    """Least at the end of an interval."""
    stored_pixel_ratio = of_steady(median, 'stored_pixel_ratio')

    main_cpu_s = part_of('_cpu', 'main_s')
    """CPU of the training process per iteration, its waits' part left out."""
    main_run_delay_s = part_of('_cpu', 'main_delay_s')
    """Wait of its main thread for a core, per iteration."""
    process_cpu_cores = part_of('_cpu', 'process_cores')
    """Cores that the training process used."""
    external_cpu_cores = part_of('_cpu', 'external_cores')
    """Cores of the host that other programs used meanwhile. With several ranks on it,
    all of their evidence is needed: see ``why_no_external``."""
    worker_cpu_s = per_batch('workers.cpu_s')
    """CPU of all workers per batch."""
    worker_run_delay_s = per_batch('workers.run_delay_s')
    """Time workers waited for a core, per batch."""

    @cached_property
    def status(self) -> str:
        """``completed``, ``interrupted``, ``failed``, or ``killed`` (no end record)."""
        return self.end.status if self.end else 'killed'

    @cached_property
    def unknown(self) -> Mapping[str, str]:
        """Why a figure is missing, by source."""
        off = {record.source: record.reason for record in self.evidence.sources_off}
        cpu = {'CPU': self._cpu.unknown} if self._cpu.unknown else {}
        if self.why_no_external:
            cpu['CPU of other programs'] = self.why_no_external
        return {**cpu, **self.run.unknown, **off}

    @cached_property
    def ledger_s(self) -> Mapping[str, float]:
        """Seconds of the whole run, by part of the time ledger."""
        if self.end and self.end.ledger_s:
            return self.end.ledger_s
        found = {part for spent_s in self.every.values('ledger_s') for part in spent_s}
        seconds = {p: total(self.column('ledger_s', p)) for p in PARTS if p in found}
        if seconds:
            seconds['startup'] = seconds.get('startup', 0.0) + self.run.build_s
        return seconds

    @cached_property
    def duration_s(self) -> float:
        """Length of the whole run."""
        return math.fsum(self.ledger_s.values())

    @cached_property
    def saves(self) -> int:
        """Checkpoint saves of the whole run."""
        return self.end.saves if self.end else count_all(self.column('saves'))

    @cached_property
    def startup_s(self) -> float:
        """Starts of the loader: above all what first waits exceed a normal wait by."""
        return max(self.ledger_s.get('startup', 0.0) - self.run.build_s, 0.0)

    @cached_property
    def data_wait_s(self) -> float | None:
        """Steady mean over iterations that did not begin an epoch."""
        steady = self.steady
        count = self.steady_iterations - total(steady.column('first_waits'))
        if count <= 0:
            return None
        waits_s = total(steady.column('data_wait.total_s'))
        return max(waits_s - total(steady.column('first_wait_s')), 0.0) / count

    @cached_property
    def iter_s(self) -> float | None:
        """``data_wait_s + step_s + hooks_s + loop_s``."""
        parts = self.data_wait_s, self.step_s, self.hooks_s, self.loop_s
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) if len(known) == len(parts) else None

    @cached_property
    def images_per_s(self) -> float | None:
        """Images per second of this rank, in steady iterations."""
        images = sum_all(self.steady.column('images'))
        if not images or not self.iter_s:
            return None
        return images / (self.iter_s * self.steady_iterations)

    @cached_property
    def hooks(self) -> Mapping[str, float]:
        """Seconds of the whole run by class, most expensive first; what is left of
        ``ledger_s['hooks']`` is MMEngine's own calling."""
        seconds: Counter[str] = Counter(self.end.hooks_s if self.end else {})
        if not seconds:
            for by_hook in self.every.values('hooks_s'):
                seconds.update(by_hook)
        return dict(seconds.most_common())

    @cached_property
    def data_wait_cpu_share(self) -> float | None:
        """CPU of the training process inside its waits, over the waits.

        More than 1 where it has several threads.
        """
        used_s = sum_all(self.steady.column('data_wait_cpu_s'))
        waits_s = total(self.steady.column('data_wait.total_s'))
        return used_s / waits_s if used_s is not None and waits_s else None

    @cached_property
    def _cpu(self) -> TrainingCpu:
        others = [other.cpu_evidence for other in self.other_ranks]
        return find_cpu(self.cpu_evidence, others)

    @property
    def cpu_evidence(self) -> CpuEvidence:
        """Evidence of who used the CPU, for this rank or another one of its run."""
        return CpuEvidence(
            run=self.run,
            steady=self.steady,
            saves=self.save_records,
            validations=self.validations,
            worker_cpu_s=self.worker_cpu_s,
            iter_s=self.iter_s,
        )

    @cached_property
    def why_no_external(self) -> str | None:
        """Reason why ``external_cpu_cores`` is unknown on a host with several ranks."""
        return self._cpu.external_unknown

    @cached_property
    def loader(self) -> LoaderFigures | None:
        """``None`` without workers that could be read."""
        every, steady = self.every.having('workers'), self.steady.having('workers')
        if not len(every):
            return None
        # workers may have made all batches ahead, in the first interval
        is_timed = len(steady.having('workers.occupancy')) > 0
        return LoaderFigures(every, steady if is_timed else every)

    @cached_property
    def throttled_pct(self) -> float | None:
        """`throttled_s` over the seconds that it was counted in.

        A window of the host may span intervals that have none of their own.
        """
        known = np.flatnonzero(~np.isnan(self.column('host.throttled_s')))
        whole_s = total(self.column('duration_s')[: known.max(initial=-1) + 1])
        held_s = self.throttled_s
        return 100 * held_s / whole_s if held_s is not None and whole_s else None

    @cached_property
    def gpu(self) -> GpuFigures | None:
        """The card that this rank trains on."""
        return gpu_figures(self.steady, self.every)

    @property
    def why_no_gpu_util(self) -> str:
        """The reason of the whole card, else of this figure alone."""
        reasons = (self.unknown.get(source) for source in ('GPU', 'GPU util_pct'))
        return next(filter(None, reasons), 'no sample was taken')

    @cached_property
    def gpu_last_iteration(self) -> int | None:
        """The last one with GPU utilisation, where that ended before the run."""
        off = {record.source for record in self.evidence.sources_off}
        sampled = self.every.having('gpu.util_pct').values('iteration')
        if off.isdisjoint(('GPU', 'GPU util_pct')) or not sampled:
            return None
        return int(sampled[-1])

    @cached_property
    def gpu_idle_pct(self) -> float | None:
        """Share of the timed steady iterations in which the GPU had nothing to do."""
        timed_s = self.steady.column('gpu_idle_iterations')
        timed_s = timed_s * self.steady.column('iter.mean_s')
        return average(self.steady.column('gpu_idle_pct'), timed_s)

    # what the rules and the recommendation make of it

    @cached_property
    def _fitted(self) -> _FittedWorkload:
        try:
            return _FittedWorkload(fit_workload(self))
        except NoPredictionError as error:
            return _FittedWorkload(None, str(error))

    @cached_property
    def workload(self) -> Workload | None:
        """Costs that predictions start from; ``None`` if the run does not show them."""
        return self._fitted.workload

    @property
    def why_no_workload(self) -> str:
        """A sentence; empty when there is one."""
        return self._fitted.why_unknown

    @cached_property
    def threads(self) -> WorkerThreads | None:
        """Threads of the loader's workers.

        ``None`` where there are no workers, or they do not show it.
        """
        workers, cores = self.run.loader.num_workers, self.run.host.usable_cores
        threads = largest(self.column('worker_threads'))
        cpu_s, delay_s = self.worker_cpu_s, self.worker_run_delay_s
        beside_s = sum_known(self.steady.column('workers.thread_cpu_s'))
        if not workers or not threads or not cores or not cpu_s or delay_s is None:
            return None
        if beside_s is None or not self.steady_iterations:
            return None
        sent_s = self.loader.sent_cpu_s if self.loader else None
        share = None
        if sent_s is not None:
            share = max(beside_s / self.steady_iterations - sent_s, 0.0) / cpu_s
        return WorkerThreads(
            workers=workers,
            threads=threads,
            cores=cores,
            cpu_s=cpu_s,
            delay_s=delay_s,
            share=share,
            opencv=self.loader.opencv_threads if self.loader else None,
        )

    @cached_property
    def judged_saves(self) -> tuple[SaveJudgement, ...]:
        """In the order of ``save_records``."""
        return judge_saves(
            self.save_records, self.save_aftermaths, self.run.host, self.run.loader
        )

    @property
    def is_enough(self) -> bool:
        """True if enough steady iterations, of measurable length, were recorded."""
        return bool(self.iter_s) and self.steady_iterations >= thresholds.MIN_ITERATIONS

    @property
    def data_wait_share(self) -> float | None:
        """Share of a steady iteration spent waiting for data."""
        if self.data_wait_s is None or not self.iter_s:
            return None
        return self.data_wait_s / self.iter_s

    @property
    def is_data_bound(self) -> bool:
        """True if waiting for data is a problem in steady iterations."""
        return (
            self.is_enough
            and (self.data_wait_share or 0.0) >= thresholds.DATA_WAIT_PROBLEM
        )

    @property
    def wait_cause(self) -> str | None:
        """Why the loop of a data-bound run waits; ``None`` when it is none.

        ``starved``: the loader cannot keep up. ``stalls``: starving workers make the
        loop wait at least once in W iterations, so a mean above the 95th percentile of
        a usual interval is made of rare stalls. ``fetching``: the wait is the training
        thread's own CPU. No setting of the loader cures the last two.
        """
        if not self.is_data_bound:
            return None
        if self.run.loader.num_workers:
            if (self.data_wait_p95_s or math.inf) < (self.data_wait_s or 0.0):
                return 'stalls'
            waited = 1.0 - (self.data_wait_cpu_share or 0.0)
            if waited * (self.data_wait_share or 0.0) < thresholds.DATA_WAIT_PROBLEM:
                return 'fetching'
        return 'starved'

    @property
    def is_starved(self) -> bool:
        """True if the loop waits because the loader cannot keep up."""
        return self.wait_cause == 'starved'

    @property
    def is_stalled(self) -> bool:
        """True if rare stalls are all that is known of the waits.

        Where loading was measured inside the workers, the workload tells more.
        """
        is_measured = self.loader is not None and self.loader.occupancy_s is not None
        return self.wait_cause == 'stalls' and not is_measured

    @property
    def headspace_pct(self) -> float | None:
        """At most this much faster, in per cent, if data cost no time at all.

        Over the whole run, starts of the loader included, and what workers hold the
        step up by being on its cores.
        """
        ledger_s, whole_s = self.ledger_s, self.duration_s
        waits_s = ledger_s.get('data_wait', 0.0) + self.startup_s
        if self.workload is not None:
            waits_s += self.workload.iterations * self.workload.held_up_s
        if not self.is_enough or not 0.0 <= waits_s < whole_s:
            return None
        return 100.0 * waits_s / (whole_s - waits_s)

    @property
    def blocked_share(self) -> float | None:
        """Share of loading one batch in which nothing ran: storage, locks."""
        workload, loader = self.workload, self.loader
        if workload is None or not workload.is_batch_time_known:
            return None
        whole_s, used_s = workload.batch_time.mean_s, workload.batch_cpu.mean_s
        if loader and loader.occupancy_s is not None and loader.batch_cpu_s is not None:
            # waiting for a core is no waiting for storage
            delay_s = self.worker_run_delay_s
            if not workload.num_workers:
                # of the training thread's, which loads and steps in turns
                delay_s = (self.main_run_delay_s or 0.0) * (self.data_wait_share or 0.0)
            used_s = loader.batch_cpu_s
            whole_s = max(loader.occupancy_s - (delay_s or 0.0), used_s)
        return max(1.0 - used_s / whole_s, 0.0) if whole_s > 0.0 else 0.0

    @property
    def waiting_share(self) -> float:
        """``blocked_share`` where it is at least half of a batch, else 0.

        Workers that wait so much may outnumber the cores.
        """
        share = self.blocked_share or 0.0
        return share if share >= thresholds.BLOCKED_PROBLEM else 0.0

    @property
    def confined_cpus(self) -> int | None:
        """CPUs that the workers are confined to; ``None`` when they are not."""
        confined = self.loader.affinity_cpus if self.loader else None
        own = self.run.host.affinity_cpus
        return confined if confined and own and confined < own else None

    @property
    def cores_had(self) -> float | None:
        """Usable cores as the run had them; another start may give it more."""
        return self.evidence.cores_had or self.run.host.cores_had

    @property
    def unbinding(self) -> str | None:
        """Sentence on how to unbind the process; ``None`` where that is unknown."""
        host = self.run.host
        if host.unbound_cpus is None or host.bound_by is None:
            return None
        return f'Unset {host.bound_by} where the training is started.'

    @property
    def cpu_floor_s(self) -> float | None:
        """The CPU of an iteration over the cores that are free for it.

        Never more than the run itself took.
        """
        if self.workload is None:
            return None
        floor_s = self.workload.cpu_s / self.free_cores
        return min(floor_s, self.iter_s or floor_s)

    @property
    def free_cores(self) -> float:
        """Usable cores, less those that other programs want, or had at least."""
        workload = self.workload
        assert workload is not None
        free = workload.free_cores
        if self.iter_s and workload.cpu_s / free > self.iter_s:
            # the run was faster than that: it had what they did not use
            left = workload.host_cores - self.external_share_cores
            return min(workload.usable_cores, max(left, free))
        return free

    @property
    def is_cpu_the_wall(self) -> bool:
        """True if the CPU floor, not the step, limits even an ideal loader."""
        floor_s, workload = self.cpu_floor_s, self.workload
        if floor_s is None or workload is None or not self.iter_s:
            return False
        if not workload.num_workers:
            # one process alone does not hold its own against others; more would
            floor_s = workload.cpu_s / workload.usable_cores
        return floor_s > max(workload.ready_s, 0.9 * self.iter_s)

    @property
    def external_share_cores(self) -> float:
        """This rank's part of the cores that other programs used; 0 where unknown."""
        return (self.external_cpu_cores or 0.0) / self.run.host.ranks

    @property
    def is_busy_host(self) -> bool:
        """True if others took enough of the host to change the figures."""
        external, logical = self.external_cpu_cores, self.run.host.logical_cpus
        return bool(
            external and logical and external >= thresholds.EXTERNAL_LOAD * logical
        )

    def saves_held_by(self, cause: str | None) -> list[SaveJudgement]:
        """Slow saves with this cause; with ``None``, those whose cause is unproven."""
        judged = self.judged_saves
        return [save for save in judged if save.is_slow and save.cause == cause]

    def run_share(self, seconds: float) -> float:
        """``seconds`` as a share of the whole run."""
        return seconds / self.duration_s if self.duration_s > 0 else 0.0

    def part_share(self, part: str) -> float:
        """Share of the whole run in one part of the time ledger."""
        return self.run_share(self.ledger_s.get(part, 0.0))
