"""Writes what a sweep leaves: the table for other programs, and its charts."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.write import write_atomic
from mmgpu_hooks.schema import Sweep
from mmgpu_hooks.show.charts import can_draw, draw
from mmgpu_hooks.show.sweep import (
    list_sweep_charts,
    render_sweep_csv,
    render_sweep_json,
)

TABLE_NAME = 'sweep'


def write_sweep_files(
    sweep: Sweep, config: str, folder: Path, plots: Path, ending: str
) -> list[str]:
    """Write ``sweep.csv``, ``sweep.json`` and the charts, each whole.

    Args:
        sweep: What was measured.
        config: As the user named it.
        folder: Of the sweep.
        plots: Of the charts.
        ending: ``svg`` or ``png``.

    Returns:
        What was written: sentences.

    Raises:
        OSError: If something cannot be written.
    """
    body = render_sweep_json(sweep, config, str(folder))
    write_atomic(folder / f'{TABLE_NAME}.json', f'{body}\n'.encode())
    table = render_sweep_csv(sweep.rows)
    write_atomic(folder / f'{TABLE_NAME}.csv', table.encode())
    kept = f'Kept in {folder} ({TABLE_NAME}.csv, {TABLE_NAME}.json)'
    if not can_draw():
        return [f'{kept}; no charts, because matplotlib is not installed']
    charts = list_sweep_charts(sweep)
    for chart in charts:
        write_atomic(plots / f'{chart.name}.{ending}', draw(chart, ending))
    return [f'{kept}; {len(charts)} chart(s) in {plots}']
