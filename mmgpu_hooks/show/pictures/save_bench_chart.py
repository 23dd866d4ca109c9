"""Saves beside several numbers of workers, by what the saving thread waited for."""

from __future__ import annotations

from mmgpu_hooks.schema import SaveBench
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.pictures.bars import Bar, Segment
from mmgpu_hooks.show.pictures.chart import Chart, NoChart, chart_bars
from mmgpu_hooks.show.pictures.save_charts import CAUSES


def chart_save_bench(bench: SaveBench) -> Chart | NoChart:
    """One bar a setting: the median save."""
    name, title = 'save-bench', 'A save beside other numbers of workers'
    bars = []
    for row in bench.rows:
        if row.save_s is None:
            continue
        known = [(words, getattr(row, part), role) for words, part, role in CAUSES]
        parts = [(words, value, role) for words, value, role in known if value]
        # medians of the parts need not add up to that of the whole
        whole = sum(value for _, value, _ in parts)
        parts = parts or [('not known of what', row.save_s, 'other')]
        scale = row.save_s / whole if whole else 1.0
        segments = tuple(
            Segment(words, scale * value, format_seconds(value), role)
            for words, value, role in parts
        )
        bars.append(Bar(row.setting.name, segments, format_seconds(row.save_s)))
    if not bars:
        return NoChart(name, title, 'No save was measured.')
    said = '; '.join(f'{bar.label} {bar.text}' for bar in bars)
    return chart_bars(name, title, f'Medians: {said}.', bars)
