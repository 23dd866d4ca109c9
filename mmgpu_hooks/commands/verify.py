"""``mmgpu verify``: what a change of settings really gives."""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.progress import show_progress, warner
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.commands.trainable import add_fresh, read_trainable_config
from mmgpu_hooks.config.loading import FlatConfig
from mmgpu_hooks.experiment.engine import run_plan
from mmgpu_hooks.experiment.store import digest_config, open_store, read_identity
from mmgpu_hooks.experiment.verify import VerifyPlan
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.changes import KEY
from mmgpu_hooks.recommend.policy import recommend_settings
from mmgpu_hooks.recommend.verifiable import fold_predicted_gain, fold_settings
from mmgpu_hooks.schema import RunRecord, TrialSpec
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.show.verification import (
    VerifyAnswer,
    render_verify_json,
    render_verify_text,
)

NAME = 'verify'
HELP = 'train two settings in turns and measure the gain'
DESCRIPTION = """\
Train the settings of a run and the recommended ones (or two configs) in short
alternating blocks, and say what the change really gives, beside what was predicted."""
EPILOG = """\
exit codes: 0 measured, 2 input that cannot be used (one sentence on standard error
says why), 130 Ctrl-C: the same command goes on from there; nothing is left running"""

_FOLDER = 'verify'


@dataclass(frozen=True)
class _Job:
    """What is to be trained, and why."""

    configs: tuple[Path, Path]
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    work_dir: Path
    run: RunRecord | None = None
    predicted_gain: float | None = None
    notes: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        'runs',
        nargs='+',
        type=Path,
        metavar='RUN_OR_CONFIGS',
        help='work_dir of a training, or two configs',
    )
    parser.add_argument(
        '--config', type=Path, help='config to train (default: the one the run used)'
    )
    parser.add_argument(
        '--work-dir',
        type=Path,
        help='where logs go (default: the folder of the run, or work_dirs)',
    )
    parser.add_argument(
        '--max-minutes',
        type=_minutes,
        default=5.0,
        help='time budget, the start of the trainings included; default: %(default)g',
    )
    parser.add_argument(
        '--one-at-a-time',
        action='store_true',
        help='never hold both trainings in memory; slower',
    )
    add_fresh(parser)
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, measure, print."""
    try:
        job = _read_job(arguments)
        answer = _verify(job, arguments)
        if answer is None:
            print(
                f'mmgpu {NAME}: stopped; the same command goes on from there.',
                file=sys.stderr,
            )
            return exit_codes.INTERRUPTED
    except (UserError, EvidenceError) as error:
        print(f'mmgpu verify: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    except OSError as error:
        print(
            f'mmgpu verify: expected a folder to write to, found {error.strerror} '
            f'({error.filename}); name another with --work-dir.',
            file=sys.stderr,
        )
        return exit_codes.BAD_INPUT
    if arguments.format == 'json':
        print(render_verify_json(answer))
    else:
        print(render_verify_text(answer, **terminal_layout(sys.stdout)))
    return exit_codes.OK


def _minutes(text: str) -> float:
    minutes = float(text)
    if not (math.isfinite(minutes) and minutes > 0):
        raise argparse.ArgumentTypeError(f'expected minutes above 0, found {text}')
    return minutes


def _read_job(arguments: argparse.Namespace) -> _Job:
    runs: list[Path] = arguments.runs
    are_configs = [path.suffix == '.py' for path in runs]
    if len(runs) == 2 and all(are_configs):
        if arguments.config is not None:
            raise UserError('expected --config with a run, found it with two configs')
        work_dir = arguments.work_dir or Path('work_dirs')
        return _Job((runs[0], runs[1]), {}, {}, work_dir)
    if len(runs) != 1 or any(are_configs):
        found = ' '.join(map(str, runs))
        raise UserError(
            f'expected the folder of one run or two configs, found {found}; train '
            'once with GPUEfficiencyHook, or name a second config.'
        )
    return _read_run(runs[0], arguments)


def _read_run(path: Path, arguments: argparse.Namespace) -> _Job:
    files = read_run_folder(path)
    if files.evidence is None:
        raise UserError(
            f'{path}: expected evidence of GPUEfficiencyHook to recommend from, found '
            "only MMEngine's log; train with the hook, or give two configs."
        )
    summary = Run.read(files.evidence)
    recommendation = recommend_settings(summary)
    settings = fold_settings(summary, recommendation)
    if settings is None:
        reason = recommendation.reason or 'No change of the train loader.'
        raise UserError(
            f'{path}: expected a recommendation to verify, found none. {reason}'
        )
    config = _choose_config(arguments.config, files, summary.run)
    return _Job(
        (config, config),
        settings.before,
        settings.after,
        arguments.work_dir or (path if path.is_dir() else path.parent),
        summary.run,
        fold_predicted_gain(summary, recommendation),
        list(_caveats(summary.run)),
    )


def _choose_config(asked: Path | None, files: RunFiles, run: RunRecord) -> Path:
    """What the run trained: its own copy holds ``--cfg-options`` too."""
    if asked is not None:
        return asked
    if files.config_copy is not None:
        return files.config_copy
    if run.config_path is not None and os.path.isfile(run.config_path):
        return Path(run.config_path)
    raise UserError(
        f'expected the config of the run, found neither {run.config_path or "its path"}'
        " nor a copy in the run's folder; name it with --config."
    )


def _caveats(run: RunRecord) -> list[str]:
    notes = []
    if run.world_size > 1:
        notes.append(
            f'The run had {run.world_size} ranks and this is one of them alone: cores '
            'that the others would use are free here.'
        )
    here, there = os.cpu_count(), run.host.logical_cpus
    if there is not None and here != there:
        notes.append(
            f'The run was on a host of {there} CPUs and this one has {here}: the gain '
            'is that of this host.'
        )
    return notes


def _read_side(config: Path, settings: Mapping[str, Any]) -> tuple[FlatConfig, int]:
    """The loaded config, and the workers that it has with these settings."""
    loaded = read_trainable_config(config)
    workers = settings.get(KEY + 'num_workers')
    if workers is None:
        workers = loaded.get(('train_dataloader', 'num_workers'), 0)
    if not isinstance(workers, int):
        raise UserError(f'{config}: expected a number of workers, found {workers!r}.')
    return loaded, workers


def _verify(job: _Job, arguments: argparse.Namespace) -> VerifyAnswer | None:
    """What was measured; ``None`` when it was interrupted."""
    sides = list(zip(job.configs, (job.before, job.after)))
    (first, first_workers), (second, second_workers) = (
        _read_side(config, settings) for config, settings in sides
    )
    folder = (job.work_dir / _FOLDER).absolute()
    before, after = (
        TrialSpec(os.path.abspath(config), str(folder / name), settings)
        for (config, settings), name in zip(sides, ('first', 'second'))
    )
    plan = VerifyPlan(
        (before, after),
        (first_workers, second_workers),
        60 * arguments.max_minutes,
        arguments.one_at_a_time,
    )
    identity = read_identity(
        first,
        settings=[job.before, job.after],
        **{'second config': digest_config(second)},
    )
    with (
        open_store(folder, identity, fresh=arguments.fresh) as store,
        show_progress() as on_progress,
    ):
        outcome = run_plan(
            plan,
            store,
            max_seconds=plan.budget_s,
            on_progress=on_progress,
            on_warning=warner(NAME),
        )
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
    named = [
        dict(settings) if job.run is not None else {'config': str(config)}
        for config, settings in sides
    ]
    return VerifyAnswer(
        measured,
        named[0],
        named[1],
        str(folder),
        job.run.loader.batches_per_epoch if job.run else None,
    )
