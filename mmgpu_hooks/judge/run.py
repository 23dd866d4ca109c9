"""One rank's run: what it recorded, and the figures that follow from that.

The rules, the model, the recommendation and the reports all ask this one object.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from mmgpu_hooks.judge.columns import (
    Column,
    Intervals,
    average,
    count_all,
    sum_all,
    total,
)
from mmgpu_hooks.judge.figures import (
    CudaMemoryFigures,
    Figures,
    GpuFigures,
    HostFigures,
    LoaderFigures,
    gpu_figures,
    largest_of,
    made_by_worker,
    median_of,
)
from mmgpu_hooks.judge.saves import judge_saves
from mmgpu_hooks.judge.thresholds import (
    BLOCKED_PROBLEM,
    DATA_WAIT_PROBLEM,
    EXTERNAL_LOAD,
    MIN_ITERATIONS,
)
from mmgpu_hooks.judge.training_cpu import CpuFigures, find_cpu, find_external_cores
from mmgpu_hooks.judge.workload import fit_workload
from mmgpu_hooks.model.workload import Workload
from mmgpu_hooks.schema import NoPrediction, RunEvidence, SaveJudgement
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.schema.reader import read_evidence


class HookCost(NamedTuple):
    """One class of hook over the whole run."""

    seconds: float
    iteration_s: float | None
    """Steady mean per iteration."""


class WorkerCost(NamedTuple):
    """What the loader's workers used for a batch."""

    cpu_s: float | None = None
    run_delay_s: float | None = None
    workers: int | None = None


def per_iteration(field: str, key: str | None = None) -> cached_property[float | None]:
    """The steady mean over iterations of what intervals add up."""

    def mean(run: Run) -> float | None:
        seconds, count = total(run.steady.column(field, key)), run.steady_iterations
        return seconds / count if count else None

    return cached_property(mean)


def part_of(group: str, name: str) -> cached_property[float | None]:
    """One of several figures that are found together."""
    return cached_property(lambda run: getattr(getattr(run, group), name))


class Run(Figures):
    """One rank's run.

    *Steady* figures leave the first interval out, which holds lazy initialisation, as
    soon as there are others. Their means are over iterations.

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
        self.model = evidence.model
        self.save_records = evidence.save_records
        self.save_aftermaths = evidence.save_aftermaths
        self.validations = evidence.validations
        self.notes = evidence.notes
        self.other_ranks: Sequence[Run] = ()
        """Of the same run, where they were read."""
        self._given: Mapping[str, Any] = {}

    @classmethod
    def read(cls, path: Path) -> Run:
        """Read one rank's evidence file.

        Raises:
            EvidenceError: As `read_evidence`.
        """
        return cls(read_evidence(path))

    def newest(self, count: int) -> Run:
        """The last intervals, as a run of their own that did not end."""
        intervals = self.intervals[-count:]
        return Run(replace(self.evidence, intervals=intervals, end=None))

    def altered(self, **figures: Any) -> Run:
        """This run with other figures in place of its own, and what follows from them.

        What was measured of CPU and workers is that of the run as it was.
        """
        foreign = [n for n in figures if n not in self.__dict__ and not hasattr(Run, n)]
        if foreign:
            raise AttributeError(f'expected figures of a run, found {foreign}')
        other = Run(self.evidence)
        other.every, other.steady = self.every, self.steady
        other.other_ranks = self.other_ranks
        other._given = {**self._given, **figures}
        other.__dict__.update(other._given)
        return other

    def column(self, field: str, key: str | None = None) -> Column:
        """One figure of each interval, NaN where it is unknown.

        Args:
            field: Of the record, such as ``workers.cpu_s``.
            key: Where the field is a mapping, one of its keys.
        """
        return self.every.column(field, key)

    iter_p50_s = median_of('iter.p50_s')
    iter_p95_s = median_of('iter.p95_s')
    """Median over intervals of their 95th percentiles, as all percentiles of a run."""
    data_wait_p95_s = median_of('data_wait.p95_s')
    process_rss_bytes = largest_of('process_rss_bytes')
    batch_bytes = largest_of('batch_bytes')
    batch_tensors = largest_of('batch_tensors')
    gpu_mem_peak_bytes = largest_of('gpu_mem_peak_bytes')
    gpu_mem_reserved_bytes = largest_of('gpu_mem_reserved_bytes')
    largest_batch_pixels = largest_of('largest_batch_pixels')
    most_boxes = largest_of('most_boxes')
    stored_pixel_ratio = median_of('stored_pixel_ratio')

    @cached_property
    def status(self) -> str:
        """``completed``, ``interrupted``, ``failed``, or ``killed`` (no end record)."""
        return self.end.status if self.end else 'killed'

    @cached_property
    def unknown(self) -> Mapping[str, str]:
        """Why a figure is missing, by source."""
        off = {one.source: one.reason for one in self.evidence.sources_off}
        cpu = {'CPU': self._cpu.unknown} if self._cpu.unknown else {}
        return {**cpu, **self.evidence.run.unknown, **off}

    @cached_property
    def iterations(self) -> int:
        """All that were recorded."""
        return count_all(self.column('iterations'))

    @cached_property
    def steady_iterations(self) -> int:
        """Iterations the steady figures are taken over; 0 leaves them unknown."""
        return count_all(self.steady.column('iterations'))

    @cached_property
    def ledger_s(self) -> Mapping[str, float]:
        """Seconds of the whole run, by part of the time ledger."""
        if self.end and self.end.ledger_s:
            return self.end.ledger_s
        known = {part for one in self.every.values('ledger_s') for part in one}
        found = {
            part: total(self.column('ledger_s', part))
            for part in PARTS
            if part in known
        }
        if found:
            found['startup'] = found.get('startup', 0.0) + self.run.build_s
        return found

    @cached_property
    def duration_s(self) -> float:
        """Of the whole run."""
        return math.fsum(self.ledger_s.values())

    @cached_property
    def saves(self) -> int:
        """Checkpoint saves of the whole run."""
        return self.end.saves if self.end else count_all(self.column('saves'))

    @cached_property
    def epoch_starts(self) -> int:
        """First waits of epochs."""
        return count_all(self.column('first_waits'))

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

    step_s = per_iteration('step.total_s')
    hooks_s = per_iteration('ledger_s', 'hooks')
    loop_s = per_iteration('ledger_s', 'loop')
    """What the training loop does between two hook points."""

    @cached_property
    def iter_s(self) -> float | None:
        """``data_wait_s + step_s + hooks_s + loop_s``."""
        parts = self.data_wait_s, self.step_s, self.hooks_s, self.loop_s
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) if len(known) == len(parts) else None

    @cached_property
    def images_per_s(self) -> float | None:
        """Of this rank."""
        images = sum_all(self.steady.column('images'))
        if not images or not self.iter_s:
            return None
        return images / (self.iter_s * self.steady_iterations)

    @cached_property
    def hooks(self) -> Mapping[str, HookCost]:
        """By class, most expensive first; what is left of ``ledger_s['hooks']`` is
        MMEngine's own calling."""
        seconds = self._hooks_s(self.every)
        if self.end and self.end.hooks_s:
            seconds = dict(self.end.hooks_s)
        calm, iterations = self._hooks_s(self.steady), self.steady_iterations
        return {
            name: HookCost(
                total_s, calm.get(name, 0.0) / iterations if iterations else None
            )
            for name, total_s in sorted(seconds.items(), key=lambda item: -item[1])
        }

    def _hooks_s(self, intervals: Intervals) -> dict[str, float]:
        names = dict.fromkeys(n for one in intervals.values('hooks_s') for n in one)
        return {name: total(intervals.column('hooks_s', name)) for name in names}

    @cached_property
    def data_wait_cpu_share(self) -> float | None:
        """CPU of the training thread inside its waits, over the waits."""
        cpu_s = sum_all(self.steady.column('data_wait_cpu_s'))
        waits_s = total(self.steady.column('data_wait.total_s'))
        if cpu_s is None or waits_s <= 0:
            return None
        return min(cpu_s / waits_s, 1.0)

    @cached_property
    def _cpu(self) -> CpuFigures:
        evidence = self.evidence
        return find_cpu(
            evidence.run, self.steady, evidence.save_records, evidence.validations
        )

    main_cpu_s = part_of('_cpu', 'main_s')
    """CPU of the training process per iteration, its waits' part left out."""
    main_run_delay_s = part_of('_cpu', 'main_delay_s')
    """What its main thread waited for a core, per iteration."""
    process_cpu_cores = part_of('_cpu', 'process_cores')
    """Cores that the training process used."""
    system_cpu_pct = part_of('_cpu', 'system_pct')
    """Of all logical CPUs of the host."""
    cpu_aside_pct = part_of('_cpu', 'aside_pct')
    """Share of the seconds behind the figures of CPU that are saves and validations,
    whose own CPU is not known; ``None`` where they are not in the figures."""

    @cached_property
    def external_cpu_cores(self) -> float | None:
        """Cores of the host that others used meanwhile; ``None`` with several ranks on
        it, because theirs cannot be distinguished from other load."""
        run, cpu_s = self.evidence.run, self._workers.cpu_s
        return find_external_cores(run, self._cpu, cpu_s, self.iter_s)

    @cached_property
    def _workers(self) -> WorkerCost:
        """Over the whole run, because workers make batches ahead.

        An epoch's may all be made in its first interval. Workers that were reached
        count their batches themselves. Of the others, what was made and never taken is
        at most what was in flight when they last started, and no more than an epoch
        has.
        """
        loader = self.evidence.run.loader
        windows = self.every.where(self.column('workers.count') > 0)
        others = windows.where(
            [not m for m in windows.values('workers.worker_batches')]
        )
        batches = sum(made_by_worker(windows))
        batches += total(others.column('workers.iterations'))
        fresh = others.where(others.column('workers.fresh') > 0)
        if len(fresh):
            count, taken = (
                float(fresh.column(field)[-1])
                for field in ('workers.count', 'workers.iterations')
            )
            ahead = count * (loader.prefetch_factor or 1) / 2
            if loader.batches_per_epoch is not None:
                ahead = min(ahead, max(loader.batches_per_epoch - taken, 0))
            batches += ahead
        if batches <= 0:
            return WorkerCost()
        return WorkerCost(
            total(windows.column('workers.cpu_s')) / batches,
            total(windows.column('workers.run_delay_s')) / batches,
            statistics.mode(windows.values('workers.count')),
        )

    worker_cpu_s = part_of('_workers', 'cpu_s')
    """CPU of all workers per batch."""
    worker_run_delay_s = part_of('_workers', 'run_delay_s')
    """Time workers waited for a core, per batch."""

    @cached_property
    def worker_count(self) -> int | None:
        """In most intervals."""
        return self._workers.workers

    @cached_property
    def loader(self) -> LoaderFigures | None:
        """``None`` without workers that could be read."""
        every, steady = self.every.having('workers'), self.steady.having('workers')
        if not len(every):
            return None
        if not len(steady.having('workers.occupancy')):
            # workers may have made all batches ahead, in the first interval
            steady = every
        return LoaderFigures(every, steady)

    @cached_property
    def host(self) -> HostFigures | None:
        """What the host did to the run."""
        every = self.every.having('host')
        return HostFigures(every, self.steady.having('host')) if len(every) else None

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
        off = {one.source for one in self.evidence.sources_off}
        sampled = self.every.having('gpu.util_pct').values('iteration')
        if off.isdisjoint(('GPU', 'GPU util_pct')) or not sampled:
            return None
        return int(sampled[-1])

    @cached_property
    def cuda_memory(self) -> CudaMemoryFigures | None:
        """What the CUDA allocator went through."""
        every = self.every.having('cuda_memory')
        return CudaMemoryFigures(every, every) if len(every) else None

    @cached_property
    def _timed(self) -> Intervals:
        timed = self.steady.having('gpu_idle_pct')
        return timed.where(timed.column('gpu_idle_iterations') > 0)

    @cached_property
    def gpu_idle_pct(self) -> float | None:
        """Share of the timed steady iterations in which the GPU had nothing to do."""
        counts = self._timed.column('gpu_idle_iterations')
        timed_s = counts * self._timed.column('iter.mean_s')
        return average(self._timed.column('gpu_idle_pct'), timed_s)

    @cached_property
    def gpu_idle_iterations(self) -> int:
        """Iterations that share is taken over."""
        return count_all(self._timed.column('gpu_idle_iterations'))

    # what the rules and the recommendation make of it

    @cached_property
    def _fitted(self) -> Workload | NoPrediction:
        return fit_workload(self)

    @cached_property
    def workload(self) -> Workload | None:
        """What predictions start from; ``None`` when the run does not show it."""
        return self._fitted if isinstance(self._fitted, Workload) else None

    @property
    def why_no_workload(self) -> str | None:
        """A sentence; ``None`` when there is one."""
        found = self._fitted
        return found.reason if isinstance(found, NoPrediction) else None

    @cached_property
    def judged_saves(self) -> tuple[SaveJudgement, ...]:
        """In the order of ``save_records``."""
        return judge_saves(
            self.save_records, self.save_aftermaths, self.run.host, self.run.loader
        )

    @property
    def is_enough(self) -> bool:
        """Whether enough steady iterations, of measurable length, were recorded."""
        return bool(self.iter_s) and (self.steady_iterations >= MIN_ITERATIONS)

    @property
    def data_wait_share(self) -> float | None:
        """Share of a steady iteration spent waiting for data."""
        wait_s, iter_s = self.data_wait_s, self.iter_s
        if wait_s is None or not iter_s:
            return None
        return wait_s / iter_s

    @property
    def is_data_bound(self) -> bool:
        """Whether waiting for data is a problem in steady iterations."""
        share = self.data_wait_share
        return self.is_enough and share is not None and share >= DATA_WAIT_PROBLEM

    @property
    def wait_cause(self) -> str | None:
        """Why the loop of a data-bound run waits; ``None`` when it is none.

        ``starved``: the loader cannot keep up. ``stalls``: starving workers make the
        loop wait at least once in W iterations, so a mean above the 95th percentile of
        a usual interval is made of rare stalls. ``fetching``: the wait is the training
        thread's own CPU. No setting of the loader cures the last two.
        """
        wait_s = self.data_wait_s
        if not self.is_data_bound or wait_s is None or not self.iter_s:
            return None
        if not self.run.loader.num_workers:
            return 'starved'
        p95_s = self.data_wait_p95_s
        if p95_s is not None and p95_s < wait_s:
            return 'stalls'
        share = self.data_wait_cpu_share or 0.0
        if (1.0 - share) * wait_s / self.iter_s < DATA_WAIT_PROBLEM:
            return 'fetching'
        return 'starved'

    @property
    def is_starved(self) -> bool:
        """Whether the loop waits because the loader cannot keep up."""
        return self.wait_cause == 'starved'

    @property
    def is_stalled(self) -> bool:
        """Whether rare stalls are all that is known of the waits.

        Where loading was measured inside the workers, the workload tells more.
        """
        loader = self.loader
        is_measured = loader is not None and loader.occupancy_s is not None
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
        workload = self.workload
        if workload is None or not workload.is_batch_time_known:
            return None
        loader, delay_s = self.loader, self.worker_run_delay_s or 0.0
        whole_s, cpu_s = workload.batch_time.mean_s, workload.batch_cpu.mean_s
        if loader and loader.occupancy_s is not None and loader.batch_cpu_s is not None:
            # waiting for a core is no waiting for storage
            whole_s, cpu_s = loader.occupancy_s - delay_s, loader.batch_cpu_s
        return max(1.0 - cpu_s / whole_s, 0.0) if whole_s > 0.0 else 0.0

    @property
    def waiting_share(self) -> float:
        """``blocked_share`` where it is at least half of a batch, else 0.

        Workers that wait so much may outnumber the cores.
        """
        share = self.blocked_share or 0.0
        return share if share >= BLOCKED_PROBLEM else 0.0

    @property
    def confined_cpus(self) -> int | None:
        """CPUs that the workers are confined to; ``None`` when they are not."""
        loader, host = self.loader, self.run.host
        confined = loader.affinity_cpus if loader else None
        if confined is None or host.affinity_cpus is None:
            return None
        return confined if confined < host.affinity_cpus else None

    @property
    def unbinding(self) -> str | None:
        """How to undo what bound the process; ``None`` when nothing did."""
        host = self.run.host
        if host.unbound_cpus is None:
            return None
        if host.bound_by is None:
            return (
                'Remove the call of sched_setaffinity in the training script or in a '
                'module that it imports.'
            )
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
        """Usable cores, less those that strangers want, or had at least."""
        workload = self.workload
        assert workload is not None
        free = workload.free_cores
        if self.iter_s and workload.cpu_s / free > self.iter_s:
            # the run was faster than that: it had what they did not use
            left = workload.host_cores - (self.external_cpu_cores or 0.0)
            return min(workload.usable_cores, max(left, free))
        return free

    @property
    def is_cpu_the_wall(self) -> bool:
        """Whether the CPU floor, not the step, limits even an ideal loader."""
        floor_s, workload = self.cpu_floor_s, self.workload
        if floor_s is None or workload is None or not self.iter_s:
            return False
        if not workload.num_workers:
            # one process alone does not hold its own against strangers; more would
            floor_s = workload.cpu_s / workload.usable_cores
        return floor_s > max(workload.ready_s, 0.9 * self.iter_s)

    @property
    def is_busy_host(self) -> bool:
        """Whether others took so much of the host that the figures are theirs too."""
        external = self.external_cpu_cores
        logical = self.run.host.logical_cpus
        return bool(external and logical and external >= EXTERNAL_LOAD * logical)

    def saves_held_by(self, cause: str | None) -> list[SaveJudgement]:
        """Slow saves with this cause; with ``None``, those whose cause is unproven."""
        return [one for one in self.judged_saves if one.is_slow and one.cause == cause]

    def run_share(self, seconds: float) -> float:
        """``seconds`` as a share of the whole run."""
        whole = self.duration_s
        return seconds / whole if whole > 0 else 0.0

    def part_share(self, part: str) -> float:
        """Share of the whole run in one part of the time ledger."""
        return self.run_share(self.ledger_s.get(part, 0.0))
