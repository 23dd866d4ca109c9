"""``mmgpu recommend``: from a run's evidence to a rewritten config."""

from __future__ import annotations

import os
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mmgpu_hooks.commands import exit_codes, options, rewriting
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.runs import JudgedRun, judge_runs
from mmgpu_hooks.config.loading import read_drift
from mmgpu_hooks.config.outcome import Options
from mmgpu_hooks.config.rewrite import rewrite_recommended
from mmgpu_hooks.recommend.save_cures import with_keys_set
from mmgpu_hooks.recommend.validation import leave_validation
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.show.document import Section
from mmgpu_hooks.show.figures import short_path
from mmgpu_hooks.show.recommendation import Answer, describe_answer, render_json
from mmgpu_hooks.show.rewriting import render_once


@options.command('recommend', rewriting.CODES)
@options.run_folders_argument
@options.flag(
    '--allow-batch-size',
    'Recommend another batch size, too, where runs with several tell its memory '
    'and its speed.',
)
@click.option(
    '--config',
    type=options.PATH,
    help='Config to rewrite; by default the one the run used.',
)
@options.flag(
    '--details',
    'Print the time ledger, the loader, memory, saves, ranks, the host, all '
    'findings and all advice, too.',
)
@rewriting.target_options(in_place=True)
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
    target = Options(output, in_place, dry_run or check)
    judged = judge_runs(run_folders, allow_batch_size=allow_batch_size)
    answer = rewrite_judged(judged, target, config)

    def describe(answer: Answer) -> list[Section]:
        return describe_answer(answer, details=details)

    print_answer(answer, form, describe, render_json)
    if answer.error is not None:
        raise UserError(answer.error)
    return exit_codes.NO if check and answer.recommendation.changes else exit_codes.OK


def rewrite_judged(
    judged: JudgedRun, target: Options, config: Path | None = None
) -> Answer:
    """Rewrite the config, or say in the answer why it was refused.

    Args:
        judged: What is recommended.
        target: Where the result goes.
        config: To rewrite. Defaults to the one that the run used.
    """
    answer, copy = judged.answer, judged.files.config_copy
    if not answer.recommendation.changes:
        return answer
    notes: list[str | None] = []
    if config is None:
        config, note = _choose_config(judged)
        if config is None:
            return replace(answer, error=note)
        notes.append(note)
    # before the rewrite, which may edit this very file
    drift = read_drift(config, copy) if copy is not None and config != copy else None
    outcome = rewrite_recommended(config, _settings(answer), target)
    if outcome.status == 'refused':
        # what is right for training is not lost for validation's loader
        rest = _without_validation(answer, 'This config cannot take its changes.')
        settings = _settings(rest)
        if settings and settings != _settings(answer):
            again = rewrite_recommended(config, settings, target)
            if again.status != 'refused':
                notes.append(f'val_dataloader was left out. {outcome.reason}.')
                answer, outcome = rest, again
    notes += [drift if outcome.proven else None, *outcome.notes]
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
        reason = f'{outcome.source} has the recommended settings already.'
        answer = _without_validation(answer, reason)
        if outcome.notes:
            reason = f'Nothing of it can be set in {outcome.source}.'
        already = replace(answer.recommendation, changes=(), reason=reason)
        return replace(answer, recommendation=already)
    cured = with_keys_set(answer.recommendation, outcome.changes)
    answer = replace(answer, recommendation=cured)
    if target.dry_run:
        return answer
    written = short_path(outcome.target)
    return replace(
        answer,
        output=written,
        backup=short_path(outcome.backup),
        train_command=f'python tools/train.py {shlex.quote(str(written))}',
    )


def _settings(answer: Answer) -> dict[str, Any]:
    return {change.key: change.new for change in answer.recommendation.changes}


def _without_validation(answer: Answer, why: str) -> Answer:
    kept = leave_validation(answer.recommendation, why)
    return replace(answer, recommendation=kept)


def _choose_config(judged: JudgedRun) -> tuple[Path | None, str | None]:
    """The file to rewrite and, when it is not the obvious one, a note."""
    run, copy = judged.answer.summary, judged.files.config_copy
    path = run.run.config_path
    # not Path.is_file, which raises where a folder may not be entered
    if path and os.path.isfile(path):
        return Path(short_path(path) or path), None
    if copy is not None:
        gone = f'{path} is gone' if path else 'the run names no config file'
        return copy, f"{gone}, so the run's own copy was rewritten."
    return None, (
        f'expected the config of the run, found neither {path or "its path"} nor '
        "a copy in the run's folder; name it with --config."
    )
