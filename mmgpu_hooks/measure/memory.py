"""Measures memory of training process, workers, control group and data sets."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from mmgpu_hooks.measure.cgroup import MemoryGroup, find_memory_groups
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.proc import read_begin

_PROC = Path('/proc')


PERIOD_S = 1.0
"""Shortest time in seconds between two readings of the training processes' memory.

Intervals between them lack it.
"""

COUNT_EVERY = 5
"""Number of memory readings between two counts of worker threads and open files.

A count takes as long as a reading.
"""

MOST_SHARE = 0.005
"""Largest share (0 to 1) of training time to spend on reading processes' memory."""


class MemoryFigures(NamedTuple):
    """Bytes of memory of the training process, its workers and its control group."""

    process_rss_bytes: int | None
    process_own_bytes: int | None
    group_free_bytes: int | None
    worker_own_bytes: int | None
    worker_threads: int | None = None
    """Largest number of threads of any one worker; ``None`` if not counted.

    ``open_files`` is ``None`` then, too.
    """
    open_files: int | None = None


class ResidentMemory(NamedTuple):
    """Resident bytes of a process; ``None`` if it has ended, or is hidden."""

    all_bytes: int | None = None
    own_bytes: int | None = None
    """Resident bytes without the pages of files and of shared memory."""


def read_resident(proc: Path, pid: int | str = 'self') -> ResidentMemory:
    """Reads the resident bytes of a process; takes 10 us, whatever its size.

    Args:
        proc: Root of the proc file system.
        pid: Of the process.
    """
    try:
        text = read_begin(f'{proc}/{pid}/statm', 128)
        pages, shared = map(int, text.split()[1:3])
    except (OSError, ValueError):  # gone, or hidden
        return ResidentMemory()
    page = os.sysconf('SC_PAGE_SIZE')
    return ResidentMemory(page * pages, page * max(pages - shared, 0))


class MemoryMeter:
    """Reads memory bytes of the training process, its workers and control group.

    A read costs 10 us, and 20 us for each worker, whatever their size. What is hidden
    is ``None``.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self, proc: Path = _PROC, sys: Path = Path('/sys'), clock: Clock = monotonic_s
    ) -> None:
        self._proc, self._reads = proc, itertools.count()
        self._groups = find_memory_groups(proc, sys)
        self._clock = clock
        self._due_s = clock()

    def read(self, workers: Sequence[int]) -> MemoryFigures | None:
        """Reads the memory bytes of training process, loader workers and control group.

        Args:
            workers: Process ids of the loader's workers.

        Returns:
            ``None`` where the last read is too new.
        """
        now_s = self._clock()
        if now_s < self._due_s:
            return None
        process = read_resident(self._proc)
        each = [read_resident(self._proc, pid).own_bytes for pid in workers]
        known = [size for size in each if size is not None]
        figures = MemoryFigures(
            process_rss_bytes=process.all_bytes,
            process_own_bytes=process.own_bytes,
            group_free_bytes=read_groups_free_bytes(self._groups),
            worker_own_bytes=sum(known) if known else None,
        )
        # not with the first: what a run begins with is no steady figure
        if next(self._reads) % COUNT_EVERY == 1:
            threads = (self._count(pid, 'task') for pid in workers)
            figures = figures._replace(
                worker_threads=max(threads, default=0) or None,
                open_files=self._count('self', 'fd') or None,
            )
        # 60,000 open files take 60 ms
        cost_s = self._clock() - now_s
        self._due_s = now_s + max(PERIOD_S, cost_s / MOST_SHARE)
        return figures

    def _count(self, pid: int | str, what: str) -> int:
        """Counts the threads, or the open files, of a process; takes 1 us for each."""
        try:
            return len(os.listdir(f'{self._proc}/{pid}/{what}'))
        except OSError:
            return 0


class GroupUsage(NamedTuple):
    """Bytes of memory that a control group uses, groups below it included."""

    used_bytes: int
    """Bytes of memory that the control group uses, page cache included."""
    parts: Mapping[str, int]
    """Bytes of memory by kind (anonymous, file, ...), keys as in ``memory.stat``."""

    def part(self, name: str) -> int | None:
        """Returns the bytes of one kind of memory, named as in ``memory.stat``.

        Version 1 has those of the whole under a name of their own::

            total_shmem 9625600
            total_inactive_file 1943220224
            total_active_file 1454301184

        Shared memory is no file there.
        """
        return self.parts.get(f'total_{name}', self.parts.get(name))


def read_group_usage(folder: Path) -> GroupUsage | None:
    """Reads the bytes of memory that a control group uses; ``None`` if not reported.

    Args:
        folder: Of the group, of either version.
    """
    for name in ('memory.current', 'memory.usage_in_bytes'):
        try:
            used = int((folder / name).read_text())
            stat = (folder / 'memory.stat').read_text()
        except (OSError, ValueError):
            continue
        lines = (line.partition(' ')[::2] for line in stat.splitlines())
        parts = {name: int(size) for name, size in lines if size.isdigit()}
        return GroupUsage(used, parts)
    return None


def read_group_bytes(folder: Path) -> int | None:
    """Returns the bytes that a control group uses, without its reclaimable page cache.

    Args:
        folder: Of the group, of either version.

    Returns:
        Bytes in use less ``inactive_file``, or ``None`` where it does not say.
    """
    usage = read_group_usage(folder)
    if usage is None:
        return None
    return max(usage.used_bytes - (usage.part('inactive_file') or 0), 0)


def read_groups_free_bytes(groups: Iterable[MemoryGroup]) -> int | None:
    """Returns the fewest bytes left below the memory limit of any given control group.

    Args:
        groups: Of :func:`~mmgpu_hooks.measure.cgroup.find_memory_groups`.

    Returns:
        ``None`` where none says so.
    """
    free = [
        max(group.limit_bytes - used, 0)
        for group in groups
        if (used := read_group_bytes(group.folder)) is not None
    ]
    return min(free, default=None)


def read_free_bytes(proc: Path = _PROC, sys: Path = Path('/sys')) -> int | None:
    """Returns the free bytes that new processes can use, by host and control groups.

    It is the least of the host's and that of every control group.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.

    Returns:
        ``None`` where nothing says so.
    """
    of_host = None
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = (proc / 'meminfo').read_text()
        of_host = 1024 * int(text.split('MemAvailable:')[1].split()[0])
    of_groups = read_groups_free_bytes(find_memory_groups(proc, sys))
    known = [free for free in (of_host, of_groups) if free is not None]
    return min(known, default=None)


class Objects(NamedTuple):
    """Estimated bytes of memory of a data set or metrics, and the largest attribute."""

    bytes: int
    """Total bytes of the Python objects, estimated from a sample of them."""
    entries: int
    """Number of entries in the data set's or metric's attribute that has most bytes."""
    name: str
    """Class and name of the largest attribute, such as ``CocoDataset.data_list``."""


_MOST_VISITS = 20_000
_SAMPLE = 64
_DEEPEST = 8
_DEEPEST_INSTANCE = 2
"""Depth of nested instances up to which attributes count in an estimated size.

A dataset may hold a reader of annotations; further on is everything there is.
"""
_DICTS = (dict, defaultdict, OrderedDict)
_SETS = (set, frozenset)
_PLAIN = (list, tuple, *_SETS, *_DICTS)
_KNOWN = (*_PLAIN, str, bytes, int, float, bool, ModuleType)
_BASIC_SIZE = type.__dict__['__basicsize__'].__get__
_MOST_NAMES = 1000
_WRAPPED = ('dataset', 'datasets', '_dataset')
_LEAST_BYTES = 2**20


def weigh_objects(dataset: Any) -> Objects | None:
    """Estimates the bytes of Python objects in a data set's attributes; takes 20 ms.

    A forked worker shares them until it reads them: reading changes their reference
    counts, and so every page that holds some is copied
    (github.com/pytorch/pytorch/issues/13246). Arrays, and what MMEngine's
    ``serialize_data=True`` makes of a list, are not copied, and not counted.

    Of long containers 64 entries are weighed. Nothing of the user's is called.

    Args:
        dataset: The dataset; those that it wraps are weighed too.

    Returns:
        ``None`` below 1 MiB.
    """
    scale, found = _Scale(), []
    for holder in _unwrap(dataset):
        for name, value in itertools.islice(_attributes(holder).items(), _MOST_NAMES):
            if name not in _WRAPPED:
                size = scale.weigh(value)
                count = len(value) if _is_one_of(type(value), _PLAIN) else 1
                found.append(Objects(size, count, f'{type(holder).__name__}.{name}'))
    return _sum_up(found)


def weigh_results(metrics: Iterable[Any]) -> Objects | None:
    """Estimates the bytes of results that MMEngine's metrics keep; takes up to 20 ms.

    Arrays and tensors count here, in the memory of the host.

    Args:
        metrics: Of an evaluator.

    Returns:
        ``None`` below 1 MiB.
    """
    scale, found = _Scale(has_arrays=True), []
    for metric in metrics:
        kept = _attributes(metric).get('results')
        if type(kept) is list:
            name = f'{type(metric).__name__}.results'
            found.append(Objects(scale.weigh(kept), len(kept), name))
    return _sum_up(found)


def _sum_up(found: list[Objects]) -> Objects | None:
    whole = sum(objects.bytes for objects in found)
    if whole < _LEAST_BYTES:
        return None
    largest = max(found, key=lambda objects: objects.bytes)
    return largest._replace(bytes=whole)


def _unwrap(dataset: Any) -> Iterator[Any]:
    seen: set[int] = set()
    left = [dataset]
    while left and len(seen) < _SAMPLE:
        holder = left.pop()
        if id(holder) in seen:
            continue
        seen.add(id(holder))
        yield holder
        for name in _WRAPPED:
            inner: Any = _attributes(holder).get(name)
            left += inner if _is_one_of(type(inner), (list, tuple)) else [inner]


def _attributes(holder: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(holder, '__dict__')
    except AttributeError:
        return {}
    # a class has a proxy in its place; the training may add to it meanwhile
    return dict(found) if type(found) is dict else {}


def _is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """True if a class is itself one of the given classes, not a subclass.

    ``in`` would call a metaclass's equality.
    """
    return any(kind is known for known in kinds)


class _Scale:
    """Estimates bytes of Python objects by sampling, counting each object once."""

    def __init__(self, *, has_arrays: bool = False) -> None:
        self._left = _MOST_VISITS
        tensor = getattr(sys.modules.get('torch'), 'Tensor', np.ndarray)
        self._arrays = (np.ndarray, tensor) if has_arrays else ()
        self._seen: set[int] = set()

    def weigh(self, value: Any, depth: int = 0) -> int:
        """Estimates the bytes of an object and of all objects that it holds."""
        if id(value) in self._seen:  # keys are shared by all dicts of a list
            return 0
        self._seen.add(id(value))
        kind = type(value)
        # what a class of the user's says of its size is not asked for
        # nor object's own, which reads a length where a generator has none
        if _is_one_of(kind, self._arrays):
            # on another device nothing is held here, and a sparse one does not say
            with contextlib.suppress(RuntimeError):
                return int(value.nbytes) if getattr(value, 'is_cpu', True) else 0
            return 0
        is_known = _is_one_of(kind, _KNOWN)
        own = sys.getsizeof(value) if is_known else _BASIC_SIZE(kind)
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return own
        sample: list[Any]
        if _is_one_of(kind, (list, tuple)):
            most = max(_SAMPLE >> 2 * depth, 4)
            sample, count = value[:: -(-len(value) // most) or 1], len(value)
        elif _is_one_of(kind, _DICTS):
            items = itertools.islice(dict.items(value), _SAMPLE)
            sample, count = [part for item in items for part in item], 2 * len(value)
        elif _is_one_of(kind, _SETS):
            sample, count = list(itertools.islice(value, _SAMPLE)), len(value)
        elif depth < _DEEPEST_INSTANCE and not is_known:
            sample = list(itertools.islice(_attributes(value).values(), _SAMPLE))
            count = len(sample)
        else:
            return own
        if not sample:
            return own
        parts = [self.weigh(part, depth + 1) for part in sample]
        # the first holds what all the others share
        head = 2 if _is_one_of(kind, _DICTS) else 1
        rest = sum(parts[head:]) * (count - head) // max(len(parts) - head, 1)
        return own + sum(parts[:head]) + rest
