"""What LoggerHook and its backends show of us, and how it gets there."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from mmgpu_hooks.measure.durations import fold_durations
from mmgpu_hooks.schema import IntervalRecord

SCALARS: dict[str, str] = {
    'data_wait_s': 'mean wait for a batch, seconds per iteration',
    'data_wait_p95_s': '95th percentile of that wait, seconds',
    'step_s': 'mean step (forward, backward, optimizer), seconds per iteration',
    'iter_s': 'mean iteration (wait + step + hooks), seconds',
    'iter_p95_s': '95th percentile of the iteration, seconds',
    'data_wait_pct': 'share of iteration seconds spent waiting for data, percent',
    'images_per_s': 'images per second of iteration, this rank',
    'gpu_util_pct': 'NVML utilisation, time-weighted, percent',
    'gpu_zero_pct': 'share of the sampled time at 0 % utilisation, percent',
    'gpu_idle_pct': 'GPU idle between two steps, hooks included in the step, percent',
    'gpu_mem_peak_mib': "allocator's peak, MiB",
    'gpu_mem_reserved_mib': 'most the allocator held, MiB',
    'process_cpu_cores': 'cores the training process used, workers excluded',
    'system_cpu_pct': 'busy share of all CPUs of the host, percent',
    'save_s': 'mean checkpoint save, seconds; of intervals in which one was made',
}
"""Every scalar we publish. No name holds ``time``, ``loss`` or ``grad_norm`` and none
ends in ``lr``: MMEngine would average or reformat those."""

_MIB = 2.0**20


def fold_scalars(record: IntervalRecord) -> dict[str, float]:
    """The scalars of one interval; a figure that is unknown is left out."""
    values = fold_shares(fold_parts(record))
    values.update(fold_peaks(record))
    values['data_wait_p95_s'] = record.data_wait.p95_s
    values['iter_p95_s'] = record.iter.p95_s
    return values


Parts = dict[str, tuple[float, float]]
"""By scalar, what it is the share of and of what: these add up over intervals."""


def fold_parts(record: IntervalRecord) -> Parts:
    """What an interval adds to each scalar that is a mean or a share.

    What is unknown is left out, so that a figure is of the intervals that know it.
    """
    wait, iteration, gpu = record.data_wait, record.iter, record.gpu
    duration_s, util_pct, zero_pct, sampled_s = record.duration_s, None, None, 0.0
    if gpu is not None:
        util_pct, zero_pct = gpu.util_pct, gpu.zero_pct
        sampled_s = gpu.sampled_s or duration_s
    timed_s = (record.gpu_idle_iterations or iteration.count) * iteration.mean_s
    parts: dict[str, tuple[float | None, float]] = {
        'data_wait_s': (wait.total_s, wait.count),
        'step_s': (record.step.total_s, record.step.count),
        'iter_s': (iteration.total_s, iteration.count),
        'data_wait_pct': (100 * wait.total_s, iteration.total_s),
        'images_per_s': (record.images, iteration.total_s),
        'gpu_util_pct': (_times(util_pct, sampled_s), sampled_s),
        'gpu_zero_pct': (_times(zero_pct, sampled_s), sampled_s),
        'gpu_idle_pct': (_times(record.gpu_idle_pct, timed_s), timed_s),
        'process_cpu_cores': (record.process_cpu_s, duration_s),
        'system_cpu_pct': (_times(record.system_cpu_pct, duration_s), duration_s),
        'save_s': (record.ledger_s.get('checkpoint_save'), record.saves),
    }
    return {
        name: (part, whole) for name, (part, whole) in parts.items() if part is not None
    }


def fold_shares(parts: Parts) -> dict[str, float]:
    """The scalars that are means or shares."""
    return {name: part / whole for name, (part, whole) in parts.items() if whole > 0}


def fold_peaks(record: IntervalRecord) -> dict[str, float]:
    """The scalars of which the largest counts."""
    peak, reserved = record.gpu_mem_peak_bytes, record.gpu_mem_reserved_bytes
    values = {}
    if peak is not None:
        values['gpu_mem_peak_mib'] = peak / _MIB
    if reserved is not None:
        values['gpu_mem_reserved_mib'] = reserved / _MIB
    return values


def _times(figure: float | None, weight: float) -> float | None:
    return None if figure is None else figure * weight


MOST_KEPT = 10_000
"""Durations that a percentile is taken of: the newest."""


class LineFigures:
    """Collects records until a line shows them.

    Means and shares are over all iterations of the records, peaks are the largest, and
    percentiles are of the iterations themselves, not of the records. Nearly always
    there is one record for a line, which then costs nothing here.
    """

    def __init__(self) -> None:
        self._only: tuple[IntervalRecord, Sequence[float], Sequence[float]] | None = (
            None
        )
        self._joined: _Joined | None = None

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        """Add one interval.

        Args:
            record: Of the interval.
            waits_s: The wait of each of its iterations; it must stay as it is.
            iters_s: Likewise, what each took.
        """
        if self._only is None and self._joined is None:
            self._only = record, waits_s, iters_s
            return
        if self._joined is None:
            self._joined = _Joined()
        if self._only is not None:
            self._joined.add(*self._only)
            self._only = None
        self._joined.add(record, waits_s, iters_s)

    def take(self) -> dict[str, float]:
        """The scalars since the last call; none when no interval ended."""
        only, joined = self._only, self._joined
        self._only = self._joined = None
        if joined is not None:
            return joined.fold()
        return {} if only is None else fold_scalars(only[0])


class _Joined:
    """Several records as one, in bounded memory."""

    def __init__(self) -> None:
        self._parts: Parts = {}
        self._peaks: dict[str, float] = {}
        self._waits: deque[float] = deque(maxlen=MOST_KEPT)
        self._iters: deque[float] = deque(maxlen=MOST_KEPT)

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        parts, peaks = self._parts, self._peaks
        for name, (part, whole) in fold_parts(record).items():
            part_before, whole_before = parts.get(name, (0.0, 0.0))
            parts[name] = part_before + part, whole_before + whole
        for name, peak in fold_peaks(record).items():
            peaks[name] = max(peaks.get(name, 0.0), peak)
        self._waits.extend(waits_s)
        self._iters.extend(iters_s)

    def fold(self) -> dict[str, float]:
        return {
            **fold_shares(self._parts),
            **self._peaks,
            'data_wait_p95_s': fold_durations(self._waits).p95_s,
            'iter_p95_s': fold_durations(self._iters).p95_s,
        }


_KEYS = {name: f'train/{name}' for name in SCALARS}
"""Under which MMEngine's hub holds them."""


class ScalarBoard:
    """Keeps our scalars in MMEngine's message hub, at most one value each.

    A key left in the hub is printed again on every later line, and a history that
    grows is copied at each update and saved into each checkpoint. So ours are taken
    out or written over, and none is resumable.
    """

    def __init__(self, message_hub: Any) -> None:
        self._hub = message_hub
        self._line = LineFigures()
        self._buffers: dict[str, tuple[Any, Any]] = {}
        """MMEngine's own, as it once made them, and what holds their one value: to have
        it do so again takes as long as all the rest."""

    def clear(self) -> None:
        """Take our scalars out of the hub."""
        scalars = self._hub.log_scalars
        for key in _KEYS.values():
            scalars.pop(key, None)

    def add(
        self,
        record: IntervalRecord,
        waits_s: Sequence[float],
        iters_s: Sequence[float],
    ) -> None:
        """Keep one interval for the next line, as :meth:`LineFigures.add` does."""
        self._line.add(record, waits_s, iters_s)

    def publish(self) -> None:
        """Show the intervals since the last call on LoggerHook's next line."""
        scalars, buffers = self._hub.log_scalars, self._buffers
        values = self._line.take()
        for name, key in _KEYS.items():
            value = values.get(name)
            if value is None:
                scalars.pop(key, None)
                continue
            if key not in buffers:
                buffer = self._make_buffer(key, value)
                buffers[key] = buffer, buffer.data[0]
            buffer, array = buffers[key]
            if scalars.get(key) is not buffer:
                scalars[key] = buffer
            array[0] = value

    def _make_buffer(self, key: str, value: float) -> Any:
        self._hub.log_scalars.pop(key, None)
        # of a whole number MMEngine would make an array of whole numbers
        self._hub.update_scalar(key, float(value), resumed=False)
        # MMEngine saves the names of what is not resumable, and warns of each later
        getattr(self._hub, '_resumed_keys', {}).pop(key, None)
        return self._hub.log_scalars[key]
