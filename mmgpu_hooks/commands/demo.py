"""``mmgpu demo``: train, judge, rewrite, train again, compare. All of it real."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mmgpu_hooks.commands import exit_codes, recommend
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.experiment.demo_dataset import (
    DEMO_SPEC,
    DemoDatasetError,
    write_demo_dataset,
)
from mmgpu_hooks.experiment.training import TrainingError, run_training
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema.run_folder import EvidenceError, read_run_folder
from mmgpu_hooks.show.comparison import render_demo
from mmgpu_hooks.show.recommendation import Answer, render_text
from mmgpu_hooks.show.run_sections import images_per_second

NAME = 'demo'
HELP = 'show the whole way on a small data set'
DESCRIPTION = """\
Write a small data set of camera-sized JPEG files, train a detector on it with a poor
loader setting, recommend a better one, train that for as long, and compare."""
EPILOG = """\
exit codes: 0 the recommended setting was faster, 1 not, 2 something is missing"""

ONE_THREAD = {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}
"""On a CPU the step would take every core; on a GPU it leaves them to the loader."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument('config', type=Path, help='the config to begin with')
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/demo'))
    parser.add_argument('--data-root', type=Path, default=Path('data/demo'))
    spec = DEMO_SPEC
    parser.add_argument(
        '--images', type=int, default=spec.images, help='default: %(default)s'
    )
    parser.add_argument(
        '--size',
        type=int,
        nargs=2,
        default=(spec.width, spec.height),
        metavar=('WIDTH', 'HEIGHT'),
        help='of the images in pixels; default: that of a 12-megapixel camera',
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the demo."""
    try:
        return _run(arguments)
    except (DemoDatasetError, TrainingError, EvidenceError) as error:
        print(f'mmgpu demo: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT


def _run(arguments: argparse.Namespace) -> int:
    width, height = arguments.size
    _say(f'1/5  Data set: {arguments.images} JPEG files of {width} x {height} pixels')
    data = write_demo_dataset(
        arguments.data_root, images=arguments.images, width=width, height=height
    )
    done = 'reused' if data.reused else 'written'
    print(f'     {done}: {data.root}, {data.image_bytes / 1e6:.0f} MB')

    before_dir, after_dir = arguments.work_dir / 'before', arguments.work_dir / 'after'
    _say(f'2/5  Train {arguments.config}')
    print('     The step gets one CPU thread, as a GPU would leave the CPU free.')
    _train(arguments.config, before_dir)

    _say(f'3/5  mmgpu recommend {before_dir}')
    answer = _recommend(before_dir)
    print(render_text(answer, **terminal_layout(sys.stdout)))
    if answer.error is not None:
        print(f'mmgpu demo: {answer.error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    if answer.output is None:
        print('\nThe loader keeps up on this machine, so there is nothing to compare.')
        return exit_codes.NOT_FASTER

    _say(f'4/5  Train {answer.output}')
    _train(Path(answer.output), after_dir)

    _say('5/5  Before and after')
    before, after = _read(before_dir), _read(after_dir)
    print(render_demo(before, after, **terminal_layout(sys.stdout)))
    print(f'\nOpen it:  tensorboard --logdir {arguments.work_dir}')
    old, new = images_per_second(before) or 0.0, images_per_second(after) or 0.0
    return exit_codes.OK if new > old else exit_codes.NOT_FASTER


def _recommend(work_dir: Path) -> Answer:
    parser = argparse.ArgumentParser()
    recommend.add_arguments(parser)
    return recommend.recommend_run(parser.parse_args([str(work_dir)]))


def _say(line: str) -> None:
    load = f'load {os.getloadavg()[0]:.1f}' if hasattr(os, 'getloadavg') else ''
    print(f'\n{line}  {load}'.rstrip(), flush=True)


def _train(config: Path, work_dir: Path) -> None:
    shown = _Shown()
    run_training(config, work_dir, on_line=shown, environ=ONE_THREAD)


class _Shown:
    """Passes on what a reader wants to see of a training's output."""

    def __init__(self) -> None:
        self._in_summary = False

    def __call__(self, line: str) -> None:
        if 'GPUEfficiencyHook' in line and ' - ' in line:
            self._in_summary = True
        elif self._in_summary and not line.startswith('  '):
            self._in_summary = False
        if self._in_summary or '(train)' in line:
            print(f'     {line}', flush=True)


def _read(work_dir: Path) -> Run:
    files = read_run_folder(work_dir)
    if files.evidence is None:
        raise EvidenceError(
            f'{work_dir}: expected the evidence of GPUEfficiencyHook, found none; is '
            'the hook in the config?'
        )
    return Run.read(files.evidence)
