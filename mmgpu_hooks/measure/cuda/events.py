"""GPU idle time between steps, from CUDA events that nobody ever waits for.

An event notes the time when the GPU gets to it. One is put before a step's work
and one behind it: between the end of a step and the begin of the next the GPU had
nothing of ours to do. What it idles inside a step is not seen, so the share is "at
least".

Nothing here synchronises: an event is asked whether it has passed, and read only
then. On the CPU there is nothing of the kind: no share is claimed.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.absent import Absent
from mmgpu_hooks.measure.cuda.memory import cuda_device
from mmgpu_hooks.measure.source_error import SourceError

_PAIRS = 64
"""Iterations in flight at most; MMEngine's loop leaves one or two."""
_MOST_READ = 2
"""Iterations read in one call, so that a call's cost is bounded."""


class _Pair(NamedTuple):
    begin: Any
    end: Any


class CudaEvents:
    """Idle share of the iterations, one pair of events each.

    Costs the main thread one look at the current stream, two records, one query and
    two readings an iteration: 1.0 us of it is ours, and ``make gpu-check`` measures
    what CUDA adds.

    Args:
        new_event: Makes an event that keeps its time, as
            ``torch.cuda.Event(enable_timing=True)`` does.
        current_stream: The stream that the caller's work goes to; a step is timed on
            the one that it began on.
        is_capturing: Whether a CUDA graph is being captured: then nothing may be
            recorded or asked.
        pairs: Iterations in flight at most, above 1; beyond, some are not timed.
    """

    def __init__(
        self,
        new_event: Callable[[], Any],
        current_stream: Callable[[], Any],
        is_capturing: Callable[[], bool] = lambda: False,
        pairs: int = _PAIRS,
    ) -> None:
        self._new_event = new_event
        self._current_stream = current_stream
        self._is_capturing = is_capturing
        self._room = pairs
        self._free: list[_Pair] = []
        self._step: _Pair | None = None
        """The step that began last, where it could be recorded."""
        self._ended = False
        self._stream: Any = None
        """That step's."""
        self._in_flight: deque[tuple[_Pair, _Pair, bool]] = deque()
        """A step and the one that followed it, until the GPU has passed both, and
        whether one stream has all their events: then they pass in turn."""
        self._idle_ms = 0.0
        self._total_ms = 0.0
        self._iterations = 0

    def begin_step(self) -> None:
        """Call right before a step's work is given to the GPU.

        Raises:
            SourceError: If CUDA refuses, as it does after any error of its own.
        """
        try:
            self._begin()
        except Exception as error:
            raise _refusal(error) from error

    def end_step(self) -> None:
        """Call right after it was given, before anything waits for the results.

        Work that hooks give to the GPU later (EMA) counts as idle time, unless this
        is called again behind it: the last call counts.

        Raises:
            SourceError: If CUDA refuses.
        """
        try:
            if self._step is not None and not self._is_capturing():
                self._step.end.record(self._stream)
                self._ended = True
        except Exception as error:
            raise _refusal(error) from error

    def interrupt(self) -> None:
        """Leave out the time since the last step: validation ran in it, or a save."""
        self._drop_step()

    def drain(self) -> tuple[float | None, int]:
        """Return the idle share in per cent and over how many iterations; begin anew.

        What the GPU has not passed yet belongs to the next drain.

        Raises:
            SourceError: If CUDA refuses.
        """
        try:
            if not self._is_capturing():
                self._read_passed(len(self._in_flight))
        except Exception as error:
            raise _refusal(error) from error
        idle, total, count = self._idle_ms, self._total_ms, self._iterations
        self._idle_ms = self._total_ms = 0.0
        self._iterations = 0
        return (100.0 * idle / total if total > 0.0 else None), count

    def _begin(self) -> None:
        if self._is_capturing():
            self._drop_step()
            return
        self._read_passed(_MOST_READ)
        if not self._ended:
            self._drop_step()
        pair = self._take()
        if pair is None:  # all in flight: not timed, rather than waited for
            self._drop_step()
            return
        stream = self._current_stream()
        pair.begin.record(stream)
        before, self._step, self._ended = self._step, pair, False
        if before is not None:
            self._in_flight.append((before, pair, stream == self._stream))
        self._stream = stream

    def _read_passed(self, most: int) -> None:
        for _ in range(most):
            if not self._in_flight:
                return
            before, after, is_ordered = self._in_flight[0]
            # an event may be read only once it has passed
            if not after.begin.query():
                return
            if not is_ordered and not (before.end.query() and before.begin.query()):
                return
            self._in_flight.popleft()
            # kept to half a microsecond: equal times may come out below 0
            self._idle_ms += max(0.0, before.end.elapsed_time(after.begin))
            self._total_ms += before.begin.elapsed_time(after.begin)
            self._iterations += 1
            self._free.append(before)
            followed = self._in_flight and self._in_flight[0][0] is after
            if not followed and after is not self._step:
                self._free.append(after)

    def _take(self) -> _Pair | None:
        if self._free:
            return self._free.pop()
        if self._room == 0:
            return None
        self._room -= 1
        return _Pair(self._new_event(), self._new_event())

    def _drop_step(self) -> None:
        """Forget the last step, whose events the iteration before may still need."""
        step, self._step = self._step, None
        needed = self._in_flight and self._in_flight[-1][1] is step
        if step is not None and not needed:
            self._free.append(step)


def _refusal(error: Exception) -> SourceError:
    text = ' '.join(str(error).split())
    return SourceError(f'CUDA events could not be used: {text}')


def open_cuda_events() -> CudaEvents | Absent:
    """Open events on the current stream of this process's current device.

    Returns:
        The source, or why there is none.
    """
    if cuda_device() is None:
        return Absent("training does not run on CUDA: a GPU's idle time is not known")
    import torch

    return CudaEvents(
        lambda: torch.cuda.Event(enable_timing=True),
        torch.cuda.current_stream,
        torch.cuda.is_current_stream_capturing,
    )
