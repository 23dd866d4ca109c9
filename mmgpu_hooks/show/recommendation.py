"""What ``mmgpu recommend`` answers, as text and as JSON."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from msgspec import structs

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.validation import VALIDATION_KEY
from mmgpu_hooks.schema import (
    Change,
    Diagnosis,
    Finding,
    FittedRun,
    RanksSummary,
    Recommendation,
)
from mmgpu_hooks.show.document import Item, Section, Table, listing
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.terminal import DEFAULT_WIDTH, render

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""


@dataclass(frozen=True)
class Answer:
    """All that the command has to say."""

    run_path: str
    """The evidence it rests on."""
    diagnosis: Diagnosis
    recommendation: Recommendation
    summary: Run | None = None
    """``None`` for a run without our evidence."""
    config: str | None = None
    """The config that was rewritten."""
    output: str | None = None
    """The file that was written; ``None`` when none was."""
    backup: str | None = None
    diff: str = ''
    train_command: str | None = None
    ranks: RanksSummary | None = None
    """All ranks of the run; ``None`` when it has one."""
    cfg_options: str | None = None
    """The command that trains the original with the same settings."""
    error: str | None = None
    """Why the rewrite was refused."""
    notes: tuple[str, ...] = field(default=())
    fitted: tuple[FittedRun, ...] = ()
    """The runs that were fitted together; empty when one was asked for."""


def render_json(answer: Answer) -> str:
    """The answer with stable keys; ``docs/en/recommend.md`` documents them."""
    verdict = answer.diagnosis.verdict
    body: dict[str, Any] = {
        'version': JSON_VERSION,
        'run': answer.run_path,
        'status': answer.summary.status if answer.summary else None,
        'verdict': {
            'name': verdict.name,
            'sentence': verdict.sentence,
            'confidence': verdict.confidence,
            'headspace_pct': verdict.headspace_pct,
        },
        'findings': [_finding(finding) for finding in answer.diagnosis.findings],
        'changes': [_change(change) for change in answer.recommendation.changes],
        'no_change_reason': answer.recommendation.reason,
        'checkpoint_saves': _saves(answer),
        'save_cures': [asdict(cure) for cure in answer.recommendation.save_cures],
        'advice': list(answer.recommendation.advice),
        'evidence': dict(answer.diagnosis.counts),
        'config': answer.config,
        'output': answer.output,
        'backup': answer.backup,
        'diff': answer.diff,
        'train_command': answer.train_command,
        'ranks': asdict(answer.ranks) if answer.ranks else None,
        'cfg_options': answer.cfg_options,
        'error': answer.error,
        'notes': list(answer.notes),
    }
    # of what was asked for only, and of what there was
    if answer.fitted:
        body['fitted_runs'] = [asdict(run) for run in answer.fitted]
    if answer.recommendation.batch_size:
        body['batch_size'] = list(answer.recommendation.batch_size)
    if answer.recommendation.validation is not None:
        body['validation'] = asdict(answer.recommendation.validation)
    return json.dumps(body, indent=2, default=structs.asdict)


def _saves(answer: Answer) -> list[dict[str, Any]]:
    """Every save with what is judged of it."""
    if answer.summary is None:
        return []
    return [
        {**structs.asdict(save), **asdict(judgement)}
        for save, judgement in zip(answer.summary.save_records, answer.diagnosis.saves)
    ]


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        'code': finding.code,
        'title': finding.title,
        'severity': finding.severity,
        'detail': finding.detail,
        'share': finding.share,
    }


def _change(change: Change) -> dict[str, Any]:
    return {
        'key': change.key,
        'old': change.old,
        'new': change.new,
        'reason': change.reason,
        'confidence': change.confidence,
        'rules': list(change.rules),
        'predicted_iter_s': change.predicted_iter_s,
        'predicted_gain_pct': change.predicted_gain_pct,
        'predicted_gain_low_pct': change.predicted_gain_low_pct,
        'predicted_gain_high_pct': change.predicted_gain_high_pct,
    }


def render_text(
    answer: Answer,
    *,
    details: bool = False,
    width: int = DEFAULT_WIDTH,
    color: bool = False,
) -> str:
    """The answer for a terminal, some 20 lines: verdict, both settings, diff, command.

    Args:
        answer: What to say.
        details: Also the time ledger, the loader, memory, saves, ranks, the host,
            every finding and all advice.
        width: Columns to wrap at; the diff and commands are never wrapped.
        color: Whether the terminal shows colours.
    """
    sections = [*_headline(answer, details), *_changes(answer)]
    if details:
        # late, because it needs this module
        from mmgpu_hooks.show.run_sections import detail_sections

        sections += detail_sections(answer)
        facts = [('evidence', answer.run_path), *describe_fitted(answer.fitted)]
        notes = [Item(note) for note in answer.notes]
        sections.append(Section('Notes', facts=facts, items=notes))
    sections.append(_ending(answer, details))
    return render([s for s in sections if s != Section()], width=width, color=color)


def _headline(answer: Answer, details: bool) -> Iterator[Section]:
    verdict, run = answer.diagnosis.verdict, answer.summary
    name, _, why = verdict.sentence.partition(': ')
    said = [sentence_of(why)] if why else []
    ranks = answer.ranks
    if not details and ranks is not None and ranks.slowest is not None:
        said.append(ranks.why)
    if run is not None and not answer.recommendation.changes:
        said.append(describe_settings(run))
    if details and verdict.headspace_pct is not None:
        # another batch size makes the step itself faster
        but = ' but the batch size' if answer.recommendation.batch_size else ''
        said.append(
            f'If data cost no time, training would be {verdict.headspace_pct:.1f} % '
            f'faster: no setting of the loader{but} gives more.'
        )
    yield Section(f'{name} ({verdict.confidence} confidence)', sentences=said)


def _changes(answer: Answer) -> Iterator[Section]:
    """Both settings side by side, what the change gives, the diff."""
    recommendation, run = answer.recommendation, answer.summary
    changes = recommendation.changes
    if not changes:
        reason = recommendation.reason or ''
        yield Section(sentences=[f'Nothing to change. {reason}'.rstrip()])
    else:
        rows = [
            (_name(change, changes), _value(change.old), _value(change.new), '')
            for change in changes
        ]
        if run is not None:
            rows += _gains(run, changes)
        head = ['', 'now', 'recommended', '9 times in 10']
        yield Section(table=Table(head, rows))
        why = sentence_of(changes[0].reason)
        yield Section(facts=[('Why', why), *_validation(answer)])
    yield from listing('Batch size', recommendation.batch_size)
    changed = [line for line in answer.diff.splitlines() if line[:1] in '+-@']
    if changes and changed:
        yield Section(code='\n'.join(changed))


def _validation(answer: Answer) -> Iterator[tuple[str, str]]:
    """What changes of validation's loader give, which are in no other gain."""
    found = answer.recommendation
    keys = [change.key for change in found.changes]
    if found.validation is not None and any(k.startswith(VALIDATION_KEY) for k in keys):
        yield 'Val', found.validation.sentence


def _name(change: Change, changes: Sequence[Change]) -> str:
    """The last part of its key, more where that names several settings."""
    short = change.key.rpartition('.')[2]
    same = [other for other in changes if other.key.rpartition('.')[2] == short]
    return short if len(same) == 1 else change.key


def _value(value: object) -> str:
    return 'not set' if value is None else str(value)


def _gains(run: Run, changes: Sequence[Change]) -> Iterator[tuple[str, str, str, str]]:
    """What all changes together are predicted to give, validation's left out."""
    for change in changes:
        if change.predicted_iter_s is not None:
            then = format_seconds(change.predicted_iter_s)
            yield 'iteration', format_seconds(run.iter_s), then, ''
            break
    for change in changes:
        gain, low = change.predicted_gain_pct, change.predicted_gain_low_pct
        high = change.predicted_gain_high_pct
        if gain is not None and low is not None and high is not None:
            less = f'{gain:.1f} % less ({low:.1f} to {high:.1f} %)'
            now = then = ''
            if run.status == 'completed':
                now = format_seconds(run.duration_s)
                then = format_seconds(run.duration_s * (1 - gain / 100))
            is_all = not any(c.key.startswith(VALIDATION_KEY) for c in changes)
            name = 'whole training' if is_all else 'training (train loader)'
            yield name, now, then, less
            break


def _ending(answer: Answer, details: bool) -> Section:
    """What else helps and what was odd; where it was written; what to type next."""
    facts = []
    if not details:
        advice = answer.recommendation.advice
        facts += [('Also    ', sentence) for sentence in advice[:1]]
        facts += [('Note    ', note) for note in answer.notes[:_NOTES_SHOWN]]
    run = answer.summary
    lines = []
    if answer.output is not None:
        lines.append(('Written', answer.output))
    if answer.backup is not None:
        lines.append(('Kept', f'{answer.backup} (what was there)'))
    if details and answer.cfg_options is not None:
        lines.append(('Or once', answer.cfg_options))
    if details and answer.train_command is not None:
        lines.append(('Train', answer.train_command))
    folder = shown_path(run.run.work_dir) if run is not None else None
    if folder is not None and answer.output is not None:
        lines.append(('Measure', f'mmgpu verify {folder}'))
    left = []
    if not details:
        left = [
            f'{len(counted)} {words}'
            for counted, words in (
                (answer.diagnosis.findings, 'finding(s)'),
                (answer.recommendation.advice[1:], 'more advice'),
                (answer.notes[_NOTES_SHOWN:], 'more note(s)'),
            )
            if counted
        ]
    if left:
        lines.append(('More', f'--details: {", ".join(left)}'))
    code = '\n'.join(f'{label:<10}{text}' for label, text in lines)
    return Section(facts=facts, code=code)


_NOTES_SHOWN = 3


def shown_path(path: str | None) -> str | None:
    """A path as a user here would type it."""
    if path is None:
        return None
    relative = os.path.relpath(path)
    return shlex.quote(path if relative.startswith('..') else relative)


def describe_settings(run: Run) -> str:
    """Of the train loader, as ``num_workers=2 (persistent), batch_size=4``."""
    loader = run.run.loader
    if loader.num_workers is None:
        why = run.unknown.get('loader inside', 'they were not recorded')
        return f'Settings unknown: {why}.'
    if loader.num_workers == 0:
        said = 'num_workers=0: the training process makes every batch itself'
    else:
        kept = {True: ' (persistent)', False: ' (not persistent)', None: ''}
        said = (
            f'num_workers={loader.num_workers}{kept[loader.persistent_workers]}, '
            f'prefetch_factor={loader.prefetch_factor}, '
            f'pin_memory={loader.pin_memory}'
        )
    return f'{said}, batch_size={loader.batch_size} per rank.'


def sentence_of(reason: str) -> str:
    """A clause as a sentence; names of settings keep their spelling."""
    first = reason.split(' ')[0]
    is_name = '=' in first or '_' in first
    begin = reason[:1] if is_name else reason[:1].upper()
    return f'{begin}{reason[1:]}{"" if reason.endswith(".") else "."}'


def describe_fitted(fitted: Sequence[FittedRun]) -> list[tuple[str, str]]:
    """A row for each of the runs that were fitted together."""
    return [
        (
            '' if number else 'fitted',
            f'{format_seconds(run.iter_time_s)} per iteration over {run.iterations}, '
            f'num_workers={run.num_workers}, batch_size={run.batch_size} ({run.path})',
        )
        for number, run in enumerate(fitted)
    ]
