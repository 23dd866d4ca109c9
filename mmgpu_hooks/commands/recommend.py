"""``mmgpu recommend``: from a run's evidence to a rewritten config."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmgpu_hooks.commands import exit_codes, rewriting
from mmgpu_hooks.commands.judging import JudgedRun, judge_run_folders
from mmgpu_hooks.commands.terminal import terminal_layout
from mmgpu_hooks.config.outcome import RewriteOutcome
from mmgpu_hooks.experiment.training import TrainingError, find_train_script
from mmgpu_hooks.recommend.batch_size import BATCH_KEY, word_learning_rate
from mmgpu_hooks.recommend.save_cures import with_keys_set
from mmgpu_hooks.recommend.validation import leave_validation
from mmgpu_hooks.schema.run_folder import EvidenceError
from mmgpu_hooks.show.recommendation import Answer, render_json, render_text

NAME = 'recommend'
HELP = 'judge a run and rewrite its config'
DESCRIPTION = """\
Read the evidence that GPUEfficiencyHook left in a run's folder, say where the time
went, and write a config with better dataloader settings beside the original."""
EPILOG = """\
exit codes: 0 done or nothing to change, 1 --check and something would change,
2 input that cannot be used (one sentence on standard error says why)"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        'run_folders',
        type=Path,
        nargs='+',
        metavar='run_folder',
        help='work_dir of a training, its newest run is read; of several runs the '
        'newest is judged, and others with other batch sizes serve '
        '--allow-batch-size',
    )
    parser.add_argument(
        '--allow-batch-size',
        action='store_true',
        help='another batch size may be recommended, where runs with several batch '
        'sizes tell its memory and its speed',
    )
    parser.add_argument(
        '--config', type=Path, help='config to rewrite (default: the one the run used)'
    )
    target = parser.add_mutually_exclusive_group()
    target.add_argument(
        '--output',
        type=Path,
        help='file to write (default: <name>_recommended.py beside the original)',
    )
    target.add_argument(
        '--in-place', action='store_true', help='edit the original, keep it as .bak'
    )
    target.add_argument('--dry-run', action='store_true', help='write nothing')
    target.add_argument(
        '--check',
        action='store_true',
        help='write nothing; exit 1 when something would change',
    )
    parser.add_argument(
        '--details',
        action='store_true',
        help='also print the time ledger, the loader, memory, saves, ranks, the host, '
        'all findings and all advice',
    )
    parser.add_argument(
        '--format', choices=('text', 'json'), default='text', help='default: text'
    )


def run(arguments: argparse.Namespace) -> int:
    """Judge, recommend, rewrite, print."""
    try:
        answer = recommend_run(arguments)
    except EvidenceError as error:
        print(f'mmgpu recommend: {error}', file=sys.stderr)
        return exit_codes.BAD_INPUT
    if answer.error is not None:
        print(f'mmgpu recommend: {answer.error}', file=sys.stderr)
    if arguments.format == 'json':
        print(render_json(answer))
    else:
        layout = terminal_layout(sys.stdout)
        print(render_text(answer, details=arguments.details, **layout))
    if answer.error is not None:
        return exit_codes.BAD_INPUT
    if arguments.check and answer.recommendation.changes:
        return exit_codes.WOULD_CHANGE
    return exit_codes.OK


def recommend_run(arguments: argparse.Namespace) -> Answer:
    """Judge, recommend and rewrite, without a word.

    Raises:
        EvidenceError: If there is nothing that can be judged.
    """
    judged = judge_run_folders(
        arguments.run_folders,
        allow_batch_size=arguments.allow_batch_size,
    )
    if not judged.answer.recommendation.changes:
        return judged.answer
    return _rewrite(judged, arguments)


def _rewrite(judged: JudgedRun, arguments: argparse.Namespace) -> Answer:
    """Rewrite the config, or say in the answer why it was refused."""
    from mmgpu_hooks.config.drift import read_drift
    from mmgpu_hooks.config.outcome import Options
    from mmgpu_hooks.config.rewrite import rewrite_recommended

    answer, copy = judged.answer, judged.config_copy
    config, note = _choose_config(arguments.config, judged.run_config, copy)
    if config is None:
        return replace(answer, error=note)
    answer = _with_learning_rate(answer, config)
    drift = None
    # before the rewrite, which may edit this very file
    if config != copy and copy is not None:
        drift = read_drift(config, copy)
    rewrite = functools.partial(
        rewrite_recommended,
        config,
        options=Options(
            output=arguments.output,
            in_place=arguments.in_place,
            dry_run=arguments.dry_run or arguments.check,
            is_rate_told=True,
        ),
    )
    answer, outcome, left_out = _rewrite_what_can_be(answer, rewrite)
    drift = drift if outcome.proven else None
    notes = [*answer.notes, note, left_out, drift, *outcome.notes]
    answer = replace(
        answer,
        config=str(config),
        diff=outcome.diff,
        notes=tuple(note for note in notes if note),
        cfg_options=rewriting.render_command(outcome),
    )
    if outcome.status == 'refused':
        return replace(answer, error=outcome.reason)
    if outcome.status == 'unchanged':
        reason = f'{config} has the recommended settings already.'
        answer = _without_validation(answer, reason)
        if outcome.notes:
            reason = f'Nothing of it can be set in {config}.'
        already = replace(answer.recommendation, changes=(), reason=reason)
        return replace(answer, recommendation=already)
    answer = replace(
        answer, recommendation=with_keys_set(answer.recommendation, outcome.changes)
    )
    if arguments.dry_run or arguments.check:
        return answer
    return _note_written(answer, outcome)


def _rewrite_what_can_be(
    answer: Answer, rewrite: Callable[[dict[str, Any]], RewriteOutcome]
) -> tuple[Answer, RewriteOutcome, str | None]:
    """Rewrite without validation's loader where the config cannot take its changes.

    Returns:
        The answer with what was set, the outcome and, when something was left out, why.
    """
    outcome = rewrite(_settings(answer))
    rest = _without_validation(answer, 'This config cannot take its changes.')
    if outcome.status != 'refused' or rest is answer or not _settings(rest):
        return answer, outcome, None
    retried = rewrite(_settings(rest))
    if retried.status == 'refused':
        return answer, outcome, None
    return rest, retried, f'val_dataloader was left out. {outcome.reason}.'


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
    """What a new batch size means for the learning rate, before the config is edited.

    Args:
        answer: Its changes may hold a batch size.
        config: To load.
    """
    change = next(
        (c for c in answer.recommendation.changes if c.key == BATCH_KEY), None
    )
    if change is None or answer.summary is None:
        return answer
    from mmgpu_hooks.config.drift import read_learning_rate

    run = answer.summary.run
    said = word_learning_rate(
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
    asked: Path | None, run_config: Path | None, copy: Path | None
) -> tuple[Path | None, str | None]:
    """The file to rewrite and, when it is not the obvious one, a note."""
    if asked is not None:
        return asked, None
    # not Path.is_file, which raises where a folder may not be entered
    if run_config is not None and os.path.isfile(run_config):
        return _relative(run_config), None
    if copy is not None:
        gone = f'{run_config} is gone' if run_config else 'the run names no config file'
        return copy, f"{gone}, so the run's own copy was rewritten."
    return None, (
        f'expected the config of the run, found neither {run_config or "its path"} nor '
        "a copy in the run's folder; name it with --config."
    )


def _note_written(answer: Answer, outcome: RewriteOutcome) -> Answer:
    shown = str(_relative(outcome.target)) if outcome.target else None
    return replace(
        answer,
        output=shown,
        backup=str(_relative(outcome.backup)) if outcome.backup else None,
        train_command=_train_command(shown),
    )


def _relative(path: Path) -> Path:
    """The path as a user here would type it."""
    relative = os.path.relpath(path)
    return path if relative.startswith('..') else Path(relative)


def _train_command(config: str | None) -> str | None:
    """How to train here: the checkout's own script, or the one MMDetection brings."""
    if config is None:
        return None
    script = 'tools/train.py'
    if not os.path.isfile(script):
        with contextlib.suppress(TrainingError):
            script = str(_relative(find_train_script()))
    return f'python {shlex.quote(script)} {shlex.quote(config)}'
