"""What several runs of one workload say of a setting together. Pure.

Each run predicts by its own costs, and those that know a setting best count most: the
run that had it, or that had workers at all. So a setting that was trained is predicted
as it was, and costs measured under another load do not blur it. The newest run alone
speaks of its own setting: that is what training takes now.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

from mmgpu_hooks.modeling.pace import Pace, pace_of
from mmgpu_hooks.modeling.uncertainty import model_error
from mmgpu_hooks.schema import LoaderWorkload

FEW_DRAWS = 256
"""Enough to tell how an error in the costs changes a pace."""


@dataclass(frozen=True)
class _Voice:
    """One run's word on a setting."""

    workload: LoaderWorkload
    pace: Pace
    error: float
    """Of the model, over the pace."""
    weight: float = 1.0


def predict_pace(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> Pace:
    """A steady iteration by all runs that are fitted together."""
    if not workload.others or _is_own(workload, num_workers, prefetch):
        return pace_of(replace(workload, others=()), num_workers, prefetch, draws)
    voices = _listen(workload, num_workers, prefetch, draws)
    busy = [voice.pace.utilisation for voice in voices]
    return Pace(
        iter_s=math.fsum(v.weight * v.pace.iter_s for v in voices),
        wait_s=math.fsum(v.weight * v.pace.wait_s for v in voices),
        fetch_s=math.fsum(v.weight * v.pace.fetch_s for v in voices),
        utilisation=None
        if None in busy
        else math.fsum(v.weight * (v.pace.utilisation or 0.0) for v in voices),
        cpu_share=math.fsum(v.weight * v.pace.cpu_share for v in voices),
    )


def predict_model_error(
    workload: LoaderWorkload, num_workers: int, prefetch: int, cpu_share: float
) -> float:
    """Standard error, over the pace, of what the simulation does not know.

    Of several runs: their errors come from the same simulation, so they do not average
    out; and where runs disagree by more, by how much they do.

    Args:
        workload: What the runs tell.
        num_workers: Of the prediction.
        prefetch: Likewise.
        cpu_share: Share of the cores that is in use with it.
    """
    if not workload.others:
        return _own_error(workload, num_workers, cpu_share)
    voices = _listen(workload, num_workers, prefetch, FEW_DRAWS)
    shared = math.fsum(voice.weight * voice.error for voice in voices)
    return max(shared, predict_spread(workload, num_workers, prefetch))


def predict_spread(workload: LoaderWorkload, num_workers: int, prefetch: int) -> float:
    """Standard deviation of what the runs say of a setting, over the pace; 0 of one."""
    if not workload.others:
        return 0.0
    middle_s = predict_pace(workload, num_workers, prefetch, FEW_DRAWS).iter_s
    squares = math.fsum(
        voice.weight * (voice.pace.iter_s / middle_s - 1.0) ** 2
        for voice in _listen(workload, num_workers, prefetch, FEW_DRAWS)
    )
    return math.sqrt(squares)


def best_informed(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> tuple[LoaderWorkload, Pace]:
    """The run that knows a setting best, by itself, and its word."""
    if _is_own(workload, num_workers, prefetch):
        own = replace(workload, others=())
        return own, pace_of(own, num_workers, prefetch, draws)
    voices = _listen(workload, num_workers, prefetch, draws)
    best = max(voices, key=lambda voice: voice.weight)
    return best.workload, best.pace


def _is_own(workload: LoaderWorkload, num_workers: int, prefetch: int) -> bool:
    """Whether it is the setting that the newest run was trained with."""
    if workload.measured_batch_size is not None:
        return False
    same = not num_workers or prefetch == workload.prefetch_factor
    return same and num_workers == workload.num_workers


@functools.lru_cache(maxsize=512)
def _listen(
    workload: LoaderWorkload, num_workers: int, prefetch: int, draws: int
) -> tuple[_Voice, ...]:
    voices = []
    for one in (replace(workload, others=()), *workload.others):
        pace = pace_of(one, num_workers, prefetch, draws)
        costs = max(one.occupancy.relative_error, one.step.relative_error)
        error = _own_error(one, num_workers, pace.cpu_share)
        # the fourth power: what errors share does not average out, so runs that
        # know less count less than by the square
        voices.append(_Voice(one, pace, error, math.hypot(error, costs) ** -4))
    whole = math.fsum(voice.weight for voice in voices)
    return tuple(replace(voice, weight=voice.weight / whole) for voice in voices)


def _own_error(workload: LoaderWorkload, num_workers: int, cpu_share: float) -> float:
    own = pace_of(workload, workload.num_workers, workload.prefetch_factor, FEW_DRAWS)
    return model_error(workload, num_workers, own.cpu_share, cpu_share)
