"""The paragraph about one save: what it took, what held it, what that cost the job."""

from __future__ import annotations

from mmgpu_hooks.judge.save_causes import strangers_here_s
from mmgpu_hooks.judge.thresholds import SLOW_SAVE_S
from mmgpu_hooks.schema import HostLimits, LoaderSettings, SaveJudgement, SaveRecord

NAMED_SHARE = 0.2
"""Of the delay: what held less of it is not named beside the cause."""


def explain_save(
    save: SaveRecord,
    judged: SaveJudgement,
    host: HostLimits,
    loader: LoaderSettings,
    references: int,
    doubt: str | None,
) -> str:
    """Say all that is known of a save.

    Args:
        save: The save.
        judged: What was made of it, but for the sentence.
        host: Limits of the host.
        loader: Live settings of the loader.
        references: Uncontended saves of the run it was measured by; 0 for none.
        doubt: What cannot be told of its delay, and why.
    """
    usual = f'{_subject(save)} took {_seconds(save.wall_s)}'
    basis = f'median of {references} uncontended saves of this run like it'
    if not references:
        basis = 'its parts that did not wait'
    if 'size' in judged.held_s:
        basis += ', less its histories'
    if not judged.is_slow:
        return f'{usual}; {_seconds(judged.uncontended_s)} uncontended ({basis}).'
    sentences = [
        f'{usual} and would have taken {_seconds(judged.uncontended_s)} ({basis}).'
    ]
    named = _named(judged)
    shown = [
        _HELD[cause](save, seconds, host, loader) for cause, seconds in named.items()
    ]
    rivals = [cause for cause in named if cause in _THE_OTHER]
    if len(rivals) > 1:
        at = list(named).index(rivals[1])
        shown[at] = f'for {_seconds(named[rivals[1]])} {_THE_OTHER[rivals[1]]}'
    if judged.cause is None:
        why = doubt or 'no single cause holds enough of it'
        shown.append(f'what held it cannot be told: {why}')
    sentences.append(_capital('; '.join(shown)) + '.')
    sentences.append(_cost(judged, loader))
    if judged.cause is not None:
        sentences.append(_cure(judged, loader))
    return ' '.join(sentences)


def render_unknown(save: SaveRecord, reason: str) -> str:
    """Of a save that cannot be judged, what is known and why there is no more."""
    cpu = '' if save.cpu_s is None else f', {_seconds(save.cpu_s)} of it on a core'
    subject = f'{_subject(save)} took {_seconds(save.wall_s)}{cpu}'
    if save.error is not None:
        return f'{subject}; {reason}, so it is not judged.'
    return f'{subject}; cannot tell the rest: {reason.rstrip(".")}.'


def _subject(save: SaveRecord) -> str:
    size = '' if save.bytes is None else f' ({_bytes(save.bytes)})'
    return f'Saving {save.name or "a checkpoint"}{size} at iteration {save.iteration}'


def _named(judged: SaveJudgement) -> dict[str, float]:
    """What held it, the cause first, then what held much of it as well."""
    least_s = NAMED_SHARE * (judged.gross_delay_s or 0.0)
    held = sorted(
        judged.held_s.items(), key=lambda item: (item[0] != judged.cause, -item[1])
    )
    return {c: s for c, s in held if c == judged.cause or s >= least_s}


def _by_workers(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    text = _no_core(seconds)
    if save.workers is not None and save.workers_busy is not None:
        text += f', while {save.workers_busy:.1f} of {save.workers} loader workers were'
        text += f' busy on {_cores(host)}'
    else:
        text += f', while the loader workers were busy on {_cores(host)}'
    if save.workers_cpu_s is not None:
        text += f' ({_seconds(save.workers_cpu_s)} of CPU'
        others_s = strangers_here_s(save, host)
        if others_s is not None:
            text += f', others {_seconds(others_s)}'
        text += ')'
    return text


def _no_core(seconds: float) -> str:
    return f'for {_seconds(seconds)} the saving thread was ready to run and got no core'


def _by_strangers(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    text = f'{_no_core(seconds)}, while other programs used '
    text += f'{_seconds(strangers_here_s(save, host))} of CPU on {_cores(host)}'
    if save.workers_cpu_s is not None:
        text += f' (loader workers {_seconds(save.workers_cpu_s)})'
    return text


def _by_storage(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    text = f'for {_seconds(seconds)} it was blocked in the write to storage'
    write = save.phases.get('write')
    if save.bytes and write is not None and write.wall_s > 0:
        text += f' ({save.bytes / 1e6 / write.wall_s:.0f} MB/s)'
    if save.io_pressure_pct is not None:
        text += f'; some task waited for storage {save.io_pressure_pct:.0f} % of the'
        text += ' time'
    if save.dirty_bytes is not None and save.writeback_bytes is not None:
        text += f'; {_bytes(save.dirty_bytes + save.writeback_bytes)} of the host were '
        text += 'not yet on it at the end'
    return text


def _by_memory(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    told = []
    if save.memory_pressure_pct is not None:
        told.append(f'{save.memory_pressure_pct:.0f} % of the time under pressure')
    if save.major_faults:
        told.append(f'{save.major_faults} page faults from storage')
    swapped = (save.swap_in_bytes or 0) + (save.swap_out_bytes or 0)
    if swapped:
        told.append(f'{_bytes(swapped)} swapped')
    if save.held_bytes:
        told.append(f'the save itself holds {_bytes(save.held_bytes)}')
    return f'for {_seconds(seconds)} memory was short ({", ".join(told)})'


def _by_size(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    return (
        f"for {_seconds(seconds)} it wrote histories of MMEngine's message hub, "
        f'{_bytes(save.message_hub_bytes or 0)} of {_bytes(save.bytes or 0)}'
    )


def _by_remote(
    save: SaveRecord, seconds: float, host: HostLimits, loader: LoaderSettings
) -> str:
    text = f'for {_seconds(seconds)} it waited for {save.backend or "its backend"}'
    write = save.phases.get('write')
    if save.bytes and write is not None and write.wall_s > 0:
        text += f' ({save.bytes / 1e6 / write.wall_s:.0f} MB/s)'
    return f'{text}, which writes elsewhere than to this host'


def _cost(judged: SaveJudgement, loader: LoaderSettings) -> str:
    gross_s, net_s = judged.gross_delay_s or 0.0, judged.net_delay_s
    held_up = f'Training stood still {_seconds(gross_s)} longer for it (gross)'
    if net_s is None:
        ahead = ''
        if loader.num_workers and loader.prefetch_factor:
            most = loader.num_workers * loader.prefetch_factor
            ahead = f' (at most {most} batches)'
        return (
            f'{held_up}; what the workers made ahead meanwhile{ahead} comes back in '
            'the next iterations, so the job loses less (net, not known yet).'
        )
    if net_s >= gross_s:
        return f'{held_up}, and the job lost as much (net).'
    return (
        f'{held_up}; {_seconds(gross_s - net_s)} came back, because the next '
        f'iterations waited less for data, so the job lost {_seconds(net_s)} (net).'
    )


def _cure(judged: SaveJudgement, loader: LoaderSettings) -> str:
    if judged.cause != 'workers':
        return _CURES[judged.cause or '']
    net_s = judged.net_delay_s
    if net_s is not None and net_s < SLOW_SAVE_S:
        return (
            'The job would hardly be faster without it; fewer workers, or '
            'GPUEfficiencyHook(worker_nice=10), would make the pause shorter.'
        )
    workers = loader.num_workers
    many = 'They are' if workers is None else f'num_workers={workers} is'
    return (
        f'{many} more than this host carries beside a save: use fewer, or '
        'GPUEfficiencyHook(worker_nice=10), which lets the saving thread go first.'
    )


_HELD = {
    'workers': _by_workers,
    'strangers': _by_strangers,
    'storage': _by_storage,
    'memory': _by_memory,
    'size': _by_size,
    'remote': _by_remote,
}

_THE_OTHER = {
    'workers': 'loader workers had the cores',
    'strangers': 'other programs had the cores',
}
"""Of a wait for a core that both are the reason of: the one with less of it."""

_CURES = {
    'strangers': 'Other programs have the cores: run them elsewhere or at another '
    'time; no setting of the loader helps.',
    'storage': 'The disk is slow, not the loader: save to a faster one, or less often.',
    'memory': 'A save holds its file in memory, and more: free some (fewer workers, a '
    'smaller batch), or save without the optimizer.',
    'size': 'The histories grow with the run: log fewer scalars, or update those that '
    'nobody resumes with resumed=False.',
    'remote': 'Save to a local disk and copy from there, or save less often.',
}


def _cores(host: HostLimits) -> str:
    if host.usable_cores is None:
        return 'an unknown number of usable cores'
    shared = ''
    if host.ranks_on_host > 1:
        shared = f' of each of {host.ranks_on_host} ranks here'
    plural = 's' * (host.usable_cores != 1)
    return f'{host.usable_cores:g} usable core{plural}{shared}'


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return 'an unknown time'
    return f'{seconds:.2f} s' if seconds >= 0.1 else f'{1000 * seconds:.0f} ms'


def _bytes(size: int) -> str:
    if size < 2**20:
        return f'{size / 2**10:.0f} KiB'
    return f'{size / 2**20:.0f} MiB' if size < 2**30 else f'{size / 2**30:.1f} GiB'


def _capital(text: str) -> str:
    return f'{text[:1].upper()}{text[1:]}'
