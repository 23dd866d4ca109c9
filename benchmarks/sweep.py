"""Does one run tell what the others would take? The demo's detector, swept.

    OMP_NUM_THREADS=1 python -m benchmarks.sweep [--only WORKERS-BATCH ...] [--cuda]

RTMDet-tiny on the demo's JPEG files, trained for real with batches of 1, 3 and 8 and
0, 1, 2, 4 and 8 workers by ``mmgpu sweep``; with CUDA, with batches of 1, 3 and 32 and
1, 8, 16 and 32 workers. For each batch size the trial with 2 workers (MMDetection's
default, or the nearest to it) is the one run from which the others are predicted.
Errors are those of the other trials.

``--output`` writes the pictures too, beside the table.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.harness import (
    Benchmark,
    Figure,
    render_table,
    render_value,
    write_atomically,
)
from mmgpu_hooks.cli.trainable import lengthen, read_trainable_config
from mmgpu_hooks.experiments.demo_dataset import write_demo_dataset
from mmgpu_hooks.experiments.sweep import run_sweep
from mmgpu_hooks.experiments.sweep_identity import read_identity
from mmgpu_hooks.experiments.sweep_ledger import KeptTrials, open_ledger
from mmgpu_hooks.experiments.sweep_plan import SweepGrid, SweepJob, TrialLimits
from mmgpu_hooks.records import Sweep, SweepRow, SweepSetting
from mmgpu_hooks.report.pictures.bars import WIDTHS
from mmgpu_hooks.report.pictures.chart import Chart
from mmgpu_hooks.report.pictures.svg import render_svg
from mmgpu_hooks.report.pictures.sweep_charts import list_sweep_charts

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / 'configs' / 'demo' / 'rtmdet-tiny_demo.py'
DATA = ROOT / 'data' / 'demo'

ON_CPU = SweepGrid((0, 1, 2, 4, 8), (1, 3, 8))
ON_CUDA = SweepGrid((1, 8, 16, 32), (1, 3, 32))

MEDIAN_TARGET_PCT, COVERED_TARGET_PCT = 5.0, 90.0
"""Those of ``make bench-predict``, on a real detector."""

IMAGES, WIDTH, HEIGHT = 240, 4000, 3000
TIMES = 200
"""Over the data set in an epoch, so that no epoch begins while it is measured."""

CONFIG = """\
_base_ = '{base}'
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


def run_table(
    grid: Sequence[SweepSetting], seconds: float, folder: Path, data: Path
) -> Sweep:
    """Train every setting, with the product's own sweep."""
    config = folder / 'detector.py'
    config.write_text(CONFIG.format(base=DEMO, times=TIMES, data=data))
    flat = read_trainable_config(config)
    job = SweepJob(
        config=str(config),
        folder=folder / 'sweep',
        settings=grid,
        limits=TrialLimits(seconds, 300.0),
        identity=read_identity(flat, saves=False),
        lengthened=lengthen(flat, 10**6),
    )
    with open_ledger(job.folder) as ledger:
        return run_sweep(job, ledger, KeptTrials(), _tell)


def _tell(words: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f'\r{words[:100]:100}', end='', file=sys.stderr, flush=True)


def fold_figures(sweep: Sweep) -> Iterator[Figure]:
    """The lines of the table of figures."""
    measured = [row for row in sweep.rows if row.is_measured]
    yield Figure('trials measured', len(measured), f'of {sweep.asked}')
    known = [row for row in sweep.rows if row.prediction_error is not None]
    errors = [100 * abs(row.prediction_error or 0.0) for row in known]
    median = statistics.median(errors) if errors else None
    yield Figure(
        'iteration, predicted from one run: error, median',
        median,
        '%',
        f'<= {MEDIAN_TARGET_PCT:g}',
        median is not None and median <= MEDIAN_TARGET_PCT,
        f'{len(errors)} predictions; worst {max(errors):.1f} %' if errors else '',
    )
    inside = [_is_inside(row) for row in known]
    covered = 100 * sum(inside) / len(inside) if inside else None
    yield Figure(
        'intervals that hold the truth',
        covered,
        '%',
        f'>= {COVERED_TARGET_PCT:g}',
        covered is not None and covered >= COVERED_TARGET_PCT,
        f'{sum(inside)} of {len(inside)}',
    )
    for batch in sorted({row.setting.batch_size or 0 for row in known}):
        some = [
            error
            for row, error in zip(known, errors)
            if row.setting.batch_size == batch
        ]
        name = f'batch {batch}: error, median'
        yield Figure(
            name, statistics.median(some), '%', note=f'{len(some)} predictions'
        )
    waits = [
        abs(row.predicted.data_wait_s - row.data_wait_s)
        for row in known
        if row.predicted is not None and row.data_wait_s is not None
    ]
    if waits:
        note = 'share of the iteration is what counts: see the table'
        value = 1000 * statistics.median(waits)
        yield Figure('data wait, predicted: error, median', value, 'ms', note=note)
    yield from _judge_best(sweep)


def _is_inside(row: SweepRow) -> bool:
    assert row.predicted is not None and row.iter_s is not None
    low, high = row.predicted.iter_time_low_s, row.predicted.iter_time_high_s
    return low <= row.iter_s.value <= high


def _judge_best(sweep: Sweep) -> Iterator[Figure]:
    """What whoever trusts the prediction loses of the images per second."""
    for batch in sorted({row.setting.batch_size or 0 for row in sweep.rows}):
        rows = [
            row
            for row in sweep.rows
            if row.setting.batch_size == batch and row.predicted and row.iter_s
        ]
        if len(rows) < 2:
            continue
        chosen = min(rows, key=lambda row: row.predicted.iter_time_s)  # type: ignore[union-attr]
        fastest = min(rows, key=lambda row: row.iter_s.value)  # type: ignore[union-attr]
        assert chosen.iter_s is not None and fastest.iter_s is not None
        lost = 100 * (1 - fastest.iter_s.value / chosen.iter_s.value)
        note = (
            f'{chosen.setting.num_workers} workers are predicted to be fastest, '
            f'{fastest.setting.num_workers} are'
        )
        name = f'batch {batch}: lost by the setting predicted fastest'
        yield Figure(name, lost, '%', note=note)


HEADER = (
    *('batch', 'workers', 'iteration, ms', '+-', 'predicted', '9 in 10 within'),
    *('error, %', 'images/s', 'data wait, ms', 'predicted', 'CPU cores', 'peak, MiB'),
    *('GPU, %', 'at 0, %', 'ended'),
)


def render_trials(rows: Sequence[SweepRow]) -> str:
    """Predicted beside measured, one line a trial."""
    return render_table(HEADER, [_cells(row) for row in rows])


def _cells(row: SweepRow) -> list[str]:
    predicted, measured, error = row.predicted, row.iter_s, row.prediction_error
    peak = row.memory_peak_bytes
    return [
        str(row.setting.batch_size),
        str(row.setting.num_workers),
        _ms(measured and measured.value),
        _ms(measured and measured.half_width),
        _ms(predicted and predicted.iter_time_s),
        f'{_ms(predicted.iter_time_low_s)} to {_ms(predicted.iter_time_high_s)}'
        if predicted
        else row.unpredicted or '',
        'the one run'
        if row.is_calibration
        else ''
        if error is None
        else f'{100 * error:+.1f}',
        _plain(row.images_per_s),
        _ms(row.data_wait_s),
        _ms(predicted and predicted.data_wait_s),
        _plain(row.cpu_cores),
        '' if peak is None else f'{peak / 2**20:.0f}',
        _plain(row.gpu_util_pct),
        _plain(row.gpu_zero_pct),
        row.status
        if row.status != 'completed'
        else 'settled'
        if row.is_settled
        else 'time',
    ]


def _ms(seconds: float | None) -> str:
    return '' if seconds is None else render_value(round(1000 * seconds, 1))


def _plain(value: float | None) -> str:
    return '' if value is None else f'{value:.1f}'


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
        '--cuda', action='store_true', help='the settings for a machine with a GPU'
    )
    parser.add_argument(
        '--seconds', type=float, default=30.0, help='to measure each trial for at most'
    )
    parser.add_argument(
        '--only', nargs='+', metavar='WORKERS-BATCH', help='trials such as 2-1'
    )
    parser.add_argument('--data', type=Path, default=DATA, help="of the demo's images")
    benchmark = Benchmark('sweep', __doc__ or '', argv, parser=parser)
    options = benchmark.options
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    settings = (ON_CUDA if options.cuda else ON_CPU).list_settings()
    if options.only:
        asked = {tuple(map(int, words.split('-'))) for words in options.only}
        settings = tuple(SweepSetting(*pair) for pair in sorted(asked))
    data = options.data.absolute()
    write_demo_dataset(data, images=IMAGES, width=WIDTH, height=HEIGHT)
    with tempfile.TemporaryDirectory() as folder:
        sweep = run_table(settings, options.seconds, Path(folder), data)
    for figure in fold_figures(replace(sweep, asked=len(settings))):
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
