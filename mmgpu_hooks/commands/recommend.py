"""``mmgpu recommend``: judges a run and rewrites its config."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from mmgpu_hooks.commands import exit_codes, options, rewriting
from mmgpu_hooks.commands.first_answer import read_first_answer
from mmgpu_hooks.commands.output import print_answer
from mmgpu_hooks.commands.read_runs import find_config, judge_runs
from mmgpu_hooks.commands.switching_on import with_lines, with_optimize
from mmgpu_hooks.config.loading import read_drift
from mmgpu_hooks.config.recommended import apply_recommended
from mmgpu_hooks.config.rewrite import Options, rewrite_config
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.validation import VALIDATION_KEY, leave_out
from mmgpu_hooks.schema.errors import UserError
from mmgpu_hooks.schema.run_folder import RunFiles
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.show.framework_log import describe_first_answer, render_first_answer
from mmgpu_hooks.show.recommendation import describe_answer, render_json
from mmgpu_hooks.show.run_sections import describe_details
from mmgpu_hooks.show.text import short_path


@options.command('recommend', rewriting.CODES)
@options.run_folders_argument
@options.flag(
    '--allow-batch-size',
    'Recommend another batch size, too, where runs with several show its memory '
    'and its speed.',
)
@click.option(
    '--config',
    type=options.PATH,
    help='Config to rewrite; by default the one the run used.',
)
@click.option(
    '--cores',
    type=options.above_0(phrase('a number of cores above 0')),
    metavar='N',
    help='Usable cores that each rank will have on its next start, where that is '
    'mended (MG117); by default as many as the run had.',
)
@options.flag(
    '--optimize',
    'Write optimize, too: host overhead that it takes off, all trained bits the same.',
)
@options.flag(
    '--details',
    'Print the time ledger, the loader, memory, saves, ranks, the host, all '
    'findings and all advice.',
)
@rewriting.target_options(in_place=True)
def recommend(
    run_folders: tuple[Path, ...],
    allow_batch_size: bool,
    config: Path | None,
    cores: float | None,
    optimize: bool,
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
    NAME_recommended.py. Of a run without the hook, the log of MMEngine or MMDetection
    2.x gives a first answer.
    """
    # no setting is written, and none is judged, by a log alone
    asked = (output, in_place, check, optimize, config, cores, allow_batch_size)
    if not any(asked):
        first = read_first_answer(run_folders)
        if first is not None:
            print_answer(first, form, describe_first_answer, render_first_answer)
            return exit_codes.OK
    target = Options(output, in_place, dry_run or check)
    judged = judge_runs(run_folders, allow_batch_size=allow_batch_size, cores=cores)
    answer = with_lines(judged.answer, judged.files, config)
    if optimize:
        answer = with_optimize(answer)
    answer = rewrite_judged(answer, judged.files, target, config)

    describe = describe_details if details else describe_answer
    print_answer(answer, form, describe, render_json)
    if answer.error is not None:
        raise UserError(answer.error)
    return exit_codes.NO if check and answer.recommendation.changes else exit_codes.OK


def rewrite_judged(
    answer: Answer, files: RunFiles, target: Options, config: Path | None = None
) -> Answer:
    """Rewrites a judged run's config; returns the run's `Answer` plus the outcome.

    Args:
        answer: What is recommended.
        files: Of the run.
        target: Where the result goes.
        config: To rewrite. Defaults to the one that the run used.
    """
    copy, notes = files.config_copy, list(answer.notes)
    if not answer.recommendation.changes:
        return answer
    if config is None:
        try:
            config = find_config(answer.summary, copy)
        except UserError as error:
            return replace(answer, error=error.said)
        if config == copy:
            gone = answer.summary.meta.config_path or phrase('the config')
            notes.append(
                phrase(
                    "{config} is gone, so the run's own copy was rewritten.",
                    config=gone,
                )
            )
    # before the rewrite, which may edit this very file
    drift = read_drift(config, copy) if copy is not None and config != copy else None
    found = answer.recommendation
    applied = apply_recommended(
        found, lambda settings: rewrite_config(config, settings, **vars(target))
    )
    outcome, found = applied.outcome, applied.recommendation
    notes += applied.notes
    if drift and outcome.proven:
        notes.append(drift)
    if outcome.status == 'unchanged':
        source = str(outcome.source)
        reason = phrase('{config} has the recommended settings already.', config=source)
        if not found.changes:
            reason = phrase('Nothing of it can be set in {config}.', config=source)
        found = leave_out(found, (VALIDATION_KEY,), reason)
        found = replace(found, changes=(), reason=reason)
    is_written = outcome.status == 'rewritten' and not target.dry_run
    return replace(
        answer,
        recommendation=found,
        config=str(config),
        output=short_path(outcome.target) if is_written else None,
        backup=short_path(outcome.backup),
        diff=outcome.diff,
        cfg_options=rewriting.render_once(outcome),
        error=outcome.reason,
        notes=(*notes, *outcome.notes),
    )
