"""Records how much host memory processes hold, and warns before it is full."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from mmgpu_hooks.hooks.recording import Recording
from mmgpu_hooks.hooks.sources import Sources
from mmgpu_hooks.hooks.validation import ValidationSource
from mmgpu_hooks.judge.holders import describe_memory
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.clock import monotonic_s, thread_cpu_s
from mmgpu_hooks.measure.holders import HoldersMeter, MemoryRoom
from mmgpu_hooks.measure.memory import weigh_results
from mmgpu_hooks.measure.periodic import PeriodicThread
from mmgpu_hooks.schema.recorded import MemoryRecord
from mmgpu_hooks.schema.run import read_evidence, read_other_ranks
from mmgpu_hooks.schema.run_folder import find_peers
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.text import visible
from mmgpu_hooks.show.words import say

MEMORY_SOURCE = phrase('memory holders')
"""Name of the watch over host memory, in warnings and the evidence file."""
HOLDERS_THREAD = 'mmgpu-memory'

_SHORTEST_S, _PERIOD_S, _PERIODS = 0.25, 2.0, 20
"""Bounds (s) of pauses between memory readings; a pause is elapsed time / `_PERIODS`.

Each takes 60 us. The pause is never more than a twentieth of the time so far."""
_PERIOD_SCARCE_S = 0.5
"""Longest pause (s) between readings of host memory while less than 20 % is free."""
_LOW_SHARE, _SCARCE_SHARE, _SOON_S = 0.05, 0.2, 30.0
"""Free shares (0 to 1) of memory: low, low if full soon; seconds that count as soon.

Low is below 5 % free, or below 20 % that are gone in 30 s."""
_CALM_SHARE, _AGAIN_S = 0.25, 600.0
"""Free share (0 to 1) of memory that allows a new warning; seconds between warnings."""
_FIRST_S, _SELDOM_S, _VALIDATION_S = 4.0, 60.0, 5.0
"""Seconds between readings of processes' memory: at first, at most, in validation."""
_MOST_SHARE, _MOST_SHARE_LOW = 0.00025, 0.02
"""Maximum CPU seconds per elapsed second to read memory: usually, and if it is low."""
_CHANGE_SHARE = 0.02
"""Change in used share (0 to 1) of host memory after which processes are read again."""


class MemoryPace:
    """Decides when to read processes' memory, and if host memory is low; no I/O.

    Full readings are rare while nothing changes, and cost no more than a small share of
    the time whatever one takes.
    """

    def __init__(self) -> None:
        self._pause_s, self._due_s, self._earliest_s = _FIRST_S, 0.0, 0.0
        self._used_bytes: int | None = None
        """Used bytes of host memory when processes' memory was last read."""
        self._seen = deque[tuple[float, int]](maxlen=6)
        """Latest six samples: clock time in seconds, used bytes of host memory."""

    def is_low(self, now_s: float, room: MemoryRoom) -> bool:
        """True if host memory is nearly full, or soon will be by its growth.

        Args:
            now_s: Monotonic; later than in the last call.
            room: What is free.
        """
        self._seen.append((now_s, room.used_bytes))
        (first_s, first), free = self._seen[0], room.free_bytes
        growth = (room.used_bytes - first) / max(now_s - first_s, 1e-6)
        is_soon = free < growth * _SOON_S
        if free < _LOW_SHARE * room.total_bytes:
            return True
        return is_soon and free < _SCARCE_SHARE * room.total_bytes

    @staticmethod
    def pause_s(elapsed_s: float, room: MemoryRoom) -> float:
        """Returns the seconds until free memory is read again.

        Args:
            elapsed_s: Since the first reading.
            room: As it was read now.
        """
        pause_s = min(max(elapsed_s / _PERIODS, _SHORTEST_S), _PERIOD_S)
        is_scarce = room.free_bytes < _SCARCE_SHARE * room.total_bytes
        return min(pause_s, _PERIOD_SCARCE_S) if is_scarce else pause_s

    def is_due(
        self, now_s: float, room: MemoryRoom, *, low: bool, validates: bool
    ) -> bool:
        """True if the memory of the training's processes should be read now."""
        if now_s < self._earliest_s and not low:
            return False
        changed = abs(room.used_bytes - (self._used_bytes or 0))
        if changed >= _CHANGE_SHARE * room.total_bytes or low:
            return True
        soon_s = self._pause_s - _VALIDATION_S if validates else 0.0
        return now_s >= self._due_s - max(soon_s, 0.0)

    def note(self, now_s: float, room: MemoryRoom, cost_s: float, *, low: bool) -> None:
        """Notes when processes' memory was read, and the CPU seconds that took."""
        share = _MOST_SHARE_LOW if low else _MOST_SHARE
        self._earliest_s = now_s + cost_s / share
        self._due_s = max(now_s + self._pause_s, self._earliest_s)
        self._pause_s = min(2 * self._pause_s, _SELDOM_S)
        self._used_bytes = room.used_bytes


class MemorySource:
    """Thread that records host memory and the processes that hold it during training.

    Args:
        recording: The run.
        sources: Know the workers of the train loader.
        validation: Knows the workers and metrics of the validation that is on.
    """

    def __init__(
        self, recording: Recording, sources: Sources, validation: ValidationSource
    ) -> None:
        self._recording, self._sources = recording, sources
        self._validation, self._run = validation, recording.guard.run
        self._meter, self._pace = HoldersMeter(), MemoryPace()
        self._began_s, self._said_s, self._may_say = monotonic_s(), 0.0, True
        look = partial(self._run, MEMORY_SOURCE, self._look)
        self._thread = PeriodicThread(HOLDERS_THREAD, look, _SHORTEST_S)

    def _look(self) -> float | None:
        room, now_s = self._meter.read_room(), monotonic_s()
        if room is None:
            return None
        low, metrics = self._pace.is_low(now_s, room), self._validation.metrics
        if room.free_bytes >= _CALM_SHARE * room.total_bytes:
            self._may_say = True
        says = low and self._may_say
        if says or self._pace.is_due(
            now_s, room, low=low, validates=metrics is not None
        ):
            began_s = thread_cpu_s()
            self._recording.write(self._read(now_s, room, metrics, low=low))
            cost_s = thread_cpu_s() - began_s
            self._pace.note(monotonic_s(), room, cost_s, low=low)
        if says and (not self._said_s or now_s - self._said_s >= _AGAIN_S):
            self._may_say, self._said_s = False, now_s
            self._say()
        return self._pace.pause_s(now_s - self._began_s, room)

    def _read(
        self,
        now_s: float,
        room: MemoryRoom,
        metrics: Iterable[Any] | None,
        *,
        low: bool,
    ) -> MemoryRecord:
        process = self._meter.read_processes(['self'])
        workers = self._sources.list_workers()
        held = self._meter.read_processes(workers)
        others = self._validation.list_workers()
        other_held = self._meter.read_processes(others)
        children = set(self._meter.list_started()) - {*workers, *others}
        child_held = self._meter.read_processes(children)
        results = None
        # the training may add to them at this moment
        with contextlib.suppress(RuntimeError):
            results = None if metrics is None else weigh_results(metrics)
        known = [found for found in (process, held, other_held) if found is not None]
        return MemoryRecord(
            phase='train' if metrics is None else 'validation',
            elapsed_s=now_s - self._began_s,
            iteration=self._recording.iteration,
            epoch=self._recording.epoch,
            bound=room.bound,
            total_bytes=room.total_bytes,
            used_bytes=room.used_bytes,
            shm_bytes=room.shm_bytes,
            process_bytes=process and process.bytes,
            workers=len(workers) if held else 0,
            worker_bytes=held and held.bytes,
            largest_worker_bytes=held and held.largest_bytes,
            children=child_held.processes if child_held else 0,
            child_bytes=child_held and child_held.bytes,
            validation_workers=len(others) if other_held else 0,
            validation_worker_bytes=other_held and other_held.bytes,
            result_bytes=results and results.bytes,
            result_name=results and results.name,
            is_pss=all(found.is_pss for found in known),
            is_low=low,
        )

    def _say(self) -> None:
        """Logs a warning that memory is nearly full, and the processes that hold it."""
        writer, logger = self._recording.writer, self._recording.runner.logger
        if writer is None:
            return
        others = read_other_ranks(find_peers(writer.path)).ranks
        run = Run(read_evidence(writer.path), [Run(rank) for rank in others])
        said = describe_memory(run)
        if said is not None:
            logger.warning(
                visible(
                    say(
                        phrase(
                            'GPUEfficiencyHook: memory is nearly full: {shares}.',
                            shares=said,
                        )
                    )
                )
            )

    def close(self) -> None:
        """Stops the thread that watches host memory; a second call does nothing."""
        self._thread.stop()


class StartMemory:
    """Watches host memory from the hook's creation until the train loop is built.

    What the train loader takes shows at once. Where that lasts, records say who holds
    memory. No call raises, as long as ``run`` lets nothing through.

    Args:
        run: Calls a function, and keeps what it raises from training.
        write: Keeps a record.
        tick: Called each time that the thread looks at what is free.
    """

    def __init__(
        self,
        run: Callable[..., Any],
        write: Callable[[MemoryRecord], Any],
        tick: Callable[[], Any],
    ) -> None:
        self._run, self._meter, self._began_s = run, HoldersMeter(), monotonic_s()
        self._pace, self._write, self._own_bytes = MemoryPace(), write, 0
        self._tick, self._is_over = tick, False
        self._thread: PeriodicThread | None = None
        self.dataset_bytes: int | None = None
        """Bytes by which building the train loader made this process grow."""

    def begin_loader(self) -> None:
        """Notes this process's memory before the train loader is built."""
        self._own_bytes = self._meter.read_own_bytes() or 0
        self.go_on()

    def go_on(self) -> None:
        """Starts the thread that watches host memory, unless `close` was called."""
        if self._thread is None and not self._is_over:
            look = partial(self._run, MEMORY_SOURCE, self._look)
            self._thread = PeriodicThread(HOLDERS_THREAD, look, _PERIOD_S)

    def pause(self) -> None:
        """Stops the thread that watches host memory, so that a fork is safe."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()

    def end_loader(self) -> None:
        """Computes by how many bytes building the train loader grew this process."""
        own_bytes = self._meter.read_own_bytes()
        if own_bytes is not None:
            self.dataset_bytes = max(own_bytes - self._own_bytes, 0)

    def _look(self) -> float | None:
        self._tick()
        room, now_s = self._meter.read_room(), monotonic_s()
        if room is None:
            return None
        low = self._pace.is_low(now_s, room)
        pause_s = self._pace.pause_s(now_s - self._began_s, room)
        if not self._pace.is_due(now_s, room, low=low, validates=False):
            return pause_s
        began_s = thread_cpu_s()
        held = self._meter.read_processes(['self'])
        record = MemoryRecord(
            phase='start',
            elapsed_s=now_s - self._began_s,
            bound=room.bound,
            total_bytes=room.total_bytes,
            used_bytes=room.used_bytes,
            shm_bytes=room.shm_bytes,
            process_bytes=held and held.bytes,
            is_pss=held is not None and held.is_pss,
            is_low=low,
        )
        self._write(record)
        cost_s = thread_cpu_s() - began_s
        self._pace.note(monotonic_s(), room, cost_s, low=low)
        return pause_s

    def close(self) -> None:
        """Stops watching host memory; it cannot be started again."""
        self._is_over = True
        self.pause()
