"""Measures a loader's fetches from inside the process that fetches."""

from __future__ import annotations

import operator
import sys
import weakref
from types import FrameType
from typing import Any, Callable

from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.loader import board
from mmgpu_hooks.measure.loader.batch_contents import BatchWatch
from mmgpu_hooks.measure.loader.board import Slot
from mmgpu_hooks.measure.loader.frames import hide_frame
from mmgpu_hooks.measure.loader.local_pipeline import LocalPipelineTimer
from mmgpu_hooks.measure.loader.pipeline import PipelineTimer
from mmgpu_hooks.measure.loader.samples import TimedDataset, describe_sample

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
        timer: Times transforms; ``None`` takes the one for a worker.
        batches: Looks at what each batch holds, if that is wanted.
        clock: Monotonic seconds.
        cpu_clock: CPU seconds of this process, all threads.
    """

    def __init__(
        self,
        slot: Slot,
        *,
        cpu_between_ends: bool,
        timer: PipelineTimer | LocalPipelineTimer | None = None,
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
