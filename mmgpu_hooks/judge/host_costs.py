"""Finds the host's CPU work per iteration that an optimisation would save.

Measured by ``mmgpu profile`` where it profiled the same training, or by the hook; else
"up to", by counts. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmgpu_hooks.judge.columns import largest
from mmgpu_hooks.judge.figures import RunFigures
from mmgpu_hooks.judge.recorded import RecordedRun
from mmgpu_hooks.schema.recorded import AveragedModel, HistoryCost
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import HostPart, Profile

GROUP_S = 0.15e-3
"""Upper bound of host CPU seconds that a parameter group adds to an optimizer step.

0.07 to 0.15 ms were measured of AdamW over lists, for 240 to 440 groups, on a slow and
busy host. That of a run may be faster, so its own step is a bound, too.
"""

AVERAGED_TENSOR_S = 35e-6
"""Upper bound of host CPU seconds in which an EMA hook averages one tensor.

34 and 35 us were measured.
"""

SMALL_TENSOR_S = 0.16e-3
"""Upper bound of training thread CPU seconds to receive a small tensor of a batch."""

ADDED_VALUE_S = 10e-6
"""Host CPU seconds of adding a value to a scalar history that grows by doubling."""

LISTED = ('ExponentialMovingAverage', 'MomentumAnnealingEMA', 'ExpMomentumEMA')
"""EMA classes whose averages can be taken over lists of tensors at once."""


@dataclass(frozen=True)
class HostCost:
    """Host CPU seconds per iteration of one kind of work, and how many can be saved."""

    name: str
    """Name of the optimisation, as ``GPUEfficiencyHook(optimize=...)`` takes it."""
    found: Text
    """Sentence, without full stop, on the host CPU work that a run was found to do."""
    saved_s: float
    """Host CPU seconds per iteration the optimisation would save the training thread.

    An upper bound where they were not measured.
    """
    now_s: float | None = None
    """Measured host CPU seconds per iteration of this work; ``None`` if unmeasured."""
    error_s: float = 0.0
    """Standard error, in seconds, of the CPU time per iteration that would be saved."""
    sent_s: float = 0.0
    """CPU seconds per batch that the optimisation would save in a loader worker."""
    is_covered: bool = False
    """True if the GPU computes during this work, so that less of it may not help."""

    @property
    def is_measured(self) -> bool:
        """True if the possible saving was measured, False if it is an upper bound."""
        return self.now_s is not None

    @property
    def left_s(self) -> float | None:
        """Host CPU seconds per iteration the optimisation would leave, if measured."""
        return None if self.now_s is None else max(self.now_s - self.saved_s, 0.0)


def find_profile_of(recorded: RecordedRun) -> Profile | None:
    """Finds the ``mmgpu profile`` result for a run's training and kind of device.

    It has counted the same parameter groups, averages and the like.
    """
    profile, gpu = recorded.evidence.profile, recorded.meta.gpu
    if profile is None or profile.counted is None:
        return None
    device = 'CPU' if recorded.meta.device == 'cpu' else gpu and gpu.name
    is_same = profile.counted == recorded.meta.overhead and profile.device == device
    return profile if is_same else None


def find_host_costs(recorded: RecordedRun, figures: RunFigures) -> dict[str, HostCost]:
    """Finds the host CPU seconds that each inactive optimisation would save.

    Args:
        recorded: The run.
        figures: Its statistics, which bound what was not measured.
    """
    profile = find_profile_of(recorded)
    parts = {} if profile is None else profile.host_parts
    costs = (
        _weigh_groups(recorded, figures, profile, parts),
        _weigh_averages(recorded, figures, parts),
        _weigh_small_tensors(recorded, figures, parts),
        _weigh_histories(recorded),
    )
    return {
        cost.name: cost
        for cost in costs
        if cost is not None and cost.name not in recorded.meta.optimized
    }


def _bound(most_s: float, figures: RunFigures, part: str) -> float:
    """Caps CPU seconds at an iteration part's time and the process's CPU time."""
    bounds = [most_s]
    if figures.per_iteration is not None:
        bounds.append(getattr(figures.per_iteration, part))
    if figures.main_cpu_s is not None and part != 'data_wait_s':
        bounds.append(figures.main_cpu_s)
    return min(bounds)


def _weigh_groups(
    recorded: RecordedRun,
    figures: RunFigures,
    profile: Profile | None,
    parts: Mapping[str, HostPart],
) -> HostCost | None:
    counted = recorded.meta.overhead
    if counted is None or (counted.groups or 0) <= (counted.settings or 0):
        return None
    alike = (counted.groups or 0) - (counted.settings or 0)
    found = phrase(
        '{optimizer} steps through {groups} parameter groups that have {settings}',
        counted,
        settings=counted.settings or 0,
    )
    step = parts.get('optimizer step')
    if step is None:
        most_s = _bound(GROUP_S * alike, figures, 'step_s')
        return HostCost('param_groups', found, most_s)
    if step.optimized_s is None:
        return None
    # their settings are read by schedulers, too
    along = [parts[name] for name in ('schedulers', 'zeroing') if name in parts]
    saved_s = _saving(step) + sum(map(_saving, along))
    covered = False
    if profile is not None and profile.uncovered_s is not None:
        saved_s = min(saved_s, profile.uncovered_s)
        covered = profile.bound == 'kernels'
    return HostCost(
        'param_groups',
        found,
        saved_s,
        now_s=step.plain_s + sum(part.plain_s for part in along),
        error_s=step.error_s,
        is_covered=covered,
    )


def _saving(part: HostPart) -> float:
    left_s = part.plain_s if part.optimized_s is None else part.optimized_s
    return max(part.plain_s - left_s, 0.0)


def _weigh_averages(
    recorded: RecordedRun, figures: RunFigures, parts: Mapping[str, HostPart]
) -> HostCost | None:
    counted = recorded.meta.overhead
    averages = [] if counted is None else list(counted.averages)
    if not averages:
        return None
    found = phrase('{averages:&}', averages=tuple(map(_phrase_average, averages)))
    part = parts.get('average')
    if part is not None:
        if part.optimized_s is None:
            return None
        return HostCost('ema', found, _saving(part), part.plain_s, part.error_s)
    most_s = sum(
        AVERAGED_TENSOR_S * average.tensors / max(average.interval or 1, 1)
        for average in averages
        if average.kind in LISTED
    )
    most_s = _bound(most_s, figures, 'hooks_s')
    return HostCost('ema', found, most_s) if most_s else None


def _phrase_average(average: AveragedModel) -> Text:
    often = average.interval or 1
    if often == 1:
        return phrase('{kind} averages {tensors} one by one', average)
    return phrase(
        '{kind} averages {tensors} one by one every {iterations}',
        average,
        iterations=often,
    )


def _weigh_small_tensors(
    recorded: RecordedRun, figures: RunFigures, parts: Mapping[str, HostPart]
) -> HostCost | None:
    small = largest(recorded.column('small_tensors'))
    if not small or not recorded.meta.loader.num_workers:
        return None
    found = phrase(
        'Workers send {tensors} of a batch that have {size_bytes} together as a file '
        'each',
        tensors=small,
        size_bytes=largest(recorded.column('small_tensor_bytes')),
    )
    received, sent = parts.get('batch received'), parts.get('batch sent')
    # else a thread of its own takes the batches
    is_ours = not recorded.meta.loader.pin_memory
    if received is None or sent is None:
        # the training thread takes a batch while it waits for it
        most_s = _bound(SMALL_TENSOR_S * small, figures, 'data_wait_s')
        return HostCost('small_tensors', found, is_ours * most_s)
    return HostCost(
        'small_tensors',
        found,
        is_ours * _saving(received),
        received.plain_s,
        received.error_s,
        sent_s=_saving(sent),
    )


def find_histories(recorded: RecordedRun) -> HistoryCost | None:
    """Finds the newest record of the length and copying time of scalar histories."""
    known = recorded.every.having('histories')
    measured: list[HistoryCost] = known.values('histories')
    return measured[-1] if measured else None


def _weigh_histories(recorded: RecordedRun) -> HostCost | None:
    histories = find_histories(recorded)
    if histories is None:
        return None
    found = phrase(
        '{scalars:d} histories of scalars have {values:,} values, and each is copied '
        'for every value that is added',
        histories,
    )
    left_s = ADDED_VALUE_S * histories.scalars
    saved_s = max(histories.copy_s - left_s, 0.0)
    # timed once: about as exact as one reading of a busy core
    return HostCost('history', found, saved_s, histories.copy_s, 0.1 * saved_s)
