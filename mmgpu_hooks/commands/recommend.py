"""``mmgpu recommend``: from a run's evidence to a rewritten config."""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes
from mmgpu_hooks.commands.options import PATH, command, flag, run_folders_argument
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.rewriting import CODES, target_options
from mmgpu_hooks.commands.runs import JudgedRun, judge_runs
from mmgpu_hooks.config.drift import read_drift, read_learning_rate
from mmgpu_hooks.config.outcome import Options, RewriteOutcome
from mmgpu_hooks.config.rewrite import rewrite_recommended
from mmgpu_hooks.experiment.training import TrainingError, find_train_script
from mmgpu_hooks.recommend.batch_size import BATCH_KEY, phrase_learning_rate
from mmgpu_hooks.recommend.save_cures import with_keys_set
from mmgpu_hooks.recommend.validation import leave_validation
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.figures import short_path
from mmgpu_hooks.show.recommendation import Answer, render_json, render_text
from mmgpu_hooks.show.rewriting import render_once


@command('recommend', CODES)
@run_folders_argument
@flag(
    '--allow-batch-size',
    'Recommend another batch size, too, where runs with several tell its memory '
    'and its speed.',
)
@click.option(
    '--config', type=PATH, help='Config to rewrite; by default the one the run used.'
)
@flag(
    '--details',
    'Print the time ledger, the loader, memory, saves, ranks, the host, all '
    'findings and all advice, too.',
)
@target_options(in_place=True)
def recommend(
    run_folders: tuple[Path, ...],
    allow_batch_size: bool,
    config: Path | None,
    details: bool,
    output: Path | None,
    in_place: bool,
    dry_run: bool,
    check: bool,
    form: str,
) -> int:
    """Say where the time of a run went, and rewrite its config.

    RUN_FOLDER is the work_dir of a training; its newest run is read. Of several the
    newest is judged, and others with other batch sizes serve --allow-batch-size. The
    config with better dataloader settings is written beside the original, as
    NAME_recommended.py.
    """
    options = Options(output, in_place, dry_run or check, is_rate_told=True)
    judged = judge_runs(run_folders, allow_batch_size=allow_batch_size)
    answer = rewrite_judged(judged, options, config)

    def render(answer: Answer, **layout: Any) -> str:
        return render_text(answer, details=details, **layout)

    print_answer(answer, form, render, render_json)
    if answer.error is not None:
        raise UserError(answer.error)
    return exit_codes.NO if check and answer.recommendation.changes else exit_codes.OK


def recommend_run(folders: Sequence[Path]) -> Answer:
    """Judge, recommend and write the config beside the original, without a word.

    Raises:
        EvidenceError: If there is nothing that can be judged.
    """
    return rewrite_judged(judge_runs(folders), Options(is_rate_told=True))


def rewrite_judged(
    judged: JudgedRun, options: Options, config: Path | None = None
) -> Answer:
    """Rewrite the config, or say in the answer why it was refused.

    Args:
        judged: What is recommended.
        options: Where the result goes.
        config: To rewrite. Defaults to the one that the run used.
    """
    answer, copy = judged.answer, judged.files.config_copy
    if not answer.recommendation.changes:
        return answer
    note = None
    if config is None:
        config, note = _choose_config(judged.run_config, copy)
    if config is None:
        return replace(answer, error=note)
    answer = _with_learning_rate(answer, config)
    # before the rewrite, which may edit this very file
    drift = read_drift(config, copy) if copy is not None and config != copy else None
    answer, outcome, left_out = _rewrite_what_can_be(
        answer, lambda settings: rewrite_recommended(config, settings, options)
    )
    notes = [note, left_out, drift if outcome.proven else None, *outcome.notes]
    answer = replace(
        answer,
        config=str(config),
        diff=outcome.diff,
        notes=(*answer.notes, *filter(None, notes)),
        cfg_options=render_once(outcome),
    )
    if outcome.reason is not None:
        return replace(answer, error=outcome.reason)
    if outcome.status == 'unchanged':
        return _unchanged(answer, outcome)
    cured = with_keys_set(answer.recommendation, outcome.changes)
    answer = replace(answer, recommendation=cured)
    if options.dry_run:
        return answer
    target = short_path(outcome.target)
    return replace(
        answer,
        output=target,
        backup=short_path(outcome.backup),
        train_command=_train_command(target),
    )


def _unchanged(answer: Answer, outcome: RewriteOutcome) -> Answer:
    """The answer without changes, since the config has them or cannot take them."""
    reason = f'{outcome.source} has the recommended settings already.'
    answer = _without_validation(answer, reason)
    if outcome.notes:
        reason = f'Nothing of it can be set in {outcome.source}.'
    already = replace(answer.recommendation, changes=(), reason=reason)
    return replace(answer, recommendation=already)


def _rewrite_what_can_be(
    answer: Answer, rewrite: Callable[[dict[str, Any]], RewriteOutcome]
) -> tuple[Answer, RewriteOutcome, str | None]:
    """Rewrite without validation's loader where the config cannot take its changes.

    Returns:
        The answer with what was set, the outcome and, when something was left out, why.
    """
    outcome = rewrite(_settings(answer))
    rest = _without_validation(answer, 'This config cannot take its changes.')
    if outcome.status == 'refused' and rest is not answer and _settings(rest):
        retried = rewrite(_settings(rest))
        if retried.status != 'refused':
            return rest, retried, f'val_dataloader was left out. {outcome.reason}.'
    return answer, outcome, None


def _settings(answer: Answer) -> dict[str, Any]:
    return {change.key: change.new for change in answer.recommendation.changes}


def _without_validation(answer: Answer, why: str) -> Answer:
    """The answer without changes of validation's loader; itself where it has none."""
    if answer.summary is None:
        return answer
    found = answer.recommendation
    kept = leave_validation(found, answer.summary, why)
    return answer if kept == found else replace(answer, recommendation=kept)


def _with_learning_rate(answer: Answer, config: Path) -> Answer:
    """Add what a new batch size means for the learning rate of the config."""
    changes = answer.recommendation.changes
    change = next((one for one in changes if one.key == BATCH_KEY), None)
    if change is None or answer.summary is None:
        return answer
    run = answer.summary.run
    said = phrase_learning_rate(
        read_learning_rate(config),
        change.old,
        change.new,
        run.world_size,
        is_iter_based=run.loop == 'iter',
    )
    together = (*answer.recommendation.batch_size, *said)
    return replace(
        answer, recommendation=replace(answer.recommendation, batch_size=together)
    )


def _choose_config(
    run_config: Path | None, copy: Path | None
) -> tuple[Path | None, str | None]:
    """The file to rewrite and, when it is not the obvious one, a note."""
    # not Path.is_file, which raises where a folder may not be entered
    if run_config is not None and os.path.isfile(run_config):
        return Path(short_path(run_config) or run_config), None
    if copy is not None:
        gone = f'{run_config} is gone' if run_config else 'the run names no config file'
        return copy, f"{gone}, so the run's own copy was rewritten."
    return None, (
        f'expected the config of the run, found neither {run_config or "its path"} nor '
        "a copy in the run's folder; name it with --config."
    )


def _train_command(config: str | None) -> str | None:
    """How to train here: the checkout's own script, or the one MMDetection brings."""
    if config is None:
        return None
    script: str | None = 'tools/train.py'
    if not os.path.isfile('tools/train.py'):
        with contextlib.suppress(TrainingError):
            script = short_path(find_train_script())
    return f'python {shlex.quote(script or "")} {shlex.quote(config)}'
