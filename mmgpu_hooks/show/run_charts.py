"""The charts of a run; ``None`` where there is nothing to draw."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mmgpu_hooks.judge.columns import filled
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.schema import (
    SAVE_CAUSES,
    Change,
    Prediction,
    RankRow,
    RanksSummary,
    SaveJudgement,
    SaveRecord,
)
from mmgpu_hooks.schema.parts import PARTS
from mmgpu_hooks.show.charts import Chart, Panel, Series
from mmgpu_hooks.show.figures import (
    PART_NAMES,
    format_bytes,
    format_pct,
    format_seconds,
)
from mmgpu_hooks.show.run_text import why_no_peak

SHOWN = 12
"""Bars of a chart at most: transforms, saves."""
RANKS_SHOWN = 16
_HOOKS_SHOWN = 6
_POINTS = 400
"""Of a timeline; more than the page's width can show."""
_CUT = 4.0
"""Times the 99th percentile: a stall beyond is cut off and its height written."""

Parts = list[tuple[str, str, float]]
"""Name, colour and length of each part of a bar."""


def stack(
    name: str,
    title: str,
    bars: Sequence[tuple[str, Parts, str]],
    about: str = '',
) -> Chart | None:
    """A chart of stacked bars: label, parts and the text at its end for each."""
    if not bars:
        return None
    roles = {part: role for _, parts, _ in bars for part, role, _ in parts}
    values = [{part: value for part, _, value in parts} for _, parts, _ in bars]
    return Chart(
        name,
        title,
        about + '; '.join(f'{label} {text}'.strip() for label, _, text in bars) + '.',
        labels=[label for label, _, _ in bars],
        bars=[
            Series(part, [one.get(part) for one in values], role)
            for part, role in roles.items()
        ],
        texts=[text for _, _, text in bars],
    )


def list_costs(
    name: str, title: str, costs: Sequence[tuple[str, float]], role: str, most: int
) -> Chart | None:
    """A chart of single bars, with shares; the last one is all that is left."""
    whole = sum(cost for _, cost in costs) or 1.0
    rows, others = list(costs[:most]), costs[most:]
    if others:
        rows.append((f'{len(others)} others', sum(cost for _, cost in others)))
    return stack(
        name,
        title,
        [
            (
                label,
                [('seconds', role, cost)],
                f'{format_seconds(cost)}, {format_pct(100 * cost / whole)}',
            )
            for label, cost in rows
        ],
    )


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


def chart_hooks(run: Run) -> Chart | None:
    """Seconds in hooks by class, most expensive first."""
    costs = [(hook, cost.seconds) for hook, cost in run.hooks.items()]
    return list_costs('hooks', 'Hooks by class', costs, 'hooks', _HOOKS_SHOWN)


def chart_transforms(run: Run) -> Chart | None:
    """Seconds per image in each transform."""
    if run.loader is None or not run.loader.timed_samples:
        return None
    costs = [(t.name, t.image_s) for t in run.loader.transforms if t.image_s]
    return list_costs('transforms', 'Transforms, time per image', costs, 'step', SHOWN)


def chart_memory(run: Run) -> Chart | None:
    """One bar of all that is known."""
    known = [(n, role, float(size)) for n, role, size, _ in split_memory(run) if size]
    whole = format_bytes(round(sum(size for _, _, size in known)))
    return stack('memory', 'Memory by part', [('', known, whole)] if known else [])


def split_memory(run: Run) -> Iterator[tuple[str, str, int | None, str]]:
    """Name, colour, bytes and basis of each part: static ones, then activations and
    workspace = peak - static. Nothing without anything known of the model."""
    model, peak = run.model, run.gpu_mem_peak_bytes
    if model is None:
        return
    static = [
        ('parameters', 'step', model.parameter_bytes),
        ('gradients', 'hooks', model.gradient_bytes),
        ('optimizer state', 'checkpoint_save', model.optimizer_state_bytes),
        ('buffers', 'validation', model.buffer_bytes),
    ]
    if model.ema_bytes:
        static.append(('averaged copy', 'startup', model.ema_bytes))
    for name, role, size in static:
        yield name, role, size, 'exact'
    missing = [name for name, _, size in static if size is None]
    left, why = None, 'peak - static'
    if peak is None:
        why = f'no peak: {why_no_peak(run)}'
    elif missing:
        why = f'unknown: {", ".join(missing)}'
    else:
        left = peak - sum(size or 0 for _, _, size in static)
        if left < 0:
            left, why = None, 'the static parts exceed the peak'
    yield 'activations', 'data_wait', left, why


_CAUSE_COLORS = {
    'workers': ('loader workers', 'data_wait'),
    'strangers': ('other programs', 'hooks'),
    'storage': ('storage', 'checkpoint_save'),
    'memory': ('memory', 'startup'),
    'size': ('histories', 'validation'),
    'remote': ('remote backend', 'gpu'),
}
WAITS = (
    ('on a core', 'cpu_s', 'step'),
    ('waiting for a core', 'run_delay_s', 'data_wait'),
    ('blocked', 'blocked_s', 'checkpoint_save'),
)


def longest_saves(run: Run) -> list[SaveRecord]:
    """Those that took most, as many as are shown."""
    return sorted(run.save_records, key=lambda save: -save.wall_s)[:SHOWN]


def list_slow_saves(
    run: Run, judged: Sequence[SaveJudgement]
) -> list[tuple[SaveRecord, SaveJudgement]]:
    """Slow saves, the longest delay first, as many as are shown."""
    slow = [(s, entry) for s, entry in zip(run.save_records, judged) if entry.is_slow]
    return sorted(slow, key=lambda pair: -(pair[1].gross_delay_s or 0.0))[:SHOWN]


def name_save(save: SaveRecord) -> str:
    """Its file, or when it was."""
    return save.name or f'{save.occasion}, iteration {save.iteration}'


def chart_slow_saves(run: Run, judged: Sequence[SaveJudgement]) -> Chart | None:
    """One bar a slow save: uncontended, held by each proven cause, not proven."""
    bars = []
    for save, entry in list_slow_saves(run, judged):
        parts = [('uncontended', 'step', entry.uncontended_s or 0.0)]
        parts += [
            (*_CAUSE_COLORS[cause], entry.held_s.get(cause, 0.0))
            for cause in SAVE_CAUSES
        ]
        proven_s = sum(seconds for _, _, seconds in parts)
        parts.append(('not proven', 'other', max(save.wall_s - proven_s, 0.0)))
        # less than a hundredth is rounding, and a word in the legend for nothing
        parts = [part for part in parts if part[2] >= 0.01 * save.wall_s]
        bars.append((name_save(save), parts, format_seconds(save.wall_s)))
    return stack('slow-saves-by-cause', 'Slow saves by cause', bars)


def chart_save_waits(run: Run) -> Chart | None:
    """One bar a save: computing, waiting for a core, waiting for anything else."""
    bars = [
        (
            name_save(save),
            [(words, role, getattr(save, field)) for words, field, role in WAITS],
            format_seconds(save.wall_s),
        )
        for save in longest_saves(run)
        if None not in (save.cpu_s, save.run_delay_s, save.blocked_s)
    ]
    return stack('saves-by-cause', 'Saves by what they waited for', bars)


_RANK_FIELDS = ('data_wait', 'startup', 'hooks', 'checkpoint_save', 'step')


def shown_ranks(ranks: RanksSummary, most: int = RANKS_SHOWN) -> list[RankRow]:
    """Those with most time of their own, and the one with least, by rank."""
    rows = sorted(ranks.rows, key=lambda row: -row.own_s)
    if len(rows) > most:
        rows = [*rows[: most - 1], rows[-1]]
    return sorted(rows, key=lambda row: row.rank)


def rank_parts(row: RankRow) -> dict[str, float]:
    """Seconds of an iteration by part of the ledger."""
    seconds = (row.data_wait_s, row.startup_s, row.hooks_s, row.save_s, row.step_s)
    return dict(zip(_RANK_FIELDS, seconds))


def chart_ranks(ranks: RanksSummary | None) -> Chart | None:
    """One bar a rank: an iteration by part."""
    if ranks is None:
        return None
    bars = [
        (
            f'rank {row.rank}{", slowest" if row.rank == ranks.slowest else ""}',
            [(PART_NAMES[part], part, s) for part, s in rank_parts(row).items()],
            format_seconds(row.own_s + row.step_s),
        )
        for row in shown_ranks(ranks)
    ]
    return stack('ranks', 'Ranks', bars, f'Per iteration. {ranks.why} ')


def pick_points(predictions: Sequence[Prediction]) -> list[Prediction]:
    """One a number of workers, the fastest, by number."""
    best: dict[int, Prediction] = {}
    for one in sorted(predictions, key=lambda one: one.iter_time_s):
        best.setdefault(one.num_workers, one)
    return [best[workers] for workers in sorted(best)]


def marked_workers(run: Run | None, changes: Sequence[Change]) -> dict[int, str]:
    """The current and the recommended number, each with its word."""
    marked: dict[int, str] = {}
    if run is not None and run.run.loader.num_workers is not None:
        marked[run.run.loader.num_workers] = 'now'
    for change in changes:
        if change.key == WORKERS_KEY and isinstance(change.new, int):
            marked[change.new] = 'recommended'
    return marked


def chart_what_if(
    run: Run, predictions: Sequence[Prediction], changes: Sequence[Change]
) -> Chart | None:
    """Iteration time over ``num_workers``, with its interval."""
    points = pick_points(predictions)
    if not points:
        return None
    marked = marked_workers(run, changes)
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
    return Chart(
        'what-if',
        'Other numbers of workers',
        f'Predicted time of an iteration by num_workers: {said}.',
        labels=[
            f'{p.num_workers}\n{marked.get(p.num_workers, "")}'.rstrip() for p in points
        ],
        panels=[Panel(f'Iteration, {unit}', series)],
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
)


def chart_timeline(run: Run) -> Chart | None:
    """Data wait, step and GPU utilisation over the run; saves and epochs marked.

    Neighbouring intervals are merged where there are too many: the line is their
    weighted mean, the band reaches from the smallest to the largest.
    """
    count = len(run.intervals)
    if not count:
        return None
    starts = np.arange(0, count, -(-count // _POINTS))
    ends_s = run.column('elapsed_s')
    lasts = np.append(starts[1:], count) - 1
    begin_s = float(ends_s[0] - run.column('duration_s')[0])
    divide, unit = next(
        (size, words)
        for size, words in ((3600.0, 'hours'), (60.0, 'minutes'), (1.0, 'seconds'))
        if float(ends_s[-1]) >= 3 * size or size == 1.0
    )
    panels, said = [], []
    for title, role, field in _TRACKS:
        is_share = field.endswith('_pct')
        weights = run.column('duration_s' if is_share else 'iterations')
        values = run.column(field)
        if not is_share:
            with np.errstate(divide='ignore', invalid='ignore'):
                values = np.where(weights > 0, values / weights, np.nan)
        known = values[~np.isnan(values)]
        if not len(known):
            continue
        panel, words = _track(title, role, is_share, values, weights, starts)
        panels.append(panel)
        said.append(words)
    if not panels:
        return None
    events = list(_find_events(run))
    counted = [f'{sum(k == kind for _, k in events)} {kind}(s)' for kind in _EVENTS]
    xs = [begin_s, *ends_s[lasts].tolist()]
    return Chart(
        'timeline',
        'Over time',
        f'{"; ".join(said)}, over {count} interval(s). {", ".join(counted)} marked.',
        x=[x / divide for x in xs],
        panels=panels,
        marks=[(at_s / divide, kind) for at_s, kind in _thin(events, xs[-1])],
        x_title=f'{unit} since training began    ▼ save  ◆ validation  │ epoch',
    )


def _track(
    title: str, role: str, is_share: bool, values: Any, weights: Any, starts: Any
) -> tuple[Panel, str]:
    """One quantity as a panel, and its range in words."""
    known = values[~np.isnan(values)]
    least, most = float(known.min()), float(known.max())
    top = _CUT * float(np.percentile(known, 99))
    is_cut = not is_share and 0 < top < most
    factor, unit = (1.0, '%') if is_share else scale_seconds(top if is_cut else most)
    size = np.where(np.isnan(values), 0.0, weights)
    with np.errstate(divide='ignore', invalid='ignore'):
        mean = np.add.reduceat(np.nan_to_num(values) * size, starts)
        mean = factor * mean / np.add.reduceat(size, starts)
    low = factor * np.fmin.reduceat(values, starts)
    high = factor * np.fmax.reduceat(values, starts)
    # the first point begins the first step
    lines = [
        [None if np.isnan(v) else float(v) for v in (line[0], *line)]
        for line in (mean, low, high)
    ]
    is_merged = len(starts) < len(values)
    series = Series(
        title,
        lines[0],
        role,
        low=lines[1] if is_merged else (),
        high=lines[2] if is_merged else (),
        style='steps',
    )
    words = f'{least:.0f} to {most:.0f} %'
    if not is_share:
        words = f'{format_seconds(least)} to {format_seconds(most)} per iteration'
    shown = f'{title}, {unit}{"" if is_share else " per iteration"}'
    if is_cut:
        shown += f' (cut off: highest {format_seconds(most)})'
    end = 100.0 if is_share else top * factor if is_cut else 1.05 * most * factor
    return Panel(shown, [series], top=end or None), f'{title} {words}'


_EVENTS = ('save', 'validation', 'epoch')


def _find_events(run: Run) -> Iterator[tuple[float, str]]:
    """When something happened between iterations, in seconds since training began."""
    ends_s = run.column('elapsed_s').tolist()
    epochs = [interval.epoch for interval in run.intervals]
    for n in range(1, len(ends_s)):
        if epochs[n] > epochs[n - 1]:
            yield ends_s[n - 1], 'epoch'
    validations_s = filled(run.column('ledger_s', 'validation')).tolist()
    yield from ((e, 'validation') for e, s in zip(ends_s, validations_s) if s > 0)
    if not run.save_records:
        yield from ((i.elapsed_s, 'save') for i in run.intervals if i.saves)
    lasts = [interval.iteration for interval in run.intervals]
    for save in run.save_records:
        interval = run.intervals[
            min(bisect.bisect_left(lasts, save.iteration), len(lasts) - 1)
        ]
        done = interval.iterations - (interval.iteration - save.iteration)
        share = min(max(done / interval.iterations, 0.0), 1.0)
        yield interval.elapsed_s - (1 - share) * interval.duration_s, 'save'


def _thin(
    events: Sequence[tuple[float, str]], end_s: float
) -> Iterator[tuple[float, str]]:
    """At most one of a kind in a hundredth of the axis."""
    last: dict[str, float] = {}
    for at_s, kind in sorted(events):
        if at_s - last.get(kind, -end_s) >= 0.01 * end_s:
            last[kind] = at_s
            yield at_s, kind
