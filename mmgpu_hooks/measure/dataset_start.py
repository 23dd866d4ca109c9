"""Watches MMEngine's data sets being initialised: phases, times and files read."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import multiprocessing.process
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

from mmgpu_hooks.measure.annotation_cache import FileStamp, read_stamp
from mmgpu_hooks.measure.clock import monotonic_s, thread_cpu_s
from mmgpu_hooks.measure.patches import Patches

PHASES: Mapping[str, str] = {
    'load_data_list': 'read_s',
    'filter_data': 'filter_s',
    '_serialize_data': 'serialise_s',
}
"""Timed methods of MMEngine's data sets, each with its field of `Initialisation`."""


@dataclass
class Initialisation:
    """Record of one data set's initialisation: class, seconds, files and samples."""

    kind: str
    """Class name of the data set."""
    file: str | None
    """Path of the annotation file as the data set names it, or of its image folder."""
    file_bytes: int | None
    """Size in bytes of the annotation file; ``None`` if there is none on this host."""
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of the training thread while the data set was initialised."""
    read_s: float = 0.0
    """Seconds of reading and parsing the data set's annotations."""
    read_cpu_s: float = 0.0
    filter_s: float = 0.0
    serialise_s: float = 0.0
    files: int = 0
    """Number of distinct files that the data set has opened for reading so far."""
    samples: int | None = None
    bytes: int | None = None
    """Bytes of the data set's serialised samples; ``None`` if it serialises none."""
    is_cached: bool = False
    """True if the annotations were read from the cache instead of being parsed."""
    is_kept: bool = False
    """True if the parsed annotations were saved in the cache, by any of the ranks."""
    refused: str | None = None
    """Reason why the parsed annotations could not be saved in the cache."""


_STARTS = (
    (threading.Thread, 'start'),
    (multiprocessing.process.BaseProcess, 'start'),
    (subprocess.Popen, '__init__'),
)
"""Class and name of the methods by which Python starts threads and processes."""


class OpenedFiles:
    """Notes which files this thread opens for reading, between `open` and `close`.

    What C code opens without Python is not seen.

    Args:
        with_state: True if their state is wanted, and not their number alone: it takes
            a look-up for each.
        on_open: Called with the number of files so far, before each new one is opened.
    """

    def __init__(
        self, with_state: bool, on_open: Callable[[int], None] = lambda count: None
    ) -> None:
        self.paths: set[str] = set()
        """Paths of the files that were opened for reading, as they were named."""
        self.stamps: dict[str, FileStamp] = {}
        """Size, times and inode of each file when first opened, by absolute path."""
        self.lists_folders = False
        """True if this thread listed a folder; only noted with ``with_state``."""
        self.misses_files = False
        """True if a file to be opened was missing; only noted with ``with_state``."""
        self.starts_others = False
        """True if this thread started a thread or process; only with ``with_state``."""
        self._with_state, self._on_open = with_state, on_open
        self._thread = threading.get_ident()
        self._patches = Patches()

    def open(self) -> None:
        """Begins to note the files that this thread opens for reading."""
        for module in (builtins, io):
            self._patches.set(module, 'open', self._watch_open(module.open))
        if not self._with_state:
            return
        watched: list[tuple[Any, str, Callable[[], None]]] = [
            (os, name, self._note_listing) for name in ('listdir', 'scandir')
        ]
        watched += [(kind, name, self._note_start) for kind, name in _STARTS]
        for owner, name, note in watched:
            self._patches.set(owner, name, self._watch_call(getattr(owner, name), note))

    def close(self) -> None:
        """Stops noting opened files; a second call does nothing."""
        self._patches.close()

    def _watch_open(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def opening(file: Any, mode: Any = 'r', *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread:
                # the code that opens it is told what is wrong
                with contextlib.suppress(TypeError, ValueError):
                    self._note(file, mode)
            return original(file, mode, *args, **kwargs)

        return opening

    def _note(self, file: Any, mode: Any) -> None:
        is_read = isinstance(mode, str) and not set(mode) & set('wax')
        if not is_read or not isinstance(file, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(file)
        if name in self.paths:
            return
        self.paths.add(name)
        self._on_open(len(self.paths))
        if self._with_state:
            path = os.path.abspath(name)
            try:
                self.stamps[path] = read_stamp(path)
            except OSError:
                self.misses_files = True

    def _watch_call(
        self, original: Callable[..., Any], note: Callable[[], None]
    ) -> Callable[..., Any]:
        @functools.wraps(original)
        def calling(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread:
                note()
            return original(*args, **kwargs)

        return calling

    def _note_listing(self) -> None:
        self.lists_folders = True

    def _note_start(self) -> None:
        self.starts_others = True


Parse = Callable[[], OpenedFiles]
"""Type of a function that initialises a data set and returns the files it opened."""


@dataclass(frozen=True)
class _Pending:
    """Data set that was built but is not initialised yet."""

    dataset: Any
    """Reference to the data set, so that its ``id()`` is not reused."""
    patches: Patches


Provide = Callable[[Any, Initialisation, Parse], None]
"""Type of a function that initialises a data set in place of its ``full_init``.

It may call that method.
"""


class DatasetWatch:
    """Watches the initialisation of MMEngine data sets that are built while it is open.

    Wrappers of data sets (Concat, Repeat) are none themselves: they initialise those
    within. A data set that is built lazily is seen when it is initialised.

    Args:
        run: Calls a function with arguments, and keeps from training what it raises.
        on_begin: Called before a data set is initialised.
        on_end: Called once it is.
        on_file: Called before one opens a file that it has not opened yet.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        on_begin: Callable[[Initialisation], None] = lambda found: None,
        on_end: Callable[[Initialisation], None] = lambda found: None,
        on_file: Callable[[Initialisation], None] = lambda found: None,
    ) -> None:
        self._run, self._on_begin, self._on_end = run, on_begin, on_end
        self._on_file = on_file
        self._provide: Provide | None = None
        self._patches = Patches()
        self._pending: dict[int, _Pending] = {}
        """Data sets that are not initialised yet, by ``id()``."""

    def open(self, kind: Any) -> None:
        """Watches data sets that are built from now on.

        Args:
            kind: MMEngine's `BaseDataset`, which all are of.
        """
        original = kind.__init__

        @functools.wraps(original)
        def __init__(dataset: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            self._run(self._expect, dataset)
            try:
                original(dataset, *args, **kwargs)
            except BaseException:
                self._release(dataset)
                raise

        self._patches.set(kind, '__init__', __init__)

    def initialise_by(self, provide: Provide | None) -> None:
        """Sets the function that initialises data sets in place of ``full_init``.

        Args:
            provide: The way; ``None`` is their own method again.
        """
        self._provide = provide

    def leave_lazy(self) -> None:
        """Stops watching data sets that workers will initialise when they start."""
        for pending in list(self._pending.values()):
            self._release(pending.dataset)

    def close(self) -> None:
        """Restores the methods of watched data sets; a second call does nothing."""
        self._patches.close()
        self.leave_lazy()

    def _expect(self, dataset: Any) -> None:
        """Replaces a new data set's ``full_init`` by one that is timed."""
        patches = Patches()
        patches.set(dataset, 'full_init', functools.partial(self._begin, dataset))
        self._pending[id(dataset)] = _Pending(dataset, patches)

    def _release(self, dataset: Any) -> None:
        pending = self._pending.pop(id(dataset), None)
        if pending is not None:
            pending.patches.close()

    def _begin(self, dataset: Any) -> None:
        """Initialises a data set in place of its ``full_init``, and times that call."""
        self._release(dataset)
        if getattr(dataset, '_fully_initialized', False):
            type(dataset).full_init(dataset)
            return
        found = self._run(_describe, dataset)
        if found is None:
            type(dataset).full_init(dataset)
            return
        self._run(self._on_begin, found)
        begun_s, begun_cpu_s = monotonic_s(), thread_cpu_s()
        parse = functools.partial(self._parse, dataset, found)
        provide = self._provide
        try:
            if provide is None:
                parse()
            else:
                provide(dataset, found, parse)
        finally:
            found.wall_s = monotonic_s() - begun_s
            found.cpu_s = thread_cpu_s() - begun_cpu_s
        self._run(_weigh, dataset, found)
        self._run(self._on_end, found)

    def _parse(self, dataset: Any, found: Initialisation) -> OpenedFiles:
        opened = OpenedFiles(
            with_state=self._provide is not None,
            on_open=functools.partial(self._count_file, found),
        )
        patches = Patches()
        self._run(opened.open)
        for name, field in PHASES.items():
            self._run(patches.set, dataset, name, _time(dataset, name, found, field))
        try:
            type(dataset).full_init(dataset)
        finally:
            self._run(patches.close)
            self._run(opened.close)
        return opened

    def _count_file(self, found: Initialisation, count: int) -> None:
        found.files = count
        self._run(self._on_file, found)


def _time(
    dataset: Any, name: str, found: Initialisation, field: str
) -> Callable[..., Any]:
    """Wraps a data set's method so that its seconds add to an `Initialisation`."""
    method = functools.partial(getattr(type(dataset), name), dataset)

    def timed(*args: Any, **kwargs: Any) -> Any:
        begun_s, begun_cpu_s = monotonic_s(), thread_cpu_s()
        try:
            return method(*args, **kwargs)
        finally:
            setattr(found, field, getattr(found, field) + monotonic_s() - begun_s)
            if field == 'read_s':
                found.read_cpu_s += thread_cpu_s() - begun_cpu_s

    return timed


def _describe(dataset: Any) -> Initialisation:
    file = next(_list_sources(dataset), None)
    size = None
    if file is not None:
        try:
            size = os.stat(file).st_size if os.path.isfile(file) else None
        except (OSError, ValueError):
            size = None
    return Initialisation(type(dataset).__name__, file, size)


def _list_sources(dataset: Any) -> Iterator[str]:
    """Lists a data set's annotation file, then its image folders, as it names them."""
    prefixes = getattr(dataset, 'data_prefix', None)
    folders = list(prefixes.values()) if isinstance(prefixes, dict) else []
    root = getattr(dataset, 'data_root', None)
    for named in (getattr(dataset, 'ann_file', None), *folders, root):
        # what is joined with nothing ends in a slash
        if isinstance(named, (str, os.PathLike)) and os.fspath(named):
            yield os.fspath(named).rstrip(os.sep) or os.sep


def _weigh(dataset: Any, found: Initialisation) -> None:
    found.samples = len(dataset)
    if getattr(dataset, 'serialize_data', False):
        found.bytes = int(dataset.data_bytes.nbytes)
