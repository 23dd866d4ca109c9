"""Derives the loading and step times that predictions need from a run's measurements.

Costs have a mean, a spread and a standard error each. A run whose pipeline or step
changed midway is cut, and its last long part taken.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.judge.columns import Column, Intervals, median, read_field, total
from mmgpu_hooks.judge.figures import RunFigures, summarize_run
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.model.bounds import MOST_PREFETCH, MOST_WORKERS
from mmgpu_hooks.model.calibration import calibrate
from mmgpu_hooks.model.prediction import first_batch_s
from mmgpu_hooks.model.stats import find_last_change
from mmgpu_hooks.model.workload import (
    DEFAULT_PREFETCH,
    GAP_S,
    Cost,
    Transfer,
    Workload,
    estimate_transfer,
)
from mmgpu_hooks.schema.errors import NoPredictionError
from mmgpu_hooks.schema.recorded import RunRecord
from mmgpu_hooks.schema.text import Text, phrase

_MOST_CORES = 65536
"""Largest plausible number of cores of one host."""

_WORKER_START_S = 0.02
"""Seconds that a worker adds to the start of an epoch, if not measured.

A fork of a process that has PyTorch loaded, on an ordinary server.
"""

_LONGEST_S = 3600.0
"""Longest plausible iteration, in seconds.

One that takes longer is an error of an editor or of a clock.
"""

_Z95 = 1.645
"""The 95th percentile of a normal distribution, in standard deviations."""

_LEAST_COUNT = 8
"""Smallest number of batches or steps in an interval for percentiles to be used."""

_USUAL_VARIATION = 0.3
"""Relative spread assumed for a batch's loading time that was not measured."""


class _Bounded(NamedTuple):
    """Measured value of a run, with the largest value that is possible."""

    field: str
    """Dotted path of a measured value, such as ``figures.main_cpu_s``."""
    most: float


_NEEDED = {
    phrase('num_workers of the loader'): _Bounded(
        'meta.loader.num_workers', MOST_WORKERS
    ),
    phrase('number of usable cores'): _Bounded('meta.host.usable_cores', _MOST_CORES),
    phrase('wait for data per iteration'): _Bounded(
        'figures.per_iteration.data_wait_s', _LONGEST_S
    ),
    phrase('time of a step'): _Bounded('figures.per_iteration.step_s', _LONGEST_S),
    phrase('time in hooks per iteration'): _Bounded(
        'figures.per_iteration.hooks_s', _LONGEST_S
    ),
    phrase('CPU of the training process'): _Bounded('figures.main_cpu_s', _LONGEST_S),
}
"""Measured values that predictions need, by the names that users are shown."""

_USED = {
    phrase('prefetch_factor'): _Bounded('meta.loader.prefetch_factor', MOST_PREFETCH),
    phrase('number of CPUs'): _Bounded('meta.host.logical_cpus', _MOST_CORES),
    phrase('CPU of the workers per batch'): _Bounded(
        'figures.worker_cpu_s', _LONGEST_S
    ),
    phrase('wait for cores per batch'): _Bounded(
        'figures.worker_run_delay_s', _LONGEST_S
    ),
    phrase('time of a worker per batch'): _Bounded(
        'figures.loader.batch_time_s', _LONGEST_S
    ),
    phrase('spread of that time'): _Bounded(
        'figures.loader.batch_time_std_s', _LONGEST_S
    ),
    phrase('CPU of a worker per batch'): _Bounded(
        'figures.loader.batch_cpu_s', _LONGEST_S
    ),
}


def fit_workload(recorded: RecordedRun, figures: RunFigures) -> Workload:
    """Fits the loading and step times on which predictions are based to one rank's run.

    A run whose pipeline changed midway is cut and its last long part taken.

    Args:
        recorded: The run.
        figures: Of the whole run.

    Raises:
        NoPredictionError: If the run does not show it.
    """
    part = _cut_part(recorded, figures)
    workload = _make_workload(part)
    # other load and waits for cores that nobody saw are planned for as none
    external_cores = part.figures.external_cpu_cores or 0.0
    workload = calibrate(
        workload,
        other_cores=min(external_cores / part.meta.host.ranks, workload.host_cores),
        run_delay_s=_run_delay_s(part),
        main_delay_s=part.figures.main_run_delay_s or 0.0,
        batch_bytes=part.figures.batch_bytes,
    )
    return replace(
        workload,
        worker_start_s=_worker_start_s(part, workload),
        usable_cores=part.needed.usable_cores,
    )


class _Needed(NamedTuple):
    """Measured values of a run without which nothing can be predicted."""

    workers: int
    usable_cores: float
    iter_s: float
    data_wait_s: float
    step_s: float
    hooks_s: float
    main_cpu_s: float
    """CPU seconds of the training process per iteration."""


@dataclass(frozen=True)
class _Part:
    """Run, or its last long part, to which loading and step times are fitted."""

    recorded: RecordedRun
    figures: RunFigures
    """Statistics of this part of the run only: times, CPU, memory."""
    notes: tuple[Text, ...] = ()
    """Sentences for the user on which part of the run was taken."""

    @property
    def meta(self) -> RunRecord:
        """First record of the run's evidence file: settings, host limits, identity."""
        return self.recorded.meta

    @cached_property
    def needed(self) -> _Needed:
        """Measured values of a run without which nothing can be predicted.

        Raises:
            NoPredictionError: If one is unknown or absurd.
        """
        missing = _find_missing(self)
        if missing is not None:
            raise NoPredictionError(missing)
        needed = _Needed(
            workers=read_field(self, 'meta.loader.num_workers'),
            usable_cores=read_field(self, 'meta.host.usable_cores'),
            iter_s=read_field(self, 'figures.iter_s'),
            data_wait_s=read_field(self, 'figures.per_iteration.data_wait_s'),
            step_s=read_field(self, 'figures.per_iteration.step_s'),
            hooks_s=read_field(self, 'figures.per_iteration.hooks_s'),
            main_cpu_s=read_field(self, 'figures.main_cpu_s'),
        )
        if not needed.iter_s or not needed.usable_cores:
            raise NoPredictionError(
                phrase(
                    'Iterations took no time, or there is no core; was the evidence '
                    'edited?'
                )
            )
        return needed


def _cut_part(recorded: RecordedRun, figures: RunFigures) -> _Part:
    """Returns the part of a run after its loading or step time last changed.

    It is the whole run when nothing changed, or the part after the change is too short.
    """
    latest, cut = recorded.latest, 0
    counts = latest.column('iterations')
    for field in ('workers.batch_time.mean_s', 'step.p50_s'):
        found = _find_cut(latest.column(field))
        # the first interval of a part counts as its warm-up
        if counts[found + 1 :].sum() >= thresholds.MIN_ITERATIONS:
            cut = max(cut, found)
    if not cut:
        return _Part(recorded, figures)
    part = recorded.since(len(recorded.every) - len(latest) + cut)
    first = int(part.column('iteration')[0])
    why = phrase(
        'The pipeline or the step changed during the run: only what was measured from '
        'iteration {iteration} on is used.',
        iteration=first,
    )
    return _Part(part, summarize_run(part), (why,))


def _find_cut(values: Column) -> int:
    """Finds the index of the log interval where a value last changed; 0 if never."""
    known = np.flatnonzero(~np.isnan(values))
    known = known[known > 0]  # the first holds lazy initialisation
    change = find_last_change(values[known].tolist())
    return 0 if change is None else int(known[change])


def _find_missing(part: _Part) -> Text | None:
    """Says why a run's records do not suffice for predictions; ``None`` if they do."""
    if part.figures.steady_iterations < thresholds.MIN_ITERATIONS:
        return phrase(
            'Not enough evidence: {steady_iterations:d} steady iterations, '
            '{needed_iterations:d} needed.',
            steady_iterations=part.figures.steady_iterations,
            needed_iterations=thresholds.MIN_ITERATIONS,
        )
    for name, bounded in {**_NEEDED, **_USED}.items():
        value = read_field(part, bounded.field)
        if value is None and name in _NEEDED:
            source = 'CPU' if 'CPU' in name else 'loader workers'
            reason = part.figures.unknown.get(source)
            if reason is None:
                return phrase(
                    'The {figure} is unknown: it was not recorded.', figure=name
                )
            return phrase(
                'The {figure} is unknown: {reason}.', figure=name, reason=reason
            )
        if value is not None and not 0.0 <= value <= bounded.most:
            return phrase(
                'The {figure} is absurd: {found}; was the evidence edited?',
                figure=name,
                found=format(value, 'g'),
            )
    return None


def _make_workload(part: _Part) -> Workload:
    record, settings, needed = part.meta, part.meta.loader, part.needed
    workers, iter_s, notes = needed.workers, needed.iter_s, [*part.notes]
    loaded = _loading_cost(part)
    loading, is_known = loaded.cost, loaded.is_measured
    cpu = _batch_cpu_cost(part, loading) if loading else None
    if loading is None or cpu is None:
        raise NoPredictionError(
            phrase('The time or the CPU of loading a batch is unknown.')
        )
    step_cpu_s, usable = needed.main_cpu_s, needed.usable_cores
    burnt_s = cpu.mean_s + step_cpu_s
    too_much = _find_too_much(part, burnt_s)
    if too_much is not None:
        raise NoPredictionError(too_much)
    # OpenMP's other threads had the rest of the cores, the workers only these
    had = burnt_s / iter_s
    if part.recorded.cores_had is not None:
        had = max(part.recorded.cores_had, had)
    if had < usable and record.host.unbound_cpus is not None:
        notes.append(
            phrase(
                'The run was bound to {affinity_cpus:d} of {unbound_cpus} (MG113); the '
                'predictions are for the {usable_cores:g} usable cores that it has '
                'without that.',
                affinity_cpus=record.host.affinity_cpus,
                unbound_cpus=record.host.unbound_cpus,
                usable_cores=usable,
            )
        )
    if not is_known:
        notes.append(
            phrase(
                "The workers' time per batch was not measured inside them, and they "
                'were not always busy: it is only bounded.'
            )
        )
    transfer = _transfer(part, loading, cpu)
    # with workers it is in the CPU already; what is between two batches is not measured
    whole_s = loading.mean_s + (GAP_S if workers else transfer.whole_s)
    cpu_s = cpu.mean_s + (0.0 if workers else transfer.cpu_s)
    step_s = iter_s - needed.data_wait_s
    logical = (record.host.logical_cpus or usable) / record.host.ranks
    return Workload(
        num_workers=workers,
        prefetch_factor=settings.prefetch_factor or DEFAULT_PREFETCH,
        persistent_workers=bool(settings.persistent_workers),
        batch_size=settings.batch_size or None,
        iterations=part.figures.steady_iterations,
        iter_time=_of_intervals(part, iter_s, 'iter'),
        batch_time=replace(loading, mean_s=whole_s),
        batch_cpu=replace(cpu, mean_s=min(cpu_s, whole_s) if workers else cpu_s),
        step=_of_intervals(part, step_s, 'step'),
        step_cpu_s=step_cpu_s,
        fetch_s=transfer.fetch_s,
        fetch_busy_s=transfer.fetch_busy_s,
        fetch_error=transfer.fetch_error,
        transfer_s=transfer.whole_s,
        transfer_cpu_s=transfer.cpu_s,
        usable_cores=min(had, usable),
        # this rank's part of the host: the other ranks keep theirs busy
        host_cores=max(logical, usable),
        spin_s=_spin_s(part, step_cpu_s),
        transfer_cpu_error=transfer.cpu_error,
        is_transfer_known=workers > 0,
        is_batch_time_known=is_known,
        notes=tuple(notes),
    )


def _find_too_much(part: _Part, burnt_s: float) -> Text | None:
    """Returns why a rank's CPU use is impossible, or exceeds its share of the host.

    Args:
        part: Of one rank's run.
        burnt_s: CPU of an iteration.
    """
    usable, ranks = part.needed.usable_cores, part.meta.host.ranks
    iter_s = part.needed.iter_s
    used = burnt_s / iter_s
    if used <= 1.15 * usable:
        return None
    if used <= 1.15 * usable * ranks:
        return phrase(
            'This rank used {used_cores:.1f} cores, more than its part of the host '
            '({usable_cores:g}, one of {ranks}): others left theirs idle, and '
            'predictions take ranks to be alike.',
            used_cores=used,
            usable_cores=usable,
            ranks=ranks,
        )
    return phrase(
        'The figures contradict each other: {burnt_s:.4f} s of CPU per iteration, in '
        '{iter_s:.4f} s on {usable_cores:g} usable cores.',
        burnt_s=burnt_s,
        iter_s=iter_s,
        usable_cores=usable,
    )


def _transfer(part: _Part, loading: Cost, cpu: Cost) -> Transfer:
    """Estimates seconds of collating and sending a batch, from a run's measurements."""
    workers = part.meta.loader.num_workers
    wait_s, wait_cpu_s, sent_cpu_s = part.needed.data_wait_s, None, None
    if workers and part.figures.data_wait_cpu_share is not None:
        wait_cpu_s = wait_s * min(max(part.figures.data_wait_cpu_share, 0.0), 1.0)
    if workers and part.figures.loader:
        sent_cpu_s = part.figures.loader.sent_cpu_s
    transfer = estimate_transfer(
        part.figures.batch_tensors,
        part.figures.batch_bytes,
        loading,
        cpu,
        sent_cpu_s=sent_cpu_s,
        wait_s=wait_s,
        wait_cpu_s=wait_cpu_s,
    )
    if sent_cpu_s is None:
        return transfer
    # a worker's own threads send, beside its loading: little of it is within the fetch
    within_s = min(cpu.mean_s, loading.mean_s + GAP_S) - (cpu.mean_s - sent_cpu_s)
    return transfer._replace(cpu_s=max(within_s, 0.0), whole_s=GAP_S)


def _spin_s(part: _Part, step_cpu_s: float) -> float:
    """Estimates the CPU seconds that the training process spins waiting for the GPU.

    It is all of it but the time in which the GPU had nothing to do outside the waits
    for data: then the process was giving it work.
    """
    if part.meta.device != 'cuda':
        return 0.0
    needed, idle_pct = part.needed, part.figures.gpu_idle_pct
    giving_s = needed.hooks_s
    if idle_pct is not None:
        idle_s = idle_pct / 100.0 * needed.iter_s
        giving_s = max(idle_s - needed.data_wait_s, giving_s)
    return min(max(step_cpu_s - giving_s, 0.0), needed.step_s)


def _worker_start_s(part: _Part, workload: Workload) -> float:
    """Estimates the seconds that one worker adds to the start of an epoch."""
    if not workload.num_workers or not part.figures.epoch_starts:
        return _WORKER_START_S
    starts = 1 if workload.persistent_workers else part.figures.epoch_starts
    latency_s = part.figures.epoch_starts * first_batch_s(workload)
    return max(part.figures.startup_s - latency_s, 0.0) / starts / workload.num_workers


class _Loading(NamedTuple):
    """Seconds from a batch's loading start to its end, without waiting for cores."""

    cost: Cost | None
    is_measured: bool
    """True if the loading time was measured, False if it is a bound or unknown."""


def _loading_cost(part: _Part) -> _Loading:
    loader, workers = part.figures.loader, part.needed.workers
    std_s = loader.batch_time_std_s if loader else None
    wait_s, iter_s = part.needed.data_wait_s, part.needed.iter_s
    if workers == 0:
        waits = _of_intervals(part, wait_s, 'data_wait')
        if std_s is None:
            return _Loading(waits, is_measured=True)
        waits = _with_rare(replace(waits, std_s=std_s), part.recorded.latest.after(1))
        return _Loading(waits, is_measured=True)
    if loader is not None and loader.batch_time_s is not None:
        # of a single batch no spread is known
        whole_s, std_s, count = loader.batch_time_s, std_s or 0.0, loader.batches
        error_s = std_s / math.sqrt(count) if count else whole_s
        loading = Cost(whole_s, std_s, error_s, count)
        return _Loading(_with_rare(loading, part.recorded.latest), is_measured=True)
    low_s = part.figures.worker_cpu_s
    if low_s is None:
        return _Loading(None, is_measured=False)
    high_s, delay_s = workers * iter_s, part.figures.worker_run_delay_s
    high_s = max(high_s if delay_s is None else high_s - delay_s, low_s)
    if wait_s >= 0.1 * iter_s:
        # workers that cannot keep up are busy all the time
        loading = Cost(high_s, _USUAL_VARIATION * high_s, 0.1 * high_s)
        return _Loading(loading, is_measured=True)
    mean_s = (low_s + high_s) / 2
    loading = Cost(mean_s, _USUAL_VARIATION * mean_s, (high_s - low_s) / 4)
    return _Loading(loading, is_measured=False)


_RARE_FROM = 0.02
"""Smallest share (0 to 1) of loading time added by rare slow batches to model them."""
_RARE_AT_MOST = 0.05
"""Largest share (0 to 1) of slow batches that counts as rare.

The 95th percentile does not see these.
"""
_RARE_TIMES = 1.5
"""Smallest ratio of a rare slow batch's loading time to the 95th percentile."""


def _with_rare(loading: Cost, intervals: Intervals) -> Cost:
    """Adds rare slow batches, which percentiles do not see, to the loading time.

    Median and 95th percentile give a log-normal. What mean and mean square are above
    those of it is rare: method of moments, for a share and one time.
    """
    usual = _log_normal(intervals, 'workers.batch_time')
    if usual is None:
        return loading
    mean_s, square = loading.mean_s, loading.std_s**2 + loading.mean_s**2
    more_s = mean_s - usual.mean_s
    more_square = square - usual.mean_s**2 - usual.std_s**2
    if more_s < _RARE_FROM * mean_s or more_square <= 0.0:
        return loading
    rare_s = more_square / more_s - usual.mean_s
    if rare_s < _RARE_TIMES * usual.p95_s:
        return loading
    share = more_s / (rare_s - usual.mean_s)
    if share > _RARE_AT_MOST:
        return loading
    return replace(loading, std_s=usual.std_s, rare_share=share, rare_s=rare_s)


class _LogNormal(NamedTuple):
    """Log-normal distribution of a time per batch, fitted to percentiles."""

    mean_s: float
    std_s: float
    p95_s: float


def _log_normal(intervals: Intervals, field: str) -> _LogNormal | None:
    """Fits a log-normal to a time per batch; ``None`` if too little is known."""
    counts = intervals.column(f'{field}.count')
    p50_s = median(intervals.column(f'{field}.p50_s')[counts >= _LEAST_COUNT])
    sigma = _sigma(intervals, field)
    if p50_s is None or sigma is None or p50_s <= 0.0:
        return None
    mean_s = p50_s * math.exp(sigma**2 / 2)
    std_s = math.sqrt(math.expm1(sigma**2)) * mean_s
    return _LogNormal(mean_s, std_s, p50_s * math.exp(_Z95 * sigma))


def _run_delay_s(part: _Part) -> float | None:
    """Computes seconds per batch that workers waited for a core, without the warm-up.

    The start, when all workers make their first batches side by side, is left out if
    the intervals allow it.
    """
    windows = part.recorded.latest.after(1)
    made = total(windows.column('workers.batch_time.count'))
    if made <= 0:
        return part.figures.worker_run_delay_s
    return total(windows.column('workers.run_delay_s')) / made


def _batch_cpu_cost(part: _Part, loading: Cost) -> Cost | None:
    """Computes the mean CPU seconds to load a batch, with their spread and error."""
    if part.meta.loader.num_workers:
        cpu_s = part.figures.loader.batch_cpu_s if part.figures.loader else None
        cpu_s = part.figures.worker_cpu_s if cpu_s is None else cpu_s
    else:
        share = part.figures.data_wait_cpu_share
        cpu_s = None if share is None else share * loading.mean_s
    if cpu_s is None:
        return None
    variation = _variation(part.recorded.latest, 'workers.batch_cpu')
    if variation is None:
        variation = loading.variation
    error_s = loading.relative_error * cpu_s
    cpu = Cost(cpu_s, variation * cpu_s, error_s, loading.count)
    share = loading.rare_share
    usual = _log_normal(part.recorded.latest, 'workers.batch_cpu') if share else None
    if usual is None:
        return cpu
    # how much of a rare batch is CPU shows in the mean over all
    rare_s = (cpu_s - (1.0 - share) * usual.mean_s) / share
    if rare_s <= usual.mean_s:
        return cpu
    return replace(cpu, std_s=usual.std_s, rare_share=share, rare_s=rare_s)


def _of_intervals(part: _Part, mean_s: float, field: str) -> Cost:
    """Makes a `Cost` of a mean time, with its spread and error over log intervals."""
    intervals, count = part.recorded.latest.after(1), part.figures.steady_iterations
    # too few to show how they vary: their means below still do
    variation = _variation(intervals, field) or 0.0
    error_s = variation * mean_s / math.sqrt(max(count, 1))
    means = intervals.column(f'{field}.mean_s')
    means = means[(means >= 0.0) & (means <= _LONGEST_S)]
    if len(means) >= 3:
        # intervals that differ more than chance would have them drift
        error_s = max(error_s, float(means.std(ddof=1)) / math.sqrt(len(means)))
    return Cost(mean_s, variation * mean_s, error_s, count)


def _variation(intervals: Intervals, field: str) -> float | None:
    """Returns a time's standard deviation over its mean, from its percentiles."""
    sigma = _sigma(intervals, field)
    return None if sigma is None else math.sqrt(math.expm1(sigma**2))


def _sigma(intervals: Intervals, field: str) -> float | None:
    """Returns the standard deviation of a time's logarithm, from its percentiles.

    It is at most 1.5; ``None`` where too little is known.
    """
    p50_s = intervals.column(f'{field}.p50_s')
    p95_s = intervals.column(f'{field}.p95_s')
    counts = intervals.column(f'{field}.count')
    is_known = (counts >= _LEAST_COUNT) & (p50_s > 0) & (p95_s >= p50_s)
    sigma = median(np.log(p95_s[is_known] / p50_s[is_known]) / _Z95)
    return None if sigma is None else min(sigma, 1.5)
