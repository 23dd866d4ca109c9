"""A step on several threads that wait for each other, and workers that come between.

Each thread of such a step does a part of every operation, and all wait until the last
is done. A thread that waits for a core so holds up the others, which spin: the delays
of the threads add up in the step, and its CPU grows although its work does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.model.scene import step_threads
from mmgpu_hooks.schema import LoaderWorkload

USUAL_POWER = 2.7
"""`LoaderWorkload.step_power` where no run tells it: two threads that share two cores
with one worker, each of the three having two thirds of a core, were together on theirs
a third of the time (three tasks on two cores: one of three ways)."""

_POWERS = 1.0, 4.0
_SEEN_FROM = 0.02
"""Share of the step that workers must cost in the simulation for a power to be told."""
_LEAST_SHARE = 0.25
"""Of a step that was measured, however much its threads were delayed."""
_DELAY_ERROR = 0.1
"""Standard error of what is taken out of the step, over it."""


def quieten_team(workload: LoaderWorkload, main_delay_s: float) -> LoaderWorkload:
    """Take out of a step on several threads what its threads waited for cores.

    Only the main thread's waiting is measured; that of the others is taken to be alike.
    As many threads wait at a time as there are tasks beyond the cores, so that the step
    grows by ``T * delay / excess``.

    Args:
        workload: As it was measured.
        main_delay_s: What the main thread waited for a core, per iteration.
    """
    threads, step, workers = step_threads(workload), workload.step, workload.num_workers
    if threads < 2 or workload.spin_s > 0.0:
        return workload
    delay_s = main_delay_s if workers else 0.0
    active = workload.occupancy.mean_s / workload.iter_time.mean_s if workers else 0.0
    excess = max(threads + min(active, workers) - workload.usable_cores, 1.0)
    lost_s = min(threads * delay_s / excess, (1.0 - _LEAST_SHARE) * step.mean_s)
    step_s = step.mean_s - lost_s
    error_s = (step.error_s**2 + (_DELAY_ERROR * lost_s) ** 2) ** 0.5
    return replace(
        workload,
        step=replace(
            step,
            mean_s=step_s,
            std_s=step.std_s * step_s / step.mean_s,
            error_s=error_s,
        ),
        step_power=USUAL_POWER,
        is_step_power_known=False,
    )


def fit_power(
    workload: LoaderWorkload, measured_s: float, simulated_s: float
) -> LoaderWorkload:
    """Give it a power with which the simulated step comes nearer to the measured one.

    Args:
        workload: That was simulated.
        measured_s: The step as it was measured.
        simulated_s: The step of the simulation, what it waited for cores included.

    Returns:
        With the same power if none is nearer, or if the simulated cores are not
        crowded: what was measured tells nothing of it then.
    """
    alone_s, power = workload.step.mean_s, workload.step_power
    lost_s, simulated_lost_s = measured_s - alone_s, simulated_s - alone_s
    if power <= 1.0 or lost_s <= 0.0 or simulated_lost_s < _SEEN_FROM * measured_s:
        return workload
    least, most = _POWERS
    power = min(max(power * math.sqrt(lost_s / simulated_lost_s), least), most)
    return replace(workload, step_power=power, is_step_power_known=least < power < most)


def bound_team_cpu(workload: LoaderWorkload, measured: LoaderWorkload) -> float:
    """CPU of the step: what threads spun while they waited for others is not work."""
    threads = step_threads(measured)
    if measured.spin_s > 0.0:
        return measured.step_cpu_s
    step_s = workload.step.mean_s if threads > 1 else measured.step.mean_s
    return min(measured.step_cpu_s, threads * step_s)
