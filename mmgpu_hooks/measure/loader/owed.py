"""Which worker owes the loop its next batch, and what keeps it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import psutil

from mmgpu_hooks.measure.clock import Clock
from mmgpu_hooks.measure.loader import counters as at
from mmgpu_hooks.measure.loader.call_stack import ask_stack
from mmgpu_hooks.measure.loader.counters import Counters
from mmgpu_hooks.measure.now import parse_process_start
from mmgpu_hooks.measure.proc import read_process_cpu_s

_PROC = Path('/proc')
_WATCH_S, _BUSY_SHARE = 0.2, 0.3
_MOST_ASKED = 16
"""Workers whose stacks are asked for."""

_CALLS = {
    'x86_64': {0: 'read', 17: 'pread64', 2: 'open', 257: 'openat', 202: 'futex'},
    'aarch64': {63: 'read', 67: 'pread64', 56: 'openat', 98: 'futex'},
}
"""System calls by number."""
_ON_A_FILE = ('read', 'pread64')
"""Those whose first argument is a descriptor."""


def find_owed(iterator: Any, counters: Counters | None, clock: Clock) -> dict[str, Any]:
    """Find who owes the next batch; 0.2 s and more, off the thread that trains.

    Args:
        iterator: The loader's live iterator.
        counters: What its workers write to; ``None`` where they could not be reached.
        clock: That the workers stamp with.

    Returns:
        What is known of it, as fields of a `StuckRecord`.
    """
    workers = getattr(iterator, '_workers', None)
    if not workers:
        return {} if counters is None else _read_sample(counters, 0, clock)
    info = iterator._task_info.get(iterator._rcvd_idx) or (len(workers),)
    number = info[0]
    if number >= len(workers):
        return {}
    pid = workers[number].pid
    before_s = read_process_cpu_s(pid) or 0.0
    time.sleep(_WATCH_S)
    used_s = (read_process_cpu_s(pid) or before_s) - before_s
    # after the watch: it goes with the sample that is read next
    state = read_state(pid)
    if state['state'] == 'S' and used_s >= _BUSY_SHARE * _WATCH_S:
        state = {'state': 'R'}
    owed = {'worker': number, 'pid': pid, **state, 'stack': ()}
    if counters is None:
        return owed
    stack = _ask(pid, counters, number)
    if stack:
        others = [
            _ask(other.pid, counters, at_)
            for at_, other in enumerate(workers[:_MOST_ASKED])
            if at_ != number
        ]
        owed['alike'] = 1 + sum(other[:1] == stack[:1] for other in others)
    return {**owed, 'stack': stack, **_read_sample(counters, number, clock)}


def _read_sample(counters: Counters, worker: int, clock: Clock) -> dict[str, Any]:
    head = counters.heads[worker]
    since_s, index = float(head[at.LOADING_SINCE]), int(head[at.LOADING_INDEX])
    if not since_s:
        return {}
    return {
        'sample': index if index >= 0 else None,
        'sample_s': max(clock() - since_s, 0.0),
        'image': counters.read_file(worker),
    }


def _ask(pid: int, counters: Counters, worker: int) -> tuple[str, ...]:
    descriptor = int(counters.heads[worker, at.STACK_FILE])
    if not descriptor or read_state(pid)['state'] not in 'RS':
        return ()
    return ask_stack(pid, descriptor)


def read_state(pid: int, proc: Path = _PROC) -> dict[str, Any]:
    """Read what a process does by the kernel's account, as fields of a `StuckRecord`.

    Args:
        pid: The process.
        proc: Root of the proc file system.
    """
    folder = proc / str(pid)
    state = parse_process_start(_read(folder / 'stat') or ') X' + ' 0' * 20)[0]
    if state in 'ZX':
        return {'state': state}
    call, descriptor = _parse_call(_read(folder / 'syscall'))
    if state == 'D':
        wchan = _read(folder / 'wchan')
        call = wchan if wchan.strip('0') else call
    path = mount = None
    if descriptor is not None:
        try:
            path = os.readlink(folder / 'fd' / str(descriptor))
            mount = find_mount(path)
        except OSError:
            path = None
    return {'state': state, 'call': call, 'path': path, 'mount': mount}


def _read(path: Path) -> str:
    try:
        return path.read_text('utf-8', 'replace').strip()
    except OSError:
        return ''


def _parse_call(text: str) -> tuple[str | None, int | None]:
    """The system call, and the descriptor that it is about."""
    number, *arguments = text.split() or ['']
    if not arguments or not number.isdigit():
        return None, None
    calls = _CALLS.get(os.uname().machine, {})
    call = calls.get(int(number), f'system call {number}')
    return call, int(arguments[0], 16) if call in _ON_A_FILE else None


def find_mount(path: str) -> str | None:
    """Type of the file system that holds an absolute path."""
    holders = [
        (len(mount.mountpoint), mount.fstype)
        for mount in psutil.disk_partitions(all=True)
        if f'{path}/'.startswith(f'{mount.mountpoint.rstrip("/")}/')
    ]
    # of those laid over each other the last counts
    return max(reversed(holders), key=lambda one: one[0], default=(0, None))[1]
