"""A step on several threads that wait for each other, and workers that come between.

Each thread of such a step does a part of every operation, and all wait until the last
is done. A thread that waits for a core so holds up the others, which spin: the delays
of the threads add up in the step, and its CPU grows although its work does not.
"""

from __future__ import annotations

import math
from dataclasses import replace

from mmgpu_hooks.modeling.scene import step_threads
from mmgpu_hooks.records import LoaderWorkload

USUAL_POWER = 2.7
"""`LoaderWorkload.step_power` where no run tells it: two threads that share two cores
with one worker, each of the three having two thirds of a core, were together on theirs
a third of the time (three tasks on two cores: one of three ways)."""

_POWERS = 1.0, 8.0
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
        most_cpu_s = threads * max(step.mean_s, workload.spin_s)
        return replace(workload, step_cpu_s=min(workload.step_cpu_s, most_cpu_s))
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
        # what they spun is not work
        step_cpu_s=min(workload.step_cpu_s, threads * step_s),
        step_power=USUAL_POWER,
        is_step_power_known=False,
    )


def fit_power(power: float, lost_s: float, late_s: float) -> float:
    """A power with which the simulated step comes nearer to the measured one.

    Args:
        power: `LoaderWorkload.step_power` of the simulation.
        lost_s: What the measured step lost to delays.
        late_s: What the simulated step lost less than that.

    Returns:
        The same if none is nearer, or there is nothing to go by.
    """
    if power <= 1.0 or lost_s <= 0.0:
        return power
    change = math.sqrt(lost_s / max(lost_s - late_s, _LEAST_SHARE * lost_s))
    return min(max(power * change, _POWERS[0]), _POWERS[1])
