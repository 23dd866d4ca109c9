"""Figures of one rank's run: made once, and what follows from them.

A stored figure is a reduction of columns. What is arithmetic on stored figures is a
property, so ``dataclasses.replace`` moves it, too. ``None`` is unknown. Means are over
the iterations of steady intervals; a percentile of a run is the median of its
intervals' percentiles.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import (
    Intervals,
    average,
    count_all,
    filled,
    largest,
    median,
    pooled_std,
    quiet,
    smallest,
    sum_all,
    sum_known,
    total,
)
from mmgpu_hooks.judge.cpu import CpuEvidence, find_cpu
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.schema.recorded import PARTS
from mmgpu_hooks.schema.text import phrase

MIN_CALM = 3
"""Least intervals without a validation or a save for means over them alone."""


@dataclass(frozen=True)
class IterationParts:
    """Mean parts of a steady iteration: known together, or not at all."""

    data_wait_s: float
    """Wait for data of an iteration that does not begin an epoch, s."""
    step_s: float
    hooks_s: float
    loop_s: float
    """Time of the loop itself, s."""

    @property
    def total_s(self) -> float:
        """Sum of the parts: ``data_wait_s + step_s + hooks_s + loop_s``."""
        return self.data_wait_s + self.step_s + self.hooks_s + self.loop_s

    @property
    def data_wait_share(self) -> float:
        """Share of the iteration spent waiting for data; 0 of one that took no time."""
        return self.data_wait_s / self.total_s if self.total_s else 0.0


@dataclass(frozen=True)
class LoaderFigures:
    """Figures of the loader's workers.

    Where no time per batch is known in steady intervals (an epoch whose batches were
    all made in the first one), that interval is taken too.
    """

    batches: int
    """Number of batches that the batch time is taken over."""
    timed_samples: int
    """Number of samples whose transforms were timed."""
    batch_time_s: float | None = None
    """Mean batch time: seconds that a worker was busy with one batch; ``None`` where
    workers were not reached."""
    batch_time_std_s: float | None = None
    """Standard deviation of the batch time over all batches, not of the mean over
    intervals."""
    batch_cpu_s: float | None = None
    """Mean CPU of a worker for one batch, s; ``None`` where workers were not
    reached."""
    fetch_cpu_s: float | None = None
    """Part of ``batch_cpu_s`` that is not spent on sending the batch."""
    affinity_cpus: int | None = None
    """CPUs that the most confined worker may run on."""
    opencv_threads: int | None = None
    """Threads of OpenCV in a worker."""
    pss_bytes: int | None = None
    """Memory of all workers, shared pages counted in part."""

    @property
    def sent_cpu_s(self) -> float | None:
        """Part of a batch's CPU that sends it: copies, descriptors of tensors."""
        if self.batch_cpu_s is None or self.fetch_cpu_s is None:
            return None
        return max(self.batch_cpu_s - self.fetch_cpu_s, 0.0)


@dataclass(frozen=True)
class GpuFigures:
    """Figures of the card that a rank trains on.

    Utilisation is of plain training, where it has `MIN_CALM` intervals with samples;
    what is read every few seconds only is of all intervals.
    """

    samples: int
    """Number of samples of the utilisation."""
    util_pct: float | None = None
    """Time-weighted NVML utilisation."""
    zero_pct: float | None = None
    """Share of the sampled time at 0 % utilisation."""
    mem_used_bytes: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: float | None = None
    sm_active_pct: float | None = None
    throttled_pct: float | None = None
    throttle_reasons: Sequence[str] | None = None
    """Reasons for throttling, the most usual first; ``None`` without one."""


@dataclass(frozen=True)
class RunFigures:
    """Figures of one rank's run."""

    iterations: int
    """Number of iterations that were recorded."""
    steady_iterations: int
    """Number of iterations that steady figures are taken over; 0 leaves them
    unknown."""
    epoch_starts: int
    """Number of first waits of epochs."""
    saves: int
    """Number of checkpoint saves of the whole run."""
    alloc_retries: int
    """Allocations on the card that failed at first, as far as they were counted."""
    build_s: float
    """Seconds of the start that passed before the first iteration."""
    ledger_s: Mapping[str, float]
    """Seconds of the whole run, by part of the time ledger."""
    by_hook_s: Mapping[str, float]
    """Seconds of the whole run by class, most expensive first; what is left of
    ``ledger_s['hooks']`` is MMEngine's own calling."""
    reasons: Mapping[str, str]
    """Reasons why a source gave no figures, as they were recorded."""

    per_iteration: IterationParts | None = None
    """Mean parts of an iteration; ``None`` without a steady one that does not begin an
    epoch."""
    data_wait_p95_s: float | None = None
    data_wait_cpu_share: float | None = None
    """CPU of the training process inside its waits, over the waits; more than 1 where
    it has several threads."""
    images: float | None = None
    """Number of images in the steady iterations."""
    stored_pixel_ratio: float | None = None

    process_rss_bytes: int | None = None
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    largest_batch_pixels: int | None = None
    most_boxes: int | None = None
    shm_free_bytes: int | None = None
    """Least free bytes of ``/dev/shm`` at the end of an interval."""
    gpu_mem_peak_bytes: int | None = None
    gpu_mem_reserved_bytes: int | None = None
    inactive_bytes: int | None = None
    """Most bytes in unused split blocks at the end of an interval (fragmentation)."""

    main_cpu_s: float | None = None
    """CPU of the training process per iteration, s, the part in its waits left out."""
    main_run_delay_s: float | None = None
    """Wait of the training process's main thread for a core, per iteration, s."""
    process_cpu_cores: float | None = None
    """Cores that the training process used."""
    why_no_cpu: str | None = None
    """Reason why the CPU of the training process is unknown."""
    external_cpu_cores: float | None = None
    """Cores of the host that other programs used meanwhile. With several ranks on it,
    all of their evidence is needed: see ``why_no_external``."""
    why_no_external: str | None = None
    """Reason why ``external_cpu_cores`` is unknown on a host with several ranks."""
    throttled_s: float | None = None
    """Seconds for which the CPU quota held tasks back, as far as that is known."""
    throttle_counted_s: float = 0.0
    """Seconds that ``throttled_s`` was counted in."""

    worker_cpu_s: float | None = None
    """CPU of all workers per batch, over the whole run: they make batches ahead."""
    worker_run_delay_s: float | None = None
    """Seconds that workers waited for a core, per batch."""
    worker_threads: int | None = None
    """Most threads that one worker had, PyTorch's own included."""
    worker_thread_cpu_s: float | None = None
    """CPU of the workers' threads beside their main ones, in the steady iterations."""

    gpu_idle_pct: float | None = None
    """Share of the timed steady iterations in which the GPU had nothing to do."""
    gpu_last_iteration: int | None = None
    """Last iteration with GPU utilisation, where that ended before the run."""
    gpu: GpuFigures | None = None
    """Figures of the card that this rank trains on; ``None`` without a sample."""
    loader: LoaderFigures | None = None
    """Figures of the loader's workers; ``None`` without workers that could be read."""

    @property
    def iter_s(self) -> float | None:
        """Mean length of a steady iteration."""
        return self.per_iteration.total_s if self.per_iteration else None

    @property
    def images_per_s(self) -> float | None:
        """Images per second of this rank, in steady iterations."""
        if not self.images or not self.iter_s:
            return None
        return self.images / (self.iter_s * self.steady_iterations)

    @property
    def data_wait_share(self) -> float | None:
        """Share of a steady iteration spent waiting for data."""
        return self.per_iteration.data_wait_share if self.per_iteration else None

    @property
    def is_enough(self) -> bool:
        """True if enough steady iterations, of measurable length, were recorded."""
        return bool(self.iter_s) and self.steady_iterations >= thresholds.MIN_ITERATIONS

    @property
    def duration_s(self) -> float:
        """Length of the whole run."""
        return math.fsum(self.ledger_s.values())

    @property
    def startup_s(self) -> float:
        """Seconds of the loader's starts: above all the excess of first waits."""
        return max(self.ledger_s.get('startup', 0.0) - self.build_s, 0.0)

    @property
    def throttled_pct(self) -> float | None:
        """Share of the time that a CPU quota held tasks back, per cent."""
        if self.throttled_s is None or not self.throttle_counted_s:
            return None
        return 100 * self.throttled_s / self.throttle_counted_s

    @property
    def unknown(self) -> Mapping[str, str]:
        """Reasons why figures are missing, by source."""
        why = {'CPU': self.why_no_cpu, 'CPU of other programs': self.why_no_external}
        known = {source: reason for source, reason in why.items() if reason}
        return {**known, **self.reasons}

    @property
    def why_no_gpu_util(self) -> str:
        """Reason why the GPU's utilisation is unknown."""
        reasons = (self.unknown.get(source) for source in ('GPU', 'GPU util_pct'))
        return next(filter(None, reasons), phrase('no sample was taken'))

    def run_share(self, seconds: float) -> float:
        """Return ``seconds`` as a share of the whole run."""
        return seconds / self.duration_s if self.duration_s > 0 else 0.0

    def part_share(self, part: str) -> float:
        """Return the share of the whole run in one part of the time ledger."""
        return self.run_share(self.ledger_s.get(part, 0.0))


def summarize_run(recorded: RecordedRun) -> RunFigures:
    """Compute the figures of what one rank recorded."""
    figures = _summarize_alone(recorded)
    others = map(_list_cpu_evidence, recorded.other_ranks)
    cpu = find_cpu(_list_cpu_evidence(recorded), list(others))
    return replace(
        figures,
        main_cpu_s=cpu.main_s,
        main_run_delay_s=cpu.main_delay_s,
        process_cpu_cores=cpu.process_cores,
        external_cpu_cores=cpu.external_cores,
        why_no_cpu=cpu.unknown,
        why_no_external=cpu.external_unknown,
    )


@quiet
def _list_cpu_evidence(recorded: RecordedRun) -> CpuEvidence:
    """List the evidence of the CPU, made of few columns: there may be many ranks."""
    parts = _average_parts(recorded.steady)
    return CpuEvidence(
        run=recorded.meta,
        steady=recorded.steady,
        saves=recorded.save_records,
        validations=recorded.validations,
        worker_cpu_s=_per_batch(_select_with_workers(recorded), 'workers.cpu_s'),
        iter_s=parts.total_s if parts else None,
    )


@quiet
def _summarize_alone(recorded: RecordedRun) -> RunFigures:
    """Compute all figures for which the other ranks of the host are not needed."""
    every, steady = recorded.every.column, recorded.steady.column
    ledger_s, end = _sum_ledger(recorded), recorded.end
    off = {record.source: record.reason for record in recorded.evidence.sources_off}
    steady_iterations = count_all(steady('iterations'))
    waits_s = total(steady('data_wait.total_s'))
    waits_cpu_s = sum_all(steady('data_wait_cpu_s'))
    throttled = every('host.throttled_s')
    # a window of the host may span intervals that have none of their own
    counted = np.flatnonzero(~np.isnan(throttled)).max(initial=-1) + 1
    idle_of_s = steady('gpu_idle_iterations') * steady('iter.mean_s')
    with_workers = _select_with_workers(recorded)
    return RunFigures(
        iterations=count_all(every('iterations')),
        steady_iterations=steady_iterations,
        epoch_starts=count_all(every('first_waits')),
        saves=end.saves if end else count_all(every('saves')),
        alloc_retries=count_all(every('cuda_memory.retries')),
        build_s=recorded.meta.build_s,
        ledger_s=ledger_s,
        by_hook_s=_sum_hooks(recorded),
        reasons={**recorded.meta.unknown, **off},
        per_iteration=_average_parts(recorded.steady),
        data_wait_p95_s=median(steady('data_wait.p95_s')),
        data_wait_cpu_share=(
            waits_cpu_s / waits_s if waits_cpu_s is not None and waits_s else None
        ),
        images=sum_all(steady('images')),
        stored_pixel_ratio=median(steady('stored_pixel_ratio')),
        process_rss_bytes=largest(every('process_rss_bytes')),
        batch_bytes=largest(every('batch_bytes')),
        batch_tensors=largest(every('batch_tensors')),
        largest_batch_pixels=largest(every('largest_batch_pixels')),
        most_boxes=largest(every('most_boxes')),
        shm_free_bytes=smallest(every('host.shm_free_bytes')),
        gpu_mem_peak_bytes=largest(every('gpu_mem_peak_bytes')),
        gpu_mem_reserved_bytes=largest(every('gpu_mem_reserved_bytes')),
        inactive_bytes=largest(every('cuda_memory.inactive_bytes')),
        throttled_s=sum_known(throttled),
        throttle_counted_s=total(every('duration_s')[:counted]),
        worker_cpu_s=_per_batch(with_workers, 'workers.cpu_s'),
        worker_run_delay_s=_per_batch(with_workers, 'workers.run_delay_s'),
        worker_threads=largest(recorded.latest.column('worker_threads')),
        worker_thread_cpu_s=sum_known(steady('workers.thread_cpu_s')),
        gpu_idle_pct=average(steady('gpu_idle_pct'), idle_of_s),
        gpu_last_iteration=_find_last_sampled(recorded),
        gpu=summarize_gpu(recorded.steady, recorded.every),
        loader=_summarize_loader(recorded),
    )


def find_fullest_bytes(recorded: RecordedRun) -> int | None:
    """Find the largest peak of a card, over a rank and the other ranks of its run."""
    ranks = (recorded, *recorded.other_ranks)
    peaks = [largest(rank.column('gpu_mem_peak_bytes')) for rank in ranks]
    return max((peak for peak in peaks if peak is not None), default=None)


def _sum_ledger(recorded: RecordedRun) -> Mapping[str, float]:
    if recorded.end and recorded.end.ledger_s:
        return recorded.end.ledger_s
    kept = recorded.every.having('ledger_s')
    if not len(kept):
        return _split_loops(recorded.every)
    found = {part for spent_s in kept.values('ledger_s') for part in spent_s}
    seconds = {
        part: total(recorded.column('ledger_s', part))
        for part in PARTS
        if part in found
    }
    if seconds:
        seconds['startup'] = seconds.get('startup', 0.0) + recorded.meta.build_s
    return seconds


def _split_loops(loops: Intervals) -> Mapping[str, float]:
    """Split the time of loops that kept no ledger: waits, steps, starts of the loader.

    A start is what first waits exceed the others by.
    """
    column = loops.column
    waits_s, firsts_s = column('data_wait.total_s'), column('first_wait_s')
    firsts, others = column('first_waits'), column('iterations')
    others = np.maximum(others - firsts, 1.0)
    usual_s = np.maximum(waits_s - firsts_s, 0.0) / others
    startup_s = total(np.maximum(firsts_s - firsts * usual_s, 0.0))
    step_s = total(column('step.total_s'))
    seconds = {
        'data_wait': total(waits_s) - startup_s,
        'step': step_s,
        'startup': startup_s,
    }
    return seconds if len(loops) else {}


def _sum_hooks(recorded: RecordedRun) -> Mapping[str, float]:
    seconds: Counter[str] = Counter(recorded.end.hooks_s if recorded.end else {})
    if not seconds:
        for by_hook in recorded.every.having('hooks_s').values('hooks_s'):
            seconds.update(by_hook)
    return dict(seconds.most_common())


def _average_parts(steady: Intervals) -> IterationParts | None:
    iterations, wait_s = count_all(steady.column('iterations')), _mean_wait_s(steady)
    if not iterations or wait_s is None:
        return None

    def per_iteration(field: str, key: str | None = None) -> float:
        return total(steady.column(field, key)) / iterations

    return IterationParts(
        data_wait_s=wait_s,
        step_s=per_iteration('step.total_s'),
        hooks_s=per_iteration('ledger_s', 'hooks'),
        loop_s=per_iteration('ledger_s', 'loop'),
    )


def _select_with_workers(recorded: RecordedRun) -> Intervals:
    latest = recorded.latest
    return latest.where(latest.column('workers.count') > 0)


def _mean_wait_s(steady: Intervals) -> float | None:
    """Compute the mean wait over iterations that did not begin an epoch."""
    count = count_all(steady.column('iterations')) - total(steady.column('first_waits'))
    if count <= 0:
        return None
    waits_s = total(steady.column('data_wait.total_s'))
    return max(waits_s - total(steady.column('first_wait_s')), 0.0) / count


def _per_batch(windows: Intervals, field: str) -> float | None:
    """Compute a figure of the workers per batch.

    An epoch's may all be made in its first interval. Workers that were reached count
    their batches themselves; of the others, those that were taken are known.
    """
    made = windows.column('workers.batch_time.count')
    batches = total(np.where(np.isnan(made), windows.column('iterations'), made))
    return total(windows.column(field)) / batches if batches > 0 else None


def _find_last_sampled(recorded: RecordedRun) -> int | None:
    off = {record.source for record in recorded.evidence.sources_off}
    sampled = recorded.every.having('gpu.util_pct').values('iteration')
    if off.isdisjoint(('GPU', 'GPU util_pct')) or not sampled:
        return None
    return int(sampled[-1])


def summarize_gpu(intervals: Intervals, every: Intervals) -> GpuFigures | None:
    """Compute the figures of the card; ``None`` where no sample was taken.

    Args:
        intervals: The utilisation is taken over these.
        every: The rest is taken over these.
    """
    sampled = intervals.where(filled(intervals.column('gpu.samples')))
    if not len(sampled):
        return None
    calm = sampled.calm()
    steady = sampled.where(calm) if calm.sum() >= MIN_CALM else sampled
    every = every.having('gpu')
    sampled_s, duration_s = steady.column('gpu.sampled_s'), every.column('duration_s')
    shares: Counter[str] = Counter()
    for reasons in every.values('gpu.throttle_reasons_pct'):
        shares.update(reasons)
    return GpuFigures(
        samples=count_all(steady.column('gpu.samples')),
        util_pct=average(steady.column('gpu.util_pct'), sampled_s),
        zero_pct=average(steady.column('gpu.zero_pct'), sampled_s),
        mem_used_bytes=largest(every.column('gpu.mem_used_bytes')),
        temperature_c=largest(every.column('gpu.temperature_c')),
        sm_clock_mhz=average(every.column('gpu.sm_clock_mhz'), duration_s),
        sm_active_pct=average(every.column('gpu.sm_active_pct'), duration_s),
        throttled_pct=average(every.column('gpu.throttled_pct'), duration_s),
        throttle_reasons=[name for name, share in shares.most_common() if share]
        or None,
    )


def select_worker_intervals(recorded: RecordedRun) -> Intervals:
    """Select the intervals that means of the workers are taken over."""
    steady = recorded.steady.having('workers')
    # workers may have made all batches ahead, in the first interval
    is_timed = len(steady.having('workers.batch_time')) > 0
    return steady if is_timed else recorded.latest.having('workers')


def _summarize_loader(recorded: RecordedRun) -> LoaderFigures | None:
    every, steady = recorded.latest.having('workers'), select_worker_intervals(recorded)
    if not len(every):
        return None
    column, counts = steady.column, steady.column('workers.batch_cpu.count')
    batch_time_s = column('workers.batch_time.mean_s')
    batches = column('workers.batch_time.count')
    return LoaderFigures(
        batches=count_all(batches),
        timed_samples=count_all(column('workers.timed_samples')),
        batch_time_s=average(batch_time_s, batches),
        batch_time_std_s=pooled_std(
            batch_time_s, column('workers.batch_time_std_s'), batches
        ),
        batch_cpu_s=average(column('workers.batch_cpu.mean_s'), counts),
        fetch_cpu_s=average(column('workers.fetch_cpu_s'), counts),
        affinity_cpus=smallest(every.column('workers.affinity_cpus')),
        opencv_threads=largest(every.column('workers.opencv_threads')),
        pss_bytes=largest(every.column('workers.pss_bytes')),
    )
