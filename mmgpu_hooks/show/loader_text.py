"""What is said of the loader."""

from __future__ import annotations

from collections.abc import Iterator

from mmgpu_hooks.judge.figures import LoaderFigures, OddWorker
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import LoaderSettings
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds

_TRANSFORMS_NAMED = 3
_UNEVEN = 1.5
"""How many times the batches of another a worker makes that is remarked on."""


def describe_loader(summary: Run) -> str:
    """Its settings, how busy the workers are against the step, what is slow in them."""
    loader, workers = summary.loader, summary.run.loader.num_workers
    if workers is None and loader is None:
        return f'unknown: {_why(summary, "its settings were not recorded")}'
    lines = [_settings(summary.run.loader)]
    if loader is None:
        if workers != 0:
            lines.append(f'workers unknown: {_why(summary, "no interval has them")}')
        return '\n'.join(lines)
    if workers != 0 or loader.occupancy_s is not None:
        lines.append(_occupancy(summary, loader))
    asked = '; '.join([*_pace(summary, loader), *_readiness(loader)])
    slow = '; '.join(_slow_parts(loader))
    return '\n'.join([*lines, *filter(None, (asked, slow))])


def _settings(settings: LoaderSettings) -> str:
    batch = f'batch_size={settings.batch_size} per rank'
    if settings.num_workers == 0:
        return f'num_workers=0: the training process makes every batch itself, {batch}'
    kept = {True: ' (persistent)', False: ' (not persistent)', None: ''}
    return (
        f'num_workers={settings.num_workers}{kept[settings.persistent_workers]}, '
        f'prefetch_factor={settings.prefetch_factor}, '
        f'pin_memory={settings.pin_memory}, {batch}'
    )


def _why(summary: Run, default: str) -> str:
    for source in ('loader inside', 'loader workers'):
        if source in summary.unknown:
            return summary.unknown[source]
    return default


def _occupancy(summary: Run, loader: LoaderFigures) -> str:
    workers = summary.worker_count or summary.run.loader.num_workers
    if loader.occupancy_s is None:
        cpu = ''
        if summary.worker_cpu_s is not None:
            cpu = f'; seen from outside, {format_seconds(summary.worker_cpu_s)} of CPU'
            if summary.worker_run_delay_s is not None:
                cpu += f' and {format_seconds(summary.worker_run_delay_s)} waiting for '
                cpu += 'a core'
            cpu += f' per batch ({workers} worker(s))'
        why = _why(summary, 'the workers were not measured from inside')
        return f'time per batch unknown: {why}{cpu}'
    spread = [f'p95 {format_seconds(loader.occupancy_p95_s)}']
    if loader.occupancy_std_s is not None:
        spread.insert(0, f'std {format_seconds(loader.occupancy_std_s)}')
    if loader.batch_cpu_s is not None:
        spread.append(f'CPU {format_seconds(loader.batch_cpu_s)}')
    whom = 'a worker ' if workers else ''
    where = '' if loader.source == 'inside' else ', of some workers'
    return (
        f'a batch takes {whom}{format_seconds(loader.occupancy_s)} '
        f'({", ".join(spread)}; {loader.batches} batches{where})'
    )


def _pace(summary: Run, loader: LoaderFigures) -> Iterator[str]:
    """What the workers could give against what the loop could take."""
    workers = summary.worker_count or summary.run.loader.num_workers
    step_s, hooks_s = summary.step_s, summary.hooks_s
    if not workers or step_s is None or hooks_s is None or loader.occupancy_s is None:
        return
    every_s, limit = loader.occupancy_s / workers, ''
    cores = summary.run.host.usable_cores
    if (
        cores
        and loader.batch_cpu_s is not None
        and loader.batch_cpu_s / cores > every_s
    ):
        # workers beyond the cores take turns, however long each of them may take
        every_s = loader.batch_cpu_s / cores
        limit = f' at best, on {cores:g} usable cores'
    yield (
        f'{workers} worker(s) make one every {format_seconds(every_s)}{limit}, step '
        f'and hooks take {format_seconds(step_s + hooks_s)}'
    )


def _readiness(loader: LoaderFigures) -> Iterator[str]:
    if loader.ready_mean is not None:
        zero = loader.ready_zero_pct
        none = '' if zero is None else f', none at {format_pct(zero)}'
        yield (
            f'{loader.ready_mean:.1f} batches ready when asked{none} of '
            f'{loader.asks} asks'
        )
        if loader.out_of_order:
            yield f'{loader.out_of_order} made before their turn'
    least, most = loader.share_min_pct, loader.share_max_pct
    if least is not None and most is not None and most > _UNEVEN * least:
        yield f'a worker made {least:.0f} to {most:.0f} % of the batches'
    if loader.odd_worker is not None:
        yield _odd_worker(loader.odd_worker)
    if loader.pss_bytes is not None:
        yield f'workers hold {format_bytes(loader.pss_bytes)}'


def _odd_worker(odd: OddWorker) -> str:
    own, others = odd.own, odd.others
    if odd.figure == 'affinity_cpus':
        return f'worker {odd.worker} may run on {own:g} CPU(s), others on {others:g}'
    if odd.figure == 'run_delay_pct':
        return (
            f'worker {odd.worker} waits for a core {format_pct(own)} of the time, '
            f'others {format_pct(others)}'
        )
    return (
        f'worker {odd.worker} takes {format_seconds(own)} of CPU for a batch, '
        f'others {format_seconds(others)}'
    )


def _slow_parts(loader: LoaderFigures) -> Iterator[str]:
    costs = [(cost.name, cost.image_s) for cost in loader.transforms]
    if costs and loader.timed_samples:
        named, others = costs[:_TRANSFORMS_NAMED], costs[_TRANSFORMS_NAMED:]
        if others:
            named.append(('rest', sum(seconds or 0.0 for _, seconds in others)))
        shown = ', '.join(f'{name} {format_seconds(cost)}' for name, cost in named)
        yield f'per image: {shown} ({loader.timed_samples} timed)'
    if loader.slowest:
        slow = loader.slowest[0]
        image = f', image {slow.image}' if slow.image else ''
        seconds = format_seconds(slow.seconds)
        yield f'slowest sample {seconds}: index {slow.index}{image}'
