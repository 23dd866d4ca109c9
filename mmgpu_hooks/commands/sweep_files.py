"""Writes what a sweep leaves: the table for other programs, and its pictures."""

from __future__ import annotations

from pathlib import Path

from mmgpu_hooks.config.write import write_atomic
from mmgpu_hooks.schema import Sweep
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.chart import NoChart
from mmgpu_hooks.show.pictures.png import render_png
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.pictures.sweep_charts import list_sweep_charts
from mmgpu_hooks.show.sweep_table import render_sweep_csv, render_sweep_json

TABLE_NAME = 'sweep'


def write_sweep_files(
    sweep: Sweep, config: str, folder: Path, plots: Path, ending: str
) -> list[str]:
    """Write ``sweep.csv``, ``sweep.json`` and the pictures, each whole.

    Args:
        sweep: What was measured.
        config: As the user named it.
        folder: Of the sweep.
        plots: Of the pictures.
        ending: ``svg`` or ``png``.

    Returns:
        What was written, and which picture there is not: sentences.

    Raises:
        OSError: If something cannot be written.
        PngMissingError: If PNG is asked for and matplotlib is not there.
    """
    body = render_sweep_json(sweep, config, str(folder))
    write_atomic(folder / f'{TABLE_NAME}.json', f'{body}\n'.encode())
    table = render_sweep_csv(sweep.rows)
    write_atomic(folder / f'{TABLE_NAME}.csv', table.encode())
    drawn, notes = 0, []
    for chart in list_sweep_charts(sweep):
        if isinstance(chart, NoChart):
            notes.append(f'No picture {chart.name}: {chart.reason}')
            continue
        picture = chart.draw(WIDTHS['wide'])
        is_png = ending == 'png'
        content = render_png(picture) if is_png else render_svg(picture).encode()
        write_atomic(plots / f'{chart.name}.{ending}', content)
        drawn += 1
    kept = f'Kept in {folder} ({TABLE_NAME}.csv, {TABLE_NAME}.json)'
    return [*notes, f'{kept}; {drawn} picture(s) in {plots}']
