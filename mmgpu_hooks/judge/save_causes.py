"""What held a save, each second of it proven or left alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmgpu_hooks.judge.thresholds import (
    BLOCKED_SAVE_RATIO,
    BLOCKED_SAVE_S,
    MEMORY_PROVEN,
)
from mmgpu_hooks.model.save_cost import (
    MAJOR_FAULT_S,
    SaveTimes,
    certain_strangers_s,
    split_run_delay,
)
from mmgpu_hooks.schema import HostLimits, SavePhase, SaveRecord


@dataclass(frozen=True)
class Held:
    """The delay of one save by what held it."""

    uncontended_s: float
    contention_s: float
    """Of the delay, waiting for a core; whoever had it."""
    seconds: Mapping[str, float]
    """By proven cause, out of ``SAVE_CAUSES``; never more than the delay in all."""
    doubt: str | None = None
    """What cannot be told of the rest, and why."""


def find_held(
    save: SaveRecord, times: SaveTimes, usual_s: float, host: HostLimits
) -> Held:
    """Divide the delay beyond ``usual_s`` among what can be proven to have held it.

    Args:
        save: The save.
        times: Its times, all known.
        usual_s: What a file of this size would have taken.
        host: Limits of the host.
    """
    base_s = usual_s - _hub_s(save, usual_s)
    seconds: dict[str, float] = {}
    doubt: str | None = None
    if usual_s > base_s:
        seconds['size'] = usual_s - base_s
    delay_s = max(times.wall_s - usual_s, 0.0)
    contention_s = min(delay_s, times.run_delay_s)
    if contention_s > 0.0:
        shares = _share_cores(save, times, host)
        if isinstance(shares, str):
            doubt = shares
        else:
            whole_s = times.run_delay_s
            for cause, part_s in shares.items():
                seconds[cause] = contention_s * min(part_s / whole_s, 1.0)
    left_s = delay_s - contention_s
    memory_s = _memory_s(save, left_s)
    if memory_s > 0.0:
        seconds['memory'] = memory_s
    writer, written_s = _write_s(save)
    written_s = min(written_s - memory_s, left_s - memory_s)
    if written_s > 0.0 and writer is not None:
        seconds[writer] = written_s
    if doubt is None and left_s > contention_s:
        doubt = _doubt_blocking(save, writer)
    return Held(base_s, contention_s, seconds, doubt)


def strangers_here_s(save: SaveRecord, host: HostLimits) -> float | None:
    """CPU of strangers on the usable cores for certain.

    A container's two cores of 64 are not in the way of what runs on the others.

    Returns:
        ``None`` when it is unknown where they ran.
    """
    return certain_strangers_s(
        save.strangers_cpu_s, save.wall_s, host.logical_cpus, _cores_of_all(host)
    )


def _cores_of_all(host: HostLimits) -> float | None:
    if host.cores_had is None:
        return None
    return host.cores_had * max(host.ranks_on_host, 1)


def _hub_s(save: SaveRecord, usual_s: float) -> float:
    """What the message hub's histories cost, where that is worth a word."""
    if not save.message_hub_bytes or not save.bytes:
        return 0.0
    hub_s = usual_s * min(save.message_hub_bytes / save.bytes, 1.0)
    matters = hub_s >= BLOCKED_SAVE_S and hub_s >= BLOCKED_SAVE_RATIO * (
        usual_s - hub_s
    )
    return hub_s if matters else 0.0


def _share_cores(
    save: SaveRecord, times: SaveTimes, host: HostLimits
) -> dict[str, float] | str:
    """Seconds of the wait for a core by whose CPU it was, or why nobody can tell."""
    ranks, cores = max(host.ranks_on_host, 1), _cores_of_all(host)
    workers_cpu_s = save.workers_cpu_s
    if workers_cpu_s is None and save.workers == 0:
        workers_cpu_s = 0.0
    strangers_cpu_s = strangers_here_s(save, host)
    if workers_cpu_s is None and strangers_cpu_s is None:
        return 'nobody knows what the workers and others used of the CPU meanwhile'
    parts = split_run_delay(
        times,
        workers_cpu_s=workers_cpu_s,
        strangers_cpu_s=strangers_cpu_s,
        cores=cores,
    )
    if parts is None:
        return (
            'the CPU that workers and others used meanwhile does not explain the wait '
            'for a core'
        )
    by_workers_s, by_strangers_s = parts
    if ranks > 1 and by_strangers_s > 0.0:
        # strangers are the other ranks too, and their workers are this run's own
        if by_workers_s * ranks < times.run_delay_s / 2:
            return (
                'the cores were in use, but other ranks on this host and strangers '
                'cannot be told apart'
            )
        return {'workers': times.run_delay_s}
    shares = {'workers': by_workers_s, 'strangers': by_strangers_s}
    return {cause: part_s for cause, part_s in shares.items() if part_s > 0.0}


def _memory_s(save: SaveRecord, left_s: float) -> float:
    """The part of a delay that was a wait for memory: the kernel says so, and pages of
    ours or the host's moved.
    """
    moved = (save.major_faults, save.swap_in_bytes, save.swap_out_bytes)
    if left_s <= 0.0 or not any(moved):
        return 0.0
    waited_s = (save.major_faults or 0) * MAJOR_FAULT_S
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


def _doubt_blocking(save: SaveRecord, cause: str | None) -> str | None:
    if cause is not None:
        return None
    if save.is_remote is None and 'write' in save.phases:
        return 'it is unknown where the file backend writes to'
    return 'the write was not measured on its own'
