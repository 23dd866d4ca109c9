"""``mmgpu verify``: what a change of settings really gives."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import (
    PATH,
    above_0,
    as_format,
    command,
    fresh,
    work_dir,
)
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.runs import find_evidence
from mmgpu_hooks.commands.trials import read_trainable_config, train
from mmgpu_hooks.experiment.store import digest_config, open_store, read_identity
from mmgpu_hooks.experiment.verify import VerifyPlan
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.changes import KEY
from mmgpu_hooks.recommend.policy import (
    pair_settings,
    recommend_settings,
    sum_predicted_gain,
)
from mmgpu_hooks.schema import RunRecord, TrialSpec
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run_folder import RunFiles
from mmgpu_hooks.show.verification import (
    VerifyAnswer,
    render_verify_json,
    render_verify_text,
)


@dataclass(frozen=True)
class _Job:
    """What is to be trained, and why."""

    configs: tuple[Path, Path]
    settings: tuple[Mapping[str, Any], Mapping[str, Any]]
    work_dir: Path
    run: RunRecord | None = None
    predicted_gain: float | None = None
    notes: tuple[str, ...] = ()


@command('verify', '0 measured (after Ctrl-C the same command goes on)')
@click.argument('runs', type=PATH, nargs=-1, required=True, metavar='RUN|CONFIG CONFIG')
@click.option(
    '--config', type=PATH, help='Config to train; by default the one the run used.'
)
@work_dir('Where logs go; by default the folder of the run, or work_dirs.')
@click.option(
    '--max-minutes',
    type=above_0('minutes'),
    default=5.0,
    metavar='MINUTES',
    help='Time budget, the start of the trainings included.',
)
@fresh
@as_format
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
    job = _read_job(runs, config, work_dir)
    answer = _verify(job, 60 * max_minutes, fresh=fresh)
    if answer is None:
        warner('verify')('stopped; the same command goes on from there.')
        return exit_codes.INTERRUPTED
    print_answer(answer, form, render_verify_text, render_verify_json)
    return exit_codes.OK


def _read_job(runs: Sequence[Path], config: Path | None, work_dir: Path | None) -> _Job:
    are_configs = [path.suffix == '.py' for path in runs]
    if len(runs) == 2 and all(are_configs):
        if config is not None:
            raise UserError('expected --config with a run, found it with two configs')
        return _Job((runs[0], runs[1]), ({}, {}), work_dir or Path('work_dirs'))
    if len(runs) != 1 or any(are_configs):
        found = ' '.join(map(str, runs))
        raise UserError(
            f'expected the folder of one run or two configs, found {found}; train '
            'once with GPUEfficiencyHook, or name a second config.'
        )
    (path,) = runs
    files = find_evidence(path)
    assert files.evidence is not None
    run = Run.read(files.evidence)
    recommendation = recommend_settings(run)
    settings = pair_settings(run, recommendation)
    if settings is None:
        reason = recommendation.reason or 'No change of the train loader.'
        raise UserError(
            f'{path}: expected a recommendation to verify, found none. {reason}'
        )
    config = config or _find_config(files, run.run)
    return _Job(
        (config, config),
        settings,
        work_dir or (path if path.is_dir() else path.parent),
        run.run,
        sum_predicted_gain(run, recommendation),
        tuple(_caveats(run.run)),
    )


def _find_config(files: RunFiles, run: RunRecord) -> Path:
    """What the run trained: its own copy holds ``--cfg-options`` too."""
    if files.config_copy is not None:
        return files.config_copy
    if run.config_path is not None and os.path.isfile(run.config_path):
        return Path(run.config_path)
    raise UserError(
        f'expected the config of the run, found neither {run.config_path or "its path"}'
        " nor a copy in the run's folder; name it with --config."
    )


def _caveats(run: RunRecord) -> Iterator[str]:
    if run.world_size > 1:
        yield (
            f'The run had {run.world_size} ranks and this is one of them alone: cores '
            'that the others would use are free here.'
        )
    here, there = os.cpu_count(), run.host.logical_cpus
    if there is not None and here != there:
        yield (
            f'The run was on a host of {there} CPUs and this one has {here}: the gain '
            'is that of this host.'
        )


def _verify(job: _Job, budget_s: float, *, fresh: bool) -> VerifyAnswer | None:
    """What was measured; ``None`` when it was interrupted."""
    folder = (job.work_dir / 'verify').absolute()
    loaded = [read_trainable_config(config) for config in job.configs]
    workers, specs, named = [], [], []
    sides = zip(('first', 'second'), job.configs, loaded, job.settings)
    for name, path, config, settings in sides:
        own = config.get(('train_dataloader', 'num_workers'), 0)
        found = settings.get(KEY + 'num_workers', own)
        if not isinstance(found, int):
            raise UserError(f'{path}: expected a number of workers, found {found!r}.')
        workers.append(found)
        specs.append(TrialSpec(os.path.abspath(path), str(folder / name), settings))
        named.append(dict(settings) if job.run is not None else {'config': str(path)})
    plan = VerifyPlan((specs[0], specs[1]), (workers[0], workers[1]), budget_s)
    facts = {'second config': digest_config(loaded[1])}
    identity = read_identity(loaded[0], settings=[*job.settings], **facts)
    with open_store(folder, identity, fresh=fresh) as store:
        outcome = train(plan, store, 'verify', max_seconds=plan.budget_s)
        if outcome.is_interrupted:
            return None
        measured = plan.finish(outcome)
        # what is whole is printed, and not gone on with
        store.clear()
    measured = replace(
        measured,
        predicted_gain=job.predicted_gain,
        notes=(*job.notes, *measured.notes),
    )
    epoch = job.run.loader.batches_per_epoch if job.run else None
    return VerifyAnswer(measured, named[0], named[1], str(folder), epoch)
