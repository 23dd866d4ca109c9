"""CPU use of this process and of the whole host between two reads."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple, cast

from mmgpu_hooks.measure.clock import Clock, process_cpu_s
from mmgpu_hooks.measure.host.kept_file import read_begin
from mmgpu_hooks.measure.host.proc import OpenSchedStat
from mmgpu_hooks.measure.source_error import SourceError

_IDLE = ('idle', 'iowait')
_COUNTED_TWICE = ('guest', 'guest_nice')
"""Linux has guest time inside ``user`` and ``nice`` already."""


class CpuReading(NamedTuple):
    """What was used since the read before."""

    process_cpu_s: float
    """CPU seconds of this process, all threads, loader workers excluded."""
    system_cpu_pct: float | None
    """Busy share of all logical CPUs of the host, 0 to 100."""
    process_run_delay_s: float | None = None
    """The main thread was ready to run and waited for a core."""


class CpuTimes(NamedTuple):
    """Seconds of all CPUs since boot, by kind."""

    user: float
    nice: float
    system: float
    idle: float
    iowait: float
    irq: float
    softirq: float
    steal: float
    guest: float
    guest_nice: float


_KINDS = len(CpuTimes._fields)


def parse_cpu_times(text: bytes, ticks_per_s: float) -> CpuTimes:
    """Parse the first line of ``/proc/stat`` (Linux 2.6.33 and later), of all CPUs::

        cpu  10132153 290696 3084719 46828483 16683 0 25195 0 175628 0

    Args:
        text: The file, or its beginning.
        ticks_per_s: What the figures count.

    Raises:
        ValueError: If the line is not of this form.
    """
    # the next line begins with a word: a short one ends in no number
    words = text.split(None, _KINDS + 1)
    try:
        if words[0] == b'cpu':
            ticks = map(int, words[1 : _KINDS + 1])
            return CpuTimes(*[one / ticks_per_s for one in ticks])
    except (ValueError, TypeError, IndexError):
        pass
    raise ValueError(f'expected "cpu <ten figures>" in stat, found {text[:80]!r}')


def read_system_cpu_times(proc: Path = Path('/proc')) -> Any:
    """Seconds of all CPUs since boot, by kind, as a named tuple.

    Out of ``/proc/stat``, and from ``psutil`` where there is none: that takes four
    times as long, and ten between two steps of a training.

    Args:
        proc: Root of the proc file system.
    """
    try:
        text = read_begin(os.path.join(proc, 'stat'), 512)
        return parse_cpu_times(text, os.sysconf('SC_CLK_TCK'))
    except (OSError, ValueError, AttributeError):
        import psutil

        return psutil.cpu_times()


def read_run_delay_s(proc: Path = Path('/proc')) -> float | None:
    """Seconds that our main thread has waited for a core; ``None`` when untold.

    Args:
        proc: Root of the proc file system.
    """
    try:
        times = OpenSchedStat(os.getpid(), proc, most_files=0).read()
    except SourceError:
        return None
    return None if times is None else times.main_run_delay_s


class CpuMeter:
    """Reads CPU use in windows that follow each other without a gap.

    The host's share covers the host even inside a container, as ``/proc/stat``
    does. Linux counts in ticks of
    10 ms, so a window should span at least half a second.

    Args:
        read_cpu_times: Returns a named tuple of seconds since boot, by kind.
        process_cpu: Clock of this process's CPU time.
        run_delay: What the main thread has waited for a core, in seconds.
    """

    def __init__(
        self,
        read_cpu_times: Callable[[], Any] = read_system_cpu_times,
        process_cpu: Clock = process_cpu_s,
        run_delay: Callable[[], float | None] = read_run_delay_s,
    ) -> None:
        self.unknown: dict[str, str] = {}
        """Why a figure is missing, by its name."""
        self._read_cpu_times = read_cpu_times
        self._process_cpu = process_cpu
        self._run_delay = run_delay
        self._last_process_s = process_cpu()
        self._last_delay_s = run_delay()
        self._last_times = self._times()

    def read(self) -> CpuReading:
        """Return what was used since the last read, or since construction."""
        process_s, times = self._process_cpu(), self._times()
        before_s, self._last_delay_s = self._last_delay_s, self._run_delay()
        reading = CpuReading(
            process_s - self._last_process_s,
            _fold_pct(self._last_times, times),
            _difference(before_s, self._last_delay_s),
        )
        self._last_process_s, self._last_times = process_s, times
        return reading

    def _times(self) -> Any:
        if self.unknown:
            return None
        try:
            return self._read_cpu_times()
        except ImportError:
            reason = 'psutil is not installed: pip install psutil'
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            reason = f'the host does not tell its CPU times: {error}'
        self.unknown['system_cpu_pct'] = reason
        return None


def _difference(before_s: float | None, after_s: float | None) -> float | None:
    if before_s is None or after_s is None:
        return None
    return max(after_s - before_s, 0.0)


def _fold_pct(before: Any, after: Any) -> float | None:
    """As :func:`fold_busy_pct`, of what was read; without dictionaries if it can."""
    if before is None or after is None:
        return None
    if not type(before) is type(after) is CpuTimes:
        return fold_busy_pct(_by_kind(before), _by_kind(after))
    spent = [now - then if now > then else 0.0 for now, then in zip(after, before)]
    user, nice, system, idle, iowait, irq, softirq, steal, _, _ = spent
    busy = user + nice + system + irq + softirq + steal
    total = busy + idle + iowait
    return 100.0 * busy / total if total > 0.0 else None


def _by_kind(times: Any) -> Mapping[str, float]:
    return cast(Mapping[str, float], times._asdict())


def fold_busy_pct(
    before: Mapping[str, float], after: Mapping[str, float]
) -> float | None:
    """Busy share of all CPUs between two readings of their times.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.

    Returns:
        Per cent, 0 to 100; ``None`` when no time passed or nothing is known.
    """
    spent = _fold_spent(before, after)
    total = sum(spent.values())
    return 100.0 * _fold_busy(spent) / total if total > 0.0 else None


def fold_busy_s(before: Mapping[str, float], after: Mapping[str, float]) -> float:
    """Seconds that all CPUs worked between two readings of their times, added up.

    What a hypervisor took from this host (``steal``) is work, though not its own.

    Args:
        before: Seconds since boot by kind (``user``, ``idle``, ...).
        after: The same, later.
    """
    return _fold_busy(_fold_spent(before, after))


def _fold_spent(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, float]:
    # the kernel may take back a little idle or iowait time: never negative
    return {
        kind: max(0.0, after[kind] - before[kind])
        for kind in after
        if kind in before and kind not in _COUNTED_TWICE
    }


def _fold_busy(spent: Mapping[str, float]) -> float:
    return sum(seconds for kind, seconds in spent.items() if kind not in _IDLE)
