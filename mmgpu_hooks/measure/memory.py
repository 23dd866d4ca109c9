"""Who holds the host's memory: workers, the control group, objects of the dataset."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from mmgpu_hooks.measure.cgroup import find_memory_group
from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.proc import read_begin

_PROC = Path('/proc')


PERIOD_S = 1.0
"""Memory is read so often, at most; between, an interval lacks it."""


class MemoryMeter:
    """Reads the memory of the training process, of its workers and of their group.

    A read costs 10 us, and 20 us for each worker, whatever their size. What is hidden
    is ``None``.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        proc: Path = _PROC,
        sys: Path = Path('/sys'),
        clock: Clock = monotonic_s,
    ) -> None:
        self._proc = proc
        self._group = find_memory_group(proc, sys)
        self._clock = clock
        self._due_s = clock()

    def read(self, workers: Sequence[int]) -> dict[str, int | None]:
        """Fields of an interval record; none where the last read is too new.

        Args:
            workers: Process ids of the loader's workers.
        """
        now_s = self._clock()
        if now_s < self._due_s:
            return {}
        self._due_s = now_s + PERIOD_S
        return {
            'process_rss_bytes': self._rss_bytes('self'),
            'group_memory_bytes': None
            if self._group is None
            else read_group_bytes(self._group),
            'worker_rss_bytes': _total(map(self._rss_bytes, workers)),
            'worker_threads': max(map(self._count_threads, workers), default=0) or None,
        }

    def _rss_bytes(self, pid: int | str) -> int | None:
        try:
            text = read_begin(os.path.join(self._proc, str(pid), 'statm'), 128)
            return int(text.split()[1]) * os.sysconf('SC_PAGE_SIZE')
        except (OSError, ValueError, IndexError):  # gone, or hidden
            return None

    def _count_threads(self, pid: int) -> int:
        try:
            return len(os.listdir(self._proc / str(pid) / 'task'))
        except OSError:
            return 0


def _total(sizes: Iterable[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return sum(known) if known else None


def read_group_bytes(folder: Path) -> int | None:
    """Memory that a control group cannot give back at once: without the page cache.

    Args:
        folder: Of the group, of either version.

    Returns:
        Bytes in use less ``inactive_file``, or ``None`` where it does not say.
    """
    for name in ('memory.current', 'memory.usage_in_bytes'):
        try:
            used = int((folder / name).read_text())
            stat = (folder / 'memory.stat').read_text()
        except (OSError, ValueError):
            continue
        fields = dict(line.partition(' ')[::2] for line in stat.splitlines())
        cache = fields.get('total_inactive_file', fields.get('inactive_file', '0'))
        return max(used - int(cache), 0) if cache.isdigit() else used
    return None


class Objects(NamedTuple):
    """Python objects that a dataset keeps."""

    bytes: int
    """Estimated from a sample of them."""
    entries: int
    """Entries of the largest attribute."""
    name: str
    """Of that attribute, such as ``CocoDataset.data_list``."""


_MOST_VISITS = 20_000
_SAMPLE = 64
_DEEPEST = 8
_DEEPEST_INSTANCE = 2
"""A dataset may hold a reader of annotations; further on is everything there is."""
_PLAIN = (list, tuple, dict, set, frozenset)
_KNOWN = (*_PLAIN, str, bytes, int, float, bool, ModuleType)
_WRAPPED = ('dataset', 'datasets', '_dataset')
_LEAST_BYTES = 2**20


def weigh_objects(dataset: Any) -> Objects | None:
    """Estimate the Python objects in the attributes of a dataset; 20 ms at most.

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
    scale = _Scale()
    found: list[Objects] = []
    for holder in _unwrap(dataset):
        for name, value in _attributes(holder).items():
            if name not in _WRAPPED:
                size = scale.weigh(value)
                count = len(value) if type(value) in _PLAIN else 1
                found.append(Objects(size, count, f'{type(holder).__name__}.{name}'))
    whole = sum(one.bytes for one in found)
    if whole < _LEAST_BYTES:
        return None
    return max(found)._replace(bytes=whole)


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
            left += inner if type(inner) in (list, tuple) else [inner]


def _attributes(holder: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(holder, '__dict__')
    except AttributeError:
        return {}
    # a class has a proxy in its place; the training may add to it meanwhile
    return dict(found) if type(found) is dict else {}


class _Scale:
    """Weighs objects, each once, until it has seen enough."""

    def __init__(self) -> None:
        self._left = _MOST_VISITS
        self._seen: set[int] = set()

    def weigh(self, value: Any, depth: int = 0) -> int:
        """Bytes of an object with what it holds."""
        if id(value) in self._seen:  # keys are shared by all dicts of a list
            return 0
        self._seen.add(id(value))
        kind = type(value)
        # what a class of the user's says of its size is not asked for
        own = sys.getsizeof(value) if kind in _KNOWN else object.__sizeof__(value)
        self._left -= 1
        if self._left < 0 or depth > _DEEPEST:
            return own
        sample: list[Any]
        if kind in (list, tuple):
            sample, count = value[:: max(len(value) // _SAMPLE, 1)], len(value)
        elif kind is dict:
            first = itertools.islice(value.items(), _SAMPLE)
            sample, count = [part for item in first for part in item], 2 * len(value)
        elif kind in _PLAIN:
            sample, count = list(itertools.islice(value, _SAMPLE)), len(value)
        elif depth < _DEEPEST_INSTANCE and kind not in _KNOWN:
            sample = list(_attributes(value).values())
            count = len(sample)
        else:
            return own
        if not sample:
            return own
        held = sum(self.weigh(part, depth + 1) for part in sample)
        return own + held * count // len(sample)
