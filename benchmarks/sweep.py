"""Does one run predict what the others would take? The demo's detector, swept.

    python -m benchmarks.sweep [--seconds S] [--quick] [--output]

RTMDet-tiny on the demo's JPEG files, trained for real by ``mmgpu sweep`` with batches
of 1, 3 and 8 and 0, 1, 2, 4 and 8 workers; with CUDA, batches of 1, 3 and 32 and 1, 8,
16 and 32 workers. For each batch size one trial is what the others are predicted from;
errors are those of the other trials. About 18 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import (
    Benchmark,
    Figure,
    at_least,
    at_most,
    exactly,
)
from mmgpu_hooks.experiment.demo_dataset import write_demo_dataset

ROOT = Path(__file__).resolve().parents[1]
MEDIAN_TARGET_PCT, COVERED_TARGET_PCT = 5.0, 90.0
"""Those of ``make bench-predict``, on a real detector."""

ON_CPU = (0, 1, 2, 4, 8), (1, 3, 8)
ON_CUDA = (1, 8, 16, 32), (1, 3, 32)
QUICK = (0, 2), (1,)
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

Row = Mapping[str, Any]
"""A trial, as the command answers it."""


def run_sweep(
    grid: tuple[Sequence[int], Sequence[int]], seconds: float, data: Path
) -> list[Row]:
    """Train every setting with the command."""
    workers, batches = (list(map(str, numbers)) for numbers in grid)
    base = ROOT / 'configs' / 'demo' / 'rtmdet-tiny_demo.py'
    with tempfile.TemporaryDirectory() as name:
        config = Path(name) / 'detector.py'
        config.write_text(CONFIG.format(base=base, times=TIMES, data=data))
        command = [sys.executable, '-m', 'mmgpu_hooks', 'sweep', str(config)]
        command += ['--num-workers', *workers, '--batch-size', *batches]
        command += ['--seconds', str(seconds), '--work-dir', name, '--format', 'json']
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env={'OMP_NUM_THREADS': '1', **os.environ},
        )
        rows: list[dict[str, Any]] = json.loads(done.stdout)['rows']
        for batch in batches:
            predict_rows(
                [one for one in rows if one['name'].endswith(f'batch {batch}')]
            )
    return rows


def predict_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Set beside each trial of one batch size what the run of one of them predicts.

    It is the measured one with 2 workers, MMDetection's usual number, or the nearest.
    """
    measured = [row for row in rows if row['iter_s'] is not None]

    def away(row: Row) -> int:
        return abs(row['setting']['num_workers'] - 2)

    source = min(measured, key=away, default=None)
    predicted = {}
    if source is not None:
        command = [sys.executable, '-m', 'mmgpu_hooks', 'predict', source['folder']]
        command += ['--format', 'json', '--num-workers']
        command += [str(row['setting']['num_workers']) for row in rows]
        answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(answer.stdout)['predictions']
        predicted = {one['num_workers']: one for one in found}
    for row in rows:
        row['is_source'] = row is source
        row['predicted'] = predicted.get(row['setting']['num_workers'])


def judge_rows(rows: Sequence[Row]) -> Iterator[Figure]:
    """Predicted beside measured."""
    measured = [row for row in rows if row['iter_s'] is not None]
    yield exactly('trials measured', len(measured), len(rows))
    known = [row for row in measured if row['predicted'] and not row['is_source']]
    errors = [
        100 * abs(row['predicted']['iter_time_s'] / row['iter_s']['value'] - 1)
        for row in known
    ]
    yield at_most(
        'iteration, predicted from one run: error, median',
        statistics.median(errors) if errors else None,
        MEDIAN_TARGET_PCT,
        '%',
        f'{len(errors)} predictions; worst {max(errors, default=0):.1f} %',
    )
    inside = [
        row['predicted']['iter_time_low_s']
        <= row['iter_s']['value']
        <= row['predicted']['iter_time_high_s']
        for row in known
    ]
    covered = 100 * sum(inside) / len(inside) if inside else None
    note = f'{sum(inside)} of {len(inside)}'
    name = 'intervals that hold the truth'
    yield at_least(name, covered, COVERED_TARGET_PCT, '%', note)
    for batch in sorted({row['setting']['batch_size'] for row in known}):
        same = [r for r in measured if r['setting']['batch_size'] == batch]
        same = [row for row in same if row['predicted']]
        chosen = min(same, key=lambda row: row['predicted']['iter_time_s'])
        fastest = min(same, key=lambda row: row['iter_s']['value'])
        yield Figure(
            f'batch {batch}: lost by the setting predicted fastest',
            100 * (chosen['iter_s']['value'] / fastest['iter_s']['value'] - 1),
            '%',
            note=f'{chosen["setting"]["num_workers"]} workers are predicted to be '
            f'fastest, {fastest["setting"]["num_workers"]} are',
        )


def show_row(row: Row) -> Figure:
    """One trial."""
    setting, found, predicted = row['setting'], row['iter_s'], row['predicted']
    note = row['status'] if found else f'{row["status"]}: {row["error"]}'
    if predicted:
        within = ('iter_time_s', 'iter_time_low_s', 'iter_time_high_s')
        middle, low, high = (1000 * predicted[key] for key in within)
        note = f'predicted {middle:.1f}, 9 in 10 within {low:.1f} to {high:.1f}'
    if row['is_source']:
        note = 'predicted from this one'
    name = f'batch {setting["batch_size"]}, {setting["num_workers"]} workers'
    return Figure(name, 1000 * found['value'] if found else None, 'ms', note=note)


def main(argv: Sequence[str] | None = None) -> int:
    """Sweep, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        '--seconds', type=float, default=30.0, help='to measure each trial for at most'
    )
    benchmark = Benchmark('sweep', __doc__ or '', argv, parser=parser)
    options, grid = benchmark.options, ON_CUDA if torch.cuda.is_available() else ON_CPU
    data = ROOT / 'data' / 'demo'
    write_demo_dataset(data, images=IMAGES, width=WIDTH, height=HEIGHT)
    if benchmark.is_quick:
        rows = run_sweep(QUICK, 5.0, data)
    else:
        rows = run_sweep(grid, options.seconds, data)
    # as each trial saw it: from here, workers that end after it would be others
    cores = [row['external_cpu_cores'] or 0.0 for row in rows]
    benchmark.shares_pct = [100 * one / (os.cpu_count() or 1) for one in cores]
    benchmark.add(*judge_rows(rows))
    benchmark.add(*map(show_row, rows))
    return benchmark.finish()


if __name__ == '__main__':
    sys.exit(main())
