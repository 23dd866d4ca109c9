"""Judges one checkpoint save: was it slow, what held it, what did that cost.

Light on purpose: the hook judges each save as it happens.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import replace

from mmgpu_hooks.judge.save_causes import Held, find_held
from mmgpu_hooks.judge.save_text import explain_save, render_unknown
from mmgpu_hooks.judge.thresholds import (
    BLOCKED_SAVE_RATIO,
    BLOCKED_SAVE_S,
    ODD_SAVE_RATIO,
    ODD_SAVE_S,
    SLOW_SAVE_RATIO,
    SLOW_SAVE_S,
)
from mmgpu_hooks.model.save_cost import (
    SaveTimes,
    estimate_by_others_s,
    estimate_by_parts_s,
    net_delay_s,
    won_back_s,
)
from mmgpu_hooks.schema import (
    HostLimits,
    LoaderSettings,
    SaveAftermathRecord,
    SaveJudgement,
    SaveRecord,
)

KEPT_REFERENCES = 32
"""Newest saves that one is measured by: enough for a median, and cheap for a run of
thousands."""


def judge_save(
    save: SaveRecord,
    earlier: Sequence[SaveRecord],
    aftermath: SaveAftermathRecord | None,
    host: HostLimits,
    loader: LoaderSettings,
) -> SaveJudgement:
    """Judge one save.

    A cause is named only where it is proven: the wait for a core by the CPU that
    workers or strangers used meanwhile on the usable cores, storage by the time blocked
    in the write to this host's file system, and so on. No input makes it raise.

    Args:
        save: The save.
        earlier: Saves of the run before it, of which the newest count; those that
            :func:`is_reference` refuses need not be kept.
        aftermath: The waits for data after it; ``None`` while they are unknown.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    if save.error is not None:
        return _untold(save, f'it failed with {save.error}')
    times = _times(save)
    if times is None:
        return _untold(save, _why_no_times(save))
    calm = [
        known
        for known in map(_times, _alike(save, earlier))
        if known is not None and known.is_calm
    ]
    by_others = estimate_by_others_s(save.bytes, calm)
    if by_others is None:
        usual_s, references = estimate_by_parts_s(times), 0
    else:
        usual_s, references = min(by_others[0], save.wall_s), by_others[1]
    held = find_held(save, times, usual_s, host)
    gross_s = save.wall_s - held.uncontended_s
    net_s = net_delay_s(gross_s, fold_won_back_s(aftermath, loader))
    cause, usual_s = _find_cause(held), held.uncontended_s
    is_odd = _counts(gross_s, usual_s, ODD_SAVE_S, ODD_SAVE_RATIO)
    judged = SaveJudgement(
        is_slow=cause is not None or is_odd,
        cause=cause,
        uncontended_s=usual_s,
        gross_delay_s=gross_s,
        net_delay_s=net_s,
        sentence='',
        held_s=held.seconds,
    )
    sentence = explain_save(save, judged, host, loader, references, held.doubt)
    return replace(judged, sentence=sentence)


def is_reference(save: SaveRecord) -> bool:
    """Whether later saves can be measured by this one: nothing held it."""
    times = _times(save) if save.error is None else None
    return times is not None and times.is_calm


def judge_saves(
    saves: Sequence[SaveRecord],
    aftermaths: Sequence[SaveAftermathRecord],
    host: HostLimits,
    loader: LoaderSettings,
) -> tuple[SaveJudgement, ...]:
    """Judge all saves of a run, in their order; the time is linear in their number.

    Args:
        saves: In order.
        aftermaths: In order; several saves of one iteration have one each, or the last
            of them has, which is that of all where it has no iterations.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    after: dict[int, list[SaveAftermathRecord]] = defaultdict(list)
    for record in aftermaths:
        after[record.iteration].append(record)
    at_once: dict[int, int] = defaultdict(int)
    for save in saves:
        at_once[save.iteration] += 1
    earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
    judged = []
    for save in saves:
        at_once[save.iteration] -= 1
        known, behind = after[save.iteration], at_once[save.iteration]
        # what won nothing back did so for every save before it
        if len(known) == 1 and not known[0].iterations:
            behind = 0
        aftermath = known[-1 - behind] if behind < len(known) else None
        judged.append(judge_save(save, earlier, aftermath, host, loader))
        if is_reference(save):
            earlier.append(save)
    return tuple(judged)


def fold_won_back_s(
    aftermath: SaveAftermathRecord | None, loader: LoaderSettings
) -> float | None:
    """Waits for data that the job was spared after a save; ``None`` while unknown."""
    if loader.num_workers == 0:
        # the training process loads every batch itself: nobody works ahead
        return 0.0
    if aftermath is None:
        return None
    ahead = None
    if loader.num_workers is not None and loader.prefetch_factor is not None:
        ahead = loader.num_workers * loader.prefetch_factor
    return won_back_s(
        usual_wait_s=aftermath.usual_wait_s,
        waits_s=aftermath.waits_s,
        iterations=aftermath.iterations,
        most_ahead=ahead,
    )


def _times(save: SaveRecord) -> SaveTimes | None:
    if save.cpu_s is None or save.run_delay_s is None:
        return None
    blocked_s = save.blocked_s
    if blocked_s is None:
        blocked_s = max(save.wall_s - save.cpu_s - save.run_delay_s, 0.0)
    return SaveTimes(
        save.wall_s, save.cpu_s, save.run_delay_s, blocked_s, save.bytes or None
    )


def _alike(save: SaveRecord, earlier: Sequence[SaveRecord]) -> list[SaveRecord]:
    newest = list(earlier)[-KEPT_REFERENCES:]
    return [
        other
        for other in newest
        if other.error is None
        and other.backend == save.backend
        # publishing loads a checkpoint first
        and (other.occasion == 'publish') == (save.occasion == 'publish')
    ]


def _find_cause(held: Held) -> str | None:
    """The cause that holds most, of those that make it slow without the others.

    A delay by the CPU counts early, because it is measured best.
    """
    usual_s = held.uncontended_s
    causes = {
        cause: seconds
        for cause, seconds in held.seconds.items()
        if _counts(seconds, usual_s, BLOCKED_SAVE_S, BLOCKED_SAVE_RATIO)
    }
    if _counts(held.contention_s, usual_s, SLOW_SAVE_S, SLOW_SAVE_RATIO):
        rivals = [cause for cause in ('workers', 'strangers') if cause in held.seconds]
        if rivals:
            most = max(rivals, key=lambda cause: held.seconds[cause])
            causes[most] = sum(held.seconds[cause] for cause in rivals)
    return max(causes, key=lambda cause: causes[cause], default=None)


def _counts(delay_s: float, usual_s: float, least_s: float, ratio: float) -> bool:
    return delay_s >= least_s and delay_s >= ratio * usual_s


def _untold(save: SaveRecord, reason: str) -> SaveJudgement:
    return SaveJudgement(False, None, None, None, None, render_unknown(save, reason))


def _why_no_times(save: SaveRecord) -> str:
    for name in ('run_delay_s', 'cpu_s'):
        if name in save.unknown:
            return save.unknown[name]
    return 'the scheduler statistics of the saving thread could not be read'
