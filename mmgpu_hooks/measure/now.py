"""Identifies the training process, and reads later if it is alive or was killed."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections import deque
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.cgroup import read_cgroup_folders
from mmgpu_hooks.measure.loader.call_stack import parse_stack
from mmgpu_hooks.measure.process_start import ProcessStart, parse_process_start
from mmgpu_hooks.schema.judged import HostNow
from mmgpu_hooks.schema.regular import read_end
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.run_folder import STACK_SUFFIX

_PROC, _SYS, _KMSG = Path('/proc'), Path('/sys'), Path('/dev/kmsg')
_CGROUPS = _SYS / 'fs' / 'cgroup'
_TELLING = re.compile(r'Killed process \d+|\bXid\b|fallen off the bus')
_MOST_LINES, _RECORD_BYTES, _MOST_BYTES = 64, 8192, 2**18


def read_host(evidence: RunEvidence) -> HostNow:
    """Reads if a run's process on this host is alive or was killed, and its last stack.

    Of a run on another host only the stack is read.
    """
    run = evidence.run
    stack = read_own_stack(Path(evidence.path).with_suffix(STACK_SUFFIX))
    began = run.process_start
    if run.pid is None or began is None or run.hostname != socket.gethostname():
        return HostNow(stack=stack)
    start = read_start(run.pid)
    # its number may be that of another process by now
    is_alive = start is not None and start.ticks == began and start.state not in 'ZX'
    kills = read_oom_kills(run.memory_cgroup)
    is_stopped = is_alive and start is not None and start.state == 'T'
    return HostNow(is_alive, kills, read_kernel_log(began), stack, is_stopped)


def read_oom_kills(folder: str | None, root: Path = _CGROUPS) -> int | None:
    """Counts the kills for lack of memory so far, in a control group and below it.

    Args:
        folder: Of the group. Evidence names it, which others may have written: outside
            of ``root`` nothing is opened.
        root: Where control groups are mounted.
    """
    # a name with a null byte is refused with a ValueError
    with contextlib.suppress(OSError, ValueError):
        group = Path(os.path.realpath(folder or '/'))
        if not group.is_relative_to(os.path.realpath(root)):
            return None
        for name in ('memory.events', 'memory.oom_control'):
            with contextlib.suppress(OSError):
                text = read_end(group / name, _MOST_BYTES)
                found = re.search(rb'^oom_kill (\d{1,18})$', text, re.MULTILINE)
                return int(found[1]) if found else None
    return None


class ProcessIdentity(NamedTuple):
    """Host, process id, start and memory control group, to find the process later."""

    hostname: str
    pid: int
    start_ticks: int | None
    """Start of the process in clock ticks after boot; ``None`` if unreadable."""
    memory_cgroup: str | None
    """Folder of the process's memory control group; ``None`` if it is not visible."""
    oom_kills: int | None
    """Number of kills for lack of memory so far in the control group, if known."""


def read_process_identity() -> ProcessIdentity:
    """Reads host name, process id, start and memory control group of this process."""
    groups = read_cgroup_folders('memory', _PROC, _SYS)
    folder = str(groups[0].folder) if groups else None
    start = read_start(os.getpid())
    return ProcessIdentity(
        hostname=socket.gethostname(),
        pid=os.getpid(),
        start_ticks=None if start is None else start.ticks,
        memory_cgroup=folder,
        oom_kills=read_oom_kills(folder),
    )


def read_start(pid: int) -> ProcessStart | None:
    """Reads a process's state and start in clock ticks; ``None`` if it is gone."""
    try:
        return parse_process_start((_PROC / str(pid) / 'stat').read_text())
    except (OSError, ValueError, IndexError):
        return None


def read_own_stack(stack_file: Path) -> tuple[str, ...]:
    """Reads a hanging training thread's stack, innermost first, from its stack file."""
    with contextlib.suppress(OSError):
        text = read_end(stack_file, _MOST_BYTES).decode('utf-8', 'replace')
        # it is the last one
        return parse_stack(text.split('\n\n')[-1])
    return ()


def read_kernel_log(since_ticks: int, kmsg: Path = _KMSG) -> tuple[str, ...]:
    """Reads kernel log lines about kills for lack of memory and lost GPUs, if allowed.

    A record has the time in microseconds after boot::

        6,1234,81234567890,-;Out of memory: Killed process 991 (python)

    Args:
        since_ticks: Clock ticks after boot, from which on lines count.
        kmsg: The kernel's log.
    """
    found: deque[str] = deque(maxlen=_MOST_LINES)
    since_us = 1e6 * since_ticks / os.sysconf('SC_CLK_TCK')
    try:
        log = os.open(kmsg, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ()
    with contextlib.suppress(OSError), os.fdopen(log, 'rb', 0) as file:
        # a read gives one record, and would block at the end
        while record := file.read(_RECORD_BYTES):
            for line in record.decode('utf-8', 'replace').splitlines():
                head, _, text = line.partition(';')
                fields = head.split(',')
                is_known = _TELLING.search(text) and len(fields) > 2
                if is_known and fields[2].isdigit() and int(fields[2]) >= since_us:
                    found.append(text)
    return tuple(found)
