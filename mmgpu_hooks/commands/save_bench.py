"""``mmgpu save-bench``: what the number of loader workers does to checkpoint saves."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.number_types import whole_from
from mmgpu_hooks.commands.progress import show_progress, warner
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.commands.trainable import (
    add_fresh,
    add_time_limit,
    lengthen,
    read_trainable_config,
)
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.save_bench import SaveBenchPlan, check_room, plan_saves
from mmgpu_hooks.experiment.store import open_store, read_identity
from mmgpu_hooks.judge.thresholds import BENCH_SAVES
from mmgpu_hooks.memory.estimate import estimate_checkpoint_bytes
from mmgpu_hooks.schema import SaveBench
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.charts import can_draw
from mmgpu_hooks.show.save_bench import (
    render_save_bench,
    render_save_bench_json,
    render_save_plan,
)

NAME = 'save-bench'
HELP = 'measure what the number of workers does to checkpoint saves'
DESCRIPTION = """\
Train a config for a while beside each number of loader workers, saving every few
iterations, and say from which number on they make saves slow on this machine, and what
the job loses by it. Checkpoints go to a temporary folder, which is removed."""
EPILOG = """\
exit codes: 0 measured, 2 input that cannot be used (one sentence on standard error
says why), 130 Ctrl-C, after a table of what was measured: the same command goes on
from there; nothing is left running, and no checkpoint"""

_FOLDER = 'save-bench'
_PLOTS = ('.svg', '.png')
_PREFETCH_FACTOR = 2
"""PyTorch's own."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    whole, above_0 = whole_from(0), whole_from(1)
    parser.add_argument('config', type=Path, help='the config to train')
    parser.add_argument(
        '--num-workers',
        type=whole,
        nargs='+',
        required=True,
        metavar='N',
        help='numbers of loader workers, such as 0 2 8 16 32',
    )
    parser.add_argument(
        '--saves',
        type=whole_from(BENCH_SAVES),
        default=6,
        metavar='N',
        help='to measure of each; one more is made before; default: %(default)s',
    )
    parser.add_argument(
        '--iterations-between',
        type=above_0,
        metavar='N',
        help='from save to save (default: until the queue of batches is as usual)',
    )
    parser.add_argument(
        '--worker-nice',
        type=whole_from(1, 19),
        metavar='NICE',
        help='train each with this nice value of the workers as well, such as 10',
    )
    add_time_limit(parser)
    add_fresh(parser)
    parser.add_argument(
        '--work-dir',
        type=Path,
        metavar='DIR',
        help="where checkpoints go (default: the config's work_dir, or work_dirs)",
    )
    parser.add_argument(
        '--plot',
        type=_plot,
        metavar='FILE',
        help='draw the saves, as .svg or .png (which needs matplotlib)',
    )
    parser.add_argument(
        '--dry-run', action='store_true', help='say what would be trained, and end'
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def run(arguments: argparse.Namespace) -> int:
    """Plan, train, print."""
    try:
        return _run(arguments)
    except UserError as error:
        print(f'mmgpu {NAME}: {error}', file=sys.stderr)
    except OSError as error:
        print(
            f'mmgpu {NAME}: expected a folder to write to, found {error.strerror} '
            f'({error.filename}); name another with --work-dir or --plot.',
            file=sys.stderr,
        )
    return exit_codes.BAD_INPUT


def _run(arguments: argparse.Namespace) -> int:
    config = read_trainable_config(arguments.config)
    work_dir = arguments.work_dir or Path(str(config.get(('work_dir',)) or 'work_dirs'))
    prefetch = config.get(('train_dataloader', 'prefetch_factor'))
    plans = plan_saves(
        arguments.num_workers,
        saves=arguments.saves,
        prefetch_factor=prefetch if isinstance(prefetch, int) else _PREFETCH_FACTOR,
        interval=arguments.iterations_between,
        worker_nice=arguments.worker_nice,
    )
    size = estimate_checkpoint_bytes(arguments.config)
    check_room(work_dir.absolute(), size)
    if arguments.dry_run:
        text = render_save_plan(
            plans,
            time_limit_s=arguments.time_limit,
            checkpoint_bytes=size,
            folder=str(work_dir),
            **terminal_layout(sys.stdout),
        )
        print(text)
        return exit_codes.OK
    folder = work_dir.absolute() / _FOLDER
    plan = SaveBenchPlan(
        config=os.path.abspath(arguments.config),
        folder=folder,
        plans=plans,
        settings=lengthen(config, max(plan.iterations for plan in plans)),
        time_limit_s=arguments.time_limit,
    )
    identity = read_identity(
        config,
        **{
            'number of saves': arguments.saves,
            'interval': arguments.iterations_between,
        },
    )
    with (
        open_store(folder, identity, fresh=arguments.fresh) as store,
        show_progress() as told,
    ):
        try:
            outcome = run_plan(plan, store, on_progress=told, on_warning=warner(NAME))
        finally:
            for left in folder.glob('*/'):
                shutil.rmtree(left, ignore_errors=True)
        bench = plan.finish(outcome)
        if not bench.is_interrupted:
            # what is whole is printed, and not gone on with
            store.clear()
    if arguments.format == 'json':
        print(render_save_bench_json(bench, str(arguments.config)))
    else:
        print(render_save_bench(bench, **terminal_layout(sys.stdout)))
    if arguments.plot is not None:
        _write_plot(bench, arguments.plot)
    return exit_codes.INTERRUPTED if bench.is_interrupted else exit_codes.OK


def _write_plot(bench: SaveBench, path: Path) -> None:
    # late, because only this option draws
    from mmgpu_hooks.config.write import write_atomic
    from mmgpu_hooks.show.charts import draw
    from mmgpu_hooks.show.save_bench import chart_save_bench

    chart = chart_save_bench(bench)
    if chart is None:
        print('No chart: no save was measured.', file=sys.stderr)
        return
    write_atomic(path, draw(chart, path.suffix.lower()[1:]))
    print(f'Drawn in {path}', file=sys.stderr)


def _plot(text: str) -> Path:
    """Checked before minutes are spent."""
    from mmgpu_hooks.config.write import verify_output

    path = Path(text)
    if path.suffix.lower() not in _PLOTS:
        raise argparse.ArgumentTypeError(f'expected FILE.svg or FILE.png, found {text}')
    if not path.absolute().parent.is_dir():
        raise argparse.ArgumentTypeError(
            f'expected a file in a folder that exists, found {text}'
        )
    try:
        verify_output(path)
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f'expected to write {text}, found {error.strerror}'
        ) from error
    if not can_draw():
        raise argparse.ArgumentTypeError(
            f'expected matplotlib to draw {text}, found none; run `pip install '
            "'mmgpu_hooks[plots]'`"
        )
    return path
