"""``mmgpu demo``: trains a small config, judges and rewrites it, and trains again.

All of it is real.
"""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.output import print_sections
from mmgpu_hooks.commands.read_runs import judge_runs, read_run
from mmgpu_hooks.commands.recommend import rewrite_judged
from mmgpu_hooks.commands.trials import read_trainable_config
from mmgpu_hooks.config.rewrite import Options
from mmgpu_hooks.config.settings import find_hooks
from mmgpu_hooks.experiment.demo_dataset import (
    IMAGE_HEIGHT,
    IMAGE_WIDTH,
    IMAGES,
    write_demo_dataset,
)
from mmgpu_hooks.experiment.engine import OnProgress, Plan, Turn, run_plan
from mmgpu_hooks.experiment.trial import ENDLESS, LOG_NAME
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.run_comparison import compare_runs
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.judged import FASTER
from mmgpu_hooks.schema.text import Text, phrase
from mmgpu_hooks.schema.tried import TrialSpec
from mmgpu_hooks.show.comparison import describe_compare, describe_whole_training
from mmgpu_hooks.show.recommendation import describe_answer
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.words import say

_DATA_ROOT = Path('data/demo')
"""Relative path from the folder of the demo's configs to the demo's data set."""
_ONE_THREAD = {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}
"""Environment variables, with values, that limit a train step to one CPU core.

The other cores are left to loading.
"""

_DATA_KEY = 'train_dataloader', 'dataset', 'data_root'

_SHOWN = re.compile(
    r'^.*\(train\).*|^.* - .*GPUEfficiencyHook.*(?:\n  .*)*', re.MULTILINE
)


@options.command('demo', '0 the recommended setting was faster, 1 not')
@options.config_argument
@click.option('--work-dir', type=options.PATH, default='work_dirs/demo', metavar='DIR')
def demo(config: Path, work_dir: Path) -> int:
    """Train, judge and speed up a small demo training.

    Writes camera-sized JPEG files, trains a detector on them with a poor loader
    setting, recommends a better one, trains that for as long, and compares. Then the
    poor setting trains again, and tunes itself. CONFIG is
    configs/demo/rtmdet-tiny_demo.py of a clone, or one like it.
    """
    # before the data set is written
    _expect_demo(config)
    _say(
        phrase(
            '1/6  Data set: {files:d} JPEG files of {width} x {height} pixels',
            files=IMAGES,
            width=IMAGE_WIDTH,
            height=IMAGE_HEIGHT,
        )
    )
    dataset = write_demo_dataset(_DATA_ROOT)
    facts = {'root': dataset.root, 'images_mb': dataset.image_bytes / 1e6}
    done = phrase('written: {root}, {images_mb:.0f} MB', **facts)
    if dataset.is_reused:
        done = phrase('reused: {root}, {images_mb:.0f} MB', **facts)
    print(f'     {say(done)}')
    os.environ.update(_ONE_THREAD)
    before, after = work_dir / 'before', work_dir / 'after'
    _say(phrase('2/6  Train {config}', config=config))
    free = phrase('The step gets one CPU thread, as a GPU would leave the CPU free.')
    print(f'     {say(free)}')
    _train(config, before)
    _say(phrase('3/6  mmgpu recommend {folder}', folder=before))
    judged = judge_runs([before])
    answer = rewrite_judged(judged.answer, judged.files, Options())
    print_sections(describe_answer(answer))
    if answer.error is not None:
        raise UserError(answer.error)
    if answer.output is None:
        _say(
            phrase(
                'The loader keeps up on this machine, so there is nothing to compare.'
            )
        )
        return exit_codes.NO
    _say(phrase('4/6  Train {output}', answer))
    _train(Path(answer.output), after)
    _say(phrase('5/6  Before and after'))
    is_faster = show_gain(before, after)
    _say(phrase('6/6  Train {config} again, with tune=True', config=config))
    tuned = work_dir / 'tuned'
    _train(config, tuned, {'tune': True})
    print(describe_tuned(before, after, tuned))
    _say(phrase('Open it:  tensorboard --logdir {folder}', folder=work_dir))
    return exit_codes.OK if is_faster else exit_codes.NO


def show_gain(before: Path, after: Path) -> bool:
    """Prints images per second of two trainings; returns True if the second is faster.

    Args:
        before: Work folder of the first training.
        after: Work folder of the second training.

    Returns:
        True if the second one was faster, in its iterations beyond noise and as a
        whole.
    """
    first, second = (read_run(folder).run for folder in (before, after))
    comparison = compare_runs(first, second)
    print_sections(describe_compare(comparison))
    old, new = _images_per_s(first), _images_per_s(second)
    if old and new:
        _say(describe_whole_training(comparison, old, new))
    return comparison.verdict == FASTER and new > old


def describe_tuned(before: Path, after: Path, tuned: Path) -> str:
    """Returns text comparing the demo's self-tuned training with its two untuned ones.

    Args:
        before: Work folder of the training with the poor setting.
        after: Work folder of the one with the recommended setting.
        tuned: Work folder of the one that began as the first.
    """
    runs = [read_run(folder).run for folder in (before, after, tuned)]
    old_s, new_s, own_s = (run.figures.duration_s for run in runs)
    lines = [
        phrase(
            'Begun with num_workers={begun_workers:d}, ended with {ended_workers:d}: '
            '{tuned_s} in all, beside {before_s} untouched and {after_s} with the '
            'recommended setting from the start.',
            begun_workers=runs[2].begun_with.num_workers,
            ended_workers=runs[2].meta.loader.num_workers,
            tuned_s=own_s,
            before_s=old_s,
            after_s=new_s,
        ),
        *list_tuned(runs[2].evidence),
    ]
    return '\n'.join(map(say, lines))


def _images_per_s(run: Run) -> float:
    """Returns mean images per second from a training's first iteration to its last."""
    batch, whole_s = run.meta.loader.batch_size or 0, run.figures.duration_s
    return run.figures.iterations * batch / whole_s if whole_s else 0.0


def _expect_demo(path: Path) -> None:
    """Raises a `UserError` if a config lacks the demo's data or GPUEfficiencyHook."""
    config = read_trainable_config(path)
    root = Path(str(config.get(_DATA_KEY, '')))
    if root != _DATA_ROOT or not find_hooks(config):
        raise UserError(
            phrase(
                '{path}: expected a config that trains on {root} with '
                'GPUEfficiencyHook on, as configs/demo/rtmdet-tiny_demo.py of a clone '
                'does; a training of your own is judged by mmgpu recommend.',
                path=path,
                root=_DATA_ROOT,
            )
        )


def _train(config: Path, folder: Path, hook: Mapping[str, Any] | None = None) -> None:
    """Trains a config in a child process until the end, and prints its log.

    Args:
        config: What to train.
        folder: Where it goes.
        hook: Arguments of GPUEfficiencyHook; by default the config's.

    Raises:
        UserError: If it does not complete.
        KeyboardInterrupt: On Ctrl-C.
    """
    spec = TrialSpec(str(config), str(folder), hook=hook or {}, is_whole=True)
    turn = Turn(folder.name, spec, blocks=(ENDLESS,), time_limit_s=float('inf'))
    tail = _follow(folder / LOG_NAME)
    outcome = run_plan(Plan([turn]), on_progress=tail)
    if outcome.is_interrupted:
        raise KeyboardInterrupt
    error = outcome.trials[0].error
    if error is not None:
        raise UserError(
            phrase(
                'expected a training that completes, found {error}; the whole output '
                'is in {folder}.',
                error=error,
                folder=folder / LOG_NAME,
            )
        )


def _say(line: Text) -> None:
    print(f'\n{say(line)}', flush=True)


def _follow(log: Path) -> OnProgress:
    """Returns a callback that prints the new lines of a training's log."""
    printed = 0

    def follow(words: str, share: float, left_s: float | None) -> None:
        nonlocal printed
        whole, _, _ = log.read_text('utf-8', 'replace').rpartition('\n')
        found = _SHOWN.findall(whole)
        for entry in found[printed:]:
            print(textwrap.indent(entry, '     '), flush=True)
        printed = len(found)

    return follow
