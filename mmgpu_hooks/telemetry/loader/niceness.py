"""How much a worker gives way to the thread that trains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def write_nice(pids: Iterable[int], nice: int, proc: Path = Path('/proc')) -> None:
    """Set the nice value of processes with all their threads; 3 us per thread.

    One that is nicer already stays as it is: going back needs a privilege. One that
    ended is left out. Threads that start later have the value of whoever starts them.

    Args:
        pids: The processes, children of this one.
        nice: 0, as most processes, to 19, only what nobody else wants.
        proc: Root of the proc file system.

    Raises:
        OSError: If the host refuses it.
    """
    for pid in pids:
        threads = [pid]
        with contextlib.suppress(OSError):  # hidden: then its main thread alone
            threads = [int(name) for name in os.listdir(proc / str(pid) / 'task')]
        for thread in threads:
            # on Linux a priority belongs to a thread, whatever the call is named
            with contextlib.suppress(ProcessLookupError):
                if os.getpriority(os.PRIO_PROCESS, thread) < nice:
                    os.setpriority(os.PRIO_PROCESS, thread, nice)
