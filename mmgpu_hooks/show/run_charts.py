"""The charts of a run; ``None`` where there is nothing to draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmgpu_hooks.judge.columns import filled
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import Prediction, SaveRecord
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.charts import EVENTS, Chart, Panel, Series, stack
from mmgpu_hooks.show.figures import (
    PART_NAMES,
    format_bytes,
    format_pct,
    format_seconds,
)

_POINTS = 400
"""Of a timeline; more than the page's width can show."""
_CUT = 4.0
"""Times the 99th percentile: a stall beyond is cut off and its height written."""
WAITS = (
    ('on a core', 'cpu_s', 'step'),
    ('waiting for a core', 'run_delay_s', 'data_wait'),
    ('blocked', 'blocked_s', 'checkpoint_save'),
)
"""What the saving thread does in a save: words, field, colour."""


def chart_ledger(runs: Sequence[tuple[str, Run]]) -> Chart | None:
    """One bar a run, as long as any other: shares of its time."""
    bars = []
    for label, run in runs:
        parts = [
            (PART_NAMES[part], part, 100 * run.ledger_s[part] / run.duration_s)
            for part in PARTS
            if run.duration_s > 0 and run.ledger_s.get(part, 0.0) > 0
        ]
        if parts:
            shown = label if len(runs) > 1 else ''
            bars.append((shown, parts, format_seconds(run.duration_s)))
    return stack('ledger', 'Where the time went', bars)


def chart_transforms(costs: Sequence[tuple[str, float]]) -> Chart | None:
    """Seconds per image in each transform."""
    whole_s = sum(seconds for _, seconds in costs) or 1.0
    bars = [
        (
            name,
            [('seconds', 'step', seconds)],
            f'{format_seconds(seconds)}, {format_pct(100 * seconds / whole_s)}',
        )
        for name, seconds in costs
    ]
    return stack('transforms', 'Transforms, time per image', bars)


def chart_memory(parts: Sequence[tuple[str, str, int]]) -> Chart | None:
    """One bar of what is known: name, colour and bytes of each part."""
    whole = format_bytes(sum(size for _, _, size in parts))
    return stack('memory', 'Memory by part', [('', parts, whole)] if parts else [])


def chart_saves(saves: Sequence[tuple[str, SaveRecord]]) -> Chart | None:
    """One bar a save: computing, waiting for a core, waiting for anything else."""
    bars = [
        (
            name,
            [(words, role, getattr(save, field)) for words, field, role in WAITS],
            format_seconds(save.wall_s),
        )
        for name, save in saves
        if None not in (save.cpu_s, save.run_delay_s, save.blocked_s)
    ]
    return stack('saves', 'Saves by what they waited for', bars)


def chart_what_if(
    run: Run, points: Sequence[Prediction], marked: dict[int, str]
) -> Chart | None:
    """Iteration time over ``num_workers``, with its interval.

    Args:
        run: As it was measured.
        points: One a number of workers.
        marked: The current and the recommended number, each with its word.
    """
    if not points:
        return None
    factor, unit = scale_seconds(max(p.iter_time_high_s for p in points))
    series = [
        Series(
            'predicted, 9 in 10 within the band',
            [p.iter_time_s * factor for p in points],
            'step',
            [p.iter_time_low_s * factor for p in points],
            [p.iter_time_high_s * factor for p in points],
        )
    ]
    if run.iter_s is not None:
        now = [run.iter_s * factor] * len(points)
        measured = f'measured {format_seconds(run.iter_s)}'
        series.append(Series(measured, now, 'ink', style='dashed'))
    said = '; '.join(f'{p.num_workers} {format_seconds(p.iter_time_s)}' for p in points)
    workers = [point.num_workers for point in points]
    return Chart(
        'what-if',
        'Other numbers of workers',
        f'Predicted time of an iteration by num_workers: {said}.',
        panels=[Panel(f'Iteration, {unit}', series)],
        x=range(len(points)),
        ticks=[f'{number}\n{marked.get(number, "")}'.rstrip() for number in workers],
        x_title='num_workers',
    )


def scale_seconds(largest_s: float) -> tuple[float, str]:
    """A unit that figures up to this size are read in."""
    for factor, unit in ((1.0, 's'), (1e3, 'ms')):
        if largest_s * factor >= 1:
            return factor, unit
    return 1e6, 'us'


_TRACKS = (
    ('Data wait', 'data_wait', 'data_wait.total_s'),
    ('Step', 'step', 'step.total_s'),
    ('GPU utilisation', 'gpu', 'gpu.util_pct'),
    ('Memory of the GPU, peak', 'startup', 'gpu_mem_peak_bytes'),
    ('Memory of the process', 'validation', 'process_rss_bytes'),
)


def chart_timeline(run: Run) -> Chart | None:
    """Data wait, step, GPU utilisation and memory; saves and epochs marked.

    Neighbouring intervals are merged where there are too many: the line is their
    weighted mean, the band reaches from the smallest to the largest.
    """
    count = len(run.intervals)
    if not count:
        return None
    starts = np.arange(0, count, -(-count // _POINTS))
    ends_s = run.column('elapsed_s')
    lasts = np.append(starts[1:], count) - 1
    xs = [float(ends_s[0] - run.column('duration_s')[0]), *ends_s[lasts].tolist()]
    divide, unit = next(
        (size, words)
        for size, words in ((3600.0, 'hours'), (60.0, 'minutes'), (1.0, 'seconds'))
        if xs[-1] >= 3 * size or size == 1.0
    )
    panels = [
        panel
        for title, role, field in _TRACKS
        if (panel := _track(run, title, role, field, starts)) is not None
    ]
    if not panels:
        return None
    return Chart(
        'timeline',
        'Over time',
        f'{"; ".join(panel.title for panel in panels)}, over {count} interval(s).',
        panels=panels,
        x=[x / divide for x in xs],
        marks=[(at_s / divide, kind) for at_s, kind in _find_events(run)],
        x_title=f'{unit} since training began    ▼ save  ◆ validation  │ epoch',
    )


def _track(run: Run, title: str, role: str, field: str, starts: Any) -> Panel | None:
    """One quantity over the merged intervals that begin at ``starts``."""
    is_sum, is_share = field.endswith('total_s'), field.endswith('_pct')
    weights = run.column('iterations' if is_sum else 'duration_s')
    values = run.column(field)
    with np.errstate(divide='ignore', invalid='ignore'):
        if is_sum:
            values = np.where(weights > 0, values / weights, np.nan)
        known = values[~np.isnan(values)]
        if not len(known):
            return None
        most, top = float(known.max()), _CUT * float(np.percentile(known, 99))
        is_cut = is_sum and 0 < top < most
        factor, unit = (1.0, '%') if is_share else (2.0**-30, 'GiB')
        if is_sum:
            factor, unit = scale_seconds(top if is_cut else most)
            unit += ' per iteration'
        size = np.where(np.isnan(values), 0.0, weights)
        mean = np.add.reduceat(np.nan_to_num(values) * size, starts)
        mean /= np.add.reduceat(size, starts)
    low, high = (one.reduceat(values, starts) for one in (np.fmin, np.fmax))
    # the first point begins the first step
    lines = [
        [None if np.isnan(value) else factor * float(value) for value in (one[0], *one)]
        for one in (mean, low, high)
    ]
    middle, *band = lines if len(starts) < len(values) else (lines[0], (), ())
    cut = f' (cut off: highest {format_seconds(most)})' if is_cut else ''
    end = 100.0 if is_share else top * factor if is_cut else 1.05 * most * factor
    series = Series(title, middle, role, band[0], band[1], 'steps')
    return Panel(f'{title}, {unit}{cut}', [series], top=end or None)


def _find_events(run: Run) -> Iterator[tuple[float, str]]:
    """When intervals with a save or a validation ended, and epochs began; in seconds
    since training began, and at most one of a kind in a hundredth of the axis."""
    ends_s, epochs = run.column('elapsed_s'), run.column('epoch')
    saves = filled(run.column('saves')) > 0
    saved_at = [save.iteration for save in run.save_records]
    found = np.searchsorted(run.column('iteration'), saved_at)
    saves[np.minimum(found, len(saves) - 1)] = True
    validations = filled(run.column('ledger_s', 'validation')) > 0
    begins = np.append(np.diff(epochs) > 0, [False])
    for kind, mask in zip(EVENTS, (saves, validations, begins)):
        last_s = -ends_s[-1]
        for at_s in ends_s[mask].tolist():
            if at_s - last_s >= 0.01 * ends_s[-1]:
                last_s = at_s
                yield at_s, kind
