"""How figures are written: always with a unit, never a zero for an unknown."""

from __future__ import annotations

from mmgpu_hooks.evidence.ledger import PARTS
from mmgpu_hooks.records import RunSummary

PART_NAMES = {
    'data_wait': 'data wait',
    'step': 'step',
    'hooks': 'hooks',
    'checkpoint_save': 'saves',
    'validation': 'validation',
    'other': 'other',
}


def format_seconds(seconds: float | None) -> str:
    """``12.3 ms``, ``0.412 s``, ``83.1 s``, ``12.4 min`` or ``unknown``."""
    if seconds is None:
        return 'unknown'
    if seconds < 0.1:
        return f'{1000 * seconds:.1f} ms'
    if seconds < 10:
        return f'{seconds:.3f} s'
    return f'{seconds:.1f} s' if seconds < 600 else f'{seconds / 60:.1f} min'


def format_bytes(size: int | None) -> str:
    """``812 MiB``, ``3.1 GiB`` or ``unknown``."""
    if size is None:
        return 'unknown'
    mib = size / 2**20
    return f'{mib:.0f} MiB' if mib < 1024 else f'{mib / 1024:.1f} GiB'


def format_ledger(summary: RunSummary) -> str:
    """The time ledger in one line, largest part first; parts that took nothing not."""
    whole = sum(summary.ledger_s.values())
    if whole <= 0:
        return 'nothing was measured'
    parts = sorted(PARTS, key=lambda part: -summary.ledger_s.get(part, 0.0))
    return ' | '.join(
        f'{PART_NAMES[part]} {format_seconds(summary.ledger_s[part])} '
        f'({100 * summary.ledger_s[part] / whole:.0f} %)'
        for part in parts
        if summary.ledger_s.get(part, 0.0) >= 0.0005 * whole
    )


def describe_run(summary: RunSummary) -> list[tuple[str, str]]:
    """What was measured: a label and a line of figures each."""
    return [
        ('time', format_ledger(summary)),
        ('iteration', _iteration(summary)),
        ('loader', _loader(summary)),
        ('CPU', _cpu(summary)),
        ('GPU', _gpu(summary)),
        ('memory', _memory(summary)),
    ]


def _iteration(summary: RunSummary) -> str:
    if summary.iter_s is None:
        return 'no iteration was measured'
    rate = summary.images_per_s
    images = f', {rate:.1f} images/s' if rate is not None else ''
    return (
        f'{format_seconds(summary.iter_s)} mean, {format_seconds(summary.iter_p50_s)} '
        f'median, {format_seconds(summary.iter_p95_s)} p95 over '
        f'{summary.steady_iterations} steady iterations{images}'
    )


def _loader(summary: RunSummary) -> str:
    loader = summary.run.loader
    names = ('num_workers', 'persistent_workers', 'prefetch_factor', 'pin_memory')
    known = [f'{name}={getattr(loader, name)}' for name in names]
    return f'{", ".join(known)}, batch_size={loader.batch_size} per rank'


def _cpu(summary: RunSummary) -> str:
    host = summary.run.host
    if summary.process_cpu_cores is None:
        return 'unknown'
    cores = 'unknown' if host.usable_cores is None else f'{host.usable_cores:g}'
    text = f'training process {summary.process_cpu_cores:.2f} of {cores} usable cores'
    if summary.worker_cpu_s is not None and summary.worker_count:
        text += (
            f', {summary.worker_count} worker(s) '
            f'{format_seconds(summary.worker_cpu_s)} of CPU per batch'
        )
    if summary.system_cpu_pct is not None:
        text += f', host {summary.system_cpu_pct:.0f} % busy'
    if summary.external_cpu_cores is not None:
        text += f' ({summary.external_cpu_cores:.1f} cores by others)'
    return text


def _gpu(summary: RunSummary) -> str:
    gpu = summary.gpu
    if gpu is None or gpu.util_pct is None:
        return f'unknown: {summary.unknown.get("GPU", "no sample was taken")}'
    name = summary.run.gpu.name if summary.run.gpu else None
    zero = (
        '' if gpu.zero_pct is None else f', at 0 % for {gpu.zero_pct:.0f} % of the time'
    )
    return (
        f'{name or "GPU"}: utilisation {gpu.util_pct:.0f} %{zero} '
        f'({gpu.samples} samples)'
    )


def _memory(summary: RunSummary) -> str:
    if summary.gpu_mem_peak_bytes is None:
        reason = summary.unknown.get('GPU memory', 'no interval was recorded')
        return f'GPU memory unknown: {reason}'
    used = summary.gpu.mem_used_bytes if summary.gpu else None
    return (
        f'peak {format_bytes(summary.gpu_mem_peak_bytes)} allocated, '
        f'{format_bytes(summary.gpu_mem_reserved_bytes)} reserved, '
        f'{format_bytes(used)} in use on the card'
    )
