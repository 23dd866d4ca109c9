"""Takes the waiting for cores out of what one run measured.

A run on few cores measures its step and its batches longer than they are, because the
workers, the step and strangers share the cores. A prediction simulates that sharing,
so it must not be in the costs: they are set so that the simulated run, at its own
setting, measures what the real one did. The same goes for what fetching a ready batch
takes, of which a run measures no more than what it adds to an iteration.
"""

from __future__ import annotations

from dataclasses import replace

from mmgpu_hooks.model.pace import alone_step_s
from mmgpu_hooks.model.scene import make_loop, rate_of, step_rate_of, step_threads
from mmgpu_hooks.model.simulation import Trace, simulate_loop
from mmgpu_hooks.model.team import bound_team_cpu, fit_power, quieten_team
from mmgpu_hooks.schema import LoaderWorkload

_ROUNDS, _DRAWS = 12, 512

_FETCH_RANGE = 0.25, 4.0
"""How far from the usual the fetching of a ready batch may be."""


_DELAY_SHARE, _ALL_DELAY = 0.5, 0.9
"""Part of a worker's waiting for cores that makes its loading longer; the rest is in
between two batches, or would be there on free cores too. Workers that cannot keep up
have always the next batch to make, and wait while they make one."""

_BUSY_FROM, _BUSY_ALL = 0.6, 0.9
"""Share of the cores in use from which, and at which, that waiting is contention."""


def calibrate(
    workload: LoaderWorkload,
    stranger_cores: float,
    run_delay_s: float | None = None,
    main_delay_s: float = 0.0,
) -> LoaderWorkload:
    """The workload whose simulation measures what the run did.

    Args:
        workload: With the costs as they were measured, and the usual fetching.
        stranger_cores: Cores that others used meanwhile.
        run_delay_s: What a worker waited for a core, per batch; no more is taken out
            of its loading. ``None`` when unknown.
        main_delay_s: What the main thread waited for one, per iteration.
    """
    measured = replace(workload, stranger_tasks=stranger_cores)
    workload = quieten_team(measured, main_delay_s)
    workload = replace(workload, step_cpu_s=bound_team_cpu(workload, measured))
    if workload.num_workers == 0:
        return _calibrate_alone(workload)
    least_loading_s = measured.batch_cpu.mean_s
    if run_delay_s is not None:
        least_loading_s = max(measured.occupancy.mean_s - run_delay_s, least_loading_s)
    fetching = 1.0
    for _ in range(_ROUNDS):
        trace = _simulate(workload)
        fetching *= _fetch_correction(measured, workload, trace)
        fetching = min(max(fetching, _FETCH_RANGE[0]), _FETCH_RANGE[1])
        workload = _correct_step(measured, workload, trace.step_s / trace.iterations)
        workload = replace(
            workload,
            occupancy=replace(
                workload.occupancy,
                mean_s=max(
                    workload.occupancy.mean_s
                    + measured.occupancy.mean_s
                    - trace.busy_s / trace.iterations,
                    least_loading_s,
                ),
            ),
            stranger_tasks=_correct_strangers(workload, stranger_cores, trace),
            fetch_s=measured.fetch_s * fetching,
            fetch_busy_s=measured.fetch_busy_s * fetching,
        )
    held_up_s = max(measured.step.mean_s - alone_step_s(workload), 0.0)
    workload = replace(workload, held_up_s=held_up_s)
    share = _ALL_DELAY if _is_starved(trace) else _DELAY_SHARE
    return _without_delay(measured, workload, share * (run_delay_s or 0.0))


def _correct_step(
    measured: LoaderWorkload, workload: LoaderWorkload, simulated_s: float
) -> LoaderWorkload:
    """The step, or how it suffers, set so that it comes out as it was measured."""
    fitted = fit_power(workload, measured.step.mean_s, simulated_s)
    if fitted.step_power != workload.step_power:
        return fitted
    step_s = workload.step.mean_s + measured.step.mean_s - simulated_s
    step_s = max(step_s, _least_step_s(workload))
    workload = replace(workload, step=replace(workload.step, mean_s=step_s))
    return replace(workload, step_cpu_s=bound_team_cpu(workload, measured))


def _without_delay(
    measured: LoaderWorkload, workload: LoaderWorkload, delay_s: float
) -> LoaderWorkload:
    """Loading without what the real scheduler added beyond the simulated one.

    A loop that does not starve does not show how long loading takes, nor does one in
    which workers take up all cores, so that a wrong figure would not show at the run's
    own setting.
    """
    cpu_s = workload.batch_cpu.mean_s + workload.step_cpu_s + workload.fetch_s
    cores = min(
        workload.usable_cores, workload.host_cores - workload.stranger_tasks / 2
    )
    used = cpu_s / (measured.iter_time.mean_s * max(cores, 0.5))
    busy = min(max((used - _BUSY_FROM) / (_BUSY_ALL - _BUSY_FROM), 0.0), 1.0)
    free_s = measured.occupancy.mean_s - busy * delay_s
    mean_s = max(min(workload.occupancy.mean_s, free_s), workload.batch_cpu.mean_s)
    return replace(workload, occupancy=replace(workload.occupancy, mean_s=mean_s))


def _is_starved(trace: Trace) -> bool:
    return trace.wait_s > 0.02 * trace.seconds


def _simulate(workload: LoaderWorkload) -> Trace:
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    loop = make_loop(workload, workers, prefetch, _DRAWS)
    return simulate_loop(loop, _DRAWS, min(3 * workers * prefetch, _DRAWS) + 16)


def _fetch_correction(
    measured: LoaderWorkload, workload: LoaderWorkload, trace: Trace
) -> float:
    """By how much the fetching has to grow for the iteration to come out right.

    A loop that waits for its workers anyway tells nothing of it.
    """
    fetch_s = trace.fetch_s / trace.iterations
    iter_s = trace.seconds / trace.iterations
    late_s = measured.iter_time.mean_s - iter_s
    if fetch_s <= 0.0 or _is_starved(trace):
        return 1.0
    step_late_s = measured.step.mean_s - trace.step_s / trace.iterations
    return max(1.0 + (late_s - step_late_s) / fetch_s, 0.5)


def _correct_strangers(
    workload: LoaderWorkload, stranger_cores: float, trace: Trace
) -> float:
    """Tasks of strangers that come to use what they used."""
    used = trace.stranger_cpu_s / trace.seconds
    if used <= 0.0:
        return stranger_cores
    tasks = workload.stranger_tasks * stranger_cores / used
    return min(tasks, 8 * workload.host_cores)


def _least_step_s(workload: LoaderWorkload) -> float:
    return max(workload.step_cpu_s, workload.spin_s) / step_threads(workload)


def _calibrate_alone(workload: LoaderWorkload) -> LoaderWorkload:
    threads = step_threads(workload)
    compute_s = max(workload.step_cpu_s - workload.spin_s, 0.0) / threads
    step_s = workload.step.mean_s - compute_s * (1 / step_rate_of(workload) - 1.0)
    step_s = max(step_s, _least_step_s(workload))
    cpu_s = workload.batch_cpu.mean_s
    loading_s = workload.occupancy.mean_s - cpu_s * (1 / rate_of(workload, 1) - 1.0)
    return replace(
        workload,
        step=replace(workload.step, mean_s=step_s),
        occupancy=replace(workload.occupancy, mean_s=max(loading_s, cpu_s)),
    )
