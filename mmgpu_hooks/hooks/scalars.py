"""What an interval looks like on the terminal line and in TensorBoard."""

from __future__ import annotations

from typing import Any

from mmgpu_hooks.records import IntervalRecord

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
    'gpu_idle_pct': 'share of an iteration in which the GPU had nothing to do, percent',
    'gpu_mem_peak_mib': "allocator's peak, MiB",
    'gpu_mem_reserved_mib': 'most the allocator held, MiB',
    'process_cpu_cores': 'cores the training process used, workers excluded',
    'system_cpu_pct': 'busy share of all CPUs of the host, percent',
    'save_s': 'mean checkpoint save, seconds; of intervals in which one was made',
}
"""Every scalar we publish. No name holds ``time``, ``loss`` or ``grad_norm`` and none
ends in ``lr``: MMEngine would average or reformat those."""

_KEYS = {name: f'train/{name}' for name in SCALARS}
"""Under which MMEngine's hub holds them."""

_MIB = 2.0**20


def fold_scalars(record: IntervalRecord) -> dict[str, float]:
    """The scalars of one interval; a figure that is unknown is left out."""
    gpu = record.gpu
    values: dict[str, float | None] = {
        'data_wait_s': record.data_wait.mean_s,
        'data_wait_p95_s': record.data_wait.p95_s,
        'step_s': record.step.mean_s,
        'iter_s': record.iter.mean_s,
        'iter_p95_s': record.iter.p95_s,
        'data_wait_pct': _ratio(100 * record.data_wait.total_s, record.iter.total_s),
        'images_per_s': _ratio(record.images, record.iter.total_s),
        'gpu_util_pct': gpu.util_pct if gpu else None,
        'gpu_zero_pct': gpu.zero_pct if gpu else None,
        'gpu_idle_pct': record.gpu_idle_pct,
        'gpu_mem_peak_mib': _ratio(record.gpu_mem_peak_bytes, _MIB),
        'gpu_mem_reserved_mib': _ratio(record.gpu_mem_reserved_bytes, _MIB),
        'process_cpu_cores': _ratio(record.process_cpu_s, record.duration_s),
        'system_cpu_pct': record.system_cpu_pct,
        'save_s': _ratio(record.ledger_s.get('checkpoint_save'), record.saves),
    }
    return {name: value for name, value in values.items() if value is not None}


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0 else part / whole


class ScalarBoard:
    """Keeps our scalars in MMEngine's message hub, at most one value each.

    A key left in the hub is printed again on every later line, and a history that
    grows is copied at each update and saved into each checkpoint. So ours are taken
    out or written over, and none is resumable.
    """

    def __init__(self, message_hub: Any) -> None:
        self._hub = message_hub
        self._buffers: dict[str, tuple[Any, Any]] = {}
        """MMEngine's own, as it once made them, and what holds their one value: to have
        it do so again takes as long as all the rest."""

    def clear(self) -> None:
        """Take our scalars out of the hub."""
        scalars = self._hub.log_scalars
        for key in _KEYS.values():
            scalars.pop(key, None)

    def publish(self, record: IntervalRecord) -> None:
        """Show one interval's figures on LoggerHook's next line."""
        scalars, buffers = self._hub.log_scalars, self._buffers
        values = fold_scalars(record)
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
