"""Judges checkpoint saves: if one was slow, why, and what time the job lost.

A save is ``wall = cpu + run_delay + blocked`` of the thread that saves. Its delay is
what it took beyond an uncontended save: of the run itself where there are some, else
of its own parts that were not waiting. Meanwhile the loader's workers go on: what they
made ahead is won back after the save, so the job loses less (the *net* delay) than the
save did (the *gross* one). Light on purpose: the hook judges each save as it happens.

Saves are judged in the order they happened: each is measured by the uncontended ones
before it, so that the warning during the run and the finding afterwards say the same.
The newest 32 of those are kept, so thousands of saves cost little. A slow save may stay
without a cause; a wrong one sends people to the wrong cure.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.schema.judged import SaveJudgement
from mmgpu_hooks.schema.recorded import (
    AfterSaveRecord,
    HostLimits,
    LoaderSettings,
    SaveRecord,
)
from mmgpu_hooks.schema.text import Text, phrase, sentences

KEPT_REFERENCES = 32
"""Number of newest uncontended saves with which a save is compared.

Enough for a median, and cheap for a run of thousands.
"""

CALM_RUN_DELAY = 0.1
"""Largest share (0 to 1) of an uncontended save's time that is waiting for a core.

What a quiet host of two cores shows.
"""

USUAL_BLOCKING = 0.5
"""Ratio of blocked time to CPU time up to which a save counts as not delayed.

Page faults, a write through the page cache, copies from a card.
"""

LIKE_SIZE = 1.25
"""Ratio of two saves' sizes up to which their times per byte are compared."""

LEAST_REFERENCES = 3
"""Smallest number of uncontended saves whose median duration is trusted.

One odd save, often the first, is none.
"""

FULL_CORES = 0.75
"""Smallest share (0 to 1) of the usable cores in use that explains a save's core wait.

The scheduler moves tasks late, and short saves are read coarsely.
"""

EXPLAINED = 0.7
"""Least ratio of programs' CPU time to a save's core wait that proves them the cause.

A task was on that core all the while, but for what a hypervisor takes and the clock's
grain of 10 ms.
"""

BY_ELIMINATION = 0.25
"""Ratio of a program's CPU time to a save's core wait below which it is no cause."""

MAJOR_FAULT_S = 1e-4
"""Minimum seconds to read one memory page from storage or swap."""

NAMED_SHARE = 0.2
"""Share (0 to 1) of a save's delay from which a second cause is named."""


class _ThreadTimes(NamedTuple):
    """Seconds that the saving thread ran, waited for a core and was blocked."""

    cpu_s: float
    run_delay_s: float
    blocked_s: float


class DelayCause(NamedTuple):
    """Sentences on a cause of slow saves: the reason, its seconds, and what helps."""

    why: Text
    took: Callable[[float], Text]
    """Function that phrases the seconds by which the cause delayed a run's saves."""
    cure: Text


DELAY_CAUSES = {
    'workers': DelayCause(
        phrase('Loader workers had the cores.'),
        lambda held_s: phrase(
            'For {held_s:sum} of it (gross) loader workers had the cores.',
            held_s=held_s,
        ),
        phrase(
            'Use fewer workers, or GPUEfficiencyHook(worker_nice=10), which lets the '
            'saving thread go first.'
        ),
    ),
    'other_load': DelayCause(
        phrase('Other programs had the cores.'),
        lambda held_s: phrase(
            'For {held_s:sum} of it (gross) other programs had the cores.',
            held_s=held_s,
        ),
        phrase(
            'Run the other programs elsewhere or at another time; no setting of the '
            'loader helps.'
        ),
    ),
    'storage': DelayCause(
        phrase('They were blocked in the write to storage.'),
        lambda held_s: phrase(
            'For {held_s:sum} of it (gross) the write to storage was blocked.',
            held_s=held_s,
        ),
        phrase(
            'The storage is slow, not the loader: save to a faster or a local disk, '
            'less often, or without the optimizer (save_optimizer=False) where none is '
            'resumed from.'
        ),
    ),
    'memory': DelayCause(
        phrase('Memory was short.'),
        lambda held_s: phrase(
            'For {held_s:sum} of it (gross) memory was short.', held_s=held_s
        ),
        phrase(
            'A save holds its file in memory, and more: free some (fewer workers, a '
            'smaller batch), or save without the optimizer.'
        ),
    ),
}


def judge_saves(
    saves: Sequence[SaveRecord],
    after_saves: Iterable[AfterSaveRecord],
    host: HostLimits,
    loader: LoaderSettings,
) -> tuple[SaveJudgement, ...]:
    """Judges all checkpoint saves of a run, in time linear in their number.

    Args:
        saves: In order.
        after_saves: In order. Of several saves of one iteration, the last ones have one
            each.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    after: dict[int, list[AfterSaveRecord]] = defaultdict(list)
    for record in after_saves:
        after[record.iteration].append(record)
    followed = [
        after[save.iteration].pop() if after[save.iteration] else None
        for save in reversed(saves)
    ]
    earlier: deque[SaveRecord] = deque(maxlen=KEPT_REFERENCES)
    judged = []
    for save, after_save in zip(saves, reversed(followed)):
        judged.append(judge_save(save, earlier, after_save, host, loader))
        if is_reference(save):
            earlier.append(save)
    return tuple(judged)


def judge_save(
    save: SaveRecord,
    earlier: Iterable[SaveRecord],
    after_save: AfterSaveRecord | None,
    host: HostLimits,
    loader: LoaderSettings,
) -> SaveJudgement:
    """Judges one checkpoint save: if it was slow, why, and what time was lost.

    A cause is named only where it is proven: the wait for a core by the CPU that
    workers or other programs used meanwhile on the usable cores, storage by the time
    blocked in the write, and so on. No input makes it raise.

    Args:
        save: The save.
        earlier: The newest `KEPT_REFERENCES` saves of the run before it that
            :func:`is_reference` takes.
        after_save: The waits for data after it; ``None`` while they are unknown.
        host: Limits of the host.
        loader: Live settings of the loader.
    """
    what: str = save.name or phrase('a checkpoint')
    if save.bytes:
        what = phrase('{name} ({size_bytes})', name=what, size_bytes=save.bytes)
    times = _read_times(save)
    if times is None:
        said = phrase(
            'Saving {what} at iteration {iteration} took {wall_s}; cannot tell what '
            'held it: the kernel shows no schedstat of its thread.',
            save,
            what=what,
        )
        if save.error is not None:
            said = phrase(
                'Saving {what} at iteration {iteration} took {wall_s}; it failed with '
                '{error}, so it is not judged.',
                save,
                what=what,
            )
        return SaveJudgement(
            is_slow=False,
            cause=None,
            uncontended_s=None,
            gross_delay_s=None,
            net_delay_s=None,
            sentence=said,
        )
    usual = _usual_length(save, times, earlier)
    usual_s = usual.wall_s
    gross_s = save.wall_s - usual_s
    net_s = net_delay_s(gross_s, won_back_s(after_save, loader))
    held_s = _divide_delay(save, times, gross_s, host)
    cause = _find_cause(held_s, min(gross_s, times.run_delay_s), usual_s)
    is_slow = bool(cause) or is_delay(gross_s, usual_s, thresholds.ODD_SAVE)
    judged = SaveJudgement(
        is_slow=is_slow,
        cause=cause,
        uncontended_s=usual_s,
        gross_delay_s=gross_s,
        net_delay_s=net_s,
        sentence=_phrase_length(save, what, usual),
        held_s=held_s,
    )
    if not is_slow:
        return judged
    delay = _phrase_delay(judged, gross_s, save, host)
    return replace(judged, sentence=sentences(judged.sentence, delay))


def _phrase_length(save: SaveRecord, what: str, usual: _UsualLength) -> Text:
    """Says how long a save took, and how long it would have taken uncontended."""
    facts = {'what': what, 'usual_s': usual.wall_s}
    if usual.alike:
        return phrase(
            'Saving {what} at iteration {iteration} took {wall_s}; {usual_s} '
            'uncontended (median of {alike_saves:d} uncontended saves of this run like '
            'it).',
            save,
            alike_saves=usual.alike,
            **facts,
        )
    return phrase(
        'Saving {what} at iteration {iteration} took {wall_s}; {usual_s} uncontended '
        '(its parts that did not wait).',
        save,
        **facts,
    )


def _read_times(save: SaveRecord) -> _ThreadTimes | None:
    """Reads a save's thread times; ``None`` after an error, or without schedstat."""
    cpu_s, run_delay_s, blocked_s = save.cpu_s, save.run_delay_s, save.blocked_s
    if save.error is not None or cpu_s is None:
        return None
    if run_delay_s is None or blocked_s is None:
        return None
    return _ThreadTimes(cpu_s, run_delay_s, blocked_s)


def _phrase_delay(
    judged: SaveJudgement, gross_s: float, save: SaveRecord, host: HostLimits
) -> Text:
    """Says what delayed a slow checkpoint save, the seconds lost, and what helps."""
    held_s = judged.held_s
    said = [
        _phrase_cause(name, held_s[name], save, host)
        for name in sorted(
            held_s, key=lambda name: (name != judged.cause, -held_s[name])
        )
        if name == judged.cause or held_s[name] >= NAMED_SHARE * gross_s
    ]
    if judged.cause is None:
        said.append(phrase('it is unknown, as no cause is proven for enough'))
    what = phrase(
        'What held it: {causes:;}. Training stood still {gross_delay_s} longer '
        '(gross); less what workers won back (net): {net_delay_s}.',
        judged,
        causes=tuple(said),
    )
    if judged.net_delay_s == judged.gross_delay_s:
        what = phrase(
            'What held it: {causes:;}. Training stood still {gross_delay_s} longer.',
            judged,
            causes=tuple(said),
        )
    return sentences(
        what,
        None if judged.cause is None else DELAY_CAUSES[judged.cause].cure,
    )


def is_reference(save: SaveRecord) -> bool:
    """True if a save hardly waited, so that later saves are compared with it."""
    times = _read_times(save)
    if times is None:
        return False
    is_calm = times.run_delay_s <= CALM_RUN_DELAY * save.wall_s
    return is_calm and times.blocked_s <= USUAL_BLOCKING * times.cpu_s


def won_back_s(
    after_save: AfterSaveRecord | None, loader: LoaderSettings
) -> float | None:
    """Computes seconds of data wait saved by batches that were loaded during a save."""
    if loader.num_workers == 0:
        # the training process loads every batch itself: none is made ahead
        return 0.0
    if after_save is None:
        return None
    usual_s = after_save.usual_wait_s if after_save.iterations else 0.0
    if usual_s is None:
        return None
    spared_s = usual_s * after_save.iterations - after_save.waits_s
    if loader.num_workers is not None and loader.prefetch_factor is not None:
        spared_s = min(spared_s, usual_s * loader.num_workers * loader.prefetch_factor)
    return max(spared_s, 0.0)


def net_delay_s(gross_s: float, won_s: float | None) -> float | None:
    """Computes a save's lost seconds: its delay minus data waits saved after it."""
    return None if won_s is None else min(max(gross_s - won_s, 0.0), gross_s)


def _others_here_s(save: SaveRecord, host: HostLimits) -> float | None:
    """Computes a lower bound of other programs' CPU seconds on the cores of this job.

    A container's two cores of 64 are not in the way of what runs on the others.

    Returns:
        ``None`` when it is unknown where they ran.
    """
    if save.other_cpu_s is None or host.logical_cpus is None or host.cores_had is None:
        return None
    elsewhere = max(host.logical_cpus - host.cores_had * host.ranks, 0.0)
    return max(save.other_cpu_s - elsewhere * save.wall_s, 0.0)


class _UsualLength(NamedTuple):
    """Expected seconds of a save without waits, and how they were estimated."""

    wall_s: float
    alike: int = 0
    """Number of like-sized saves in the median; 0 if estimated from the save itself."""


def _usual_length(
    save: SaveRecord, times: _ThreadTimes, earlier: Iterable[SaveRecord]
) -> _UsualLength:
    """Estimates the seconds that a save would have taken without waits.

    The median of the run's uncontended saves of like size, scaled to this one's bytes;
    where they are too few, its own parts that did not wait.
    """
    alike = []
    for other in earlier:
        if other.backend != save.backend or not is_reference(other):
            continue
        # where neither says how large it was, they count as alike
        scale = (save.bytes or 1) / (other.bytes or 1)
        if 1 / LIKE_SIZE <= scale <= LIKE_SIZE:
            alike.append(other.wall_s * scale)
    if len(alike) >= LEAST_REFERENCES:
        return _UsualLength(min(statistics.median(alike), save.wall_s), len(alike))
    excess_s = max(times.blocked_s - USUAL_BLOCKING * times.cpu_s, 0.0)
    left_s = save.wall_s - times.run_delay_s - excess_s
    wall_s = min(max(left_s, 0.0), save.wall_s)
    return _UsualLength(wall_s)


def _divide_delay(
    save: SaveRecord, times: _ThreadTimes, delay_s: float, host: HostLimits
) -> dict[str, float]:
    """Divides a save's delay into the seconds of each proven cause."""
    contention_s = min(delay_s, times.run_delay_s)
    left_s, write = delay_s - contention_s, save.phases.get('write')
    held_s = {'memory': _memory_s(save, left_s)}
    if write and write.blocked_s is not None:
        # what a hypervisor takes looks blocked too, and in phases that touch no disk
        other, stolen = save.phases.get('serialise'), 0.0
        if other is not None and other.blocked_s is not None and other.wall_s > 0.0:
            stolen = min(other.blocked_s / other.wall_s, 1.0)
        written_s = min(write.blocked_s - stolen * write.wall_s, left_s)
        held_s['storage'] = written_s - held_s['memory']
    share = _share_of_workers(save, times, host)
    if share is not None:
        held_s['workers'] = share * contention_s
        held_s['other_load'] = contention_s - held_s['workers']
    return {name: seconds for name, seconds in held_s.items() if seconds > 0.0}


def _share_of_workers(
    save: SaveRecord, times: _ThreadTimes, host: HostLimits
) -> float | None:
    """Computes the share (0 to 1) of a save's core wait that loader workers caused.

    Returns:
        ``None`` where the CPU that both used does not prove it.
    """
    delay_s, cores = times.run_delay_s, host.cores_had
    workers_s = 0.0 if save.workers == 0 else save.workers_cpu_s
    others_s = _others_here_s(save, host)
    known_s = sum(used_s for used_s in (workers_s, others_s) if used_s is not None)
    if known_s < EXPLAINED * delay_s or known_s <= 0.0:
        return None
    used_s = times.cpu_s + known_s
    if cores and used_s >= FULL_CORES * (cores * host.ranks) * save.wall_s:
        # the cores are full without those whose CPU is unknown
        share = 0.0 if workers_s is None else workers_s / known_s
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


def _memory_s(save: SaveRecord, left_s: float) -> float:
    """Computes the seconds of a save's delay that were spent waiting for memory.

    Pages of ours came from storage or swap, and the kernel says how long tasks waited.
    """
    if not save.major_faults:
        return 0.0
    waited_s = save.major_faults * MAJOR_FAULT_S
    if save.memory_pressure_pct is not None:
        waited_s = max(waited_s, save.memory_pressure_pct / 100 * save.wall_s)
    is_proven = waited_s >= thresholds.MEMORY_PROVEN * left_s
    return min(waited_s, left_s) if is_proven else 0.0


def _find_cause(
    held_s: dict[str, float], contention_s: float, usual_s: float
) -> str | None:
    """Finds the main cause of a save's delay; ``None`` if each cause is too small.

    A delay by the CPU counts early, because it is measured best.
    """
    bar = thresholds.BLOCKED_SAVE
    causes = {name: s for name, s in held_s.items() if is_delay(s, usual_s, bar)}
    rivals = {
        name: s for name, s in held_s.items() if name in ('workers', 'other_load')
    }
    if rivals and is_delay(contention_s, usual_s, thresholds.SLOW_SAVE):
        causes[max(rivals, key=rivals.__getitem__)] = sum(rivals.values())
    return max(causes, key=causes.__getitem__, default=None)


def is_delay(delay_s: float, usual_s: float, least: thresholds.DelayThreshold) -> bool:
    """True if a save's delay counts: long in seconds and relative to its usual time."""
    return delay_s >= max(least.least_s, least.ratio * usual_s)


def _phrase_cause(
    cause: str, held_s: float, save: SaveRecord, host: HostLimits
) -> Text:
    """Phrases how long a cause delayed a save, with the proof in brackets."""
    cores = host.usable_cores or 0
    if cause == 'workers':
        return phrase(
            '{held_s} because loader workers had the cores ({busy_workers:.1f} of '
            '{workers:d} busy on {cores:g} usable cores)',
            held_s=held_s,
            busy_workers=save.workers_busy or 0.0,
            workers=save.workers or 0,
            cores=cores,
        )
    if cause == 'other_load':
        return phrase(
            '{held_s} because other programs had the cores ({others_s} of CPU on '
            '{cores:g} usable cores)',
            held_s=held_s,
            others_s=_others_here_s(save, host),
            cores=cores,
        )
    if cause == 'memory':
        return phrase(
            '{held_s} because memory was short ({page_faults} page faults from '
            'storage)',
            held_s=held_s,
            page_faults=save.major_faults or 0,
        )
    write = save.phases.get('write')
    if save.bytes and write is not None and write.wall_s > 0:
        return phrase(
            '{held_s} blocked in the write to storage ({written_mb_per_s:.0f} MB/s)',
            held_s=held_s,
            written_mb_per_s=save.bytes / 1e6 / write.wall_s,
        )
    return phrase('{held_s} blocked in the write to storage', held_s=held_s)
