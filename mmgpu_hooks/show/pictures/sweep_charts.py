"""The trials of a sweep: speed, what an iteration waits for, memory, utilisation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Callable

from mmgpu_hooks.schema import MEMORY_SOURCES, Sweep, SweepRow
from mmgpu_hooks.show.figures import format_bytes, format_pct, format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.batch_chart import chart_batch_sizes
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars
from mmgpu_hooks.show.pictures.sweep_curves import chart_sweep_curves


def list_sweep_charts(sweep: Sweep) -> Iterator[Chart | NoChart]:
    """Every picture of a sweep, or why there is none."""
    rows = sweep.rows
    yield chart_sweep_curves(rows)
    yield _chart_iteration(rows)
    yield _chart_figure(
        rows,
        'sweep-speed',
        'Images per second',
        lambda row: row.images_per_s,
        lambda value: f'{value:.1f}',
        'No trial tells its images per second.',
    )
    yield _chart_memory(rows)
    yield chart_batch_sizes(rows)
    yield _chart_figure(
        rows,
        'sweep-gpu',
        'GPU utilisation, mean',
        lambda row: row.gpu_util_pct,
        format_pct,
        'No GPU was read.',
        role='gpu',
    )


def _chart_iteration(rows: Sequence[SweepRow]) -> Chart | NoChart:
    """What of an iteration is waiting for data."""
    name, title = 'sweep-iteration', 'An iteration, and what of it waits for data'
    bars = []
    for row in rows:
        if row.iter_s is None or row.data_wait_s is None:
            continue
        wait_s = min(row.data_wait_s, row.iter_s.value)
        parts = (
            ('data wait', wait_s, 'data_wait'),
            ('step and hooks', row.iter_s.value - wait_s, 'step'),
        )
        segments = tuple(
            Segment(words, value, format_seconds(value), role)
            for words, value, role in parts
        )
        bars.append(Bar(row.setting.name, segments, format_seconds(row.iter_s.value)))
    if not bars:
        return NoChart(name, title, 'No trial was measured.')
    return chart_bars(name, title, _say(bars), bars)


def _chart_memory(rows: Sequence[SweepRow]) -> Chart | NoChart:
    sources = sorted({row.memory_source for row in rows if row.memory_source})
    said = ' and '.join(MEMORY_SOURCES[source] for source in sources)
    return _chart_figure(
        rows,
        'sweep-memory',
        f'Peak memory of {said}' if said else 'Peak memory',
        lambda row: row.memory_peak_bytes,
        lambda value: format_bytes(round(value)),
        'No trial tells its memory.',
        role='hooks',
    )


def _chart_figure(
    rows: Sequence[SweepRow],
    name: str,
    title: str,
    read: Callable[[SweepRow], float | None],
    spell: Callable[[float], str],
    reason: str,
    *,
    role: str = 'step',
) -> Chart | NoChart:
    """One figure of all trials."""
    bars = []
    for row in rows:
        value = read(row)
        if value is not None:
            segment = Segment(title, value, spell(value), role)
            bars.append(Bar(row.setting.name, (segment,), spell(value)))
    if not bars:
        return NoChart(name, title, reason)
    return chart_bars(name, title, _say(bars), bars)


def _say(bars: Sequence[Bar]) -> str:
    return '; '.join(f'{bar.label} {bar.text}' for bar in bars) + '.'
