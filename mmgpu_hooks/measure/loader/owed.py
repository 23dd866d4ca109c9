"""Finds the worker that must deliver the next batch, and what blocks it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from mmgpu_hooks.measure.clock import Clock, grown
from mmgpu_hooks.measure.loader.call_stack import ask_stack
from mmgpu_hooks.measure.loader.counters import Counters
from mmgpu_hooks.measure.proc import read_process_cpu_s
from mmgpu_hooks.measure.process_start import parse_process_start

_PROC = Path('/proc')
_WATCH_S, _BUSY_SHARE = 0.2, 0.3
_MOST_ASKED = 16
"""Maximum number of workers that are asked for their Python stacks."""

_CALLS = {
    'x86_64': {
        **{0: 'read', 17: 'pread64', 2: 'open', 257: 'openat', 202: 'futex'},
        **{1: 'write', 42: 'connect', 44: 'sendto', 45: 'recvfrom', 47: 'recvmsg'},
        **{7: 'poll', 271: 'ppoll', 23: 'select', 270: 'pselect6', 61: 'wait4'},
        **{232: 'epoll_wait', 281: 'epoll_pwait'},
        **{35: 'nanosleep', 230: 'clock_nanosleep'},
    },
    'aarch64': {
        **{63: 'read', 67: 'pread64', 56: 'openat', 98: 'futex'},
        **{64: 'write', 203: 'connect', 206: 'sendto', 207: 'recvfrom'},
        **{212: 'recvmsg', 72: 'pselect6', 73: 'ppoll', 260: 'wait4'},
        **{22: 'epoll_pwait', 101: 'nanosleep', 115: 'clock_nanosleep'},
    },
}
"""Names of Linux system calls by call number, for each machine type."""
_ON_A_FILE = ('read', 'pread64', 'write')
"""Names of system calls whose first argument is a file descriptor."""


@dataclass(frozen=True)
class ProcessState:
    """State of a process as the kernel reports it; ``None`` is unknown."""

    state: str
    """State of the process as in ``ps``: R, S, D, T, Z, or X when it is gone."""
    call: str | None = None
    """Name of the system call in which the process waits.

    In an uninterruptible sleep it is the kernel's function, where that is known."""
    path: str | None = None
    """Path of the file on which the process's system call works."""
    mount: str | None = None
    """Type of the file system, such as ``nfs4``, of the system call's file."""


@dataclass(frozen=True)
class LoadingSample:
    """Data set sample that a worker is loading now, and the seconds so far."""

    index: int | None
    """Index of the sample in the dataset; ``None`` if the index is not a number."""
    seconds: float
    """Seconds since the worker began to load the sample."""
    image: str | None
    """Path of the sample's image; ``None`` until its annotation has been read."""
    number: int | None = None
    """Position of the sample in its batch, counted from 1; ``None`` if unknown."""
    batch_samples: int | None = None
    batch_s: float | None = None
    """Seconds since the worker began to load the sample's batch."""


@dataclass(frozen=True)
class OwedBatch:
    """Next batch of training: the worker that must deliver it, and what that does."""

    worker: int | None = None
    """Id of the worker that must deliver the next batch; ``None`` if unknown.

    Or of one that is stopped, and keeps that one from delivering."""
    pid: int | None = None
    process: ProcessState | None = None
    """Kernel's state of the awaited worker's process; ``None`` without workers."""
    stack: tuple[str, ...] = ()
    """Python stack of the awaited worker, innermost call first; empty if unknown."""
    alike: int = 0
    """Number of workers, including the awaited one, at the same line of code."""
    sample: LoadingSample | None = None
    """Sample that the awaited worker is loading; ``None`` if none or unknown."""


def find_owed(iterator: Any, counters: Counters | None, clock: Clock) -> OwedBatch:
    """Finds the worker that must deliver the next batch, its state and Python stack.

    It takes 0.2 s and more, off the thread that trains.

    Args:
        iterator: The loader's live iterator.
        counters: What its workers write to; ``None`` where they could not be reached.
        clock: That the workers stamp with.

    Returns:
        What is known of it.
    """
    workers = getattr(iterator, '_workers', None)
    if not workers:
        return OwedBatch(sample=_read_sample(counters, 0, clock))
    info = iterator._task_info.get(iterator._rcvd_idx) or (len(workers),)
    # PyTorch puts the worker's id first
    worker = info[0]
    if worker >= len(workers):
        return OwedBatch()
    pid = workers[worker].pid
    before_s = read_process_cpu_s(pid)
    time.sleep(_WATCH_S)
    used_s = grown(before_s, read_process_cpu_s(pid))
    # after the watch: it goes with the sample that is read next
    process = read_state(pid)
    is_busy = used_s is not None and used_s >= _BUSY_SHARE * _WATCH_S
    if process.state == 'S' and is_busy:
        process = ProcessState('R')
    if process.state == 'S' and _has_loaded(counters, worker):
        worker = _find_stopped(workers, worker)
        if workers[worker].pid != pid:
            pid = workers[worker].pid
            process = read_state(pid)
    stack = _ask(pid, counters, worker)
    alike = 0
    if stack:
        stacks = [
            _ask(other.pid, counters, number)
            for number, other in enumerate(workers[:_MOST_ASKED])
            if number != worker
        ]
        alike = 1 + sum(other[:1] == stack[:1] for other in stacks)
    return OwedBatch(
        worker=worker,
        pid=pid,
        process=process,
        stack=stack,
        alike=alike,
        sample=_read_sample(counters, worker, clock),
    )


def _has_loaded(counters: Counters | None, worker: int) -> bool:
    """True if a worker began a batch's samples and loads none now; False if unknown."""
    if counters is None:
        return False
    figures = counters.workers[worker]
    return bool(figures['batch_begun']) and not figures['loading_since_s']


def _find_stopped(workers: Sequence[Any], awaited: int) -> int:
    """Finds the stopped worker, if any, that keeps the awaited one from sending.

    All workers write into one queue, under one lock. One that is stopped while it
    writes keeps that lock, and the others wait for it with their batch loaded.
    """
    for number, other in enumerate(workers):
        if number != awaited and read_state(other.pid).state == 'T':
            return number
    return awaited


def _read_sample(
    counters: Counters | None, worker: int, clock: Clock
) -> LoadingSample | None:
    if counters is None:
        return None
    figures = counters.workers[worker]
    since_s, index = float(figures['loading_since_s']), int(figures['loading_index'])
    if not since_s:
        return None
    now_s, number = clock(), int(figures['batch_begun'])
    return LoadingSample(
        index=index if index >= 0 else None,
        seconds=max(now_s - since_s, 0.0),
        image=counters.read_file(worker),
        number=number or None,
        batch_samples=int(figures['batch_samples']) or None,
        batch_s=max(now_s - float(figures['batch_since_s']), 0.0),
    )


def _ask(pid: int, counters: Counters | None, worker: int) -> tuple[str, ...]:
    if counters is None:
        return ()
    descriptor = int(counters.workers['stack_file'][worker])
    if not descriptor or read_state(pid).state not in 'RS':
        return ()
    return ask_stack(pid, descriptor)


def read_state(pid: int, proc: Path = _PROC) -> ProcessState:
    """Reads from the kernel a process's state, system call, and that call's file.

    Args:
        pid: The process.
        proc: Root of the proc file system.
    """
    folder = proc / str(pid)
    stat = _read(folder / 'stat') or ') X' + ' 0' * 20
    state = parse_process_start(stat).state
    if state in 'ZX':
        return ProcessState(state)
    waiting = _parse_call(_read(folder / 'syscall'))
    call = waiting.name
    if state == 'D':
        wchan = _read(folder / 'wchan')
        call = wchan if wchan.strip('0') else call
    path = mount = None
    if waiting.descriptor is not None:
        try:
            path = os.readlink(folder / 'fd' / str(waiting.descriptor))
            mount = find_mount(path)
        except OSError:
            path = None
    return ProcessState(state, call, path, mount)


def _read(path: Path) -> str:
    try:
        return path.read_text('utf-8', 'replace').strip()
    except OSError:
        return ''


class _SystemCall(NamedTuple):
    """Name of a system call, and the file descriptor on which it works."""

    name: str | None = None
    descriptor: int | None = None


def _parse_call(text: str) -> _SystemCall:
    number, *arguments = text.split() or ['']
    if not arguments or not number.isdigit():
        return _SystemCall()
    calls = _CALLS.get(os.uname().machine, {})
    name = calls.get(int(number), f'system call {number}')
    return _SystemCall(name, int(arguments[0], 16) if name in _ON_A_FILE else None)


def find_mount(path: str) -> str | None:
    """Returns the type of the file system that holds an absolute path."""
    holders = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if f'{path}/'.startswith(f'{mount.mountpoint.rstrip("/")}/')
    ]
    # of those laid over each other the last counts
    innermost = max(
        reversed(holders), key=lambda mount: len(mount.mountpoint), default=None
    )
    return None if innermost is None else str(innermost.fstype)
