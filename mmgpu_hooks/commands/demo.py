"""``mmgpu demo``: train, judge, rewrite, train again, compare. All of it real."""

from __future__ import annotations

from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options
from mmgpu_hooks.commands.output import print_sections
from mmgpu_hooks.commands.recommend import rewrite_judged
from mmgpu_hooks.commands.runs import judge_runs, read_run
from mmgpu_hooks.commands.trials import read_trainable_config
from mmgpu_hooks.config.outcome import Options
from mmgpu_hooks.experiment.demo import NAMES, DemoPlan
from mmgpu_hooks.experiment.demo_dataset import DEMO_SPEC, write_demo_dataset
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.trial import LOG_NAME
from mmgpu_hooks.schema import Trial
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.comparison import describe_demo, images_per_second
from mmgpu_hooks.show.recommendation import describe_answer

_DATA_ROOT = Path('data/demo')
"""As in the configs of the demo."""
_ONE_THREAD = {'OMP_NUM_THREADS': '1', 'MKL_NUM_THREADS': '1'}
"""On a CPU the step would take every core; on a GPU it leaves them to the loader."""


@options.command('demo', '0 the recommended setting was faster, 1 not')
@options.config_argument
@click.option('--work-dir', type=options.PATH, default='work_dirs/demo', metavar='DIR')
@click.option(
    '--images',
    type=options.COUNT,
    default=DEMO_SPEC.images,
    help='Size of the data set.',
)
def demo(config: Path, work_dir: Path, images: int) -> int:
    """Show the whole way on a small data set.

    Writes camera-sized JPEG files, trains a detector on them with a poor loader
    setting, recommends a better one, trains that for as long, and compares.
    """
    # before the data set is written
    read_trainable_config(config)
    width, height = DEMO_SPEC.width, DEMO_SPEC.height
    _say(f'1/5  Data set: {images} JPEG files of {width} x {height} pixels')
    data = write_demo_dataset(_DATA_ROOT, images=images, width=width, height=height)
    done = 'reused' if data.reused else 'written'
    print(f'     {done}: {data.root}, {data.image_bytes / 1e6:.0f} MB')
    _say(f'2/5  Train {config}')
    print('     The step gets one CPU thread, as a GPU would leave the CPU free.')
    plan = DemoPlan(config=str(config), folder=work_dir, rewrite=_recommend)
    outcome = run_plan(plan, environ=_ONE_THREAD, on_progress=_LogTail(work_dir))
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
        return exit_codes.NO
    _say('5/5  Before and after')
    before, after = (read_run(work_dir / name).run for name in NAMES)
    print_sections(describe_demo(before, after))
    print(f'\nOpen it:  tensorboard --logdir {work_dir}')
    old, new = images_per_second(before) or 0.0, images_per_second(after) or 0.0
    return exit_codes.OK if new > old else exit_codes.NO


def _recommend(trial: Trial) -> str | None:
    """Recommend from the first training; the config that was written, if any."""
    _say(f'3/5  mmgpu recommend {trial.folder}')
    answer = rewrite_judged(
        judge_runs([Path(trial.folder)]), Options(is_rate_explained=True)
    )
    print_sections(describe_answer(answer))
    if answer.error is not None:
        raise UserError(answer.error)
    if answer.output is not None:
        _say(f'4/5  Train {answer.output}')
    return answer.output


def _say(line: str) -> None:
    print(f'\n{line}', flush=True)


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
