"""Measures fetches inside the process that loads: a worker, or this one."""

from __future__ import annotations

import operator
import sys
import weakref
from collections.abc import Mapping
from types import FrameType
from typing import Any, Callable

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.batches import BatchWatch
from mmgpu_hooks.measure.loader.board import TOP_TEXT, Board, Slot, make_private_slot
from mmgpu_hooks.measure.loader.call_stack import offer_stack
from mmgpu_hooks.measure.loader.pipeline import (
    PipelineTimer,
    hide_frame,
)
from mmgpu_hooks.measure.loader.settings import read_start_method
from mmgpu_hooks.measure.patches import Patches

_IDS = ('img_id', 'image_id')
_PATHS = ('img_path', 'filename', 'file_name')
_ELLIPSIS = '...'


class TimedDataset:
    """Stands before a dataset in a loader's fetcher, and nowhere else.

    Args:
        dataset: The user's map-style dataset.
        begin: Called with the index and the time before; it must not raise.
        note: Called with index, sample and seconds; neither must this.
        clock: Monotonic seconds.
    """

    def __init__(
        self,
        dataset: Any,
        begin: Callable[[Any, float], None],
        note: Callable[[Any, Any, float], None],
        clock: Clock,
    ) -> None:
        self._mmgpu_dataset = dataset
        self._mmgpu_begin = begin
        self._mmgpu_note = note
        self._mmgpu_clock = clock

    def __getitem__(self, index: Any) -> Any:
        since = self._mmgpu_clock()
        self._mmgpu_begin(index, since)
        try:
            sample = self._mmgpu_dataset[index]
        except BaseException as error:
            hide_frame(error)
            raise
        self._mmgpu_note(index, sample, self._mmgpu_clock() - since)
        return sample

    def __getattr__(self, name: str) -> Any:
        # among others __getitems__, which then makes the samples of a batch untimed
        return getattr(self._mmgpu_dataset, name)


def describe_sample(sample: Any) -> str:
    """Image id and path of a sample, as far as it tells them.

    Args:
        sample: MMEngine's ``dict(inputs=..., data_samples=...)``, a dict with the
            keys itself, or a tuple whose last entry is one (torchvision).

    Returns:
        For example ``42 train/000042.jpg``; a long path loses its beginning; '' when
        the sample tells nothing.
    """
    try:
        image_id, path = _find_names(sample)
    except Exception:  # noqa: BLE001, the user's own attributes may do anything
        return ''
    over = len(f'{image_id} {path}'.encode('utf-8', 'replace')) - TOP_TEXT
    if over > 0:
        tail = path.encode('utf-8', 'replace')[over + len(_ELLIPSIS) :]
        path = _ELLIPSIS + tail.decode('utf-8', 'ignore')
    return f'{image_id} {path}'.strip()


def _find_names(sample: Any) -> tuple[str, str]:
    holder = sample
    if isinstance(holder, (tuple, list)) and holder:
        holder = holder[-1]
    if isinstance(holder, Mapping) and 'data_samples' in holder:
        holder = holder['data_samples']
        if isinstance(holder, Mapping):  # one entry per branch
            holder = next((one for one in holder.values() if one is not None), None)
    image_id = _first(holder, _IDS)
    path = _first(holder, _PATHS)
    return _text(image_id), path if isinstance(path, str) else ''


def _first(holder: Any, names: tuple[str, ...]) -> Any:
    for name in names:
        if isinstance(holder, Mapping):
            value = holder.get(name)
        else:
            value = getattr(holder, name, None)
        if value is not None:
            return value
    return None


def _text(image_id: Any) -> str:
    if image_id is None or getattr(image_id, 'is_cuda', False):  # no synchronising
        return ''
    item = getattr(image_id, 'item', None)
    return str(item() if callable(item) else image_id)[:64]


_TIMING_SHARE = 0.005
"""Of a worker's busy time that timing its transforms may take."""
_CALL_COST_S = 2e-6
"""What timing one transform costs, entered and left, on a slow core."""


class FetchProbe:
    """Writes to a slot what each fetch took.

    A fetch of eight samples costs 11 us more, measured on a 2-core VM, without the look
    at what the batch holds. The second
    batch is timed transform by transform, and after it one whenever that keeps the
    timing's own cost under half a percent of the time spent fetching.

    Whatever fails in here ends the probe, not the fetch: the reason goes to the slot.

    Args:
        slot: Where to write.
        cpu_between_ends: Count the process's CPU from the end of one fetch to the
            end of the next, so that what a worker does to hand a batch over is in it;
            else the CPU during the fetch alone.
        timer: Times transforms; ``None`` makes one.
        batches: Looks at what each batch holds, if that is wanted.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this process, all threads.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        cpu_between_ends: bool,
        timer: PipelineTimer | None = None,
        batches: BatchWatch | None = None,
        clock: Clock = monotonic_s,
        cpu_clock: Clock = process_cpu_s,
    ) -> None:
        self._slot = slot
        self._figures = slot.figures
        self._between_ends = cpu_between_ends
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._timer = PipelineTimer(clock) if timer is None else timer
        self._batches = batches
        self._is_timing = False
        self._timing_cost_s = 0.0
        self._rows: dict[str, int] = {}
        self._top: list[float] = []
        self._since_s = 0.0
        self._since_cpu_s: float | None = None
        self._is_busy = False
        self._fetcher: Callable[[], Any] = lambda: None
        self.is_off = False
        """Whether the probe failed, or was closed."""
        self._figures[board.STATE] = board.RUNNING

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Make a measured ``fetch`` of a fetcher's own.

        Args:
            original: Called with the fetcher and what to fetch.
        """

        def fetch(fetcher: Any, possibly_batched_index: Any) -> Any:
            # busy: a loader that the dataset runs itself, within a sample
            if self.is_off or self._is_busy:
                return original(fetcher, possibly_batched_index)
            try:  # a signal handler may raise anywhere in here
                self._begin(fetcher)
                batch = original(fetcher, possibly_batched_index)
                if self._batches is not None:
                    self._note_delivery(batch, self._batches, sys._getframe(1))
                self._end(fetcher, possibly_batched_index)
            except BaseException as error:
                self._abandon()
                hide_frame(error)
                raise
            return batch

        return fetch

    def _begin(self, fetcher: Any) -> None:
        try:
            self._is_busy = True
            if self._fetcher() is not fetcher:
                self._adopt(fetcher)
            if self._is_timing:  # an interrupted fetch left it so
                self._stop_timing()
            if self._is_timing_due():
                since = self._clock()
                self._is_timing = True
                self._timer.start(_bare(fetcher.dataset))
                self._timing_cost_s += self._clock() - since
            if self._since_cpu_s is None or not self._between_ends:
                self._since_cpu_s = self._cpu_clock()
            self._since_s = self._clock()
        except Exception as error:  # noqa: BLE001, a fetch must not see it
            self._switch_off(error)

    def _adopt(self, fetcher: Any) -> None:
        self._release()
        self._fetcher = weakref.ref(fetcher)
        # iterable-style datasets have no samples to ask for
        if not hasattr(fetcher, 'dataset_iter'):
            fetcher.dataset = TimedDataset(
                fetcher.dataset, self._begin_sample, self._note_sample, self._clock
            )

    def _release(self) -> None:
        fetcher = self._fetcher()
        if fetcher is not None:
            fetcher.dataset = _bare(fetcher.dataset)

    def _is_timing_due(self) -> bool:
        # the first batch also warms caches up
        if not self._figures[board.BATCHES]:
            return False
        return self._timing_cost_s <= _TIMING_SHARE * self._figures[board.WALL_SUM]

    def _end(self, fetcher: Any, index: Any) -> None:
        if self.is_off:  # since it began
            return
        try:
            now = self._clock()
            cpu = self._cpu_clock()
            self._note_batch(now - self._since_s, cpu - (self._since_cpu_s or cpu))
            self._since_cpu_s = cpu
            self._figures[board.LOADING_SINCE] = 0.0
            if self._is_timing:
                self._note_transforms(len(index) if fetcher.auto_collation else 1, now)
            self._is_busy = False
        except Exception as error:  # noqa: BLE001, a fetch must not see it
            self._switch_off(error)

    def _abandon(self) -> None:
        try:
            self._stop_timing()
            self._is_busy = False
            self._figures[board.LOADING_SINCE] = 0.0
        except Exception as error:  # noqa: BLE001, a fetch must not see it
            self._switch_off(error)

    def _note_batch(self, wall_s: float, cpu_s: float) -> None:
        figures = self._figures
        self._follow_generation()
        count = int(figures[board.BATCHES])
        place = count % board.RING
        figures[board.WALL_RING + place] = wall_s
        figures[board.CPU_RING + place] = cpu_s
        figures[board.WALL_SUM] += wall_s
        figures[board.CPU_SUM] += cpu_s
        figures[board.BATCHES] = count + 1.0

    def _note_delivery(self, batch: Any, batches: BatchWatch, loop: FrameType) -> None:
        try:
            # what the worker's loop calls this batch; it tells nobody else
            number = loop.f_locals.get('idx')
            if not isinstance(number, int):
                self._batches = None
                return
            held = batches.look(batch)
            place = int(self._figures[board.BATCHES]) % board.RING
            begin = board.DELIVERY_RING + board.DELIVERY * place
            for offset, figure in enumerate((number, *held)):
                known = board.UNKNOWN if figure is None else float(figure)
                self._figures[begin + offset] = known
        except Exception:  # noqa: BLE001, the training process then looks itself
            self._batches = None

    def _follow_generation(self) -> None:
        figures = self._figures
        asked = figures[board.ASKED_GENERATION]
        if figures[board.GENERATION] != asked:
            self._top = []
            for place in range(board.TOP):
                figures[board.TOP_SECONDS + place] = 0.0
            figures[board.GENERATION] = asked

    def _begin_sample(self, index: Any, since: float) -> None:
        figures = self._figures
        try:
            figures[board.LOADING_INDEX] = operator.index(index)
        except Exception:  # noqa: BLE001, a sampler of the user's own kind of index
            figures[board.LOADING_INDEX] = board.UNKNOWN
        figures[board.LOADING_SINCE] = since

    def _note_sample(self, index: Any, sample: Any, seconds: float) -> None:
        try:
            number = operator.index(index)
        except Exception:  # noqa: BLE001, a sampler of the user's own kind of index
            return
        try:
            self._follow_generation()
            top = self._top
            if len(top) < board.TOP:
                place = len(top)
                top.append(seconds)
            else:
                fastest = min(top)
                if seconds <= fastest:
                    return
                place = top.index(fastest)
                top[place] = seconds
            figures = self._figures
            figures[board.TOP_SECONDS + place] = 0.0  # not to be read half-written
            figures[board.TOP_INDEX + place] = number
            self._slot.write_sample_name(place, describe_sample(sample))
            figures[board.TOP_SECONDS + place] = seconds
        except Exception as error:  # noqa: BLE001, a fetch must not see it
            self._switch_off(error)

    def _note_transforms(self, samples: int, since: float) -> None:
        costs = self._timer.stop()
        self._is_timing = False
        figures = self._figures
        for name, cost in costs.items():
            row = self._rows.get(name, len(self._rows))
            if row >= board.ROWS:
                continue
            if name not in self._rows:
                self._rows[name] = row
                self._slot.write_row_name(row, name)
            figures[board.ROW_FIGURES + 2 * row] += cost.calls
            figures[board.ROW_FIGURES + 2 * row + 1] += cost.seconds
            self._timing_cost_s += cost.calls * _CALL_COST_S
        figures[board.ROWS_USED] = float(len(self._rows))
        figures[board.TIMED_SAMPLES] += samples
        self._timing_cost_s += self._clock() - since

    def _switch_off(self, error: Exception) -> None:
        try:
            self.close()
            self._slot.write_reason(f'{type(error).__name__}: {error}')
        except Exception:  # noqa: BLE001, nothing left to tell it with
            self.is_off = True
        self._figures[board.STATE] = board.OFF

    def close(self) -> None:
        """Measure no more, and leave the fetcher as it was."""
        self.is_off = True
        self._stop_timing()
        self._release()

    def _stop_timing(self) -> None:
        self._timer.stop()
        self._is_timing = False


def _bare(dataset: Any) -> Any:
    while isinstance(dataset, TimedDataset):
        dataset = dataset._mmgpu_dataset
    return dataset


_START_METHODS = ('fork', 'spawn', 'forkserver')


class WorkerInit:
    """A ``worker_init_fn`` that calls the user's and then sets a probe.

    It can be pickled while workers are being started, as far as the user's can.

    Args:
        user_init: The loader's own ``worker_init_fn``, or ``None``.
        board: Where the workers write.
        pad_size_divisor: Of the model's data preprocessor.
    """

    def __init__(
        self,
        user_init: Callable[[int], Any] | None,
        board: Board,
        pad_size_divisor: int = 1,
    ) -> None:
        self.user_init = user_init
        self.board = board
        self.pad_size_divisor = pad_size_divisor
        self.patches = Patches()

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerInit, (self.user_init, self.board, self.pad_size_divisor)

    def __call__(self, worker_id: int) -> None:
        """Run in the worker, right before it takes its first task."""
        if self.user_init is not None:
            try:
                self.user_init(worker_id)
            except BaseException as error:
                hide_frame(error)
                raise
        try:
            slot = self.board.slot(worker_id)
        except Exception:  # noqa: BLE001, there is nowhere to say why
            return
        _probe_worker(slot, self.pad_size_divisor)

    def leave(self, iterator: Any) -> None:
        """Give loader and iterator the user's function back."""
        self.patches.close()
        # it took what it found on the loader
        if getattr(iterator, '_worker_init_fn', None) is self:
            iterator._worker_init_fn = self.user_init


def enter_workers(loader: Any, pad_size_divisor: int = 1) -> WorkerInit | Absent | None:
    """Stand in for the loader's ``worker_init_fn`` until :meth:`WorkerInit.leave`.

    Args:
        loader: The loader.
        pad_size_divisor: Of the model's data preprocessor.

    Returns:
        ``None`` for a loader without workers; a reason if they start in a way that
        cannot be joined.

    Raises:
        OSError: If there is no memory to share with them.
    """
    workers = getattr(loader, 'num_workers', 0)
    if not workers:
        return None
    method = read_start_method(loader)
    if method not in _START_METHODS or not hasattr(loader, 'worker_init_fn'):
        return Absent(
            f'no way into workers that start by {method!r}; '
            'their CPU is seen from outside'
        )
    init = WorkerInit(loader.worker_init_fn, Board(workers, method), pad_size_divisor)
    init.patches.set(loader, 'worker_init_fn', init)
    return init


def _probe_worker(slot: Slot, pad_size_divisor: int) -> None:
    try:
        from torch.utils.data._utils import fetch

        batches = BatchWatch(pad_size_divisor)
        probe = FetchProbe(slot, cpu_between_ends=True, batches=batches)
        # the fetcher is made after us; the classes are this worker's own
        for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            kind.fetch = probe.wrap(kind.fetch)
        how = offer_stack()
        if how is not None:
            slot.figures[board.STACK_FILE] = how.descriptor
            slot.figures[board.STACK_SIGNAL] = how.number
    except Exception as error:  # noqa: BLE001, a worker must not see it
        slot.write_reason(f'{type(error).__name__}: {error}')
        slot.figures[board.STATE] = board.OFF


class LocalProbe:
    """The same probe for an iterator that loads in this process.

    Args:
        iterator: An iterator of a loader without workers.

    Raises:
        AttributeError: If it has no fetcher that can be measured.
    """

    def __init__(self, iterator: Any) -> None:
        fetcher = iterator._dataset_fetcher
        self.slot = make_private_slot()
        """Where the figures are."""
        self._probe = FetchProbe(self.slot, cpu_between_ends=False)
        fetch = self._probe.wrap(type(fetcher).fetch)
        fetcher_ref = weakref.ref(fetcher)  # a plain reference would be a cycle

        def measured(possibly_batched_index: Any) -> Any:
            try:
                return fetch(fetcher_ref(), possibly_batched_index)
            except BaseException as error:
                hide_frame(error)
                raise

        self._patches = Patches()
        self._patches.set(fetcher, 'fetch', measured)

    def close(self) -> None:
        """Give the iterator its own fetcher's method back."""
        self._probe.close()
        self._patches.close()
