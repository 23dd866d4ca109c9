"""What is said of a run's loader, host, card, memory and saves, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.figures import LoaderFigures, OddWorker
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import (
    SAVE_CAUSES,
    SAVE_PHASES,
    CardImbalance,
    SaveJudgement,
    SaveRecord,
)
from mmgpu_hooks.show.figures import (
    format_bytes,
    format_count,
    format_pct,
    format_seconds,
)

CAUSE_NAMES = {
    'workers': 'loader workers had the cores',
    'strangers': 'other programs had the cores',
    'storage': 'blocked in the write to storage',
    'memory': 'memory was short',
    'size': 'histories fill the file',
    'remote': 'the backend writes elsewhere',
    None: 'no cause is proven',
}

_TRANSFORMS_NAMED = 3
_UNEVEN = 1.5
"""How many times the batches of another a worker makes that is remarked on."""
_OTHERS_BYTES = 2**28
"""A context alone takes this much."""
_SLOW_CLOCK = 0.95
"""Of the fastest card's clock, below which one is remarked on."""
_INACTIVE_SHARE = 0.1
"""Of what is reserved, from which fragmentation is remarked on."""


def describe_settings(run: Run) -> str:
    """Of the train loader, as ``num_workers=2 (persistent), batch_size=4``."""
    loader = run.run.loader
    if loader.num_workers is None:
        return f'Settings unknown: {why_no_loader(run, "they were not recorded")}.'
    if loader.num_workers == 0:
        said = 'num_workers=0: the training process makes every batch itself'
    else:
        kept = {True: ' (persistent)', False: ' (not persistent)', None: ''}
        said = (
            f'num_workers={loader.num_workers}{kept[loader.persistent_workers]}, '
            f'prefetch_factor={loader.prefetch_factor}, '
            f'pin_memory={loader.pin_memory}'
        )
    return f'{said}, batch_size={loader.batch_size} per rank.'


def why_no_loader(run: Run, default: str = 'no interval has them') -> str:
    """Why the inside of the loader is unknown."""
    sources = ('loader inside', 'loader workers')
    known = [run.unknown[source] for source in sources if source in run.unknown]
    return known[0] if known else default


def describe_loader(run: Run) -> list[str]:
    """Its settings, how busy the workers are against the step, what is slow in them."""
    loader = run.loader
    said = [describe_settings(run)]
    if loader is None:
        if run.run.loader.num_workers != 0:
            said.append(f'Workers unknown: {why_no_loader(run)}.')
        return said
    return [*said, *_batch(run, loader), *_readiness(loader), *_slow_parts(loader)]


def _batch(run: Run, loader: LoaderFigures) -> Iterator[str]:
    """What the workers could give against what the loop could take."""
    workers = run.worker_count or run.run.loader.num_workers
    if loader.occupancy_s is None:
        if workers:
            seen = ''
            if run.worker_cpu_s is not None:
                delay = run.worker_run_delay_s
                waits = f', {format_seconds(delay)} waiting for a core' if delay else ''
                seen = f'; from outside: {format_seconds(run.worker_cpu_s)} of CPU'
                seen += f'{waits} per batch'
            why = why_no_loader(run, 'the workers were not measured from inside')
            yield f'Time per batch unknown: {why}{seen}.'
        return
    spread = [f'p95 {format_seconds(loader.occupancy_p95_s)}']
    if loader.batch_cpu_s is not None:
        spread.append(f'CPU {format_seconds(loader.batch_cpu_s)}')
    who = 'a worker ' if workers else ''
    some = '' if loader.source == 'inside' else ' of some workers'
    said = (
        f'A batch takes {who}{format_seconds(loader.occupancy_s)} '
        f'({", ".join(spread)}; {loader.batches} batches{some})'
    )
    if workers and run.step_s is not None and run.hooks_s is not None:
        every_s, limit = loader.occupancy_s / workers, ''
        cores = run.run.host.usable_cores
        if cores and (loader.batch_cpu_s or 0.0) / cores > every_s:
            # workers beyond the cores take turns, however long each of them may take
            every_s = (loader.batch_cpu_s or 0.0) / cores
            limit = f' at best, on {cores:g} usable cores'
        said += (
            f'; {workers} worker(s) make one every {format_seconds(every_s)}{limit}, '
            f'step and hooks take {format_seconds(run.step_s + run.hooks_s)}'
        )
    yield f'{said}.'


def _readiness(loader: LoaderFigures) -> Iterator[str]:
    if loader.ready_mean is not None:
        zero = loader.ready_zero_pct
        none = '' if zero is None else f', none at {format_pct(zero)}'
        late = loader.out_of_order
        turns = f'; {late} made before their turn' if late else ''
        yield (
            f'{loader.ready_mean:.1f} batches ready when asked{none} of '
            f'{loader.asks} asks{turns}.'
        )
    least, most = loader.share_min_pct, loader.share_max_pct
    if least is not None and most is not None and most > _UNEVEN * least:
        yield f'A worker made {least:.0f} to {most:.0f} % of the batches.'
    if loader.odd_worker is not None:
        yield _odd_worker(loader.odd_worker)
    if loader.pss_bytes is not None:
        yield f'Workers hold {format_bytes(loader.pss_bytes)}.'


def _odd_worker(odd: OddWorker) -> str:
    own, others = odd.own, odd.others
    if odd.figure == 'affinity_cpus':
        return f'Worker {odd.worker} may run on {own:g} CPU(s), others on {others:g}.'
    if odd.figure == 'run_delay_pct':
        return (
            f'Worker {odd.worker} waits for a core {format_pct(own)} of the time, '
            f'others {format_pct(others)}.'
        )
    return (
        f'Worker {odd.worker} takes {format_seconds(own)} of CPU for a batch, others '
        f'{format_seconds(others)}.'
    )


def _slow_parts(loader: LoaderFigures) -> Iterator[str]:
    costs = [(cost.name, cost.image_s) for cost in loader.transforms]
    if costs and loader.timed_samples:
        named, others = costs[:_TRANSFORMS_NAMED], costs[_TRANSFORMS_NAMED:]
        if others:
            named.append(('rest', sum(seconds or 0.0 for _, seconds in others)))
        shown = ', '.join(f'{name} {format_seconds(cost)}' for name, cost in named)
        yield f'Per image: {shown} ({loader.timed_samples} timed).'
    if loader.slowest:
        slow = loader.slowest[0]
        image = f', image {slow.image}' if slow.image else ''
        seconds = format_seconds(slow.seconds)
        yield f'Slowest sample {seconds}: index {slow.index}{image}.'


def describe_host(run: Run) -> str:
    """Who used the CPU."""
    usable = run.run.host.usable_cores
    if run.process_cpu_cores is None:
        return f'CPU unknown: {run.unknown.get("CPU", "no interval has it")}.'
    cores = 'unknown' if usable is None else f'{usable:g}'
    text = f'Training process {run.process_cpu_cores:.2f} of {cores} usable cores'
    if run.worker_cpu_s is not None and run.worker_count:
        used = format_seconds(run.worker_cpu_s)
        text += f', {run.worker_count} worker(s) {used} per batch'
    if run.system_cpu_pct is not None:
        text += f', host {run.system_cpu_pct:.0f} % busy'
    if run.external_cpu_cores is not None:
        text += f' (others {run.external_cpu_cores:.1f} cores)'
    if run.cpu_aside_pct:
        aside = format_pct(run.cpu_aside_pct)
        text += f' ({aside} of the time saves and validations, which are in it)'
    return f'{text}.'


def describe_gpu(run: Run) -> list[str]:
    """Utilisation and idling; clocks and other processes."""
    gpu, device = run.gpu, run.run.gpu
    name = (device.name if device else None) or 'GPU'
    if gpu is None or gpu.util_pct is None:
        said = f'GPU utilisation unknown: {run.why_no_gpu_util}'
    else:
        std, zero = gpu.util_std_pct, gpu.zero_pct
        said = f'{name}: utilisation {gpu.util_pct:.0f} %'
        said += '' if std is None else f' (std {std:.0f} %)'
        said += '' if zero is None else f', 0 % for {zero:.0f} % of the time'
        polled = ' polled' if gpu.source == 'polled' else ''
        said += f' ({gpu.samples}{polled} samples)'
        if run.gpu_last_iteration is not None:
            said += f' until iteration {run.gpu_last_iteration}, then unknown: '
            said += run.why_no_gpu_util
    if run.gpu_idle_pct is not None:
        said += f'; idle {run.gpu_idle_pct:.0f} % of an iteration'
        said += f' ({run.gpu_idle_iterations} timed)'
    elif gpu is not None:
        said += f'; idle unknown: {run.unknown.get("GPU idle", "no interval has it")}'
    if gpu is None:
        return [f'{said}.']
    clocks = [
        f'{value:.0f} {unit}'
        for value, unit in (
            (gpu.sm_clock_mhz, 'MHz'),
            (gpu.power_w, 'W'),
            (gpu.temperature_c, 'C at most'),
            (gpu.sm_active_pct, '% of its SMs active'),
        )
        if value is not None
    ]
    if gpu.throttled_pct:
        shares = gpu.throttle_reasons_pct.items()
        why = ', '.join(f'{reason} {format_pct(share)}' for reason, share in shares)
        held = f'clocks held down {format_pct(gpu.throttled_pct)} of the time'
        clocks.append(f'{held} ({why})' if why else held)
    if gpu.sm_active_pct is None:
        why = run.unknown.get('GPU sm_active_pct', 'it takes two samples, 2 s apart')
        clocks.append(f'SM activity unknown: {why}')
    if (gpu.others_mem_bytes or 0) >= _OTHERS_BYTES:
        clocks.append(f'other processes hold {format_bytes(gpu.others_mem_bytes)}')
    return [f'{said}.', *([f'The card: {", ".join(clocks)}.'] if clocks else [])]


def describe_imbalance(cards: CardImbalance) -> str:
    """How the cards of the ranks differ."""
    text = (
        f'{cards.cards} cards ({cards.samples} samples): utilisation '
        f'{cards.util_min_pct:.0f} % (rank {cards.least_rank}) to '
        f'{cards.util_max_pct:.0f} % (rank {cards.most_rank})'
    )
    slow, fast = cards.clock_min_mhz, cards.clock_max_mhz
    if slow is None or fast is None or slow >= _SLOW_CLOCK * fast:
        return f'{text}.'
    return (
        f'{text}, clock down to {slow:.0f} MHz (rank {cards.slow_clock_rank}) from '
        f'{fast:.0f} MHz.'
    )


def describe_memory(run: Run) -> list[str]:
    """Peak and what of it is always there; what the allocator went through."""
    said = [_peak(run), *_static(run)]
    if run.largest_batch_pixels is not None:
        boxes = f', most boxes in one {run.most_boxes}' if run.most_boxes else ''
        pixels = format_count(run.largest_batch_pixels)
        said.append(f'Largest batch {pixels} pixels{boxes}.')
    return [*said, *_trouble(run)]


def why_no_peak(run: Run) -> str:
    """Why the peak of the card's memory is unknown."""
    why = run.unknown.get('GPU memory')
    if why is None and run.run.device != 'cuda':
        why = f'training runs on the {run.run.device.upper()}'
    return why or 'no interval has it'


def _peak(run: Run) -> str:
    if run.gpu_mem_peak_bytes is None:
        rss = run.process_rss_bytes
        held = '' if rss is None else f'; the process holds {format_bytes(rss)}'
        return f'GPU memory unknown: {why_no_peak(run)}{held}.'
    used = run.gpu.mem_used_bytes if run.gpu else None
    whole = run.run.gpu.memory_total_bytes if run.run.gpu else None
    of = '' if whole is None else f' of {format_bytes(whole)}'
    return (
        f'Peak {format_bytes(run.gpu_mem_peak_bytes)} allocated, '
        f'{format_bytes(run.gpu_mem_reserved_bytes)} reserved, '
        f'{format_bytes(used)}{of} in use on the card.'
    )


def _static(run: Run) -> Iterator[str]:
    model = run.model
    if model is None:
        if 'model bytes' in run.unknown:
            yield f'Static part unknown: {run.unknown["model bytes"]}.'
        return
    count = model.parameters
    shown = '' if count is None else f' ({format_count(count)})'
    ema = f', averaged copy {format_bytes(model.ema_bytes)}' if model.ema_bytes else ''
    yield (
        f'Static: parameters {format_bytes(model.parameter_bytes)}{shown}, gradients '
        f'{format_bytes(model.gradient_bytes)}, optimizer '
        f'{format_bytes(model.optimizer_state_bytes)}, buffers '
        f'{format_bytes(model.buffer_bytes)}{ema}.'
    )


def _trouble(run: Run) -> Iterator[str]:
    allocator, reserved = run.cuda_memory, run.gpu_mem_reserved_bytes
    if allocator is None:
        return
    if allocator.retries:
        yield f'{allocator.retries} allocation(s) succeeded only after a retry.'
    if allocator.ooms:
        yield f'{allocator.ooms} out-of-memory error(s).'
    inactive = allocator.inactive_bytes
    if inactive and reserved and inactive >= _INACTIVE_SHARE * reserved:
        yield f'Up to {format_bytes(inactive)} of it fragmented.'
    if allocator.creep_bytes_per_1000 is not None:
        grown = format_bytes(int(allocator.creep_bytes_per_1000))
        yield f'Live tensors grow by {grown} per 1000 iterations.'


def describe_saves(run: Run, judged: Sequence[SaveJudgement]) -> list[str]:
    """How many, how long, in which phase, on a core or waiting; slow ones by cause.

    Args:
        run: What saved.
        judged: Its judgements; left aside when they are of another rank's saves.
    """
    saves = run.save_records
    if not saves:
        if not run.saves:
            return ['No checkpoint was saved.']
        seconds = format_seconds(run.ledger_s.get('checkpoint_save'))
        return [f'{run.saves} save(s) took {seconds} in all; they are not recorded.']
    ordered = sorted(saves, key=lambda save: save.wall_s)
    middle, longest = ordered[len(ordered) // 2], ordered[-1]
    sizes = [save.bytes for save in saves if save.bytes is not None]
    size = f' of up to {format_bytes(max(sizes))}' if sizes else ''
    said = [
        f'{len(saves)} save(s){size} took {format_seconds(middle.wall_s)} (median), '
        f'{format_seconds(longest.wall_s)} at most (iteration {longest.iteration}), '
        f'{format_seconds(sum(save.wall_s for save in saves))} in all.',
        *_means(saves),
    ]
    if len(judged) == len(saves):
        said += _slow(judged)
    failed = [save.error for save in saves if save.error is not None]
    if failed:
        said.append(f'{len(failed)} failed, the last with {failed[-1]}.')
    return said


def _means(saves: Sequence[SaveRecord]) -> Iterator[str]:
    columns = [
        (name, [s.phases[name].wall_s for s in saves if name in s.phases])
        for name in SAVE_PHASES
    ]
    for words, field in (
        ('on a core', 'cpu_s'),
        ('waiting for one', 'run_delay_s'),
        ('blocked', 'blocked_s'),
    ):
        values = [getattr(save, field) for save in saves]
        columns.append((words, [value for value in values if value is not None]))
    shown = [
        f'{name} {format_seconds(sum(values) / len(values))}'
        for name, values in columns
        if values
    ]
    if shown:
        yield f'Mean: {", ".join(shown)}.'


def _slow(judged: Sequence[SaveJudgement]) -> Iterator[str]:
    for cause in (*SAVE_CAUSES, None):
        slow = [entry for entry in judged if entry.is_slow and entry.cause == cause]
        if not slow:
            continue
        gross_s = sum(entry.gross_delay_s or 0.0 for entry in slow)
        nets = [e.net_delay_s for e in slow if e.net_delay_s is not None]
        partly = f' of {len(nets)}' if len(nets) < len(slow) else ''
        net = f'net{partly} {format_seconds(sum(nets))}' if nets else 'net unknown'
        yield (
            f'{len(slow)} slow, {CAUSE_NAMES[cause]}: {format_seconds(gross_s)} longer '
            f'in all (gross), {net}.'
        )
