"""Judges checkpoint saves: was one slow, what held it, what did that cost the job.

A save is ``wall = cpu + run_delay + blocked`` of the thread that saves. Its delay is
what it took beyond an uncontended save: of the run itself where there are some, else
of its own parts that were not waiting. Meanwhile the loader's workers go on: what they
made ahead is won back after the save, so the job loses less (the *net* delay) than the
save did (the *gross* one). Light on purpose: the hook judges each save as it happens.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    SavePhase,
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
"""CPU that others used, over a wait for a core: somebody was on that core all the
while, but for what a hypervisor takes and the clock's grain of 10 ms."""

BY_ELIMINATION = 0.25
"""CPU of one suspect over a wait for a core, below which it was the other."""

MAJOR_FAULT_S = 1e-4
"""Least time that a page takes from storage or swap: a fast solid-state disk's."""

NAMED_SHARE = 0.2
"""Of the delay: what held less of it is not named beside the cause."""

HELD_BY = {
    'workers': 'because loader workers had the cores',
    'strangers': 'because other programs had the cores',
    'storage': 'blocked in the write to storage',
    'memory': 'because memory was short',
    'size': "because histories of MMEngine's message hub fill the file",
    'remote': 'waiting for a remote backend',
}
"""Why saves took longer, by cause."""

_CURES = {
    'workers': 'Use fewer workers, or GPUEfficiencyHook(worker_nice=10), which lets '
    'the saving thread go first.',
    'strangers': 'Run the other programs elsewhere or at another time; no setting of '
    'the loader helps.',
    'storage': 'The disk is slow, not the loader: save to a faster one, or less often.',
    'memory': 'A save holds its file in memory, and more: free some (fewer workers, a '
    'smaller batch), or save without the optimizer.',
    'size': 'The histories grow with the run: log fewer scalars, or update those that '
    'no resumed run needs with resumed=False.',
    'remote': 'Save to a local disk and copy from there, or save less often.',
}


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


def judge_save(
    save: SaveRecord,
    earlier: Sequence[SaveRecord],
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
        earlier: Saves of the run before it, of which the newest count; those that
            :func:`is_reference` refuses need not be kept.
        aftermath: The waits for data after it; ``None`` while they are unknown.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    took = f'{_subject(save)} took {_seconds(save.wall_s)}'
    unknown = _why_unknown(save)
    if unknown is not None:
        return SaveJudgement(False, None, None, None, None, f'{took}; {unknown}.')
    alike = _usual_s(save, list(earlier)[-KEPT_REFERENCES:])
    if alike is None:
        usual_s, basis = _without_waits_s(save), 'its parts that did not wait'
    else:
        usual_s = min(alike[0], save.wall_s)
        basis = f'median of {alike[1]} uncontended saves of this run like it'
    held_s: dict[str, float] = {}
    base_s = usual_s - _hub_s(save, usual_s)
    if base_s < usual_s:
        held_s['size'] = usual_s - base_s
        basis += ', less its histories'
    doubt = _divide_delay(held_s, save, usual_s, host)
    gross_s = save.wall_s - base_s
    cause = _find_cause(held_s, save, usual_s, base_s)
    is_odd = _counts(gross_s, base_s, ODD_SAVE_S, ODD_SAVE_RATIO)
    judged = SaveJudgement(
        is_slow=cause is not None or is_odd,
        cause=cause,
        uncontended_s=base_s,
        gross_delay_s=gross_s,
        net_delay_s=net_delay_s(gross_s, won_back_s(aftermath, loader)),
        sentence=f'{took}; {_seconds(base_s)} uncontended ({basis}).',
        held_s=held_s,
    )
    return _explained(judged, save, host, doubt) if judged.is_slow else judged


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
        # the training process loads every batch itself: nobody works ahead
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


def strangers_here_s(save: SaveRecord, host: HostLimits) -> float | None:
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


@dataclass(frozen=True)
class SaveDelay:
    """The delays of some saves, added up."""

    count: int
    of: int
    """Saves of the run."""
    gross_s: float
    net_s: float | None
    """Of those whose net delay is known; ``None`` without one."""
    net_known: int
    worst: str
    """The paragraph about the one with the largest delay."""

    def sentence(self, why: str) -> str:
        """Count, gross and net."""
        text = (
            f'{self.count} of {self.of} saves took {self.gross_s:.1f} s longer in all '
            f'{why} (gross)'
        )
        if self.net_s is None:
            return f'{text}; what the job lost (net) is not known.'
        partly = ''
        if self.net_known < self.count:
            partly = f', of the {self.net_known} whose iterations after it are known'
        return f'{text}; the job lost {self.net_s:.1f} s (net{partly}).'


def sum_delays(judged: Sequence[SaveJudgement], count: int) -> SaveDelay:
    """Add up the delays of saves that were judged slow.

    Args:
        judged: At least one.
        count: Saves of the run.
    """
    nets = [one.net_delay_s for one in judged if one.net_delay_s is not None]
    return SaveDelay(
        count=len(judged),
        of=count,
        gross_s=sum(one.gross_delay_s or 0.0 for one in judged),
        net_s=sum(nets) if nets else None,
        net_known=len(nets),
        worst=max(judged, key=lambda one: one.gross_delay_s or 0.0).sentence,
    )


def _why_unknown(save: SaveRecord) -> str | None:
    if save.error is not None:
        return f'it failed with {save.error}, so it is not judged'
    if save.cpu_s is not None and save.run_delay_s is not None:
        return None
    default = 'the scheduler statistics of the saving thread could not be read'
    why = save.unknown.get('run_delay_s') or save.unknown.get('cpu_s') or default
    cpu = '' if save.cpu_s is None else f'{_seconds(save.cpu_s)} of it on a core, '
    return f'{cpu}cannot tell the rest: {why.rstrip(".")}'


def _blocked_s(save: SaveRecord) -> float:
    if save.blocked_s is not None:
        return save.blocked_s
    return max(save.wall_s - (save.cpu_s or 0.0) - (save.run_delay_s or 0.0), 0.0)


def _usual_s(
    save: SaveRecord, earlier: Sequence[SaveRecord]
) -> tuple[float, int] | None:
    """Median of the run's uncontended saves of like size, scaled to this one's bytes,
    and how many those are; ``None`` when they are too few."""
    alike = []
    for other in filter(is_reference, earlier):
        # publishing loads a checkpoint first
        if (other.occasion == 'publish') != (save.occasion == 'publish'):
            continue
        if other.backend != save.backend:
            continue
        if not save.bytes or not other.bytes:
            if bool(save.bytes) == bool(other.bytes):
                alike.append(other.wall_s)
        elif 1 / LIKE_SIZE <= save.bytes / other.bytes <= LIKE_SIZE:
            alike.append(other.wall_s * save.bytes / other.bytes)
    if len(alike) < LEAST_REFERENCES:
        return None
    return statistics.median(alike), len(alike)


def _without_waits_s(save: SaveRecord) -> float:
    """The save without its wait for a core and without unusual blocking."""
    excess_s = max(_blocked_s(save) - USUAL_BLOCKING * (save.cpu_s or 0.0), 0.0)
    left_s = save.wall_s - (save.run_delay_s or 0.0) - excess_s
    return min(max(left_s, 0.0), save.wall_s)


def _hub_s(save: SaveRecord, usual_s: float) -> float:
    """What the message hub's histories cost, where that is worth a word."""
    if not save.message_hub_bytes or not save.bytes:
        return 0.0
    hub_s = usual_s * min(save.message_hub_bytes / save.bytes, 1.0)
    is_much = _counts(hub_s, usual_s - hub_s, BLOCKED_SAVE_S, BLOCKED_SAVE_RATIO)
    return hub_s if is_much else 0.0


def _divide_delay(
    held_s: dict[str, float], save: SaveRecord, usual_s: float, host: HostLimits
) -> str | None:
    """Add what is proven to have held the save beyond ``usual_s``, in seconds by cause.

    Returns:
        What cannot be told of the rest, and why.
    """
    doubt: str | None = None
    run_delay_s, delay_s = save.run_delay_s or 0.0, max(save.wall_s - usual_s, 0.0)
    contention_s = min(delay_s, run_delay_s)
    if contention_s > 0.0:
        shares = _share_cores(save, run_delay_s, host)
        if isinstance(shares, str):
            doubt = shares
        else:
            for cause, part_s in shares.items():
                held_s[cause] = contention_s * min(part_s / run_delay_s, 1.0)
    left_s = delay_s - contention_s
    memory_s = _memory_s(save, left_s)
    if memory_s > 0.0:
        held_s['memory'] = memory_s
    writer, written_s = _write_s(save)
    written_s = min(written_s, left_s) - memory_s
    if writer is not None and written_s > 0.0:
        held_s[writer] = written_s
    if doubt is None and writer is None and left_s > contention_s:
        doubt = 'the write was not measured on its own'
        if save.is_remote is None and 'write' in save.phases:
            doubt = 'it is unknown where the file backend writes to'
    return doubt


def _share_cores(
    save: SaveRecord, delay_s: float, host: HostLimits
) -> dict[str, float] | str:
    """Seconds of the wait for a core by whose CPU it was, or why that is unknown."""
    workers_s, others_s = save.workers_cpu_s, strangers_here_s(save, host)
    if workers_s is None and save.workers == 0:
        workers_s = 0.0
    if workers_s is None and others_s is None:
        return 'what the workers and others used of the CPU meanwhile is unknown'
    known_s = (workers_s or 0.0) + (others_s or 0.0)
    cores = _cores_of_ranks(host)
    is_full = bool(cores) and (
        (save.cpu_s or 0.0) + known_s >= FULL_CORES * (cores or 0.0) * save.wall_s
    )
    share: float | None = None
    if known_s >= EXPLAINED * delay_s:
        if is_full:
            share = (workers_s or 0.0) / known_s
        elif workers_s is not None and others_s is not None:
            if others_s < BY_ELIMINATION * delay_s:
                share = 1.0
            elif workers_s < BY_ELIMINATION * delay_s:
                share = 0.0
    if share is None:
        return (
            'the CPU that workers and others used meanwhile does not explain the wait '
            'for a core'
        )
    if host.ranks_on_host > 1 and share < 1.0:
        # the others are the other ranks too, and their workers are this run's own
        if share * host.ranks_on_host < 0.5:
            return (
                'the cores were in use, but other ranks on this host and other '
                'programs cannot be distinguished'
            )
        share = 1.0
    shares = {'workers': share * delay_s, 'strangers': (1.0 - share) * delay_s}
    return {cause: part_s for cause, part_s in shares.items() if part_s > 0.0}


def _cores_of_ranks(host: HostLimits) -> float | None:
    if host.cores_had is None:
        return None
    return host.cores_had * max(host.ranks_on_host, 1)


def _memory_s(save: SaveRecord, left_s: float) -> float:
    """The part of a delay that was a wait for memory: pages of ours came from storage
    or swap, and the kernel says how long tasks waited.
    """
    if left_s <= 0.0 or not save.major_faults:
        return 0.0
    waited_s = save.major_faults * MAJOR_FAULT_S
    if save.memory_pressure_pct is not None:
        waited_s = max(waited_s, save.memory_pressure_pct / 100 * save.wall_s)
    return min(waited_s, left_s) if waited_s >= MEMORY_PROVEN * left_s else 0.0


def _write_s(save: SaveRecord) -> tuple[str | None, float]:
    """Time blocked in the write, and what that is called; storage unless remote."""
    write = save.phases.get('write')
    if write is None or write.blocked_s is None or save.is_remote is None:
        return None, 0.0
    if save.is_remote:
        return 'remote', write.blocked_s
    # what a hypervisor takes looks blocked too, and in phases that touch no disk
    elsewhere = _blocked_rate(save.phases.get('serialise'))
    return 'storage', max(write.blocked_s - elsewhere * write.wall_s, 0.0)


def _blocked_rate(phase: SavePhase | None) -> float:
    if phase is None or phase.blocked_s is None or phase.wall_s <= 0.0:
        return 0.0
    return min(phase.blocked_s / phase.wall_s, 1.0)


def _find_cause(
    held_s: dict[str, float], save: SaveRecord, usual_s: float, base_s: float
) -> str | None:
    """The cause that holds most, of those that make it slow without the others.

    A delay by the CPU counts early, because it is measured best.
    """
    causes = {
        cause: seconds
        for cause, seconds in held_s.items()
        if _counts(seconds, base_s, BLOCKED_SAVE_S, BLOCKED_SAVE_RATIO)
    }
    contention_s = min(max(save.wall_s - usual_s, 0.0), save.run_delay_s or 0.0)
    rivals = [cause for cause in ('workers', 'strangers') if cause in held_s]
    if rivals and _counts(contention_s, base_s, SLOW_SAVE_S, SLOW_SAVE_RATIO):
        most = max(rivals, key=lambda cause: held_s[cause])
        causes[most] = sum(held_s[cause] for cause in rivals)
    return max(causes, key=lambda cause: causes[cause], default=None)


def _counts(delay_s: float, usual_s: float, least_s: float, ratio: float) -> bool:
    return delay_s >= least_s and delay_s >= ratio * usual_s


def _explained(
    judged: SaveJudgement, save: SaveRecord, host: HostLimits, doubt: str | None
) -> SaveJudgement:
    """A slow save with its paragraph: what held it, what that cost, what to do."""
    gross_s, net_s, cause = (
        judged.gross_delay_s or 0.0,
        judged.net_delay_s,
        judged.cause,
    )
    held = sorted(judged.held_s.items(), key=lambda one: (one[0] != cause, -one[1]))
    named = [
        f'for {_seconds(seconds)} {_phrase_cause(name, save, host)}'
        for name, seconds in held
        if name == cause or seconds >= NAMED_SHARE * gross_s
    ]
    if cause is None:
        why = doubt or 'no single cause holds enough of it'
        named.append(f'what held it cannot be told: {why}')
    text = '; '.join(named)
    lost = 'what the job lost (net) is not known yet'
    if net_s is not None:
        lost = f'the job lost {_seconds(net_s)} (net)'
    cost = f'Training stood still {_seconds(gross_s)} longer (gross); {lost}.'
    cure = '' if cause is None else f' {_CURES[cause]}'
    sentence = f'{judged.sentence} {text[:1].upper()}{text[1:]}. {cost}{cure}'
    return replace(judged, sentence=sentence)


def _phrase_cause(cause: str, save: SaveRecord, host: HostLimits) -> str:
    write, rate, busy = save.phases.get('write'), '', 'the'
    if save.bytes and write is not None and write.wall_s > 0:
        rate = f' ({save.bytes / 1e6 / write.wall_s:.0f} MB/s)'
    if save.workers is not None and save.workers_busy is not None:
        busy = f'{save.workers_busy:.1f} of {save.workers}'
    cores = 'an unknown number of usable cores'
    if host.usable_cores is not None:
        cores = f'{host.usable_cores:g} usable core{"s" * (host.usable_cores != 1)}'
    short = [
        (save.memory_pressure_pct, '{:.0f} % of the time under pressure'),
        (save.major_faults, '{} page faults from storage'),
    ]
    of_memory = ', '.join(words.format(value) for value, words in short if value)
    return {
        'workers': 'the saving thread was ready to run and got no core, while '
        f'{busy} loader workers were busy on {cores}',
        'strangers': 'the saving thread was ready to run and got no core, while other '
        f'programs used {_seconds(strangers_here_s(save, host))} of CPU on {cores}',
        'storage': f'it was blocked in the write to storage{rate}',
        'memory': f'memory was short ({of_memory})',
        'size': "it wrote histories of MMEngine's message hub, "
        f'{_bytes(save.message_hub_bytes)} of {_bytes(save.bytes)}',
        'remote': f'it waited for {save.backend or "its backend"}{rate}, which writes '
        'elsewhere than to this host',
    }[cause]


def _subject(save: SaveRecord) -> str:
    size = '' if save.bytes is None else f' ({_bytes(save.bytes)})'
    return f'Saving {save.name or "a checkpoint"}{size} at iteration {save.iteration}'


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return 'an unknown time'
    return f'{seconds:.2f} s' if seconds >= 0.1 else f'{1000 * seconds:.0f} ms'


def _bytes(size: int | None) -> str:
    size = size or 0
    if size < 2**20:
        return f'{size / 2**10:.0f} KiB'
    return f'{size / 2**20:.0f} MiB' if size < 2**30 else f'{size / 2**30:.1f} GiB'
