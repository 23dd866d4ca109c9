"""Judges checkpoint saves: was one slow, what held it, what did that cost the job.

A save is ``wall = cpu + run_delay + blocked`` of the thread that saves. Its delay is
what it took beyond an uncontended save: of the run itself where there are some, else
of its own parts that were not waiting. Meanwhile the loader's workers go on: what they
made ahead is won back after the save, so the job loses less (the *net* delay) than the
save did (the *gross* one). Light on purpose: the hook judges each save as it happens.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mmgpu_hooks.judge.thresholds import (
    BLOCKED_SAVE_RATIO,
    BLOCKED_SAVE_S,
    MEMORY_PROVEN,
    ODD_SAVE_RATIO,
    ODD_SAVE_S,
    SLOW_SAVE_RATIO,
    SLOW_SAVE_S,
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

CALM_RUN_DELAY = 0.1
"""Share of an uncontended save that may be waiting for a core: what a quiet host of two
cores shows."""

USUAL_BLOCKING = 0.5
"""Blocked time over CPU that is no delay: page faults, a write through the page
cache, copies from a card."""

LIKE_SIZE = 1.25
"""Saves whose bytes differ by no more than this factor are compared, per byte."""

LEAST_REFERENCES = 3
"""Uncontended saves whose median is trusted: one odd one, often the first, is none."""

FULL_CORES = 0.75
"""Share of the usable cores that must be in use before their users are the reason of a
wait: the scheduler moves tasks late, and short saves are read coarsely."""

EXPLAINED = 0.7
"""CPU that others used, over a wait for a core: a task was on that core all the
while, but for what a hypervisor takes and the clock's grain of 10 ms."""

BY_ELIMINATION = 0.25
"""CPU of one suspect over a wait for a core, below which it was the other."""

MAJOR_FAULT_S = 1e-4
"""Least time that a page takes from storage or swap: a fast solid-state disk's."""

NAMED_SHARE = 0.2
"""Of the delay: what held less of it is not named beside the cause."""


class Cause(NamedTuple):
    """What can hold a save."""

    why: str
    """It took longer."""
    cure: str


CAUSES = {
    'workers': Cause(
        'because loader workers had the cores',
        'Use fewer workers, or GPUEfficiencyHook(worker_nice=10), which lets the '
        'saving thread go first.',
    ),
    'strangers': Cause(
        'because other programs had the cores',
        'Run the other programs elsewhere or at another time; no setting of the loader '
        'helps.',
    ),
    'storage': Cause(
        'blocked in the write to storage',
        'The disk is slow, not the loader: save to a faster one, or less often.',
    ),
    'memory': Cause(
        'because memory was short',
        'A save holds its file in memory, and more: free some (fewer workers, a '
        'smaller batch), or save without the optimizer.',
    ),
    'size': Cause(
        "because histories of MMEngine's message hub fill the file",
        'The histories grow with the run: log fewer scalars, or update those that no '
        'resumed run needs with resumed=False.',
    ),
    'remote': Cause(
        'waiting for a backend that writes elsewhere than to this host',
        'Save to a local disk and copy from there, or save less often.',
    ),
}


def judge_saves(
    saves: Sequence[SaveRecord],
    aftermaths: Iterable[SaveAftermathRecord],
    host: HostLimits,
    loader: LoaderSettings,
) -> tuple[SaveJudgement, ...]:
    """Judge all saves of a run; the time is linear in their number.

    Args:
        saves: In order.
        aftermaths: In order. Of several saves of one iteration, the last ones have one
            each.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    after: dict[int, list[SaveAftermathRecord]] = defaultdict(list)
    for record in aftermaths:
        after[record.iteration].append(record)
    left = Counter(save.iteration for save in saves)
    earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
    judged = []
    for save in saves:
        known, behind = after[save.iteration], left[save.iteration]
        aftermath = known[-behind] if behind <= len(known) else None
        judged.append(judge_save(save, earlier, aftermath, host, loader))
        left[save.iteration] -= 1
        if is_reference(save):
            earlier.append(save)
    return tuple(judged)


def judge_save(
    save: SaveRecord,
    earlier: Iterable[SaveRecord],
    aftermath: SaveAftermathRecord | None,
    host: HostLimits,
    loader: LoaderSettings,
) -> SaveJudgement:
    """Judge one save.

    A cause is named only where it is proven: the wait for a core by the CPU that
    workers or other programs used meanwhile on the usable cores, storage by the time
    blocked in the write to this host's file system, and so on. No input makes it raise.

    Args:
        save: The save.
        earlier: The newest `KEPT_REFERENCES` saves of the run before it that
            :func:`is_reference` takes.
        aftermath: The waits for data after it; ``None`` while they are unknown.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    size = '' if save.bytes is None else f' ({_bytes(save.bytes)})'
    took = (
        f'Saving {save.name or "a checkpoint"}{size} at iteration {save.iteration} '
        f'took {_seconds(save.wall_s)}'
    )
    if save.error is not None or save.cpu_s is None or save.run_delay_s is None:
        why = _why_unknown(save)
        return SaveJudgement(False, None, None, None, None, f'{took}; {why}.')
    usual_s, basis = _usual_s(save, earlier)
    base_s = usual_s - _hub_s(save, usual_s)
    held_s, doubt = _divide_delay(save, usual_s, host)
    if base_s < usual_s:
        held_s['size'] = usual_s - base_s
        basis += ', less its histories'
    gross_s = save.wall_s - base_s
    net_s = net_delay_s(gross_s, won_back_s(aftermath, loader))
    cause = _find_cause(held_s, min(save.wall_s - usual_s, save.run_delay_s), base_s)
    is_slow = bool(cause) or _counts(gross_s, base_s, ODD_SAVE_S, ODD_SAVE_RATIO)
    sentence = f'{took}; {_seconds(base_s)} uncontended ({basis}).'
    if is_slow:
        lost = 'what the job lost (net) is not known yet'
        if net_s is not None:
            lost = f'the job lost {_seconds(net_s)} (net)'
        sentence += (
            f' {_explain(save, host, held_s, cause, gross_s, doubt)}. Training stood '
            f'still {_seconds(gross_s)} longer (gross); {lost}.'
        )
        sentence += f' {CAUSES[cause].cure}' if cause else ''
    return SaveJudgement(is_slow, cause, base_s, gross_s, net_s, sentence, held_s)


def is_reference(save: SaveRecord) -> bool:
    """Whether later saves can be measured by this one: it hardly waited."""
    if save.error is not None or save.cpu_s is None or save.run_delay_s is None:
        return False
    return (
        save.run_delay_s <= CALM_RUN_DELAY * save.wall_s
        and _blocked_s(save) <= USUAL_BLOCKING * save.cpu_s
    )


def won_back_s(
    aftermath: SaveAftermathRecord | None, loader: LoaderSettings
) -> float | None:
    """Waits for data that the job was spared after a save; ``None`` while unknown."""
    if loader.num_workers == 0:
        # the training process loads every batch itself: none is made ahead
        return 0.0
    if aftermath is None:
        return None
    if not aftermath.iterations:
        return 0.0
    usual_s = aftermath.usual_wait_s
    if usual_s is None:
        return None
    spared_s = usual_s * aftermath.iterations - aftermath.waits_s
    if loader.num_workers is not None and loader.prefetch_factor is not None:
        spared_s = min(spared_s, usual_s * loader.num_workers * loader.prefetch_factor)
    return max(spared_s, 0.0)


def net_delay_s(gross_s: float, won_s: float | None) -> float | None:
    """What the job lost: from 0 to the gross delay; ``None`` while unknown."""
    return None if won_s is None else min(max(gross_s - won_s, 0.0), gross_s)


def others_here_s(save: SaveRecord, host: HostLimits) -> float | None:
    """CPU of other programs that no other core of the host can have carried.

    A container's two cores of 64 are not in the way of what runs on the others.

    Returns:
        ``None`` when it is unknown where they ran.
    """
    cores = _cores_of_ranks(host)
    if save.strangers_cpu_s is None or host.logical_cpus is None or cores is None:
        return None
    elsewhere_s = max(host.logical_cpus - cores, 0.0) * save.wall_s
    return max(save.strangers_cpu_s - elsewhere_s, 0.0)


class SaveDelay(NamedTuple):
    """The delays of some saves, added up."""

    sentence: str
    """Count, gross and net."""
    net_s: float | None
    """Of those whose net delay is known; ``None`` without one."""
    worst: str
    """The paragraph about the one with the largest delay."""


def sum_delays(judged: Sequence[SaveJudgement], of: int, why: str) -> SaveDelay:
    """Add up the delays of saves that were judged slow.

    Args:
        judged: At least one.
        of: Saves of the run.
        why: They took longer.
    """
    gross_s = sum(one.gross_delay_s or 0.0 for one in judged)
    nets = [one.net_delay_s for one in judged if one.net_delay_s is not None]
    net_s = sum(nets) if nets else None
    lost = 'what the job lost (net) is not known'
    if net_s is not None:
        some = f', of the {len(nets)} whose iterations after it are known'
        lost = f'the job lost {net_s:.1f} s (net{some * (len(nets) < len(judged))})'
    return SaveDelay(
        f'{len(judged)} of {of} saves took {gross_s:.1f} s longer in all {why} '
        f'(gross); {lost}.',
        net_s,
        max(judged, key=lambda one: one.gross_delay_s or 0.0).sentence,
    )


def _why_unknown(save: SaveRecord) -> str:
    if save.error is not None:
        return f'it failed with {save.error}, so it is not judged'
    default = 'the scheduler statistics of the saving thread could not be read'
    why = save.unknown.get('run_delay_s') or save.unknown.get('cpu_s') or default
    cpu = '' if save.cpu_s is None else f'{_seconds(save.cpu_s)} of it on a core, '
    return f'{cpu}cannot tell the rest: {why.rstrip(".")}'


def _blocked_s(save: SaveRecord) -> float:
    if save.blocked_s is not None:
        return save.blocked_s
    return max(save.wall_s - (save.cpu_s or 0.0) - (save.run_delay_s or 0.0), 0.0)


def _usual_s(save: SaveRecord, earlier: Iterable[SaveRecord]) -> tuple[float, str]:
    """What the save would have taken without its waits, and what that rests on.

    The median of the run's uncontended saves of like size, scaled to this one's bytes;
    where they are too few, its own parts that did not wait.
    """
    references = ((_scale(save, one), one) for one in earlier if is_reference(one))
    alike = [one.wall_s * scale for scale, one in references if scale is not None]
    if len(alike) >= LEAST_REFERENCES:
        basis = f'median of {len(alike)} uncontended saves of this run like it'
        return min(statistics.median(alike), save.wall_s), basis
    excess_s = max(_blocked_s(save) - USUAL_BLOCKING * (save.cpu_s or 0.0), 0.0)
    left_s = save.wall_s - (save.run_delay_s or 0.0) - excess_s
    return min(max(left_s, 0.0), save.wall_s), 'its parts that did not wait'


def _scale(save: SaveRecord, other: SaveRecord) -> float | None:
    """How many times the bytes of another save; ``None`` when they are not alike."""
    # publishing loads a checkpoint first
    is_other = (other.occasion == 'publish') != (save.occasion == 'publish')
    if is_other or other.backend != save.backend:
        return None
    if not save.bytes or not other.bytes:
        return 1.0 if bool(save.bytes) == bool(other.bytes) else None
    scale = save.bytes / other.bytes
    return scale if 1 / LIKE_SIZE <= scale <= LIKE_SIZE else None


def _hub_s(save: SaveRecord, usual_s: float) -> float:
    """What the message hub's histories cost, where that is worth a word."""
    if not save.message_hub_bytes or not save.bytes:
        return 0.0
    hub_s = usual_s * min(save.message_hub_bytes / save.bytes, 1.0)
    is_much = _counts(hub_s, usual_s - hub_s, BLOCKED_SAVE_S, BLOCKED_SAVE_RATIO)
    return hub_s if is_much else 0.0


def _divide_delay(
    save: SaveRecord, usual_s: float, host: HostLimits
) -> tuple[dict[str, float], str]:
    """What is proven to have held the save beyond ``usual_s``, in seconds by cause.

    Returns:
        The seconds, and what is not known of the rest.
    """
    delay_s = save.wall_s - usual_s
    contention_s = min(delay_s, save.run_delay_s or 0.0)
    left_s, held_s, doubt = delay_s - contention_s, {}, ''
    if contention_s > 0.0:
        share = _share_of_workers(save, host)
        if share is None:
            doubt = (
                'as the CPU that workers and others used meanwhile does not explain '
                'the wait for a core'
            )
        else:
            held_s['workers'] = share * contention_s
            held_s['strangers'] = contention_s - held_s['workers']
    held_s['memory'] = _memory_s(save, left_s)
    write = save.phases.get('write')
    if write is None or write.blocked_s is None:
        doubt = doubt or 'as the write was not measured on its own'
    elif save.is_remote is None:
        doubt = doubt or 'as it is unknown where the file backend writes to'
    elif save.is_remote:
        held_s['remote'] = min(write.blocked_s, left_s) - held_s['memory']
    else:
        # what a hypervisor takes looks blocked too, and in phases that touch no disk
        other, stolen = save.phases.get('serialise'), 0.0
        if other is not None and other.blocked_s is not None and other.wall_s > 0.0:
            stolen = min(other.blocked_s / other.wall_s, 1.0)
        written_s = min(write.blocked_s - stolen * write.wall_s, left_s)
        held_s['storage'] = written_s - held_s['memory']
    proven = {cause: seconds for cause, seconds in held_s.items() if seconds > 0.0}
    return proven, doubt or 'as no single cause holds enough of it'


def _share_of_workers(save: SaveRecord, host: HostLimits) -> float | None:
    """Part of the wait for a core that workers caused, other programs the rest.

    Returns:
        ``None`` where the CPU that both used does not prove it.
    """
    delay_s, cores = save.run_delay_s or 0.0, _cores_of_ranks(host)
    workers_s = 0.0 if save.workers == 0 else save.workers_cpu_s
    others_s = others_here_s(save, host)
    known_s = (workers_s or 0.0) + (others_s or 0.0)
    if known_s < EXPLAINED * delay_s or known_s <= 0.0:
        return None
    used_s = (save.cpu_s or 0.0) + known_s
    if cores and used_s >= FULL_CORES * cores * save.wall_s:
        share = (workers_s or 0.0) / known_s
    elif workers_s is None or others_s is None:
        return None
    elif min(workers_s, others_s) < BY_ELIMINATION * delay_s:
        share = float(workers_s > others_s)
    else:
        return None
    if host.ranks_on_host > 1 and share < 1.0:
        # the others are the other ranks too, and their workers are this run's own
        return 1.0 if share * host.ranks_on_host >= 0.5 else None
    return share


def _cores_of_ranks(host: HostLimits) -> float | None:
    if host.cores_had is None:
        return None
    return host.cores_had * max(host.ranks_on_host, 1)


def _memory_s(save: SaveRecord, left_s: float) -> float:
    """The part of a delay that was a wait for memory: pages of ours came from storage
    or swap, and the kernel says how long tasks waited.
    """
    if not save.major_faults:
        return 0.0
    waited_s = save.major_faults * MAJOR_FAULT_S
    if save.memory_pressure_pct is not None:
        waited_s = max(waited_s, save.memory_pressure_pct / 100 * save.wall_s)
    return min(waited_s, left_s) if waited_s >= MEMORY_PROVEN * left_s else 0.0


def _find_cause(
    held_s: dict[str, float], contention_s: float, base_s: float
) -> str | None:
    """The cause that holds most, of those that make it slow without the others.

    A delay by the CPU counts early, because it is measured best.
    """
    causes = {
        cause: seconds
        for cause, seconds in held_s.items()
        if _counts(seconds, base_s, BLOCKED_SAVE_S, BLOCKED_SAVE_RATIO)
    }
    rivals = [cause for cause in ('workers', 'strangers') if cause in held_s]
    if rivals and _counts(contention_s, base_s, SLOW_SAVE_S, SLOW_SAVE_RATIO):
        most = max(rivals, key=lambda cause: held_s[cause])
        causes[most] = sum(held_s[cause] for cause in rivals)
    return max(causes, key=lambda cause: causes[cause], default=None)


def _counts(delay_s: float, usual_s: float, least_s: float, ratio: float) -> bool:
    return delay_s >= least_s and delay_s >= ratio * usual_s


def _explain(
    save: SaveRecord,
    host: HostLimits,
    held_s: dict[str, float],
    cause: str | None,
    gross_s: float,
    doubt: str,
) -> str:
    """What held a slow save, the cause first."""
    write, cores, rate = save.phases.get('write'), f'{host.usable_cores or 0:g}', ''
    if save.bytes and write is not None and write.wall_s > 0:
        rate = f' ({save.bytes / 1e6 / write.wall_s:.0f} MB/s)'
    figures = {
        'workers': f' ({save.workers_busy or 0:.1f} of {save.workers or 0} busy on '
        f'{cores} usable cores)',
        'strangers': f' ({_seconds(others_here_s(save, host))} of CPU on {cores} '
        'usable cores)',
        'storage': rate,
        'remote': rate,
        'memory': f' ({save.major_faults or 0} page faults from storage)',
        'size': f' ({_bytes(save.message_hub_bytes)} of {_bytes(save.bytes)})',
    }
    held = sorted(held_s.items(), key=lambda one: (one[0] != cause, -one[1]))
    said = [
        f'{_seconds(seconds)} {CAUSES[name].why}{figures[name]}'
        for name, seconds in held
        if name == cause or seconds >= NAMED_SHARE * gross_s
    ]
    if cause is None:
        said.append(f'it is unknown, {doubt}')
    return f'What held it: {"; ".join(said)}'


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return 'an unknown time'
    return f'{seconds:.2f} s' if seconds >= 0.1 else f'{1000 * seconds:.0f} ms'


def _bytes(size: int | None) -> str:
    size = size or 0
    if size < 2**20:
        return f'{size / 2**10:.0f} KiB'
    return f'{size / 2**20:.0f} MiB' if size < 2**30 else f'{size / 2**30:.1f} GiB'
