"""``mmgpu sweep``: measures which combination of settings is fastest.

Keys:
    config (str): The config that was trained.
    folder (str): Trials and page.
    page (str): The page with the pictures.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.setting_options import SWITCH, read_asked, setting_options
from mmgpu_hooks.config.files import verify_output, write_atomic
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.experiment import sweep as plans
from mmgpu_hooks.experiment.cards import count_cards
from mmgpu_hooks.experiment.store import open_store, read_identity
from mmgpu_hooks.model.workload import DEFAULT_PREFETCH
from mmgpu_hooks.recommend.settings import SETTINGS
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tried import Sweep
from mmgpu_hooks.show import experiments as show
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.page import render_sweep_page
from mmgpu_hooks.show.text import short_path
from mmgpu_hooks.show.words import say

PAGE_NAME = 'sweep.html'
"""File name of the HTML page in the sweep's folder."""

BATCH_SIZE_KEY = ('train_dataloader', 'batch_size')
PREFETCH_KEY = ('train_dataloader', 'prefetch_factor')


def _count_cpus(given: Mapping[str, Any]) -> int:
    """Returns the CPUs a sweep needs: the largest worker count plus one, per GPU."""
    trials.read_trainable_config(given['config'])
    most: int = max(given['num_workers'])
    gpus: int = max(given['gpus'], default=1)
    return (most + 1) * gpus


@options.command('sweep', '0 measured (after Ctrl-C the same command goes on)')
@options.config_argument
@setting_options(
    "by default the config's",
    {'num_workers': (0, 1, 2, 4, 8)},
    num_workers='Numbers of loader workers.',
    persistent_workers='Workers that live through all epochs; by default they do.',
    worker_nice='Niceness of the workers; by default none where saves are measured.',
)
@options.several('--amp', SWITCH, "Mixed precision; by default the config's.")
@options.several(
    '--gpus', options.WholeNumber(1, 1024), 'Processes, one a GPU, started by torchrun.'
)
@click.option(
    '--saves',
    type=options.WholeNumber(0, 100),
    default=2,
    help='Checkpoints to save at the end of each training; one more is made before.',
)
@click.option(
    '--seconds',
    type=options.SECONDS,
    default=60.0,
    metavar='SECONDS',
    help='Time to measure each after its warm-up; it ends earlier when its interval is '
    'within 3 %.',
)
@options.time_limit
@options.work_dir("Results go to DIR/sweep; by default to the config's work_dir.")
@options.fresh
@options.slurm(_count_cpus)
@options.as_format
def sweep(
    config: Path,
    amp: Sequence[str],
    gpus: Sequence[int],
    saves: int,
    seconds: float,
    time_limit: float,
    work_dir: Path | None,
    fresh: bool,
    form: str,
    **given: Any,
) -> int:
    """Train a config for a short while with each combination of settings.

    In random order; says what an iteration takes, waits for and needs. Writes
    DIR/sweep/sweep.html: memory, utilisation over time, speed and saves as pictures.
    """
    loaded = trials.read_trainable_config(config)
    _refuse_without_cards(amp, gpus)
    _refuse_other_wrappers(config, loaded, amp)
    own, ahead = (
        value if isinstance(value, int) else None
        for value in map(loaded.get, (BATCH_SIZE_KEY, PREFETCH_KEY))
    )
    asked = read_asked(given)
    asked['batch_size'] = asked['batch_size'] or [own]
    plan = plans.SweepPlan(
        config=os.path.abspath(config),
        folder=trials.choose_folder(work_dir, loaded, config, 'sweep'),
        settings=plans.list_settings(
            asked, amp=[word == 'on' for word in amp], gpus=gpus
        ),
        measure_s=seconds,
        whole_s=time_limit,
        lengthened=trials.lengthen(loaded),
        saves=saves,
        prefetch_factor=ahead or DEFAULT_PREFETCH,
        notes=list(_say_left_out(asked)),
    )
    page = plan.folder / PAGE_NAME
    verify_output(page)

    def render_json(answer: Sweep) -> str:
        places = {'folder': str(plan.folder), 'page': str(page)}
        return to_json(config=str(config), **places, **vars(answer))

    limits = {'--seconds': seconds, '--time-limit': time_limit, '--saves': saves}
    with open_store(plan.folder, read_identity(loaded, **limits), fresh=fresh) as store:
        answer = plan.finish(trials.train(plan, store))
    write_atomic(page, render_sweep_page(answer, config.name).encode())
    print_answer(answer, form, show.describe_sweep, render_json)
    if form == 'text':
        shown = phrase('Pictures: {page}', page=short_path(str(page)))
        print(f'\n{say(shown)}')
    return exit_codes.INTERRUPTED if answer.is_interrupted else exit_codes.OK


def _say_left_out(asked: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Returns sentences on setting combinations that a sweep skips, with reasons."""
    if 0 not in asked['num_workers']:
        return
    for setting in SETTINGS:
        # what rests without workers may be asked for as such
        refused = [value for value in asked[setting.name] if value != setting.resting]
        if setting.resting is not ... and refused:
            named = ', '.join(map(str, sorted(set(refused))))
            yield (
                phrase(
                    '0 workers with {name} {named} is not a trial: PyTorch refuses it '
                    'without workers. They were trained without it.',
                    name=setting.name,
                    named=named,
                )
            )


def _refuse_without_cards(amp: Sequence[str], gpus: Sequence[int]) -> None:
    """Raises a `UserError`, before any training, if settings need more GPUs than exist.

    Raises:
        UserError: If there are too few of them.
    """
    if not gpus and 'on' not in amp:
        return
    here = count_cards()
    most = max(gpus, default=1)
    if most > here and gpus:
        raise UserError(
            phrase(
                '--gpus: {gpus} asked, {here} here; ask for at most as many as this '
                'host has.',
                gpus=most,
                here=here,
            )
        )
    if not here:
        raise UserError(
            phrase(
                "--amp on: expected a GPU, found none: MMEngine's AmpOptimWrapper "
                'refuses to train on the CPU; leave it out, or sweep where the GPU is.'
            )
        )


def _refuse_other_wrappers(
    config: Path, loaded: FlatConfig, amp: Sequence[str]
) -> None:
    """Raises a `UserError` if AMP would go on or off in a custom optimizer wrapper.

    Raises:
        UserError: If it is neither of MMEngine's two.
    """
    kind = loaded.get(('optim_wrapper', 'type'), plans.PLAIN_WRAPPER)
    known = (plans.PLAIN_WRAPPER, plans.AMP_WRAPPER)
    name = getattr(kind, '__name__', str(kind)).rpartition('.')[2]
    if amp and name not in known:
        raise UserError(
            phrase(
                '{config}: --amp: expected {known:/} in optim_wrapper, found {name}; '
                'sweep without --amp.',
                config=config,
                known=tuple(known),
                name=name,
            )
        )
