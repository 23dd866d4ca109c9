"""Which process a run was, and what the host shows of it afterwards."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from mmgpu_hooks.measure.cgroup import read_cgroup_folders
from mmgpu_hooks.schema import HostNow

_PROC, _SYS = Path('/proc'), Path('/sys')


def parse_process_start(text: str) -> tuple[str, int]:
    """Parse state and start, in clock ticks after boot, out of ``/proc/PID/stat``.

    The name of the program may hold blanks and brackets::

        4123 (pt_data) worker) S 1 4123 4123 0 -1 4194560 ...
    """
    fields = text.rpartition(')')[2].split()
    return fields[0], int(fields[19])


def parse_oom_kills(text: str) -> int | None:
    """Parse ``oom_kill`` out of ``memory.events`` or version 1's ``oom_control``."""
    for line in text.splitlines():
        name, _, value = line.partition(' ')
        if name == 'oom_kill' and value.isdigit():
            return int(value)
    return None


def read_oom_kills(folder: str | None) -> int | None:
    """Processes killed for memory in a control group, its children included."""
    for name in ('memory.events', 'memory.oom_control') if folder else ():
        try:
            return parse_oom_kills(Path(folder or '', name).read_text())
        except OSError:
            continue
    return None


def read_identity(proc: Path = _PROC, sys: Path = _SYS) -> dict[str, Any]:
    """This process and its memory's control group, as fields of a run record."""
    folders = read_cgroup_folders('memory', proc, sys)
    folder = str(folders[0][1]) if folders else None
    return {
        'hostname': socket.gethostname(),
        'pid': os.getpid(),
        'process_start': _read_start(os.getpid(), proc)[1],
        'memory_cgroup': folder,
        'oom_kills': read_oom_kills(folder),
    }


def _read_start(pid: int, proc: Path) -> tuple[str, int | None]:
    try:
        return parse_process_start((proc / str(pid) / 'stat').read_text())
    except (OSError, ValueError, IndexError):
        return '', None


def read_host_now(
    hostname: str | None,
    pid: int | None,
    process_start: int | None,
    memory_cgroup: str | None,
    proc: Path = _PROC,
) -> HostNow:
    """What this host shows of a run; nothing where the run was on another one.

    Args:
        hostname: Of the run, as are the next three; see `RunRecord`.
        pid: Its process.
        process_start: Clock ticks after boot.
        memory_cgroup: Folder of its control group.
        proc: Root of the proc file system.
    """
    if pid is None or hostname != socket.gethostname() or not proc.is_dir():
        return HostNow()
    state, start = _read_start(pid, proc)
    is_alive = start is not None and start == process_start and state not in 'ZX'
    return HostNow(is_alive=is_alive, oom_kills=read_oom_kills(memory_cgroup))
