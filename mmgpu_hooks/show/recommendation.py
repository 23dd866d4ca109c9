"""What ``mmgpu recommend`` answers, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

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
from mmgpu_hooks.show.console import (
    DEFAULT_WIDTH,
    bind_units,
    grid,
    list_section,
    render,
    styled,
)
from mmgpu_hooks.show.description import describe_run
from mmgpu_hooks.show.fitted_runs import describe_fitted
from mmgpu_hooks.show.saves_text import list_saves

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

JSON_VERSION = 1
"""Raised when a key of the JSON answer changes its meaning or goes away."""

_MARKS = {'problem': '!', 'notice': '-', 'ok': '+', 'unknown': '?'}
_STYLES = {'problem': 'red', 'notice': 'yellow', 'ok': 'green', 'unknown': 'dim'}


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
    """The answer with stable keys; ``docs/recommend.md`` documents them."""
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
    if answer.summary is None:
        return []
    return list_saves(answer.summary, answer.diagnosis.saves)


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
    answer: Answer, *, width: int = DEFAULT_WIDTH, color: bool = False
) -> str:
    """The answer for a terminal: verdict, findings, changes, diff, next command.

    Args:
        answer: What to say.
        width: Columns to wrap at; the diff and commands are never wrapped.
        color: Whether the terminal shows colours.
    """
    verdict = answer.diagnosis.verdict
    parts: list[RenderableType] = [
        styled(f'{verdict.sentence} ({verdict.confidence} confidence)', style='bold'),
        *_headspace(answer),
        '',
        _facts(answer),
    ]
    if answer.diagnosis.findings:
        parts += ['', styled('Findings', style='bold'), _findings(answer)]
    cures = [_sentence(cure.sentence) for cure in answer.recommendation.save_cures]
    parts += list_section('What would make saves cost less', cures)
    parts += ['', *_changes(answer)]
    parts += list_section('Batch size', answer.recommendation.batch_size)
    if answer.recommendation.validation is not None:
        sentence = bind_units(answer.recommendation.validation.sentence)
        title = styled("Validation's loader", style='bold')
        parts += ['', title, grid([(sentence,)], indent=2)]
    advice = answer.recommendation.advice
    parts += list_section('Advice, nothing of which is applied', advice)
    parts += list_section('Notes', answer.notes)
    return render(*parts, width=width, color=color)


def _headspace(answer: Answer) -> list[RenderableType]:
    verdict = answer.diagnosis.verdict
    if verdict.headspace_pct is None:
        return []
    # another batch size makes the step itself faster
    but = ' but the batch size' if answer.recommendation.batch_size else ''
    return [
        bind_units(
            f'If data cost no time, training would be {verdict.headspace_pct:.1f} % '
            f'faster: no setting of the loader{but} gives more.'
        )
    ]


def _facts(answer: Answer) -> RenderableType:
    rows: list[tuple[str, str]] = [('evidence', answer.run_path)]
    rows += describe_fitted(answer.fitted)
    if answer.summary is not None:
        rows += describe_run(answer.summary, answer.ranks, saves=answer.diagnosis.saves)
    return grid([(label, bind_units(text)) for label, text in rows])


def _findings(answer: Answer) -> RenderableType:
    return grid(
        [
            (
                styled(_MARKS[finding.severity], style=_STYLES[finding.severity]),
                styled(finding.code),
                bind_units(f'{finding.title}: {finding.detail}'),
            )
            for finding in answer.diagnosis.findings
        ],
        indent=2,
    )


def _changes(answer: Answer) -> list[RenderableType]:
    changes = answer.recommendation.changes
    if not changes:
        return [
            styled(f'Nothing to change. {answer.recommendation.reason or ""}'.rstrip())
        ]
    parts: list[RenderableType] = [styled('Changes', style='bold')]
    for change in changes:
        parts += [
            styled(
                f'  {change.key}: {change.old} -> {change.new} '
                f'({change.confidence} confidence)'
            ),
            grid([(bind_units(_sentence(change.reason)),)], indent=6),
        ]
    parts += _gain(changes)
    if answer.diff:
        parts += ['', *(_diff_line(line) for line in answer.diff.splitlines())]
    if answer.cfg_options is not None:
        parts += ['', _unwrapped(f'For one run only:  {answer.cfg_options}')]
    if answer.output is not None:
        parts += ['', _unwrapped(f'Written to {answer.output}')]
        if answer.backup is not None:
            parts.append(_unwrapped(f'What was there is kept as {answer.backup}'))
        if answer.train_command is not None:
            parts.append(_unwrapped(f'Train with it:  {answer.train_command}'))
    return parts


def _gain(changes: Sequence[Change]) -> list[RenderableType]:
    """What all changes together are predicted to give, validation's left out."""
    whose = 'All changes'
    if any(change.key.startswith(VALIDATION_KEY) for change in changes):
        # of validation's loader its own section tells
        whose = "The train loader's changes"
    for change in changes:
        gain, low = change.predicted_gain_pct, change.predicted_gain_low_pct
        high = change.predicted_gain_high_pct
        if gain is not None and low is not None and high is not None:
            return [
                bind_units(
                    f'  {whose} together save {gain:.1f} % of the whole '
                    f"training's time ({low:.1f} to {high:.1f} %, 9 times in 10)."
                )
            ]
    return []


def _sentence(reason: str) -> str:
    return f'{reason[0].upper()}{reason[1:]}.'


def _diff_line(line: str) -> Text:
    style = {'+': 'green', '-': 'red', '@': 'cyan'}.get(line[:1], '')
    return _unwrapped(line, style)


def _unwrapped(line: str, style: str = '') -> Text:
    return styled(line, style=style, no_wrap=True)
