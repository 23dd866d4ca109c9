"""What ``mmgpu sweep`` can be asked for."""

from __future__ import annotations

import argparse
from pathlib import Path

from mmgpu_hooks.commands.number_types import seconds_above_0, whole_from
from mmgpu_hooks.commands.trainable import add_fresh, add_time_limit
from mmgpu_hooks.model.prediction import MOST_PREFETCH, MOST_WORKERS
from mmgpu_hooks.recommend.sweep_rows import LEAST_INTERVALS

USUAL_WORKERS = (0, 1, 2, 4, 8)
DEFAULT_MEASURE_S = 60.0
PLOTS_FOLDER = 'plots'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mmgpu sweep``."""
    above_0 = whole_from(1)
    parser.add_argument('config', type=Path, help='the config to train')
    parser.add_argument(
        '--num-workers',
        type=whole_from(0, MOST_WORKERS),
        nargs='+',
        default=USUAL_WORKERS,
        metavar='N',
        help='numbers of loader workers (default: 0 1 2 4 8)',
    )
    parser.add_argument(
        '--batch-size',
        type=above_0,
        nargs='+',
        metavar='N',
        help="images per batch (default: the config's own)",
    )
    parser.add_argument(
        '--prefetch',
        type=whole_from(1, MOST_PREFETCH),
        nargs='+',
        metavar='N',
        help="batches in flight per worker (default: the config's own)",
    )
    parser.add_argument(
        '--pin-memory',
        action='store_true',
        help='train each without and with pinned memory',
    )
    parser.add_argument(
        '--amp', action='store_true', help='train each in full and in mixed precision'
    )
    parser.add_argument(
        '--saves',
        action='store_true',
        help='write checkpoints meanwhile, and say what one takes',
    )
    parser.add_argument(
        '--gpus',
        type=above_0,
        default=1,
        metavar='N',
        help='train on so many free GPUs side by side, one trial each, which share '
        'the cores (default: one trial at a time)',
    )
    parser.add_argument(
        '--seconds',
        type=seconds_above_0,
        default=DEFAULT_MEASURE_S,
        metavar='SECONDS',
        help='to measure each for, after its warm-up; then it ends, once it has '
        f'{LEAST_INTERVALS} intervals of iterations (--dry-run says how many that '
        'takes); it ends earlier when its interval of confidence is within 3 %%; '
        'default: %(default)g',
    )
    add_time_limit(parser)
    parser.add_argument(
        '--seed',
        type=whole_from(0),
        default=0,
        metavar='N',
        help='of the order (default: %(default)s)',
    )
    parser.add_argument(
        '--work-dir',
        type=Path,
        metavar='DIR',
        help="results go to DIR/sweep (default: the config's work_dir, or "
        'work_dirs/CONFIG)',
    )
    add_fresh(parser)
    parser.add_argument(
        '--plots',
        type=Path,
        metavar='DIR',
        help=f'where the charts go (default: {PLOTS_FOLDER} beside the results)',
    )
    parser.add_argument(
        '--plot-format',
        choices=('svg', 'png'),
        help='of the charts (default: svg)',
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='say what would be trained, and end'
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )
