"""The charts of a run; ``None`` where there is nothing to draw."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmgpu_hooks.judge.columns import filled
from mmgpu_hooks.judge.memory import count_left, find_host_growth
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.figures import format_bytes, format_seconds
from mmgpu_hooks.schema.judged import Prediction
from mmgpu_hooks.schema.recorded import PART_NAMES, PARTS
from mmgpu_hooks.show.charts import COLORS, EVENTS, Chart, Panel, Series

_POINTS = 400
"""Of a timeline; more than the page's width can show."""
_CUT = 4.0
"""Times the 99th percentile: a stall beyond is cut off and its height written."""


def chart_ledger(run: Run) -> Chart | None:
    """Its seconds by part of the time ledger."""
    parts = [
        (PART_NAMES[part], part if part in COLORS else 'other', run.ledger_s[part])
        for part in PARTS
        if run.ledger_s.get(part, 0.0) > 0
    ]
    whole = format_seconds(run.duration_s)
    return Chart('Where the time went', f'{whole}.', parts) if parts else None


def chart_growth(run: Run) -> Chart | None:
    """Memory of the host over iterations, up to where it is full; ``None`` without
    growth, or where what is free is unknown."""
    growth = find_host_growth(run)
    if growth is None or growth.room is None or growth.full_in is None:
        return None
    read = run.every.having('process_own_bytes')
    read = read.take(np.linspace(0, len(read) - 1, min(len(read), _POINTS)).astype(int))
    held = read.column('process_own_bytes') + filled(read.column('worker_own_bytes'))
    x, left = read.column('iteration'), count_left(run)
    ahead = min(growth.full_in, left if left is not None else growth.full_in)
    whole = held[-1] + growth.bytes_each * ahead / run.run.host.ranks
    gib, at = 2.0**-30, [*x.tolist(), float(x[-1] + ahead)]
    most = held[-1] + growth.room.free_bytes / run.run.host.ranks
    said = f'full at iteration {growth.full_in + int(x[-1])}'
    gap = [np.nan] * (len(x) - 1)
    series = [
        Series('as read', [*(gib * held), np.nan], 'validation', (), (), 'steps'),
        Series(said, [*gap, gib * held[-1], gib * whole], 'problem', style='dashed'),
        Series('what there is', [gib * most] * len(at), 'ink', style='dashed'),
    ]
    each = format_bytes(1000 * growth.bytes_each)
    return Chart(
        'Memory of the host',
        f'It grows by {each} per 1000 iterations, {said}; '
        f'{format_bytes(growth.room.free_bytes)} are free {growth.room.bound}.',
        panels=[Panel('Training process and workers, GiB', series)],
        x=at,
        x_title='iterations',
    )


def chart_what_if(run: Run, points: Sequence[Prediction]) -> Chart | None:
    """Iteration time over ``num_workers``, with its interval.

    Args:
        run: As it was measured.
        points: One a number of workers.
    """
    if not points:
        return None
    factor, unit = scale_seconds(max(p.iter_time_high_s for p in points))
    name = 'predicted, 9 in 10 within the band'
    seconds = [(p.iter_time_s, p.iter_time_low_s, p.iter_time_high_s) for p in points]
    values, low, high = (factor * np.array(seconds)).T
    series = [Series(name, values, 'step', low, high)]
    if run.iter_s is not None:
        now = [run.iter_s * factor] * len(points)
        measured = f'measured {format_seconds(run.iter_s)}'
        series.append(Series(measured, now, 'ink', style='dashed'))
    return Chart(
        'Other numbers of workers',
        'Predicted time of an iteration by num_workers.',
        panels=[Panel(f'Iteration, {unit}', series)],
        x=[point.num_workers for point in points],
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
_SPANS = ((3 * 3600.0, 3600.0, 'hours'), (180.0, 60.0, 'minutes'), (0, 1.0, 'seconds'))


def chart_timeline(run: Run) -> Chart | None:
    """Data wait, step, GPU utilisation and memory; saves and epochs marked.

    Neighbouring intervals are merged where there are too many: the line is their
    mean, the band reaches from the smallest to the largest.
    """
    count = len(run.intervals)
    groups = np.array_split(np.arange(count), max(min(count, _POINTS), 1))
    panels = [panel for one in _TRACKS if (panel := _track(run, *one, groups))]
    if not panels:
        return None
    ends_s = run.column('elapsed_s')
    xs = [float(ends_s[0] - run.column('duration_s')[0])]
    xs += [float(ends_s[group[-1]]) for group in groups]
    divide, unit = next(span[1:] for span in _SPANS if xs[-1] >= span[0])
    return Chart(
        'Over time',
        f'{"; ".join(panel.title for panel in panels)}.',
        panels=panels,
        x=[x / divide for x in xs],
        marks=[(at_s / divide, kind) for at_s, kind in _find_events(run)],
        x_title=f'{unit} since training began    ▼ save  ◆ validation  │ epoch',
    )


def _track(run: Run, title: str, role: str, field: str, groups: Any) -> Panel | None:
    """One quantity over the merged intervals."""
    values, is_sum = run.column(field), field.endswith('total_s')
    if is_sum:
        iterations = run.column('iterations')
        values = values / np.where(iterations > 0, iterations, np.nan)
    known = values[~np.isnan(values)]
    if not len(known):
        return None
    most, cut = float(known.max()), ''
    top, factor, unit = 1.05 * most, 2.0**-30, 'GiB'
    if is_sum:
        usual = _CUT * float(np.percentile(known, 99))
        if 0 < usual < most:
            top, cut = usual, f' (cut off: highest {format_seconds(most)})'
        factor, unit = scale_seconds(min(top, most))
        unit += ' per iteration'
    elif field.endswith('_pct'):
        top, factor, unit = 100.0, 1.0, '%'
    parts = [factor * values[group] for group in groups]
    # the first point begins the first step
    parts = [parts[0], *parts]
    with warnings.catch_warnings():
        # of intervals in which it is unknown
        warnings.simplefilter('ignore')
        line, low, high = (
            [one(part) for part in parts] for one in (np.nanmean, np.nanmin, np.nanmax)
        )
    if len(groups) == len(values):
        low = high = []
    series = Series(title, line, role, low, high, 'steps')
    return Panel(f'{title}, {unit}{cut}', [series], top=top * factor or None)


def _find_events(run: Run) -> Iterator[tuple[float, str]]:
    """When intervals with a save or a validation ended, and epochs began; in seconds
    since training began, and at most one of a kind in a hundredth of the axis."""
    ends_s, epochs = run.column('elapsed_s'), run.column('epoch')
    saves = filled(run.column('saves')) > 0
    validations = filled(run.column('ledger_s', 'validation')) > 0
    begins = np.append(np.diff(epochs) > 0, [False])
    for kind, mask in zip(EVENTS, (saves, validations, begins)):
        places = (100 * ends_s[mask] / ends_s[-1]).astype(int)
        for first in np.unique(places, return_index=True)[1]:
            yield float(ends_s[mask][first]), kind
