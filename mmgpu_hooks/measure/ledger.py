"""The time ledger: assigns each second of a training to one part, such as data wait.

It knows no trainer. Its driver stamps what just ended; the seconds since the stamp
before belong to it. So the parts add up to the wall clock by construction, and
nothing is counted twice, however calls nest.

Between two steps caches are cold: each object that is touched costs 0.1 us, and a sum
ten times what it costs in a row. So a stamp extends one list, and the stamps are summed
up once an interval, with numpy.

Each time is followed by what ended then, a part or a hook itself, in the order of time.
So whatever happens in between (a save, a validation, an error) needs no special case.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
import numpy.typing as npt

from mmgpu_hooks.schema.recorded import PARTS, DurationStats

FIRST_WAIT = 'first_wait'
"""Label of an epoch's first data wait; its excess over the median wait is `startup`."""

WORKER_START = 'worker_start'
"""Time ledger's label for making a DataLoader iterator; counted as `startup`."""

LAP = 'lap'
"""Time ledger's label that marks the end of an iteration.

What ran until then is ``lap_of`` of the ledger.
"""

_LABELS = (*PARTS, FIRST_WAIT, WORKER_START, LAP)
_FIRST_HOOK = len(_LABELS)
_RESUME = _LABELS[_LABELS.index('resume')]
_LAP, _STEP, _HOOKS = (_LABELS.index(name) for name in (LAP, 'step', 'hooks'))
_WAIT, _FIRST, _OWN_STEP, _INSIDE, _OUTSIDE = range(5)
"""Indices of the columns in the array of iteration times.

In order: data wait, epoch's first data wait, train step, hooks and loop, and time
outside of iterations.
"""
_LAP_WIDTH = 5
_COLUMNS = {
    'data_wait': _WAIT,
    FIRST_WAIT: _FIRST,
    'step': _OWN_STEP,
    'hooks': _INSIDE,
    'loop': _INSIDE,
    LAP: _INSIDE,
}
"""Mapping from parts of a training to their columns in the array of iteration times.

Every other part is outside.
"""

Seconds = npt.NDArray[np.float64]


def is_part(running: Any) -> bool:
    """True if ``running`` labels a part of training such as ``step``, not a hook."""
    # by identity: a hook may be equal to anything
    return any(running is label for label in _LABELS)


def _no_seconds() -> Seconds:
    return np.zeros(0)


@dataclass
class LedgerWindow:
    """Seconds the time ledger booked in a log interval: by part, hook, iteration."""

    parts_s: dict[str, float] = field(default_factory=dict)
    """Seconds by part of the training; their sum is the wall clock time."""
    hooks_s: dict[str, float] = field(default_factory=dict)
    """Seconds inside MMEngine's hooks, by the hook's class name."""
    waits_s: Seconds = field(default_factory=_no_seconds)
    """Seconds that each iteration waited for data, an epoch's first wait included."""
    steps_s: Seconds = field(default_factory=_no_seconds)
    iters_s: Seconds = field(default_factory=_no_seconds)
    """Seconds of each iteration: data wait, train step, hooks and loop."""
    firsts: list[int] = field(default_factory=list)
    """Indices of iterations whose data wait was the first of an epoch."""
    wait_cpu_s: float = 0.0
    """Estimated CPU seconds of training in data waits, except each epoch's first wait.

    See :meth:`TimeLedger.add_wait_cpu`.
    """


class TimeLedger:
    """Books wall clock seconds of a training by part, by hook and by iteration.

    Args:
        clock: Monotonic seconds.
        part: The part that is running.
        step_hooks: Classes of hooks whose calls right behind a step belong to it.
        lap_of: Hook, or another name of hooks, that runs where a :data:`LAP` is noted.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        part: str = 'startup',
        step_hooks: tuple[type, ...] = (),
        lap_of: Any = 'hooks',
    ) -> None:
        self.clock = clock
        self.stamps: list[Any] = []
        """Flat list alternating a clock time (s) and the part or hook that ended then.

        A hook itself may stand there, or another name of hooks. Both come in one call,
        lest Ctrl-C parts them.
        """
        self.running: list[Any] = [part]
        """Stack of the parts and hooks that run now, the innermost last."""
        self._lap_of = lap_of
        self.totals = LedgerWindow()
        """Seconds by part and hook, from training's start to the last interval's end.
        """
        self.elapsed_s = 0.0
        """Seconds from the ledger's creation to the last time stamp it summed up."""
        self._until = clock()
        self._step_hooks = step_hooks
        self._codes: dict[int, int] = {
            id(label): code for code, label in enumerate(_LABELS)
        }
        """Integer code of each part or hook, by the ``id()`` of that part or hook.

        Hooks need not be hashable, and may be of one class.
        """
        self._labels: list[Any] = [*_LABELS]
        """List of parts and hooks, each at the index of its integer code."""
        self._columns = [_COLUMNS.get(name, _OUTSIDE) for name in _LABELS]
        self._step_codes: list[int] = []
        self._sums = np.zeros(_FIRST_HOOK)
        """Seconds in the current log interval, by integer code of part or hook."""
        self._laps: list[Any] = []
        self._open_lap: Any = np.zeros((1, _LAP_WIDTH))
        self._read_cpu_s: list[float] = []
        self._usual_cpu_s = 0.0
        self._usual_wait_s = 0.0
        self._has_begun = False

    @property
    def part(self) -> str:
        """Name of the part of the training that runs now; ``hooks`` inside a hook."""
        innermost = self.running[-1]
        return innermost if is_part(innermost) else 'hooks'

    @property
    def stamped_s(self) -> float:
        """Clock time (s) at which the time ledger last noted an event; thread-safe."""
        newest = self.stamps[-2:]
        return newest[0] if newest else self._until

    @property
    def mean_lap_s(self) -> float | None:
        """Mean seconds of the newest iterations, not yet summed up; thread-safe."""
        stamps = self.stamps[:]
        laps = sum(ended is LAP for ended in stamps[1::2])
        return (stamps[-2] - stamps[0]) / laps if laps else None

    @property
    def mean_resume_s(self) -> float | None:
        """Mean seconds to load a batch that a resumed training skips; thread-safe.

        It covers the waits since the last :meth:`sum_up`.
        """
        stamps = self.stamps[:]
        ends = [place for place, ended in enumerate(stamps[1::2]) if ended is _RESUME]
        if not ends:
            return None
        # each is stamped where it begins, too
        begun_s = stamps[2 * max(ends[0] - 1, 0)]
        return float(stamps[2 * ends[-1]] - begun_s) / len(ends)

    def note(self, what: Any) -> None:
        """Stamps the time at which a part of the training, or a hook's call, ends."""
        self.stamps.extend((self.clock(), what))

    def push(self, part: Any) -> None:
        """Begins a part of training, or a hook's call, nested in the running part."""
        self.note(self.running[-1])
        self.running.append(part)

    def pop(self, part: Any) -> None:
        """Ends a part, or a hook's call, with all nested ones; ignored if not running.

        So an error between two stamps cannot unbalance the ledger for good.
        """
        if any(inner is part for inner in self.running[1:]):
            self.note(self.running[-1])
            while self.running.pop() is not part:
                pass

    def add_wait_cpu(self, cpu_s: float) -> None:
        """Adds training's CPU seconds in one data wait, to estimate those in all waits.

        It takes as much to take a batch that had to be waited for as one that stood
        ready.
        """
        self._read_cpu_s.append(cpu_s)

    @property
    def iterations(self) -> int:
        """Number of iterations of the current log interval summed up so far."""
        return sum(map(len, self._laps))

    @property
    def iterations_now(self) -> int:
        """Number of iterations in the current log interval, all that ended included.

        From any thread at rest.
        """
        return self.iterations + sum(ended is LAP for ended in self.stamps[1::2])

    def sum_up(self) -> None:
        """Converts time stamps since the last call to seconds by part, hook, iteration.

        There are some 15 an iteration.
        """
        times, ended = np.array([self._until, *self.stamps[::2]]), self.stamps[1::2]
        self.stamps.clear()
        count = len(ended)
        if not count:
            return
        # a clock that was set back adds nothing
        seconds = np.maximum(times[1:] - times[:-1], 0.0)
        self._until = float(times[-1])
        self.elapsed_s += float(seconds.sum())
        code_of = self._codes.__getitem__
        try:
            codes = np.fromiter(map(code_of, map(id, ended)), np.intp, count)
        except KeyError:
            self._add_labels(ended)
            codes = np.fromiter(map(code_of, map(id, ended)), np.intp, count)
        if self._step_codes:
            self._give_to_step(codes)
        self._sums += np.bincount(codes, seconds, len(self._sums))
        is_lap = codes == _LAP
        laps = np.cumsum(is_lap) - is_lap
        cells = laps * _LAP_WIDTH + np.array(self._columns)[codes]
        rows = int(is_lap.sum()) + 1
        size = rows * _LAP_WIDTH
        table: Any = np.bincount(cells, seconds, size).reshape(rows, _LAP_WIDTH)
        table[0] += self._open_lap[0]
        if rows > 1:
            self._laps.append(table[:-1])
        self._open_lap = table[-1:]

    def _add_labels(self, ended: Sequence[Any]) -> None:
        for label in ended:
            if id(label) in self._codes:
                continue
            code = len(self._labels)
            self._codes[id(label)] = code
            self._labels.append(label)
            self._columns.append(_INSIDE)
            if isinstance(label, self._step_hooks):
                self._step_codes.append(code)
        self._sums.resize(len(self._labels), refcheck=False)

    def _give_to_step(self, codes: npt.NDArray[np.intp]) -> None:
        # of each stamp, the last part before it
        of_loop = (codes < _FIRST_HOOK) & (codes != _HOOKS)
        last = np.maximum.accumulate(np.where(of_loop, np.arange(len(codes)), 0))
        codes[np.isin(codes, self._step_codes) & (codes[last] == _STEP)] = _STEP

    def read_parts(self) -> dict[str, float]:
        """Returns the current log interval's seconds by part, as far as summed up."""
        sums = self._sums.tolist()
        parts = dict(zip(_LABELS, sums))
        parts['hooks'] += parts.pop(LAP) + sum(sums[_FIRST_HOOK:])
        return parts

    def take(self) -> LedgerWindow:
        """Returns seconds by part, hook, iteration since the last call; starts anew."""
        self.sum_up()
        sums, self._sums = self._sums.tolist(), np.zeros(len(self._sums))
        laps, self._laps = np.concatenate([np.zeros((0, _LAP_WIDTH)), *self._laps]), []
        parts = dict(zip(_LABELS, sums))
        hooks = [(self._lap_of, parts.pop(LAP))]
        hooks += zip(self._labels[_FIRST_HOOK:], sums[_FIRST_HOOK:])
        parts['hooks'] += sum(seconds for _, seconds in hooks)
        first_s = parts.pop(FIRST_WAIT)
        parts['startup'] += parts.pop(WORKER_START)
        window = LedgerWindow(
            parts_s=parts,
            waits_s=laps[:, _WAIT] + laps[:, _FIRST],
            steps_s=laps[:, _OWN_STEP],
            iters_s=laps[:, :_OUTSIDE].sum(axis=1),
            firsts=np.flatnonzero(laps[:, _FIRST]).tolist(),
        )
        if self._read_cpu_s:
            self._usual_cpu_s = statistics.fmean(self._read_cpu_s)
            self._read_cpu_s.clear()
        waits = len(window.waits_s) - len(window.firsts)
        # more than the waits, where several threads load inside of them
        window.wait_cpu_s = self._usual_cpu_s * waits
        for label, seconds in hooks:
            if seconds:
                name = label if isinstance(label, str) else type(label).__name__
                window.hooks_s[name] = window.hooks_s.get(name, 0.0) + seconds
        startup_s = min(self._startup_in(window), first_s)
        parts['data_wait'] += first_s - startup_s
        parts['startup'] += startup_s
        for total, more in (
            (self.totals.parts_s, parts),
            (self.totals.hooks_s, window.hooks_s),
        ):
            for name, seconds in more.items():
                total[name] = total.get(name, 0.0) + seconds
        return window

    def _startup_in(self, window: LedgerWindow) -> float:
        """Returns the seconds by which epochs' first data waits exceed the median wait.

        All of a run's very first wait is start-up.
        """
        waits_s, firsts = window.waits_s, window.firsts
        usual_s = np.full(len(firsts), self._usual_wait_s)
        if len(waits_s) > len(firsts):
            # a third of what np.median takes
            self._usual_wait_s = statistics.median(np.delete(waits_s, firsts).tolist())
            usual_s[:] = self._usual_wait_s
        if firsts[:1] == [0] and not self._has_begun:
            usual_s[0] = 0.0
        self._has_begun |= bool(len(waits_s))
        return float(np.maximum(waits_s[firsts] - usual_s, 0.0).sum())


def summarize_durations(seconds: Sequence[float] | Seconds) -> DurationStats:
    """Summarises durations: count, sum, mean, median, 95th percentile, in seconds.

    Args:
        seconds: At least one duration, in any order.

    Returns:
        Count, sum, mean, median and 95th percentile. Percentiles are
        linearly interpolated between order statistics (the default of NumPy).

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    return summarize_some(seconds, len(seconds), float(np.sum(seconds)))


def summarize_some(
    seconds: Sequence[float] | Seconds, count: int, total_s: float
) -> DurationStats:
    """Summarises durations, given count, sum and only a sample of their values.

    Args:
        seconds: Those that are known, at least one, in any order.
        count: How many there were.
        total_s: Sum of all of them.

    Raises:
        ValueError: If ``seconds`` is empty.
    """
    ordered = sorted(np.asarray(seconds).tolist())
    p50_s, p95_s = (_read_between(ordered, share) for share in (0.5, 0.95))
    return DurationStats(
        count=count, total_s=total_s, mean_s=total_s / count, p50_s=p50_s, p95_s=p95_s
    )


def _read_between(ordered: Sequence[float], share: float) -> float:
    """Returns a percentile of sorted values, linearly interpolated between two of them.

    For 50 values it takes a quarter of np.interp's time.
    """
    below, rest = divmod(share * (len(ordered) - 1), 1)
    low, high = ordered[int(below)], ordered[math.ceil(below + rest)]
    return low + rest * (high - low)
