"""What the host did to everybody on it between two looks.

All figures are of the whole host, strangers included, also inside a container:
``/proc`` tells of the host there. The pressure of the own control group alone is
left aside, because what a neighbour takes shows only in the host's.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Callable, TypeVar

from mmgpu_hooks.measure.clock import Clock, monotonic_s
from mmgpu_hooks.measure.host.kept_file import KeptFile
from mmgpu_hooks.measure.host.limits import read_file_system
from mmgpu_hooks.measure.host.open_files import OpenFiles
from mmgpu_hooks.measure.host.pressure import fold_pressure_pct, parse_pressure
from mmgpu_hooks.measure.host.system_memory import (
    page_size_bytes,
    parse_memory_bytes,
    parse_swapped_pages,
)
from mmgpu_hooks.measure.host.throttling import ThrottleMeter
from mmgpu_hooks.schema import HostWindow

_T = TypeVar('_T')

_PRESSURES = {f'{kind}_pressure_pct': kind for kind in ('cpu', 'io', 'memory')}
_NO_PRESSURE = (
    'the kernel keeps no pressure figures (Linux 4.20 and later do, unless it was '
    'started with psi=0 or has it compiled out)'
)
_PRESSURE_BYTES = 256
"""More than the first line, which is all that is parsed."""
_SELDOM_S = 1.0
"""What is of the host's memory and files is looked at so often, at most."""
_SWAPPED = 'swap_in_bytes, swap_out_bytes'
_MEMORY = 'ram_available_bytes'


class HostWindowMeter:
    """Reads the host in windows that follow each other without a gap.

    Files are opened once. The kernel adds up pressure over the CPUs, so a read costs
    more on larger hosts. Windows shorter than a second are told the memory and the open
    files as they were found last, and no swapping: the next look counts it all. A host
    without swap space, now and at the look before, has swapped nothing.

    It never raises: a figure whose file is missing, hidden, vanished or garbage is
    ``None`` from then on, with a reason in :attr:`unknown`. A counter that falls,
    because the process was moved to another host, makes its figure ``None`` for that
    one window. Open files are looked at each time since Linux 6.2, else every 30 s.

    Args:
        proc: Root of the proc file system.
        sys: Root of the sys file system, where control groups are mounted.
        shm: Folder through whose file system loader workers hand over batches.
        clock: Monotonic, in seconds.
    """

    def __init__(
        self,
        *,
        proc: Path = Path('/proc'),
        sys: Path = Path('/sys'),
        shm: Path = Path('/dev/shm'),
        clock: Clock = monotonic_s,
    ) -> None:
        self.unknown: dict[str, str] = {}
        """Why a figure is missing, by its name; by both, of two out of one file."""
        self._shm = os.fspath(shm)
        self._clock = clock
        self._files: dict[str, KeptFile] = {}
        for figure, kind in _PRESSURES.items():
            self._open(figure, proc / 'pressure' / kind, _NO_PRESSURE)
        self._open(_SWAPPED, proc / 'vmstat')
        self._open(_MEMORY, proc / 'meminfo')
        self._throttling = ThrottleMeter(proc, sys, clock)
        if self._throttling.is_empty:
            self.unknown['throttled_s'] = 'no control group in sight counts throttling'
        files = self._try('open_files', lambda: OpenFiles(proc, clock))
        self._count_open_files = _unknown if files is None else files.count
        self._page_bytes = page_size_bytes()
        self._since_s = clock()
        self._waited_s = self._read_pressures()
        self._swapped = self._parse(_SWAPPED, parse_swapped_pages)
        self._swap_bytes: int | None = None
        """All swap space of the host, at the last look."""
        self._looked_s: float | None = None
        self._gauges: dict[str, int | None] = {}

    def _open(self, figure: str, path: Path, hint: str = '') -> None:
        file = self._try(figure, lambda: KeptFile(path), hint)
        if file is not None:
            self._files[figure] = file

    def _try(self, figure: str, read: Callable[[], _T], hint: str = '') -> _T | None:
        if figure in self.unknown:
            return None
        try:
            return read()
        except (OSError, ValueError) as error:
            self._give_up(figure, f'{hint or "the host does not tell"}: {error}')
            return None

    def _give_up(self, figure: str, reason: str) -> None:
        self.unknown[figure] = reason
        file = self._files.pop(figure, None)
        if file is not None:
            file.close()

    def _parse(self, figure: str, parse: Callable[[bytes], _T]) -> _T | None:
        file = self._files.get(figure)
        if file is None:  # given up
            return None
        try:
            return parse(file.read())
        except (OSError, ValueError) as error:
            self._give_up(figure, f'the host does not tell: {error}')
            return None

    def read(self) -> HostWindow:
        """Return what happened since the last read, or since construction."""
        now_s, before_s = self._clock(), self._waited_s
        duration_s, self._since_s = now_s - self._since_s, now_s
        self._waited_s = waited_s = self._read_pressures()
        fields: dict[str, Any] = {
            figure: fold_pressure_pct(before_s[figure], total_s, duration_s)
            for figure, total_s in waited_s.items()
        }
        swapped: tuple[int | None, int | None] = (None, None)
        if self._looked_s is None or now_s - self._looked_s >= _SELDOM_S:
            self._looked_s = now_s
            had_swap, self._gauges = self._swap_bytes != 0, self._read_gauges()
            swapped = 0, 0
            # all of vmstat takes as long as three other files
            if had_swap or self._swap_bytes != 0 or _SWAPPED in self.unknown:
                swapped = self._read_swapped()
        fields['throttled_s'] = self._try('throttled_s', self._throttling.read)
        fields['swap_in_bytes'], fields['swap_out_bytes'] = swapped
        fields.update(self._gauges)
        return HostWindow(**fields)

    def _read_gauges(self) -> dict[str, int | None]:
        memory = self._parse(_MEMORY, parse_memory_bytes) or (None, None)
        self._swap_bytes = memory[1]
        return {
            'ram_available_bytes': memory[0],
            'shm_free_bytes': self._try('shm_free_bytes', self._read_shm_free),
            'open_files': self._try('open_files', self._count_open_files),
        }

    def _read_pressures(self) -> dict[str, float]:
        totals_s, files = {}, self._files
        for figure in _PRESSURES:
            if figure in files:
                try:
                    # as _parse does, without two calls for each
                    text = files[figure].read_begin(_PRESSURE_BYTES)
                    totals_s[figure] = parse_pressure(text)
                except (OSError, ValueError) as error:
                    self._give_up(figure, f'{_NO_PRESSURE}: {error}')
        return totals_s

    def _read_swapped(self) -> tuple[int | None, int | None]:
        before, self._swapped = (
            self._swapped,
            self._parse(_SWAPPED, parse_swapped_pages),
        )
        if before is None or self._swapped is None:
            return None, None
        pages = [now - then for now, then in zip(self._swapped, before)]
        if min(pages) < 0:
            return None, None
        return pages[0] * self._page_bytes, pages[1] * self._page_bytes

    def _read_shm_free(self) -> int:
        free = read_file_system(self._shm)[1]
        if free is None:
            raise ValueError(f'{self._shm} cannot be looked at')
        return free

    def close(self) -> None:
        """Close every file; a second call does nothing."""
        for figure in list(self._files):
            self._give_up(figure, 'the meter is closed')
        self._throttling.close()


def _unknown() -> None:
    return None
