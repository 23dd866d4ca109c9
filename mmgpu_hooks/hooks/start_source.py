"""Times a training's start by part, from the process's start to the first iteration.

What passes before the hook is built is known afterwards. From then on the Runner's own
methods are timed, as long as it starts, and each data set of MMEngine by itself; from
the train loop on the time ledger says the rest.

``BaseDataset.__init__`` is replaced on the class: it puts a stand-in on each data set
where that initialises itself. The Runner's methods are replaced on the instance. All is
taken back when the loop begins.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Mapping
from typing import Any, Callable

from mmengine.dataset import BaseDataset

from mmgpu_hooks.judge import thresholds
from mmgpu_hooks.measure.clock import monotonic_s, process_cpu_s
from mmgpu_hooks.measure.dataset_start import DatasetWatch, Initialisation
from mmgpu_hooks.measure.ledger import FIRST_WAIT, WORKER_START
from mmgpu_hooks.measure.mounts import read_mount
from mmgpu_hooks.measure.patches import Patches
from mmgpu_hooks.measure.process_start import read_process_age_s
from mmgpu_hooks.measure.start_account import StartAccount, join_parts
from mmgpu_hooks.schema.recorded import (
    START_PARTS,
    DatasetStart,
    StartPartRecord,
    StartRecord,
)
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.show.start import describe_data_set, describe_start
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.words import say

ACCOUNT_SOURCE = 'account of the start'
"""Name, in warnings and evidence file, of the code that times training's start."""

METHODS: Mapping[str, str] = {
    'build_optim_wrapper': 'optimizer',
    'build_val_loop': 'validation_data',
    '_init_model_weights': 'weights',
    'load_or_resume': 'load',
    '_maybe_compile': 'compile',
}
"""Names of timed Runner methods, each with its part of training's start."""

_OF_LEDGER = {
    FIRST_WAIT: 'first_batch',
    'data_wait': 'first_batch',
    WORKER_START: 'workers',
    'step': 'first_step',
    'hooks': 'hooks',
    'resume': 'resume',
}
"""Names of the parts of training's start, by their labels in the time ledger."""

SAID_BYTES = 20 * 2**20
"""Smallest size in bytes of a file whose loading is logged before it begins."""
SAID_S = 5.0
"""Smallest duration in seconds of a part of training's start that the log mentions."""
SUMMED_S = 10.0
"""Smallest duration in seconds of a training's start whose parts the log lists."""
STILL_S = 60.0
"""Seconds between two log lines on which part of training's start is running."""
_LISTS = '.txt', '.lst', ''
"""Suffixes of annotation files that may list one image per line."""

_seen: set[int] = set()
"""Ids of processes in which a GPUEfficiencyHook was already created.

Only the first hook of a process takes the process's age."""


class StartSource:
    """Times a training's start by part, from hook creation to the first iteration.

    Args:
        run: Calls a function with arguments, and keeps from training what it raises.
    """

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run
        self._age_s: float | None = None
        # a prompt's process, and that of a second training, began for something else
        if os.getpid() not in _seen and not hasattr(sys, 'ps1'):
            self._age_s = read_process_age_s()
        _seen.add(os.getpid())
        self._account = StartAccount(monotonic_s, 'runner')
        self.watch = DatasetWatch(
            run, self._begin_data_set, self._note, self._note_file
        )
        """Watch that times the initialisation of data sets."""
        self._patches = Patches()
        self._data_sets: list[DatasetStart] = []
        self._logger: Any = None
        self._keep: Callable[[StartPartRecord], Any] | None = None
        self._checkpoint: str | None = None
        self._checkpoint_bytes: int | None = None
        self._lines = 0
        self._said_s = monotonic_s()
        self._doing: str | None = None
        self._loading: Initialisation | None = None
        """Data set that is being initialised now; ``None`` without one."""
        self._is_announced = False
        """True if the data set being initialised was named in the log."""

    @property
    def doing(self) -> str | None:
        """Phrase for the log that says what training's start is doing now."""
        found = self._loading
        if found is None:
            return self._doing
        named: str = found.file or phrase('no file')
        if found.files > 1:
            return phrase('loading {file} ({kind}, {files} so far)', found, file=named)
        return phrase('loading {file} ({kind})', found, file=named)

    def begin_loop(self, runner: Any, write: Callable[[StartPartRecord], Any]) -> None:
        """Begins to time the methods by which a Runner builds and starts its loop.

        Args:
            runner: The Runner.
            write: Keeps what says, should this process be killed, what it did.
        """
        self._logger, self._keep = runner.logger, write
        self._account.follow('other')
        self._account.push('train_data')
        for name, part in METHODS.items():
            if callable(getattr(runner, name, None)):
                self._time(runner, name, part, runner)
        strategy = getattr(runner, 'strategy', None)
        if callable(getattr(strategy, 'prepare', None)):
            self._time(strategy, 'prepare', 'optimizer', runner)
        self._time(runner, 'call_hook', 'hooks', runner)
        self.watch.open(BaseDataset)

    def _time(self, owner: Any, name: str, part: str, runner: Any) -> None:
        """Replaces a method by one whose seconds count as a part of training start."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            if part == 'hooks' and self._account.is_nested:
                return original(*args, **kwargs)
            self._run(self._begin, part, runner)
            try:
                return original(*args, **kwargs)
            finally:
                self._run(self._end, part, runner)

        self._patches.set(owner, name, timed)

    def _begin(self, part: str, runner: Any) -> None:
        self._account.push(part)
        self._said_s, self._doing = monotonic_s(), START_PARTS[part]
        if part == 'optimizer':
            runner.logger.addFilter(self._count_line)
        named = getattr(runner, '_load_from', None)
        if part != 'load' or not isinstance(named, str):
            return
        self._checkpoint, size = named, _read_size(named)
        self._checkpoint_bytes = size
        self._doing = phrase('loading {file}', file=named)
        if size is None:
            self._say(phrase('loading {file}.', file=named))
        elif size >= SAID_BYTES:
            self._say(
                phrase('loading {file}, {file_bytes}.', file=named, file_bytes=size)
            )
        self._write(part, None, named, size)

    def _count_line(self, record: Any) -> bool:
        """Counts log lines on ``paramwise_options``; as a log filter, drops none."""
        self._lines += str(record.msg).startswith('paramwise_options')
        return True

    def _end(self, part: str, runner: Any) -> None:
        if part == 'optimizer':
            runner.logger.removeFilter(self._count_line)
        # a data set that raised did not end
        self._doing = self._loading = None
        self._say_end(part)

    def _say_end(self, part: str) -> None:
        seconds = self._account.pop(part)
        # hooks are many, and their sum is in the account
        if seconds >= SAID_S and part != 'hooks':
            self._say(
                phrase(
                    'start: {part} took {part_s:sum}.',
                    part=START_PARTS[part],
                    part_s=seconds,
                )
            )

    def _begin_data_set(self, found: Initialisation) -> None:
        self._said_s, self._loading = monotonic_s(), found
        size, named = found.file_bytes, found.file
        # first of all: it may never come to an end
        self._write(self._account.part, found.kind, named, size)
        self._is_announced = size is not None and size >= SAID_BYTES
        if self._is_announced:
            self._say(phrase('loading {file}, {file_bytes} ({kind}).', found))
        elif named is not None and size is not None:
            lines = _count_lines(named)
            # a list of images may stand for a file of each
            if lines >= thresholds.MANY_FILES:
                self._is_announced = True
                self._say(
                    phrase(
                        'loading {file}, a list of {lines} ({kind}).',
                        found,
                        lines=lines,
                    )
                )

    def _note_file(self, found: Initialisation) -> None:
        if found.files == thresholds.MANY_FILES and not self._is_announced:
            self._is_announced = True
            named: str = found.file or phrase('no file')
            self._say(
                phrase(
                    'loading {file} ({kind}): {files} read so far.', found, file=named
                )
            )

    def _write(
        self, part: str, kind: str | None, file: str | None, size: int | None
    ) -> None:
        if self._keep is not None:
            elapsed_s = monotonic_s() - self._account.began_s
            self._keep(
                StartPartRecord(
                    part=part,
                    elapsed_s=elapsed_s,
                    data_set=kind,
                    file=file,
                    file_bytes=size,
                )
            )

    def _note(self, found: Initialisation) -> None:
        self._loading = None
        mount = None
        if found.file is not None:
            mount = read_mount(os.path.realpath(found.file))
        start = DatasetStart(
            kind=found.kind,
            file=found.file,
            file_bytes=found.file_bytes,
            mount=mount.kind if mount is not None and mount.is_network else None,
            files=found.files,
            wall_s=found.wall_s,
            cpu_s=found.cpu_s,
            read_s=found.read_s,
            read_cpu_s=found.read_cpu_s,
            filter_s=found.filter_s,
            serialise_s=found.serialise_s,
            samples=found.samples,
            bytes=found.bytes,
            is_cached=found.is_cached,
            is_kept=found.is_kept,
            refused=found.refused,
            is_validation=self._account.part == 'validation_data',
        )
        self._data_sets.append(start)
        if self._is_announced or found.wall_s >= SAID_S:
            self._say(describe_data_set(start))

    def _say(self, text: Text) -> None:
        self._said_s = monotonic_s()
        if self._logger is not None:
            said = phrase('GPUEfficiencyHook: {text}', text=text)
            self._logger.info(visible(say(said)))

    def tick(self) -> None:
        """Logs every minute which part of training's start is running; thread-safe."""
        doing, now_s = self.doing, monotonic_s()
        if doing is not None and now_s - self._said_s >= STILL_S:
            since_s = now_s - self._account.began_s
            self._say(
                phrase(
                    'still {doing}, {since_s:sum} after the hook was built.',
                    doing=doing,
                    since_s=since_s,
                )
            )

    def end_loader(self) -> None:
        """Logs the train loader's build time; stops timing ``lazy_init`` data sets."""
        self._run(self._say_end, 'train_data')
        self._run(self.watch.leave_lazy)

    def begin_workers(self) -> None:
        """Begins to time the start of the train loader's iterator and workers."""
        self._run(self._account.push, 'workers')

    def end_workers(self) -> None:
        """Stops timing the start of the train loader's iterator and workers."""
        self._run(self._account.pop, 'workers')

    def leave(self) -> None:
        """Restores the Runner's methods that were replaced to time training's start."""
        self._patches.close()
        self.watch.close()
        self._account.follow('other')

    def summarize(
        self,
        before_s: Mapping[str, float] | None,
        ledger_s: Mapping[str, float],
    ) -> StartRecord:
        """Returns the record of a training's start, once its first iteration ended.

        Args:
            before_s: Seconds of the process before the hook by part, where known.
            ledger_s: What the time ledger has, by part and label.
        """
        own_s = self._account.read()
        later_s: dict[str, float] = {}
        for part, seconds in ledger_s.items():
            name = _OF_LEDGER.get(part, 'other')
            later_s[name] = later_s.get(name, 0.0) + seconds
        # the account ran on beside the ledger
        own_s['other'] = own_s.get('other', 0.0) - sum(later_s.values())
        parts_s = join_parts(self._list_before(before_s), own_s, later_s)
        ordered = {
            part: max(parts_s[part], 0.0)
            for part in START_PARTS
            if parts_s.get(part, 0.0) > 0.0
        }
        record = StartRecord(
            wall_s=sum(ordered.values()),
            parts_s=ordered,
            cpu_s=process_cpu_s(),
            data_sets=tuple(self._data_sets),
            checkpoint=self._checkpoint,
            checkpoint_bytes=self._checkpoint_bytes,
            parameter_lines=self._lines,
        )
        if record.wall_s >= SUMMED_S:
            self._say(describe_start(record))
        return record

    def _list_before(self, before_s: Mapping[str, float] | None) -> dict[str, float]:
        """Returns seconds from process start to the hook's creation, by part."""
        if self._age_s is None:
            return {}
        if not before_s:
            return {'before_hook': self._age_s}
        # Python itself starts before anything of ours; the last part ends after it
        rest_s = self._age_s - sum(before_s.values())
        first, *_ = before_s
        return {**before_s, first: max(before_s[first] + rest_s, 0.0)}


def _count_lines(name: str) -> int:
    """Returns how many images a short list file names; 0 for any other file.

    It takes no more than what reads the same file next.
    """
    if os.path.splitext(name)[1] not in _LISTS:
        return 0
    try:
        with open(name, 'rb') as file:
            data = file.read(SAID_BYTES)
    except OSError:
        return 0
    return data.count(b'\n') + (not data.endswith(b'\n'))


def _read_size(name: str) -> int | None:
    try:
        return os.stat(name).st_size if os.path.isfile(name) else None
    except (OSError, ValueError):
        return None
