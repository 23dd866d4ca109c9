"""``mmgpu verify``: measures how much a change of settings gains."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, trials
from mmgpu_hooks.commands.output import print_answer, warner
from mmgpu_hooks.commands.read_runs import find_config, find_run
from mmgpu_hooks.config.comparison import ConfigDifference, compare_configs
from mmgpu_hooks.config.kept_results import find_kept_results
from mmgpu_hooks.config.loading import FlatConfig, RefusedError
from mmgpu_hooks.config.overrides import override_settings
from mmgpu_hooks.config.settings import parse_assignments
from mmgpu_hooks.experiment.store import digest_config, open_store, read_identity
from mmgpu_hooks.experiment.verify import VerifyPlan
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.host_memory import limit_to_memory
from mmgpu_hooks.recommend.pairs import pair_settings, sum_predicted_gain
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.recommend.settings import BY_NAME
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.judged import Verification
from mmgpu_hooks.schema.text import Text, listed, phrase
from mmgpu_hooks.schema.tried import SIDES, TrialSpec
from mmgpu_hooks.show.document import to_json
from mmgpu_hooks.show.experiments import describe_metric_check, describe_verify

_CONFIGS = ('.py', '.yaml', '.yml')


@dataclass(frozen=True)
class _Side:
    """One of two trainings to compare: its config, and the settings changed in it."""

    config: Path
    loaded: FlatConfig
    """Loaded config of the training, before the settings are changed."""
    settings: Mapping[str, Any]
    """Settings to change in the loaded config, by dotted key."""

    @property
    def workers(self) -> int:
        own = self.loaded.get(('train_dataloader', 'num_workers'))
        workers = self.settings.get(BY_NAME['num_workers'].key(), own)
        # anything else ends the training, with a reason
        return workers if isinstance(workers, int) else 0


@dataclass(frozen=True)
class _Known:
    """Facts known before two trainings are compared, such as differing settings."""

    before: Mapping[str, Any]
    """Settings of the first training that differ in the second, by dotted key."""
    after: Mapping[str, Any]
    before_config: str
    after_config: str
    predicted_gain: float | None = None
    """Predicted gain of the second training in images/s (0.1: 10 %), if predicted."""
    batches_per_epoch: int | None = None
    """Batches per epoch of the recorded run; ``None`` unless its advice is verified."""
    other_work: tuple[str, ...] = ()
    untrained: tuple[str, ...] = ()
    notes: tuple[Text, ...] = ()

    def add_to(self, measured: Verification, folder: Path) -> Verification:
        """Returns a comparison's measured result with settings and prediction added.

        Args:
            measured: What the trainings showed.
            folder: With their logs.
        """
        before, after = measured.batches_per_epoch, measured.after_batches_per_epoch
        if self.batches_per_epoch is not None:
            before = after = self.batches_per_epoch
        return replace(
            measured,
            before=self.before,
            after=self.after,
            before_config=self.before_config,
            after_config=self.after_config,
            predicted_gain=self.predicted_gain,
            batches_per_epoch=before,
            after_batches_per_epoch=after,
            other_work=self.other_work,
            untrained=self.untrained,
            notes=(*self.notes, *measured.notes),
            folder=str(folder),
        )


@dataclass(frozen=True)
class _Trainings:
    """Two trainings that a verification compares, with facts known before they run."""

    sides: tuple[_Side, _Side]
    parent: Path
    """Path of the folder that gets a subfolder for the two compared trainings."""
    known: _Known
    keeps_hook: bool = False
    cpus: int | None = None
    """CPUs per rank of the run to verify; ``None`` if unknown, or without a run."""

    def count_cpus(self) -> int:
        """Returns how many CPUs to request: the run's per rank, or workers plus one."""
        return self.cpus or max(side.workers for side in self.sides) + 1


def _count_cpus(given: Mapping[str, Any]) -> int:
    """Returns the CPUs to request from SLURM, by the arguments of ``mmgpu verify``."""
    names = ('targets', 'assignments', 'config')
    words = (given[name] for name in names)
    return _read_job(*words, allow_equal=given['allow_equal']).count_cpus()


@options.command('verify', '0 measured (after Ctrl-C the same command goes on)')
@click.argument(
    'targets',
    type=options.PATH,
    nargs=-1,
    required=True,
    metavar='RUN_FOLDER|CONFIG [CONFIG]',
)
@options.assignments
@click.option(
    '--config',
    type=options.PATH,
    help='Config to train in the place of the one that the run of RUN_FOLDER used.',
)
@options.work_dir(
    'Logs go to DIR/verify; by default to the folder of the run, or the work_dir of '
    'the (first) config.'
)
@click.option(
    '--max-minutes',
    type=options.above_0(phrase('minutes above 0')),
    default=5.0,
    metavar='MINUTES',
    help='Time budget, the start of the trainings included.',
)
@options.flag('--allow-equal', 'Train both even where nothing differs.')
@options.fresh
@options.slurm(_count_cpus)
@options.as_format
def verify(
    targets: Sequence[Path],
    assignments: Sequence[str],
    config: Path | None,
    work_dir: Path | None,
    max_minutes: float,
    allow_equal: bool,
    fresh: bool,
    form: str,
) -> int:
    """Train two settings in turns and measure the gain.

    With RUN_FOLDER, the work_dir of a run, its settings and the recommended ones are
    trained, and the answer has what was predicted. With two configs, these two are
    trained. With --set, the config (of the run) is trained as it is, and with these
    settings.

    Both train in short alternating blocks, so that the machine is the same for both.
    """
    job = _read_job(targets, assignments, config, allow_equal=allow_equal)
    folder = ((work_dir or job.parent) / 'verify').absolute()
    before, after = (
        TrialSpec(
            os.path.abspath(side.config),
            str(folder / name),
            side.settings,
            keeps_hook=job.keeps_hook,
        )
        for name, side in zip(SIDES, job.sides)
    )
    first, second = job.sides
    plan = VerifyPlan(
        (before, after), (first.workers, second.workers), 60 * max_minutes
    )
    identity = read_identity(
        first.loaded,
        settings=[first.settings, second.settings],
        **{'second config': digest_config(second.loaded)},
    )
    with open_store(folder, identity, fresh=fresh) as store:
        outcome = trials.train(plan, store, max_seconds=plan.budget_s)
        if outcome.is_interrupted:
            warner('verify')(phrase('stopped; the same command goes on from there.'))
            return exit_codes.INTERRUPTED
        measured = plan.finish(outcome)
        # a finished measurement is printed; the same command starts anew
        store.clear()
    answer = job.known.add_to(measured, folder)
    answer = replace(answer, notes=(*answer.notes, *_check_metric(first.loaded)))
    print_answer(answer, form, describe_verify, lambda found: to_json(**vars(found)))
    return exit_codes.OK


def _check_metric(loaded: FlatConfig) -> list[Text]:
    """Compares FastCocoMetric with CocoMetric on a validation's saved result files."""
    kept = find_kept_results(loaded)
    if kept is None:
        return []
    notes = []
    for kind, path in kept.files.items():
        try:
            # late: it imports MMDetection
            from mmgpu_hooks.optimize.metric_check import check_metric

            check = check_metric(kept.annotations, path, kind)
        except Exception as error:  # noqa: BLE001 - a file of the user's, or an alpha
            reason = ' '.join(f'{type(error).__name__}: {error}'.split())[:200]
            notes.append(
                phrase(
                    '{path}: the COCO metrics could not be compared ({reason}).',
                    path=path,
                    reason=reason,
                )
            )
            continue
        notes.append(describe_metric_check(str(path), check))
    return notes


def _read_job(
    targets: Sequence[Path],
    assignments: Sequence[str],
    config: Path | None,
    *,
    allow_equal: bool,
) -> _Trainings:
    """Returns the two trainings to compare, by the arguments of ``mmgpu verify``.

    Raises:
        UserError: If they do not belong together, or name nothing that can be trained.
    """
    first, *more = targets
    is_config = not first.is_dir() and first.suffix in _CONFIGS
    if len(more) > 1:
        raise UserError(
            phrase(
                'expected the folder of a run, a config or two configs, found '
                '{targets_count!s} paths.',
                targets_count=len(targets),
            )
        )
    if more and assignments:
        raise UserError(
            phrase(
                'expected two configs or --set, found both; --set changes one config '
                'in memory, so name that one alone.'
            )
        )
    if config is not None and (more or is_config):
        raise UserError(
            phrase(
                'expected --config beside the folder of a run, found it beside a '
                'config; leave it out.'
            )
        )
    if more:
        return _read_configs(first, more[0], allow_equal=allow_equal)
    if is_config:
        loaded = trials.read_trainable_config(first)
        if not assignments:
            raise UserError(
                phrase(
                    '{first}: expected something to compare this config with, found '
                    'nothing; name a second config, or a setting: --set KEY=VALUE.',
                    first=first,
                )
            )
        parent = trials.choose_folder(None, loaded, first, '')
        return _read_settings(
            first, loaded, assignments, parent, allow_equal=allow_equal
        )
    found = find_run(first)
    files, run = found.files, found.run
    parent = first if first.is_dir() else first.parent
    if not assignments:
        return _read_recommendation(first, run, config or files.config_copy, parent)
    config = config or files.config_copy or find_config(run, None)
    job = _read_settings(
        config,
        trials.read_trainable_config(config),
        assignments,
        parent,
        allow_equal=allow_equal,
    )
    notes = (*_note_ranks(run), *job.known.notes)
    known = replace(job.known, notes=notes)
    return replace(job, known=known, cpus=_find_cpus(run))


def _read_recommendation(
    folder: Path, run: Run, config: Path | None, parent: Path
) -> _Trainings:
    """Returns a run's training unchanged and as recommended, to be compared."""
    recommendation = limit_to_memory(recommend_settings(run), run)
    settings = pair_settings(run, recommendation)
    if settings is None:
        reason = recommendation.reason or phrase('No change of the train loader.')
        raise UserError(
            phrase(
                '{folder}: expected a recommendation to verify, found none. {reason}',
                folder=folder,
                reason=reason,
            )
        )
    # the run's own copy holds --cfg-options too
    config = config or find_config(run, None)
    loaded = trials.read_trainable_config(config)
    before, after = settings
    known = _Known(
        before=before,
        after=after,
        before_config=str(config),
        after_config=str(config),
        predicted_gain=sum_predicted_gain(run, recommendation),
        batches_per_epoch=run.meta.loader.batches_per_epoch,
        notes=_note_ranks(run),
    )
    sides = (_Side(config, loaded, before), _Side(config, loaded, after))
    return _Trainings(sides, parent, known, cpus=_find_cpus(run))


def _find_cpus(run: Run) -> int | None:
    """Returns the CPUs a run had per rank, ignoring srun's narrower CPU binding."""
    host = run.meta.host
    cores = host.mended_cores or host.usable_cores
    return None if cores is None else max(math.ceil(cores), 1)


def _note_ranks(run: Run) -> tuple[Text, ...]:
    ranks = run.meta.world_size
    if ranks == 1:
        return ()
    return (
        phrase(
            'The run had {ranks} and this is one of them alone: cores that the others '
            'would use are free here.',
            ranks=ranks,
        ),
    )


def _read_configs(first: Path, second: Path, *, allow_equal: bool) -> _Trainings:
    """Returns the trainings of two configs, to be compared."""
    for path in (first, second):
        if path.is_dir():
            raise UserError(
                phrase(
                    '{path}: expected a config beside another one, found a folder; '
                    '"mmgpu compare" compares two runs, "mmgpu verify" with one run '
                    'measures what is recommended.',
                    path=path,
                )
            )
    old, new = map(trials.read_trainable_config, (first, second))
    difference = compare_configs(old, new)
    both = phrase('{first} and {second}', first=first, second=second)
    _expect_difference(both, difference, allow_equal=allow_equal)
    sides = (_Side(first, old, {}), _Side(second, new, {}))
    parent = trials.choose_folder(None, old, first, '')
    known = _know_difference(sides, difference)
    return _Trainings(sides, parent, known, difference.is_of_our_hook)


def _read_settings(
    path: Path,
    loaded: FlatConfig,
    assignments: Sequence[str],
    parent: Path,
    *,
    allow_equal: bool,
) -> _Trainings:
    """Returns a config's training unchanged and with new settings, to be compared."""
    wanted = parse_assignments(assignments)
    try:
        override = override_settings(path, loaded, wanted)
    except RefusedError as refusal:
        raise UserError(
            phrase('{path}: {refusal}', path=path, refusal=refusal.said)
        ) from refusal
    trials.expect_training(path, override.config)
    difference = compare_configs(loaded, override.config)
    changed = phrase('{path} with {keys:&}', path=path, keys=tuple(wanted))
    _expect_difference(changed, difference, allow_equal=allow_equal)
    sides = (_Side(path, loaded, {}), _Side(path, loaded, override.changes))
    notes = tuple(
        phrase(
            '{key} was not in the config: it does nothing unless what is built there '
            'takes it.',
            key=key,
        )
        for key in override.unknown
    )
    known = replace(_know_difference(sides, difference), notes=notes)
    return _Trainings(sides, parent, known, difference.is_of_our_hook)


def _know_difference(
    sides: tuple[_Side, _Side], difference: ConfigDifference
) -> _Known:
    """Returns a `_Known` with the settings in which two configs to compare differ."""
    before, after = sides
    return _Known(
        before=difference.before,
        after=difference.after,
        before_config=str(before.config),
        after_config=str(after.config),
        other_work=difference.other_work,
        untrained=difference.untrained,
    )


def _expect_difference(
    name: str, difference: ConfigDifference, *, allow_equal: bool
) -> None:
    """Raises a `UserError` if no difference between two configs affects how they train.

    Raises:
        UserError: If nothing differs that is trained, and it was not asked for.
    """
    if allow_equal or difference.before or difference.after:
        return
    found = phrase('that nothing differs')
    if difference.untrained:
        only, count = listed(difference.untrained[:3]), len(difference.untrained)
        if count > 3:
            only = phrase('{keys} and {more} more', keys=only, more=count - 3)
        found = phrase(
            'only {keys}, and these trainings neither validate nor save nor resume',
            keys=only,
        )
    raise UserError(
        phrase(
            '{name}: expected a difference to measure, found {found}; --allow-equal '
            'trains both all the same, which shows the noise of this machine.',
            name=name,
            found=found,
        )
    )
