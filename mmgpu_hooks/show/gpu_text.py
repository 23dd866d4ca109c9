"""What is said of the GPU, its memory and the cards beside it."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge.figures import CudaMemoryFigures, GpuFigures
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import CardImbalance
from mmgpu_hooks.show.figures import format_bytes, format_count, format_pct

_SOURCES = {'buffer': 'samples by the driver', 'polled': 'polled samples'}
_OTHERS_BYTES = 2**28
"""A context alone takes this much."""
_SLOW_CLOCK = 0.95
"""Of the fastest card's clock, below which one is remarked on."""
_NO_TWO_SAMPLES = 'it takes two samples, 2 s apart'
_INACTIVE_SHARE = 0.1
"""Of what is reserved, from which fragmentation is remarked on."""


def describe_gpu(summary: Run) -> str:
    """Utilisation and idling; clocks and other processes."""
    said = [_utilisation(summary)]
    if summary.gpu is not None:
        said += [*_clocks(summary.gpu), *_others(summary.gpu)]
        if summary.gpu.sm_active_pct is None:
            why = summary.unknown.get('GPU sm_active_pct', _NO_TWO_SAMPLES)
            said.append(f'SM activity unknown: {why}')
    return '; '.join(said)


def _utilisation(summary: Run) -> str:
    gpu = summary.gpu
    name = (summary.run.gpu.name if summary.run.gpu else None) or 'GPU'
    if gpu is None or gpu.util_pct is None:
        text = f'unknown: {summary.why_no_gpu_util}'
    else:
        std, zero = gpu.util_std_pct, gpu.zero_pct
        text = f'{name}: utilisation {gpu.util_pct:.0f} %'
        text += '' if std is None else f' (std {std:.0f} %)'
        text += '' if zero is None else f', 0 % for {zero:.0f} % of the time'
        text += f' ({gpu.samples} {_SOURCES.get(gpu.source or "", "samples")})'
        if summary.gpu_last_iteration is not None:
            text += f' until iteration {summary.gpu_last_iteration}, then unknown: '
            text += summary.why_no_gpu_util
    if summary.gpu_idle_pct is not None:
        return (
            f'{text}; idle {summary.gpu_idle_pct:.0f} % of an iteration '
            f'({summary.gpu_idle_iterations} timed)'
        )
    if summary.gpu is not None:
        why = summary.unknown.get('GPU idle', 'no interval has it')
        return f'{text}; idle time unknown: {why}'
    return text


def _clocks(gpu: GpuFigures) -> Iterator[str]:
    known = [
        f'{value:.0f} {unit}'
        for value, unit in (
            (gpu.sm_clock_mhz, 'MHz'),
            (gpu.power_w, 'W'),
            (gpu.temperature_c, 'C at most'),
            (gpu.sm_active_pct, '% of its SMs active'),
        )
        if value is not None
    ]
    if known:
        yield ', '.join(known)
    if gpu.throttled_pct:
        why = ', '.join(
            f'{reason} {format_pct(share)}'
            for reason, share in gpu.throttle_reasons_pct.items()
        )
        yield (
            f'clocks held down {format_pct(gpu.throttled_pct)} of the time'
            f'{f" ({why})" if why else ""}'
        )


def _others(gpu: GpuFigures) -> Iterator[str]:
    size = gpu.others_mem_bytes or 0
    if size >= _OTHERS_BYTES:
        yield f'other processes hold {format_bytes(size)} of it'


def describe_imbalance(cards: CardImbalance) -> str:
    """How the cards of the ranks differ."""
    text = (
        f'{cards.cards} cards ({cards.samples} samples): utilisation '
        f'{cards.util_min_pct:.0f} % (rank {cards.least_rank}) to '
        f'{cards.util_max_pct:.0f} % (rank {cards.most_rank})'
    )
    slow, fast = cards.clock_min_mhz, cards.clock_max_mhz
    if slow is None or fast is None or slow >= _SLOW_CLOCK * fast:
        return text
    return (
        f'{text}, clock down to {slow:.0f} MHz (rank {cards.slow_clock_rank}) from '
        f'{fast:.0f} MHz'
    )


def describe_memory(summary: Run) -> str:
    """Peak and what of it is always there; what the allocator went through."""
    said = [*_static(summary), *_batches(summary)]
    if summary.cuda_memory is not None:
        said += _trouble(summary.cuda_memory, summary.gpu_mem_reserved_bytes)
    return '\n'.join(filter(None, (_peak(summary), '; '.join(said))))


def _peak(summary: Run) -> str:
    if summary.gpu_mem_peak_bytes is None:
        why = summary.unknown.get('GPU memory') or _no_memory(summary)
        process = summary.process_rss_bytes
        host = '' if process is None else f'; the process holds {format_bytes(process)}'
        return f'GPU memory unknown: {why}{host}'
    used = summary.gpu.mem_used_bytes if summary.gpu else None
    whole = summary.run.gpu.memory_total_bytes if summary.run.gpu else None
    of = '' if whole is None else f' of {format_bytes(whole)}'
    return (
        f'peak {format_bytes(summary.gpu_mem_peak_bytes)} allocated, '
        f'{format_bytes(summary.gpu_mem_reserved_bytes)} reserved, '
        f'{format_bytes(used)}{of} in use on the card'
    )


def _no_memory(summary: Run) -> str:
    if summary.run.device != 'cuda':
        return f'training runs on the {summary.run.device.upper()}'
    return 'no interval has it'


def _static(summary: Run) -> Iterator[str]:
    model = summary.model
    if model is None:
        if 'model bytes' in summary.unknown:
            yield f'static part unknown: {summary.unknown["model bytes"]}'
        return
    count = model.parameters
    shown = '' if count is None else f' ({format_count(count)})'
    parts = [
        f'parameters {format_bytes(model.parameter_bytes)}{shown}',
        f'gradients {format_bytes(model.gradient_bytes)}',
        f'optimizer {format_bytes(model.optimizer_state_bytes)}',
        f'buffers {format_bytes(model.buffer_bytes)}',
    ]
    if model.ema_bytes:
        parts.append(f'averaged copy {format_bytes(model.ema_bytes)}')
    yield f'static: {", ".join(parts)}'


def _batches(summary: Run) -> Iterator[str]:
    if summary.largest_batch_pixels is not None:
        pixels = f'largest batch {format_count(summary.largest_batch_pixels)} pixels'
        boxes = summary.most_boxes
        yield pixels if boxes is None else f'{pixels}, most boxes in one {boxes}'


def _trouble(allocator: CudaMemoryFigures, reserved: int | None) -> Iterator[str]:
    if allocator.retries:
        yield f'{allocator.retries} allocation(s) succeeded only after a retry'
    if allocator.ooms:
        yield f'{allocator.ooms} out-of-memory error(s)'
    inactive = allocator.inactive_bytes
    if inactive and reserved and inactive >= _INACTIVE_SHARE * reserved:
        yield f'up to {format_bytes(inactive)} of it fragmented'
    if allocator.creep_bytes_per_1000 is not None:
        grown = format_bytes(int(allocator.creep_bytes_per_1000))
        yield f'live tensors grow by {grown} per 1000 iterations'
