"""Reads a long file in several processes, each a stretch of it.

They are forked, so they begin at once. What one of them found comes back column by
column, so that no figure is held twice for long.
"""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from mmgpu_hooks.evidence.findings import Gathering
from mmgpu_hooks.evidence.lines import read_borders, read_stretch
from mmgpu_hooks.evidence.run_folder import EvidenceError
from mmgpu_hooks.telemetry.host.limits import read_host_limits

LEAST_BYTES = 2**24
"""Of a stretch: less is read in the time that it takes to share it."""

MOST_PROCESSES = 4
"""More would wait for the one that puts everything together."""


def count_processes() -> int:
    """How many may share the reading: the cores that this process may use."""
    if not hasattr(os, 'sched_getaffinity'):  # not on Linux
        return 1
    cores = read_host_limits(ranks_on_host=1).usable_cores or 1
    return max(1, min(int(cores), MOST_PROCESSES))


def read_in_processes(path: Path, processes: int) -> Gathering | None:
    """What is in a file, this process and forked ones reading it together.

    Args:
        path: The file.
        processes: That may read it, this one included.

    Returns:
        ``None`` where it is too short for that, or where that is not possible.

    Raises:
        EvidenceError: As when one process reads it.
    """
    with contextlib.suppress(OSError):
        processes = min(processes, path.stat().st_size // LEAST_BYTES)
    if processes < 2 or threading.active_count() > 1:
        return None
    borders = read_borders(path, processes)
    ends = [*borders[1:], None]
    gathering = Gathering(path)
    with contextlib.ExitStack() as stack:
        try:
            others = [
                stack.enter_context(_forked(path, begin, end))
                for begin, end in zip(borders[1:], ends[1:])
            ]
            gathering.take_all(read_stretch(path, 0, ends[0]))
            for other in others:
                _receive(other, gathering)
        except (OSError, EOFError):
            # no process to be had, or it was killed
            return None
    return gathering


class _Pipe(Protocol):
    def send(self, message: Any, /) -> None: ...

    def recv(self) -> Any: ...

    def close(self) -> None: ...


@contextlib.contextmanager
def _forked(path: Path, begin: int, end: int | None) -> Iterator[_Pipe]:
    """Where a process sends what it finds in a stretch."""
    import multiprocessing

    context = multiprocessing.get_context('fork')
    mine, its = context.Pipe(duplex=False)
    process = context.Process(target=_send_stretch, args=(mine, its, path, begin, end))
    with mine:
        with its, warnings.catch_warnings():
            # the other threads are those of a library that the child does not call
            warnings.simplefilter('ignore', DeprecationWarning)
            process.start()
        try:
            yield mine
        finally:
            process.kill()
            process.join()


def _send_stretch(
    reader: _Pipe, pipe: _Pipe, path: Path, begin: int, end: int | None
) -> None:
    # a child with the other end too would wait for itself if its parent were killed
    reader.close()
    # Ctrl-C is for the process that prints; whatever else happens here (memory that
    # runs out), the pipe is closed and the parent reads alone
    with contextlib.suppress(KeyboardInterrupt, Exception):
        gathering = Gathering(path)
        try:
            gathering.take_all(read_stretch(path, begin, end))
        except EvidenceError as error:
            pipe.send(error)
            return
        table = gathering.table.build()
        columns = table.whole_columns()
        pipe.send((gathering.found, len(columns)))
        pipe.send((table.maps, len(table), table.slowest))
        for path_and_column in columns.items():
            pipe.send(path_and_column)


def _receive(pipe: _Pipe, gathering: Gathering) -> None:
    """Join to what the stretches before hold what a process found in its own."""
    message = pipe.recv()
    if isinstance(message, EvidenceError):
        raise message
    later, columns = message
    others = pipe.recv()
    gathering.table.join((pipe.recv() for _ in range(columns)), *others)
    gathering.found.join(later)
