"""What is said of a run's checkpoint saves: a few lines, however many there were."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import (
    SAVE_CAUSES,
    SAVE_PHASES,
    SaveJudgement,
    SaveRecord,
)
from mmgpu_hooks.show.figures import format_bytes, format_seconds

CAUSE_NAMES = {
    'workers': 'loader workers had the cores',
    'strangers': 'other programs had the cores',
    'storage': 'blocked in the write to storage',
    'memory': 'memory was short',
    'size': 'histories fill the file',
    'remote': 'the backend writes elsewhere',
    None: 'no cause is proven',
}


def describe_saves(summary: Run, judged: Sequence[SaveJudgement]) -> str:
    """How many, how long, in which phase, on a core or waiting; slow ones by cause.

    Args:
        summary: A run with at least one save taken apart.
        judged: Its judgements; left aside when they are of another rank's saves.
    """
    saves = summary.save_records
    lines = [_lengths(saves), *_parts(saves)]
    if len(judged) == len(saves):
        lines += _slow(judged)
    failed = [save.error for save in saves if save.error is not None]
    if failed:
        lines.append(f'{len(failed)} failed, the last with {failed[-1]}')
    return '\n'.join(lines)


def list_saves(summary: Run, judged: Sequence[SaveJudgement]) -> list[dict[str, Any]]:
    """Every save with what is judged of it, for JSON."""
    return [
        {**structs.asdict(save), **asdict(judgement)}
        for save, judgement in zip(summary.save_records, judged)
    ]


def _lengths(saves: Sequence[SaveRecord]) -> str:
    ordered = sorted(saves, key=lambda save: save.wall_s)
    middle, longest = ordered[len(ordered) // 2], ordered[-1]
    sizes = [save.bytes for save in saves if save.bytes is not None]
    size = f' of up to {format_bytes(max(sizes))}' if sizes else ''
    return (
        f'{len(saves)} save(s){size} took {format_seconds(middle.wall_s)} (median), '
        f'{format_seconds(longest.wall_s)} at most (iteration {longest.iteration}), '
        f'{format_seconds(sum(save.wall_s for save in saves))} in all'
    )


def _parts(saves: Sequence[SaveRecord]) -> Iterator[str]:
    """Means of what is known, and of how many where that is not all."""
    phases = [
        (name, _mean([s.phases[name].wall_s for s in saves if name in s.phases]))
        for name in SAVE_PHASES
    ]
    shown = [f'{name} {format_seconds(mean)}' for name, mean in phases if mean]
    times: list[tuple[str, Callable[[SaveRecord], float | None]]] = [
        ('on a core', lambda save: save.cpu_s),
        ('waiting for one', lambda save: save.run_delay_s),
        ('blocked', lambda save: save.blocked_s),
    ]
    told = []
    for name, read in times:
        known = [value for value in map(read, saves) if value is not None]
        if known:
            told.append(f'{name} {format_seconds(_mean(known))}')
    if shown or told:
        parts = filter(None, (', '.join(shown), ', '.join(told)))
        yield f'mean: {"; ".join(parts)}'


def _slow(judged: Sequence[SaveJudgement]) -> Iterator[str]:
    for cause in (*SAVE_CAUSES, None):
        slow = [entry for entry in judged if entry.is_slow and entry.cause == cause]
        if not slow:
            continue
        gross_s = sum(entry.gross_delay_s or 0.0 for entry in slow)
        nets = [e.net_delay_s for e in slow if e.net_delay_s is not None]
        net = 'net unknown'
        if nets:
            partly = f' of {len(nets)}' if len(nets) < len(slow) else ''
            net = f'net{partly} {format_seconds(sum(nets))}'
        longer = f'{format_seconds(gross_s)} longer in all (gross)'
        yield f'{len(slow)} slow, {CAUSE_NAMES[cause]}: {longer}, {net}'


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
