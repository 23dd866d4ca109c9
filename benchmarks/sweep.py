"""Does one run tell what the others would take? The demo's detector, swept.

    OMP_NUM_THREADS=1 python -m benchmarks.sweep [--only WORKERS-BATCH ...]

RTMDet-tiny on the demo's JPEG files, trained for real with batches of 1, 3 and 8 and
0, 1, 2, 4 and 8 workers by ``mmgpu sweep``; with CUDA, with batches of 1, 3 and 32 and
1, 8, 16 and 32 workers. For each batch size the trial with 2 workers (MMDetection's
default, or the nearest to it) is the one run from which the others are predicted.
Errors are those of the other trials.

``--output`` writes the pictures too, beside the table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.harness import Benchmark, write_atomically
from benchmarks.machine import TrainingsLoad
from benchmarks.sweep_judge import fold_figures, render_trials
from mmgpu_hooks.commands.exit_codes import INTERRUPTED
from mmgpu_hooks.commands.trainable import lengthen, read_trainable_config
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.sweep import SweepPlan, list_settings
from mmgpu_hooks.schema import Sweep, SweepRow, SweepSetting
from mmgpu_hooks.show.pictures.bars import WIDTHS
from mmgpu_hooks.show.pictures.chart import Chart
from mmgpu_hooks.show.pictures.svg import render_svg
from mmgpu_hooks.show.pictures.sweep_charts import list_sweep_charts

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / 'configs' / 'demo' / 'rtmdet-tiny_demo.py'
DATA = ROOT / 'data' / 'demo'

ON_CPU = list_settings((0, 1, 2, 4, 8), (1, 3, 8))
ON_CUDA = list_settings((1, 8, 16, 32), (1, 3, 32))

IMAGES, WIDTH, HEIGHT = 240, 4000, 3000
LOGGED = 10
"""Iterations from one line of MMEngine's log to the next, in the demo's config."""

TIMES = 200
"""Over the data set in an epoch, so that no epoch begins while it is measured."""

CONFIG = """\
_base_ = '{base}'
log_processor = dict(window_size={logged})
train_dataloader = dict(
    dataset=dict(
        _delete_=True, type='RepeatDataset', times={times},
        dataset=dict(
            type='CocoDataset', data_root='{data}/', ann_file='annotations.json',
            data_prefix=dict(img='images/'),
            metainfo=dict(classes=('rectangle', 'ellipse')),
            filter_cfg=dict(filter_empty_gt=True, min_size=32),
            pipeline={{{{_base_.train_dataloader.dataset.pipeline}}}})))
"""


def list_strangers_pct(sweep: Sweep) -> list[float]:
    """What strangers used of the machine during each trial, as the trial saw it.

    Seen from here, workers that end after their trial would be strangers.
    """
    cores = [row.external_cpu_cores for row in sweep.rows]
    cpus = os.cpu_count() or 1
    return [100 * one / cpus for one in cores if one is not None]


def run_table(
    grid: Sequence[SweepSetting], seconds: float, folder: Path, data: Path
) -> tuple[Sweep, list[float | None]]:
    """Train every setting with the product's own sweep; MMEngine's timings beside."""
    config = folder / 'detector.py'
    config.write_text(CONFIG.format(base=DEMO, times=TIMES, data=data, logged=LOGGED))
    flat = read_trainable_config(config)
    plan = SweepPlan(
        config=str(config),
        folder=folder / 'sweep',
        settings=grid,
        measure_s=seconds,
        whole_s=300.0,
        lengthened=lengthen(flat, 10**6),
    )
    sweep = plan.finish(run_plan(plan, on_progress=_tell))
    return sweep, [read_mmengine_s(plan.folder, row) for row in sweep.rows]


def read_mmengine_s(folder: Path, row: SweepRow) -> float | None:
    """A steady iteration by MMEngine's own timer, which its log has for 10 at a time.

    Args:
        folder: Of the sweep.
        row: Of the trial.
    """
    if row.evidence is None:
        return None
    log = (folder / row.evidence).with_name('scalars.json')
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    warm_up = row.warm_up * max(LOGGED, row.setting.num_workers)
    times = [line['time'] for line in lines if line.get('step', 0) - LOGGED >= warm_up]
    return statistics.fmean(times) if times else None


def _tell(words: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f'\r{words[:100]:100}', end='', file=sys.stderr, flush=True)


def write_pictures(sweep: Sweep, folder: Path) -> list[str]:
    """Draw the sweep; lines of Markdown that show the pictures."""
    lines = []
    for chart in list_sweep_charts(sweep):
        if isinstance(chart, Chart):
            name = f'{chart.name}.svg'
            write_atomically(folder / name, render_svg(chart.draw(WIDTHS['wide'])))
            lines.append(f'![{chart.title}](sweep/{name})')
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, and print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--seconds', type=float, default=30.0, help='to measure each trial for at most'
    )
    parser.add_argument(
        '--only', nargs='+', metavar='WORKERS-BATCH', help='trials such as 2-1'
    )
    parser.add_argument('--data', type=Path, default=DATA, help="of the demo's images")
    load = TrainingsLoad()
    benchmark = Benchmark('sweep', __doc__ or '', argv, parser=parser, load=load)
    options = benchmark.options
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    settings = ON_CUDA if torch.cuda.is_available() else ON_CPU
    if options.only:
        asked = {tuple(map(int, words.split('-'))) for words in options.only}
        settings = tuple(SweepSetting(*pair) for pair in sorted(asked))
    data = options.data.absolute()
    write_demo_dataset(data, images=IMAGES, width=WIDTH, height=HEIGHT)
    with tempfile.TemporaryDirectory() as folder:
        sweep, others_s = run_table(settings, options.seconds, Path(folder), data)
    if sweep.is_interrupted:
        return INTERRUPTED
    load.shares_pct = list_strangers_pct(sweep) or [100.0]
    for figure in fold_figures(sweep, others_s):
        benchmark.add(figure)
    table = render_trials(sweep.rows)
    print(f'{table}\n')
    code = benchmark.finish()
    if options.output is not None:
        pictures = write_pictures(sweep, options.output.parent / 'sweep')
        page = options.output.read_text()
        parts = ['## Every trial', table, *pictures]
        write_atomically(options.output, page + '\n' + '\n\n'.join(parts) + '\n')
    return code


if __name__ == '__main__':
    sys.exit(main())
