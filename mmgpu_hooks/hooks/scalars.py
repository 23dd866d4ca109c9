"""What an interval looks like on the terminal line and in TensorBoard."""

from __future__ import annotations

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
    'gpu_idle_pct': 'share of an iteration in which the GPU had nothing to do, percent',
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
