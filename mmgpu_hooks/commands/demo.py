"""``mmgpu demo``: train, judge, rewrite, train again, compare. All of it real."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from mmgpu_hooks.commands import exit_codes, recommend
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.experiment.demo import NAMES, DemoPlan
from mmgpu_hooks.experiment.demo_dataset import DEMO_SPEC, write_demo_dataset
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.trial import LOG_NAME, read_trial_run
from mmgpu_hooks.schema import Trial
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.comparison import render_demo
from mmgpu_hooks.show.recommendation import render_text
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
    except UserError as error:
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

    _say(f'2/5  Train {arguments.config}')
    print('     The step gets one CPU thread, as a GPU would leave the CPU free.')
    folder = arguments.work_dir
    plan = DemoPlan(config=str(arguments.config), folder=folder, rewrite=_recommend)
    outcome = run_plan(plan, environ=ONE_THREAD, on_progress=_LogTail(folder))
    if outcome.is_interrupted:
        return exit_codes.INTERRUPTED
    for trial in outcome.trials:
        if trial.error is not None:
            raise UserError(
                f'expected a training that completes, found {trial.error}; the whole '
                f'output is in {Path(trial.folder, LOG_NAME)}.'
            )
    if len(outcome.trials) < len(NAMES):
        print('\nThe loader keeps up on this machine, so there is nothing to compare.')
        return exit_codes.NOT_FASTER

    _say('5/5  Before and after')
    before, after = (read_trial_run(folder / name) for name in NAMES)
    if before is None or after is None:
        raise UserError(
            f'{folder}: expected the evidence of GPUEfficiencyHook, found none; is '
            'the hook in the config?'
        )
    print(render_demo(before, after, **terminal_layout(sys.stdout)))
    print(f'\nOpen it:  tensorboard --logdir {folder}')
    old, new = images_per_second(before) or 0.0, images_per_second(after) or 0.0
    return exit_codes.OK if new > old else exit_codes.NOT_FASTER


def _recommend(trial: Trial) -> str | None:
    """Recommend from the first training; the config that was written, if any."""
    _say(f'3/5  mmgpu recommend {trial.folder}')
    parser = argparse.ArgumentParser()
    recommend.add_arguments(parser)
    answer = recommend.recommend_run(parser.parse_args([trial.folder]))
    print(render_text(answer, **terminal_layout(sys.stdout)))
    if answer.error is not None:
        raise UserError(answer.error)
    if answer.output is not None:
        _say(f'4/5  Train {answer.output}')
    return answer.output


def _say(line: str) -> None:
    load = f'load {os.getloadavg()[0]:.1f}' if hasattr(os, 'getloadavg') else ''
    print(f'\n{line}  {load}'.rstrip(), flush=True)


class _LogTail:
    """Prints what a reader wants to see of a training's output, as it comes.

    Args:
        folder: Of the trainings.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder
        self._offset = 0
        self._is_summary = False

    def __call__(self, words: str, share: float) -> None:
        path = self._folder / NAMES[share > 0] / LOG_NAME
        if path != self._path:
            self._path, self._offset = path, 0
        with path.open('rb') as log:
            log.seek(self._offset)
            whole, newline, _ = log.read().rpartition(b'\n')
        self._offset += len(whole) + len(newline)
        for line in whole.decode('utf-8', 'replace').splitlines():
            if 'GPUEfficiencyHook' in line and ' - ' in line:
                self._is_summary = True
            elif not line.startswith('  '):
                self._is_summary = False
            if self._is_summary or '(train)' in line:
                print(f'     {line}', flush=True)
