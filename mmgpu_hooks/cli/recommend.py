"""``mmgpu recommend``: from a run's evidence to a rewritten config."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from mmgpu_hooks.cli import exit_codes, rewriting
from mmgpu_hooks.cli.terminal import terminal_layout
from mmgpu_hooks.configfile.outcome import RewriteOutcome
from mmgpu_hooks.diagnosis.run_diagnosis import diagnose_plain_run, diagnose_run
from mmgpu_hooks.evidence.plain_reader import read_plain_run
from mmgpu_hooks.evidence.ranks import fold_ranks, with_saves_of
from mmgpu_hooks.evidence.reader import read_evidence, read_other_ranks
from mmgpu_hooks.evidence.run_folder import EvidenceError, RunFiles, read_run_folder
from mmgpu_hooks.evidence.summary import fold_run
from mmgpu_hooks.experiments.training import TrainingError, find_train_script
from mmgpu_hooks.recommendation.policy import recommend_settings
from mmgpu_hooks.recommendation.save_cures import with_keys_set, with_save_cures
from mmgpu_hooks.records import RanksSummary, Recommendation, RunEvidence, RunSummary
from mmgpu_hooks.report.recommendation import Answer, render_json, render_text

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
        'run_folder', type=Path, help='work_dir of a training; its newest run is read'
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
    rewriting.add_manner(parser)
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
        print(render_text(answer, **terminal_layout(sys.stdout)))
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
    answer, run_config, copy = _judge(arguments.run_folder)
    if not answer.recommendation.changes:
        return answer
    return _rewrite(answer, arguments, run_config, copy)


def _judge(folder: Path) -> tuple[Answer, Path | None, Path | None]:
    """The answer without a rewrite, the run's config and its flattened copy."""
    files = read_run_folder(folder)
    if files.evidence is None:
        return _judge_plain(files)
    with _collector_paused():
        evidence, summary, ranks = _read_ranks(files.evidence, files.other_ranks)
    answer = Answer(
        run_path=evidence.path,
        diagnosis=diagnose_run(summary),
        recommendation=with_save_cures(recommend_settings(summary), summary),
        summary=summary,
        ranks=ranks,
        notes=(
            *summary.notes,
            *(ranks.notes if ranks else ()),
            *_passed_over(files),
            *_incomplete(evidence),
        ),
    )
    path = evidence.run.config_path
    return answer, Path(path) if path else None, files.config_copy


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Without garbage collection, which takes long and finds nothing in records."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _read_ranks(
    first: Path, others: tuple[Path, ...]
) -> tuple[RunEvidence, RunSummary, RanksSummary | None]:
    """The rank that the others wait for; without one, the rank that waits most."""
    evidence = read_evidence(first)
    found, notes = read_other_ranks(others)
    ranks = fold_ranks(evidence, found, notes)
    if ranks is None or not ranks.rows:
        return evidence, fold_run(evidence), ranks
    judged = ranks.slowest
    why = 'holds the others up'
    if judged is None:
        judged = max(ranks.rows, key=lambda row: row.data_wait_s).rank
        why = 'waits most for data'
    worst = next(rank for rank in (evidence, *found) if rank.run.rank == judged)
    note = f'Rank {judged} of {ranks.world_size} {why} and is judged.'
    ranks = replace(ranks, notes=(*ranks.notes, note))
    return worst, with_saves_of(fold_run(worst), fold_run(evidence)), ranks


def _judge_plain(files: RunFiles) -> tuple[Answer, Path | None, Path | None]:
    assert files.plain is not None
    plain = read_plain_run(files.plain, files.config_copy)
    notes = [
        'This run has no evidence of GPUEfficiencyHook, only the log of MMEngine; add '
        "default_hooks=dict(gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook'))"
        ' to the config for a judgement with numbers behind it.'
    ]
    if files.older_evidence is not None:
        notes.append(f'An older run has evidence: {files.older_evidence}')
    answer = Answer(
        run_path=str(files.plain),
        diagnosis=diagnose_plain_run(plain),
        recommendation=Recommendation(
            reason="MMEngine's log tells neither live settings nor the host's limits."
        ),
        notes=(*plain.notes, *notes),
    )
    return answer, None, files.config_copy


def _passed_over(files: RunFiles) -> list[str]:
    if not files.older_runs:
        return []
    return [f'The newest run was read; {files.older_runs} older one(s) were not.']


def _incomplete(evidence: RunEvidence) -> list[str]:
    notes = [
        f'{off.source} was switched off after iteration {off.iteration}: {off.reason}'
        for off in evidence.sources_off
    ]
    if evidence.end is None:
        notes.append('The run has no end record: it is still training, or was killed.')
    elif evidence.end.error is not None:
        notes.append(f'Training ended with {evidence.end.error}.')
    return notes


def _rewrite(
    answer: Answer,
    arguments: argparse.Namespace,
    run_config: Path | None,
    copy: Path | None,
) -> Answer:
    """Rewrite the config, or say in the answer why it was refused."""
    # late, because LibCST takes longer to import than everything else here
    from mmgpu_hooks.configfile.drift import read_drift
    from mmgpu_hooks.configfile.outcome import Options
    from mmgpu_hooks.configfile.rewrite import rewrite_recommended

    config, note = _choose_config(arguments.config, run_config, copy)
    if config is None:
        return replace(answer, error=note)
    drift = None
    # before the rewrite, which may edit this very file
    if config != copy and copy is not None and not arguments.no_load:
        drift = read_drift(config, copy)
    outcome = rewrite_recommended(
        config,
        {change.key: change.new for change in answer.recommendation.changes},
        Options(
            output=arguments.output,
            in_place=arguments.in_place,
            dry_run=arguments.dry_run or arguments.check,
            overlay=arguments.overlay,
            edit_base=arguments.edit_base,
            load=not arguments.no_load,
        ),
    )
    drift = drift if outcome.proven else None
    notes = [*answer.notes, note, drift, *outcome.notes]
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


def _choose_config(
    asked: Path | None, run_config: Path | None, copy: Path | None
) -> tuple[Path | None, str | None]:
    """The file to rewrite and, when it is not the obvious one, a note."""
    if asked is not None:
        return asked, None
    if run_config is not None and run_config.is_file():
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
