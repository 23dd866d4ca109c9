"""``mmgpu verify``: what a change of settings really gives."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.runs import find_evidence
from mmgpu_hooks.experiment.store import digest_config, open_store, read_identity
from mmgpu_hooks.experiment.verify import VerifyPlan
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.changes import WORKERS_KEY
from mmgpu_hooks.recommend.policy import (
    pair_settings,
    recommend_settings,
    sum_predicted_gain,
)
from mmgpu_hooks.schema import TrialSpec
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show import experiments as show


@dataclass(frozen=True)
class _Job:
    """Two configs, or one with two settings of a run."""

    configs: Sequence[Path]
    folder: Path
    settings: Sequence[Mapping[str, Any]] = ({}, {})
    run: Run | None = None
    predicted_gain: float | None = None


@options.command('verify', '0 measured (after Ctrl-C the same command goes on)')
@click.argument(
    'runs', type=options.PATH, nargs=-1, required=True, metavar='RUN|CONFIG CONFIG'
)
@click.option(
    '--config',
    type=options.PATH,
    help='Config to train; by default the one the run used.',
)
@options.work_dir('Where logs go; by default the folder of the run, or work_dirs.')
@click.option(
    '--max-minutes',
    type=options.above_0('minutes'),
    default=5.0,
    metavar='MINUTES',
    help='Time budget, the start of the trainings included.',
)
@options.fresh
@options.as_format
def verify(
    runs: Sequence[Path],
    config: Path | None,
    work_dir: Path | None,
    max_minutes: float,
    fresh: bool,
    form: str,
) -> int:
    """Train two settings in turns and measure the gain.

    Trains the settings of a run (its work_dir) and the recommended ones, or two
    configs, in short alternating blocks, and says what the change really gives, beside
    what was predicted.
    """
    job = _read_job(runs, config)
    folder = ((work_dir or job.folder) / 'verify').absolute()
    specs, workers = [], []
    loaded = [trials.read_trainable_config(path) for path in job.configs]
    sides = zip(('first', 'second'), job.configs, loaded, job.settings)
    for name, path, content, settings in sides:
        own = content.get(('train_dataloader', 'num_workers'), 0)
        found = settings.get(WORKERS_KEY, own)
        if not isinstance(found, int):
            raise UserError(f'{path}: expected a number of workers, found {found!r}.')
        workers.append(found)
        specs.append(TrialSpec(os.path.abspath(path), str(folder / name), settings))
    plan = VerifyPlan((specs[0], specs[1]), (workers[0], workers[1]), 60 * max_minutes)
    facts = {'second config': digest_config(loaded[1])}
    identity = read_identity(loaded[0], settings=[*job.settings], **facts)
    with open_store(folder, identity, fresh=fresh) as store:
        outcome = trials.train(plan, store, 'verify', max_seconds=plan.budget_s)
        if outcome.is_interrupted:
            warner('verify')('stopped; the same command goes on from there.')
            return exit_codes.INTERRUPTED
        measured = plan.finish(outcome)
        # what is whole is printed, and not gone on with
        store.clear()
    notes = (*_caveats(job.run), *measured.notes)
    first, second = (
        one or {'config': str(path)} for one, path in zip(job.settings, job.configs)
    )
    answer = show.VerifyAnswer(
        replace(measured, predicted_gain=job.predicted_gain, notes=notes),
        first,
        second,
        str(folder),
        job.run.run.loader.batches_per_epoch if job.run else None,
    )
    print_answer(answer, form, show.describe_verify, show.render_verify_json)
    return exit_codes.OK


def _read_job(runs: Sequence[Path], config: Path | None) -> _Job:
    are_configs = [path.suffix == '.py' for path in runs]
    if len(runs) == 2 and all(are_configs) and config is None:
        return _Job(runs, Path('work_dirs'))
    if len(runs) != 1 or any(are_configs):
        found = ' '.join([*map(str, runs), *(['--config'] if config else [])])
        raise UserError(
            f'expected the folder of one run or two configs, found {found}; train '
            'once with GPUEfficiencyHook, or name a second config.'
        )
    (path,) = runs
    evidence = find_evidence(path)
    run = Run.read(evidence)
    recommendation = recommend_settings(run)
    settings = pair_settings(run, recommendation)
    if settings is None:
        reason = recommendation.reason or 'No change of the train loader.'
        raise UserError(
            f'{path}: expected a recommendation to verify, found none. {reason}'
        )
    # its own copy holds --cfg-options too
    copy, named = evidence.with_name('config.py'), run.run.config_path
    if config is None:
        files = [file for file in (copy, named) if file and os.path.isfile(file)]
        if not files:
            raise UserError(
                f'expected the config of the run, found neither {named or "its path"} '
                "nor a copy in the run's folder; name it with --config."
            )
        config = Path(files[0])
    return _Job(
        (config, config),
        path if path.is_dir() else path.parent,
        settings,
        run,
        sum_predicted_gain(run, recommendation),
    )


def _caveats(run: Run | None) -> list[str]:
    if run is None:
        return []
    notes, ranks = [], run.run.world_size
    if ranks > 1:
        notes.append(
            f'The run had {ranks} ranks and this is one of them alone: cores that the '
            'others would use are free here.'
        )
    here, there = os.cpu_count(), run.run.host.logical_cpus
    if there not in (None, here):
        notes.append(
            f'The run was on a host of {there} CPUs and this one has {here}: the gain '
            'is that of this host.'
        )
    return notes
