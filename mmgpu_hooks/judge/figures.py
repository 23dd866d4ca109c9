"""Statistics of one rank's training run, and values derived from them.

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
"""Smallest number of log intervals without validation or save to average over."""


@dataclass(frozen=True)
class IterationParts:
    """Mean seconds of a steady iteration by part: data wait, step, hooks, loop."""

    data_wait_s: float
    """Mean wait for data, in seconds, of iterations that do not begin an epoch."""
    step_s: float
    hooks_s: float
    loop_s: float
    """Seconds per iteration in the training loop outside waits, steps and hooks."""

    @property
    def total_s(self) -> float:
        """Mean seconds per iteration: ``data_wait_s + step_s + hooks_s + loop_s``."""
        return self.data_wait_s + self.step_s + self.hooks_s + self.loop_s

    @property
    def data_wait_share(self) -> float:
        """Share (0 to 1) of an iteration's time spent waiting for data."""
        return self.data_wait_s / self.total_s if self.total_s else 0.0


@dataclass(frozen=True)
class LoaderFigures:
    """Statistics of the DataLoader's workers: batch times, CPU seconds, memory.

    Where no time per batch is known in steady intervals (an epoch whose batches were
    all made in the first one), that interval is taken too.
    """

    batches: int
    """Number of batches over which the mean batch time is taken."""
    timed_samples: int
    """Number of samples whose transforms were timed."""
    batch_time_s: float | None = None
    """Mean batch time: seconds that a worker was busy with one batch.

    ``None`` where workers were not reached.
    """
    batch_time_std_s: float | None = None
    """Standard deviation, in seconds, of the batch time over all batches.

    Not of the mean over intervals.
    """
    batch_cpu_s: float | None = None
    """Mean CPU seconds of a worker per batch; ``None``: workers were not reached."""
    fetch_cpu_s: float | None = None
    """Mean CPU seconds of a worker per batch, without sending the batch."""
    affinity_cpus: int | None = None
    """Number of CPUs that the DataLoader worker with the fewest may run on."""
    opencv_threads: int | None = None
    """Number of OpenCV's threads in a DataLoader worker."""
    pss_bytes: int | None = None
    """Bytes of memory of all DataLoader workers (PSS: shared pages count in part)."""

    @property
    def sent_cpu_s(self) -> float | None:
        """CPU seconds of a worker for sending one batch: copies, file descriptors."""
        if self.batch_cpu_s is None or self.fetch_cpu_s is None:
            return None
        return max(self.batch_cpu_s - self.fetch_cpu_s, 0.0)


@dataclass(frozen=True)
class GpuFigures:
    """Statistics of one rank's GPU: utilisation, memory, temperature, throttling.

    Utilisation is of plain training, where it has `MIN_CALM` intervals with samples;
    what is read every few seconds only is of all intervals.
    """

    samples: int
    """Number of samples of the GPU utilisation."""
    util_pct: float | None = None
    """Time-weighted mean of the GPU utilisation by NVML, in per cent."""
    zero_pct: float | None = None
    """Share of the sampled time at 0 % GPU utilisation, in per cent."""
    mem_used_bytes: int | None = None
    temperature_c: int | None = None
    sm_clock_mhz: float | None = None
    sm_active_pct: float | None = None
    throttled_pct: float | None = None
    throttle_reasons: Sequence[str] | None = None
    """Reasons for throttling the GPU, most usual first; ``None`` if none is known."""


@dataclass(frozen=True)
class RunFigures:
    """Statistics of one rank's training run: times, CPU, memory, GPU, workers."""

    iterations: int
    """Number of iterations that were recorded."""
    steady_iterations: int
    """Number of iterations in steady log intervals: those after the warm-up.

    With 0, means over steady iterations are unknown.
    """
    epoch_starts: int
    """Number of epochs that began, counted by their first waits for data."""
    saves: int
    """Number of checkpoint saves of the whole run."""
    alloc_retries: int
    """Number of GPU allocations that failed at the first attempt; 0 if not counted."""
    build_s: float
    """Seconds from building the Runner to the start of its train loop."""
    ledger_s: Mapping[str, float]
    """Seconds of the whole run by part, such as data wait; they sum to its duration."""
    by_hook_s: Mapping[str, float]
    """Seconds that hooks took over the whole run, by class, most expensive first.

    What is left of ``ledger_s['hooks']`` is MMEngine's own calling.
    """
    reasons: Mapping[str, str]
    """Recorded reasons why a source of measurements has no values, by source."""

    per_iteration: IterationParts | None = None
    """Mean seconds of a steady iteration by part; ``None`` without steady iterations.

    Iterations that begin an epoch are left out.
    """
    data_wait_p95_s: float | None = None
    data_wait_cpu_share: float | None = None
    """CPU time of the training process in data waits, as a share of their duration.

    More than 1 where the process has several threads.
    """
    images: float | None = None
    """Number of images trained on in the steady iterations."""
    stored_pixel_ratio: float | None = None

    process_rss_bytes: int | None = None
    batch_bytes: int | None = None
    batch_tensors: int | None = None
    largest_batch_pixels: int | None = None
    most_boxes: int | None = None
    shm_free_bytes: int | None = None
    """Smallest free bytes of ``/dev/shm`` at the end of any interval."""
    gpu_mem_peak_bytes: int | None = None
    gpu_mem_reserved_bytes: int | None = None
    inactive_bytes: int | None = None
    """Most bytes in inactive split GPU memory blocks at the end of any log interval."""

    main_cpu_s: float | None = None
    """CPU seconds of the training process per iteration, outside its data waits."""
    main_run_delay_s: float | None = None
    """Seconds per iteration that the training's main thread waited for a core."""
    process_cpu_cores: float | None = None
    """Mean number of cores that the training process used."""
    why_no_cpu: str | None = None
    """Reason why the CPU seconds of the training process are unknown."""
    external_cpu_cores: float | None = None
    """Mean number of the host's cores that other programs used during the training.

    With several ranks on the host, all of their evidence is needed: see
    ``why_no_external``.
    """
    why_no_external: str | None = None
    """Reason why the number of cores that other programs used is unknown."""
    throttled_s: float | None = None
    """Seconds for which the CPU quota held tasks back; unknown intervals left out."""
    throttle_counted_s: float = 0.0
    """Seconds of training during which throttling by the CPU quota was recorded."""

    worker_cpu_s: float | None = None
    """CPU seconds of all workers per batch, over the whole run.

    Workers make batches ahead, so steady intervals alone would not do.
    """
    worker_run_delay_s: float | None = None
    """Seconds that workers waited for a core, per batch that they loaded."""
    worker_threads: int | None = None
    """Largest number of threads that one worker had, PyTorch's own included."""
    worker_thread_cpu_s: float | None = None
    """CPU seconds of the workers' non-main threads, summed over steady iterations."""

    gpu_idle_pct: float | None = None
    """Share of the time of steady iterations that the GPU was idle, in per cent."""
    gpu_last_iteration: int | None = None
    """Last iteration with GPU utilisation; ``None`` unless sampling stopped early."""
    gpu: GpuFigures | None = None
    """Statistics of the GPU that this rank trains on; ``None`` without a sample."""
    loader: LoaderFigures | None = None
    """Statistics of the DataLoader's workers; ``None`` if none could be read."""

    @property
    def iter_s(self) -> float | None:
        """Mean seconds of a steady iteration, waits at the start of epochs left out."""
        return self.per_iteration.total_s if self.per_iteration else None

    @property
    def images_per_s(self) -> float | None:
        """Images per second of this rank, in steady iterations."""
        if not self.images or not self.iter_s:
            return None
        return self.images / (self.iter_s * self.steady_iterations)

    @property
    def data_wait_share(self) -> float | None:
        """Share (0 to 1) of a steady iteration's time spent waiting for data."""
        return self.per_iteration.data_wait_share if self.per_iteration else None

    @property
    def is_enough(self) -> bool:
        """True if enough steady iterations of measurable length exist to judge by."""
        return bool(self.iter_s) and self.steady_iterations >= thresholds.MIN_ITERATIONS

    @property
    def duration_s(self) -> float:
        """Seconds from building the Runner to the run's end: sum of ``ledger_s``."""
        return math.fsum(self.ledger_s.values())

    @property
    def startup_s(self) -> float:
        """Seconds of the run in loader starts: mostly waits for epochs' first batch."""
        return max(self.ledger_s.get('startup', 0.0) - self.build_s, 0.0)

    @property
    def throttled_pct(self) -> float | None:
        """Share of the recorded time that a CPU quota held tasks back, in per cent."""
        if self.throttled_s is None or not self.throttle_counted_s:
            return None
        return 100 * self.throttled_s / self.throttle_counted_s

    @property
    def unknown(self) -> Mapping[str, str]:
        """Reasons why measured values are missing, by measurement source."""
        why = {'CPU': self.why_no_cpu, 'CPU of other programs': self.why_no_external}
        known = {source: reason for source, reason in why.items() if reason}
        return {**known, **self.reasons}

    @property
    def why_no_gpu_util(self) -> str:
        """Reason why the GPU's utilisation is unknown."""
        reasons = (self.unknown.get(source) for source in ('GPU', 'GPU util_pct'))
        return next(filter(None, reasons), phrase('no sample was taken'))

    def run_share(self, seconds: float) -> float:
        """Returns ``seconds`` as a share (0 to 1) of the whole run's time."""
        return seconds / self.duration_s if self.duration_s > 0 else 0.0

    def part_share(self, part: str) -> float:
        """Returns the share (0 to 1) of the run's time in one part, such as saves."""
        return self.run_share(self.ledger_s.get(part, 0.0))


def summarize_run(recorded: RecordedRun) -> RunFigures:
    """Computes times, memory, CPU and GPU statistics of one rank's recorded run."""
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
    """Collects the records from which a rank's CPU seconds and cores are computed.

    Made of few columns: there may be many ranks.
    """
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
    """Computes all statistics of a run that need no records of other ranks."""
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
    """Finds the largest GPU memory peak, in bytes, over all ranks of a run."""
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
    """Divides intervals' time, if not recorded by part, into waits, steps and starts.

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
    """Computes mean seconds of data wait of iterations that did not begin an epoch."""
    count = count_all(steady.column('iterations')) - total(steady.column('first_waits'))
    if count <= 0:
        return None
    waits_s = total(steady.column('data_wait.total_s'))
    return max(waits_s - total(steady.column('first_wait_s')), 0.0) / count


def _per_batch(windows: Intervals, field: str) -> float | None:
    """Divides the workers' sum of a measured value by the number of batches.

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
    """Computes the statistics of the GPU; ``None`` if no sample was taken.

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
    """Selects the log intervals over which means of DataLoader workers are taken."""
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
