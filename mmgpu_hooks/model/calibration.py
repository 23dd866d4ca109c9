"""Subtracts waits for CPU cores from the measured loading and step times of a run.

A run on few cores measures its step and its batches longer than they are, because the
workers, the step and other processes share the cores. A prediction simulates that
sharing, so it must not be in the costs: they are set so that the simulated run, at its
own setting, measures what the real one did. The same goes for what fetching a ready
batch takes, of which a run measures no more than what it adds to an iteration.

Each thread of a step on several threads does a part of every operation, and all wait
until the last is done. A thread that waits for a core so holds up the others, which
spin: the delays of the threads add up in the step, and its CPU grows although its work
does not. The same happens to loading in the training process; workers have one thread.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.model.simulation import WAKE_S, Trace, make_loop, settle, simulate_loop
from mmgpu_hooks.model.workload import Workload

USUAL_POWER = 2.7
"""Assumed exponent that turns a thread's share of a core into the train step's speed.

It is `Workload.step_power` where no run shows it.

Two threads and a worker that share two cores have two thirds of a core each, and one of
the three pairs that may run is both threads: a third of the time, and 2/3 to this power
is a third.
"""

_POWERS = 1.0, 4.0
_SEEN_FROM = 0.02
"""Smallest loss of step time to workers (share, 0 to 1) that shows ``step_power``.

The exponent is `Workload.step_power`, which is fitted from that loss on.
"""
_LEAST_SHARE = 0.25
"""Smallest share (0 to 1) of measured step time left after core waits are removed.

However delayed its threads were.
"""
_DELAY_ERROR = 0.1
"""Relative standard error of the core waits that are taken out of the train step."""

_ROUNDS, _DRAWS = 12, 512

_LEAST_FETCHING, _MOST_FETCHING = 0.25, 4.0
"""Smallest and largest correction factor on the assumed time of fetching a batch."""

_TURNS_ERROR = 0.4
"""Relative standard error of a busy host's extra time for loading without workers.

They are `Workload.turns_s`.
"""
_SPIN_S = 0.005
"""Seconds that an OpenMP thread (libgomp) busy-waits after its work has ended.

After the step, while the training process loads.
"""
_THREAD_BYTES = 4 * 32768
"""Bytes of a float32 tensor for which PyTorch adds one CPU thread (``GRAIN_SIZE``)."""

_BUSY_FROM, _BUSY_ALL = 0.6, 0.9
"""Core use (0 to 1) above which loading is slowed by some, and by all, waits for cores.

From the first on some of the waits do, from the second on all of them. Other waits are
between two batches, or the scheduler's although a core is free.
"""


def calibrate(
    workload: Workload,
    other_cores: float,
    run_delay_s: float | None = None,
    main_delay_s: float = 0.0,
    batch_bytes: int | None = None,
) -> Workload:
    """Corrects measured loading and step times so that a simulation reproduces the run.

    Args:
        workload: With the costs as they were measured, and the usual fetching.
        other_cores: Cores that other processes used meanwhile.
        run_delay_s: What a worker waited for a core, per batch; no more is taken out
            of its loading. ``None`` when unknown.
        main_delay_s: What the main thread waited for one, per iteration.
        batch_bytes: Of the tensors in a batch; ``None`` when unknown.
    """
    measured = replace(workload, other_tasks=other_cores)
    if measured.num_workers and not measured.spin_s:
        measured = replace(measured, step_waits_s=_step_waits_s(measured, main_delay_s))
    workload = _with_step_cpu(_take_out_delays(measured, main_delay_s), measured)
    if workload.num_workers == 0:
        return _calibrate_alone(workload, main_delay_s, batch_bytes)
    least_loading_s = measured.batch_cpu.mean_s
    if run_delay_s is not None:
        least_loading_s = max(measured.batch_time.mean_s - run_delay_s, least_loading_s)
    workers, prefetch = workload.num_workers, workload.prefetch_factor
    fetching = 1.0
    for _ in range(_ROUNDS):
        loop = make_loop(workload, workers, prefetch, _DRAWS)
        trace = simulate_loop(loop, _DRAWS, settle(workers, prefetch, _DRAWS))
        fetching *= _fetch_correction(measured, trace)
        fetching = min(max(fetching, _LEAST_FETCHING), _MOST_FETCHING)
        workload = _correct_step(measured, workload, trace.step_s / trace.iterations)
        late_s = measured.batch_time.mean_s - trace.busy_s / trace.iterations
        loading_s = max(workload.batch_time.mean_s + late_s, least_loading_s)
        workload = replace(
            workload,
            batch_time=replace(workload.batch_time, mean_s=loading_s),
            other_tasks=_correct_other_tasks(workload, other_cores, trace),
            fetch_s=measured.fetch_s * fetching,
            fetch_busy_s=measured.fetch_busy_s * fetching,
        )
    held_up_s = max(measured.step.mean_s - workload.local_step_s, 0.0)
    turns_s = _estimate_turns(workload, batch_bytes)
    workload = replace(workload, held_up_s=held_up_s, turns_s=turns_s)
    # what is unknown of it stays in the loading
    return _without_delay(measured, workload, run_delay_s or 0.0)


def _step_waits_s(measured: Workload, main_delay_s: float) -> float:
    """Returns the seconds that the main thread waited for a core in the train step."""
    step_s, iter_s = measured.step.mean_s, measured.iter_time.mean_s
    if iter_s <= 0.0:
        return 0.0
    waits_s = main_delay_s * min(step_s / iter_s, 1.0)
    return min(waits_s, (1.0 - _LEAST_SHARE) * step_s)


def _correct_step(
    measured: Workload, workload: Workload, simulated_s: float
) -> Workload:
    """Corrects a step's time or slow-down exponent so that its simulation fits the run.

    The exponent (`Workload.step_power`) shows only where simulated cores are crowded.
    """
    measured_s, alone_s = measured.step.mean_s, workload.step.mean_s
    lost_s, simulated_lost_s = measured_s - alone_s, simulated_s - alone_s
    power, (least, most) = workload.step_power, _POWERS
    if power > 1.0 and lost_s > 0.0 and simulated_lost_s >= _SEEN_FROM * measured_s:
        fitted = power * math.sqrt(lost_s / simulated_lost_s)
        fitted = min(max(fitted, least), most)
        if fitted != power:
            is_known = least < fitted < most
            return replace(workload, step_power=fitted, is_step_power_known=is_known)
    step_s = max(alone_s + measured_s - simulated_s, _least_step_s(workload))
    workload = replace(workload, step=replace(workload.step, mean_s=step_s))
    return _with_step_cpu(workload, measured)


def _without_delay(measured: Workload, workload: Workload, delay_s: float) -> Workload:
    """Subtracts workers' measured waits for cores from loading time if cores are busy.

    A loop that does not starve does not show how long loading takes, nor does one whose
    workers take up all cores: a wrong figure would not show at the run's own setting.
    """
    cpu_s = workload.batch_cpu.mean_s + workload.step_cpu_s + workload.fetch_s
    cores = min(workload.usable_cores, workload.host_cores - workload.other_tasks / 2)
    used = cpu_s / (measured.iter_time.mean_s * max(cores, 0.5))
    busy = min(max((used - _BUSY_FROM) / (_BUSY_ALL - _BUSY_FROM), 0.0), 1.0)
    free_s = measured.batch_time.mean_s - busy * delay_s
    mean_s = max(min(workload.batch_time.mean_s, free_s), workload.batch_cpu.mean_s)
    return replace(workload, batch_time=replace(workload.batch_time, mean_s=mean_s))


def _fetch_correction(measured: Workload, trace: Trace) -> float:
    """Finds the factor on fetching time that makes a simulated iteration match the run.

    A loop that waits for its workers anyway does not show it.
    """
    fetch_s = trace.fetch_s / trace.iterations
    if fetch_s <= 0.0 or trace.wait_s > 0.02 * trace.seconds:
        return 1.0
    late_s = measured.iter_time.mean_s - trace.seconds / trace.iterations
    step_late_s = measured.step.mean_s - trace.step_s / trace.iterations
    return max(1.0 + (late_s - step_late_s) / fetch_s, 0.5)


def _correct_other_tasks(workload: Workload, other_cores: float, trace: Trace) -> float:
    """Adjusts the number of other programs' tasks to the CPU time that they used."""
    used = trace.others_cpu_s / trace.seconds
    if used <= 0.0:
        return other_cores
    return min(workload.other_tasks * other_cores / used, 8 * workload.host_cores)


def _least_step_s(workload: Workload) -> float:
    return max(workload.step_cpu_s, workload.spin_s) / workload.step_threads


def _estimate_turns(workload: Workload, batch_bytes: int | None) -> float:
    """Estimates the extra seconds per batch of loading without workers on a busy host.

    They are `Workload.turns_s`, which a run with workers does not show.

    The training process copies an image's tensor on several threads. Where one of them
    has no core, the copy waits for the turn of that thread, and then for its own.
    """
    images, host_cores = workload.batch_size or 1, workload.host_cores
    threads = math.ceil((batch_bytes or 0) / images / _THREAD_BYTES)
    threads = min(threads, math.ceil(workload.usable_cores))
    crowd = min(max(threads + workload.other_tasks - host_cores, 0.0), 1.0)
    return 2 * WAKE_S * images * crowd if threads > 1 else 0.0


def _calibrate_alone(
    workload: Workload, main_delay_s: float, batch_bytes: int | None
) -> Workload:
    loading, step, threads = workload.batch_time, workload.step, workload.step_threads
    spin_s = 0.0 if workload.spin_s else _SPIN_S * (threads - 1)
    cpu_s = max(workload.batch_cpu.mean_s - spin_s, 0.0)
    fair_s = min(cpu_s, loading.mean_s) * (1 / workload.core_share(1) - 1.0)
    # a thread that does not want a core does not wait for one
    wanted_s = cpu_s + workload.step_cpu_s / threads
    delay_s = main_delay_s * cpu_s / wanted_s if wanted_s > 0.0 else 0.0
    # of the two turns it spins for one
    turns_s = min(
        2 * max(delay_s - fair_s, 0.0), _estimate_turns(workload, batch_bytes)
    )
    loading_s = max(loading.mean_s - turns_s - fair_s, 0.0)
    cpu_s = min(max(cpu_s - turns_s, 0.0), loading_s)
    error_s = math.hypot(loading.error_s, _TURNS_ERROR * turns_s)
    step_s = max(step.mean_s - workload.step_delay_s, _least_step_s(workload))
    return replace(
        workload,
        step=replace(step, mean_s=step_s),
        batch_time=replace(loading, mean_s=loading_s, error_s=error_s),
        batch_cpu=replace(workload.batch_cpu, mean_s=cpu_s),
        turns_s=turns_s,
    )


def _take_out_delays(workload: Workload, main_delay_s: float) -> Workload:
    """Takes waits for cores out of the time of a multi-threaded train step.

    Only the main thread's waiting is measured; that of the others is taken to be alike.
    As many threads wait at a time as there are tasks beyond the cores, so that the step
    grows by ``T * delay / excess``.
    """
    threads, step, workers = workload.step_threads, workload.step, workload.num_workers
    if threads < 2 or workload.spin_s > 0.0:
        return replace(workload, step_waits_s=0.0)
    delay_s = main_delay_s if workers else 0.0
    active = workload.batch_time.mean_s / workload.iter_time.mean_s if workers else 0.0
    excess = max(threads + min(active, workers) - workload.usable_cores, 1.0)
    lost_s = min(threads * delay_s / excess, (1.0 - _LEAST_SHARE) * step.mean_s)
    step_s = step.mean_s - lost_s
    shorter = replace(
        step,
        mean_s=step_s,
        std_s=step.std_s * step_s / step.mean_s,
        error_s=(step.error_s**2 + (_DELAY_ERROR * lost_s) ** 2) ** 0.5,
    )
    return replace(
        workload,
        step=shorter,
        step_waits_s=0.0,
        step_power=USUAL_POWER,
        is_step_power_known=False,
    )


def _with_step_cpu(workload: Workload, measured: Workload) -> Workload:
    """Sets the step's CPU seconds, leaving out those that idle threads spin."""
    threads, cpu_s = measured.step_threads, measured.step_cpu_s
    if measured.spin_s <= 0.0:
        step_s = workload.step.mean_s if threads > 1 else measured.step.mean_s
        cpu_s = min(cpu_s, threads * step_s)
    return replace(workload, step_cpu_s=cpu_s)
