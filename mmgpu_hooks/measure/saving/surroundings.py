"""What the host and this process went through while a checkpoint was saved."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Callable, NamedTuple

from mmgpu_hooks.measure.clock import Clock, monotonic_s, process_cpu_s
from mmgpu_hooks.measure.host.cpu import fold_busy_s, read_system_cpu_times
from mmgpu_hooks.measure.host.kept_file import KeptFile
from mmgpu_hooks.measure.host.pressure import fold_pressure_pct, parse_pressure
from mmgpu_hooks.measure.host.process_memory import (
    read_major_faults,
    read_process_rss_bytes,
)
from mmgpu_hooks.measure.host.system_memory import (
    page_size_bytes,
    parse_swapped_pages,
    parse_unwritten_bytes,
)

_PRESSURES = ('cpu_pressure_pct', 'io_pressure_pct', 'memory_pressure_pct')
_SWAPPED = 'swap_in_bytes, swap_out_bytes'
_UNWRITTEN = 'dirty_bytes, writeback_bytes'
_FILES: dict[str, tuple[str, Callable[[bytes], Any]]] = {
    'cpu_pressure_pct': ('pressure/cpu', parse_pressure),
    'io_pressure_pct': ('pressure/io', parse_pressure),
    'memory_pressure_pct': ('pressure/memory', parse_pressure),
    _SWAPPED: ('vmstat', parse_swapped_pages),
    _UNWRITTEN: ('meminfo', parse_unwritten_bytes),
}
"""Where figures come from; two out of one file go by both names."""


class _Look(NamedTuple):
    clock_s: float
    files: Mapping[str, Any]
    cpu_times: Mapping[str, float] | None
    own_cpu_s: float
    major_faults: int | None


class Surroundings:
    """Figures beside the saving thread's own, between :meth:`begin` and :meth:`end`.

    Both together cost 0.2 ms on 2 CPUs. Files are opened once. What the host does not
    tell is ``None``, with a reason.

    Args:
        proc: Root of the proc file system.
        clock: Monotonic seconds.
        read_cpu_times: Returns a named tuple of seconds since boot, by kind.
        own_cpu: Clock of this process's CPU time.
        read_rss_bytes: Returns the memory that this process holds.
    """

    def __init__(
        self,
        proc: Path = Path('/proc'),
        clock: Clock = monotonic_s,
        read_cpu_times: Callable[[], Any] = read_system_cpu_times,
        own_cpu: Clock = process_cpu_s,
        read_rss_bytes: Callable[[], int | None] = read_process_rss_bytes,
    ) -> None:
        self._clock = clock
        self._read_cpu_times = read_cpu_times
        self._own_cpu = own_cpu
        self._read_rss_bytes = read_rss_bytes
        self._unknown: dict[str, str] = {}
        self._files: dict[str, KeptFile] = {}
        for names, (path, _) in _FILES.items():
            try:
                self._files[names] = KeptFile(proc / path)
            except OSError as error:
                self._give_up(names, error)
        self._page_bytes = page_size_bytes()
        self._before = self._look()
        self._rss_bytes = self._most_rss_bytes = self._read_rss_bytes()

    def _give_up(self, names: str, error: Exception) -> None:
        self._unknown[names] = f'the host does not tell: {error}'
        file = self._files.pop(names, None)
        if file is not None:
            file.close()

    def _look(self) -> _Look:
        figures = {}
        for names, file in list(self._files.items()):
            try:
                figures[names] = _FILES[names][1](file.read())
            except (OSError, ValueError) as error:
                self._give_up(names, error)
        return _Look(
            self._clock(),
            figures,
            self._try_cpu_times(),
            self._own_cpu(),
            read_major_faults(),
        )

    def _try_cpu_times(self) -> Mapping[str, float] | None:
        try:
            times: Mapping[str, float] = self._read_cpu_times()._asdict()
        except ImportError:
            reason = 'psutil is not installed: pip install psutil'
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            reason = f'the host does not tell its CPU times: {error}'
        else:
            return times
        self._unknown['strangers_cpu_s'] = reason
        return None

    def begin(self) -> None:
        """A save is about to begin."""
        self._before = self._look()
        self._rss_bytes = self._most_rss_bytes = self._read_rss_bytes()

    def look_at_memory(self) -> None:
        """Much memory may be held at this moment of the save; 10 us."""
        rss_bytes = self._read_rss_bytes()
        if rss_bytes is not None and self._most_rss_bytes is not None:
            self._most_rss_bytes = max(self._most_rss_bytes, rss_bytes)

    def end(self, workers_cpu_s: float | None) -> tuple[dict[str, Any], dict[str, str]]:
        """A save is over.

        Args:
            workers_cpu_s: CPU of the loader's workers since :meth:`begin`, so that
                they are no strangers; ``None`` when it is not known.

        Returns:
            Fields of a :class:`~mmgpu_hooks.schema.SaveRecord`, and why one of them
            is missing. Memory held is what was resident at the looks beyond what was
            when it began: what the allocator had kept from before is not in it.
        """
        before, after = self._before, self._look()
        figures: dict[str, Any] = {}
        for name in _PRESSURES:
            if name in before.files and name in after.files:
                figures[name] = fold_pressure_pct(
                    before.files[name],
                    after.files[name],
                    after.clock_s - before.clock_s,
                )
        if _SWAPPED in before.files and _SWAPPED in after.files:
            pages = [
                now - then
                for now, then in zip(after.files[_SWAPPED], before.files[_SWAPPED])
            ]
            figures['swap_in_bytes'] = pages[0] * self._page_bytes
            figures['swap_out_bytes'] = pages[1] * self._page_bytes
        if _UNWRITTEN in after.files:
            figures['dirty_bytes'], figures['writeback_bytes'] = after.files[_UNWRITTEN]
        if before.major_faults is not None and after.major_faults is not None:
            figures['major_faults'] = after.major_faults - before.major_faults
        if self._rss_bytes is not None and self._most_rss_bytes is not None:
            figures['held_bytes'] = self._most_rss_bytes - self._rss_bytes
        unknown = dict(self._unknown)
        if before.cpu_times is not None and after.cpu_times is not None:
            if workers_cpu_s is None:
                unknown['strangers_cpu_s'] = "the workers' CPU is not known"
            else:
                ours_s = after.own_cpu_s - before.own_cpu_s + workers_cpu_s
                busy_s = fold_busy_s(before.cpu_times, after.cpu_times)
                # the host counts in ticks of 10 ms, we in nanoseconds
                figures['strangers_cpu_s'] = max(busy_s - ours_s, 0.0)
        return figures, unknown

    def close(self) -> None:
        """Close every file; a second call does nothing."""
        while self._files:
            self._files.popitem()[1].close()
