"""What narrowed the CPU affinity of this process after it was started.

An OpenMP runtime that finds one of ``VARIABLES`` binds the thread that loads it, which
is the training's main thread (``import torch``), and loader workers inherit that:
pytorch #49971, #91989. A variable alone or a wider parent proves nothing, as
``taskset`` leaves an unrestricted parent, too.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from mmgpu_hooks.measure.host.proc import read_affinity

VARIABLES = ('OMP_PROC_BIND', 'OMP_PLACES', 'GOMP_CPU_AFFINITY', 'KMP_AFFINITY')


class Binding(NamedTuple):
    """A mask that is narrower than the process was started with."""

    cpus: int
    """CPUs of the mask before."""
    by: str | None
    """The environment variables that asked for it; ``None`` if none is set."""


def find_binding(
    own: int,
    environ: Mapping[str, str],
    *,
    library: int | None = None,
    thread: int | None = None,
    ancestor: int | None = None,
) -> Binding | None:
    """Decide whether the process was bound after its start. Pure.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        library: CPUs that libgomp counted when it was loaded.
        thread: CPUs of the widest thread of the process.
        ancestor: CPUs of the process that started the launcher, where the launcher has
            no more than ``own``.
    """
    asked = {name: environ.get(name, '').lower() for name in VARIABLES}
    if asked['OMP_PROC_BIND'] == 'false':  # libgomp heeds none of the others then
        asked.clear()
    names = [
        name
        for name, value in asked.items()
        if value and not {'none', 'disabled'} & set(value.split(','))
    ]
    by = ', '.join(names) or None
    if by and library is not None and library > own:
        return Binding(library, by)
    if thread is not None and thread > own:
        return Binding(thread, by)
    # torchrun bound itself before it started us
    is_launched = by and 'TORCHELASTIC_RUN_ID' in environ
    if is_launched and ancestor is not None and ancestor > own:
        return Binding(ancestor, by)
    return None


def read_binding(
    own: int, environ: Mapping[str, str], proc: Path = Path('/proc')
) -> Binding | None:
    """Find out whether this process was bound after its start; 1 ms.

    Args:
        own: CPUs that the calling thread may run on.
        environ: The environment of the process.
        proc: Root of the proc file system.
    """
    asked = any(name in environ for name in VARIABLES)
    return find_binding(
        own,
        environ,
        library=max(_count_by_libgomp(proc), default=None) if asked else None,
        thread=max(_count_by_thread(proc), default=None),
        ancestor=_count_before_launcher(own, proc),
    )


def _count_by_libgomp(proc: Path) -> Iterator[int]:
    # not of LLVM's or Intel's runtime, which may bind us on this very call
    for path in set(re.findall(r'/.*/libgomp\b.*\.so.*', _read(proc / 'self/maps'))):
        try:
            library = ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
            yield library.omp_get_num_procs()
        except (OSError, AttributeError):
            continue


def _count_by_thread(proc: Path) -> Iterator[int]:
    try:
        threads = os.listdir(proc / 'self/task')
    except OSError:
        return
    for thread in threads:
        yield len(read_affinity(int(thread)) or ())


def _count_before_launcher(own: int, proc: Path) -> int | None:
    # one further up was narrowed by who started it: srun, or taskset of a script
    launcher = os.getppid()
    found = re.search(r'^PPid:\s*(\d+)', _read(proc / f'{launcher}/status'), re.M)
    if found is None or len(read_affinity(launcher) or ()) > own:
        return None
    return len(read_affinity(int(found[1])) or ())


def _read(path: Path) -> str:
    try:
        return path.read_text(errors='replace')
    except OSError:
        return ''
