"""What is said of the CPU and the host: use always, trouble when there is some."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge.figures import HostFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds

_CPU_PRESSURE_PCT = 20.0
_IO_PRESSURE_PCT = 5.0
_MEMORY_PRESSURE_PCT = 1.0
_THROTTLED_PCT = 1.0
_SWAPPED_BYTES = 2**24
_SCARCE = 0.1
"""Share of what there was that is remarked on when no more is left."""


def describe_host(summary: Run) -> str:
    """CPU in use by whom; then pressure, throttling, swapping and what ran short."""
    said = [_cpu(summary), *_confined(summary)]
    if summary.host is not None:
        said += [*_pressed(summary.host), *_short(summary, summary.host)]
    return '; '.join(said)


def _cpu(summary: Run) -> str:
    usable = summary.run.host.usable_cores
    if summary.process_cpu_cores is None:
        return f'unknown: {summary.unknown.get("CPU", "no interval tells it")}'
    cores = 'unknown' if usable is None else f'{usable:g}'
    text = f'training process {summary.process_cpu_cores:.2f} of {cores} usable cores'
    if summary.worker_cpu_s is not None and summary.worker_count:
        text += (
            f', {summary.worker_count} worker(s) '
            f'{format_seconds(summary.worker_cpu_s)} per batch'
        )
    if summary.system_cpu_pct is not None:
        text += f', host {summary.system_cpu_pct:.0f} % busy'
    if summary.external_cpu_cores is not None:
        text += f' (others {summary.external_cpu_cores:.1f} cores)'
    if summary.cpu_aside_pct:
        aside = format_pct(summary.cpu_aside_pct)
        text += f' ({aside} of the time saves and validations, which are in it)'
    return text


def _confined(summary: Run) -> Iterator[str]:
    host = summary.run.host
    process, before = host.affinity_cpus, host.unbound_cpus
    if before is not None:
        by = f'by {host.bound_by}' if host.bound_by else 'after start'
        yield f'this process was bound {by} to {process} of {before} cores (MG113)'
    elif process and process < (host.cpuset_cpus or process):
        yield (
            f'this process may use {process} of {host.cpuset_cpus} cores; if you did '
            'not bind it, see mmgpu explain MG113'
        )
    workers = summary.loader.affinity_cpus if summary.loader else None
    if workers is not None and process is not None and workers < process:
        yield f'a worker may run on {workers} CPU(s) only, the process on {process}'


def _pressed(host: HostFigures) -> Iterator[str]:
    for name, share, least in (
        ('a core', host.cpu_pressure_pct, _CPU_PRESSURE_PCT),
        ('storage', host.io_pressure_pct, _IO_PRESSURE_PCT),
        ('memory', host.memory_pressure_pct, _MEMORY_PRESSURE_PCT),
    ):
        if share is not None and share >= least:
            yield (
                f'some task waited for {name} {format_pct(share)} of '
                f'{format_seconds(host.seconds)}'
            )
    if host.throttled_pct is not None and host.throttled_pct >= _THROTTLED_PCT:
        yield (
            f'the CPU quota held tasks back for {format_seconds(host.throttled_s)} '
            f'({format_pct(host.throttled_pct)} of the run)'
        )
    if max(host.swap_in_bytes or 0, host.swap_out_bytes or 0) >= _SWAPPED_BYTES:
        yield (
            f'the host swapped {format_bytes(host.swap_in_bytes)} in and '
            f'{format_bytes(host.swap_out_bytes)} out'
        )


def _short(summary: Run, host: HostFigures) -> Iterator[str]:
    limits = summary.run.host
    for name, left, whole in (
        ('memory', host.ram_available_bytes, limits.ram_total_bytes),
        ('/dev/shm', host.shm_free_bytes, limits.shm_total_bytes),
    ):
        if left is not None and whole and left < _SCARCE * whole:
            yield f'{name} fell to {format_bytes(left)} free of {format_bytes(whole)}'
    files, most = host.open_files, limits.open_files_soft
    if files is not None and most and files > (1 - _SCARCE) * most:
        yield f'{files} of {most} file descriptors were open'
