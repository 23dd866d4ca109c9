"""How much a worker gives way to the thread that trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from mmgpu_hooks.measure.source_error import SourceError


def write_nice(pids: Iterable[int], nice: int, proc: Path = Path('/proc')) -> None:
    """Set the nice value of processes with all their threads; 3 us per thread.

    One that is nicer already stays as it is: going back needs a privilege. One that
    ended is left out. Threads that start later have the value of whoever starts them.

    Args:
        pids: The processes, children of this one.
        nice: 0, as most processes, to 19, only what nobody else wants.
        proc: Root of the proc file system.

    Raises:
        SourceError: If the host refuses it.
    """
    try:
        for pid in pids:
            for thread in _list_threads(pid, proc):
                # on Linux a priority belongs to a thread, whatever the call is named
                with contextlib.suppress(ProcessLookupError):
                    if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                        os.setpriority(os.PRIO_PROCESS, thread, nice)
    except (AttributeError, OSError) as error:
        raise SourceError(
            f"the host refuses nice {nice} for the loader's workers: {error}"
        ) from None


def _list_threads(pid: int, proc: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(proc / str(pid) / 'task')]
    except OSError:  # hidden: then its main thread alone
        return [pid]
