"""What to change, and what to run next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from mmgpu_hooks.schema import Change, Recommendation
from mmgpu_hooks.show.figures import format_seconds
from mmgpu_hooks.show.html.panel import each_run, render_section, words
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.reported_run import ReportedRun


def render_changes(runs: Sequence[ReportedRun]) -> Markup:
    """Each recommended setting with its reason."""
    return render_section('changes', 'What to change', each_run(runs, _of_run))


def _of_run(run: ReportedRun) -> Markup:
    recommendation = run.answer.recommendation
    if not recommendation.changes:
        reason = recommendation.reason or ''
        nothing = tag('p', tag('strong', 'Nothing to change. '), words(reason))
        return join(nothing, _validation(recommendation))
    items = tag('ul', *(_change(c) for c in recommendation.changes), class_='changes')
    return join(items, _validation(recommendation), _next(run))


def _validation(recommendation: Recommendation) -> Markup | None:
    told = recommendation.validation
    if told is None:
        return None
    return tag('p', tag('strong', "Validation's loader. "), words(told.sentence))


def _change(change: Change) -> Markup:
    reason = f'{change.reason[:1].upper()}{change.reason[1:]}.'
    facts = [f'{change.confidence} confidence']
    if change.predicted_iter_s is not None:
        predicted = format_seconds(change.predicted_iter_s)
        facts.append(f'{predicted} per iteration predicted with all changes')
    facts += change.rules
    return tag(
        'li',
        tag(
            'p',
            tag('code', change.key),
            ' ',
            tag('del', _value(change.old)),
            ' → ',
            tag('ins', _value(change.new)),
            class_='setting',
        ),
        tag('p', words(reason)),
        tag('p', words(' · '.join(facts)), class_='basis'),
    )


def _value(value: object) -> str:
    return 'not set' if value is None else str(value)


def _next(run: ReportedRun) -> Markup | None:
    summary = run.answer.summary
    if summary is None or summary.run.work_dir is None:
        return None
    command = f'mmgpu recommend {shlex.quote(summary.run.work_dir)}'
    return tag('p', 'To write them into a config: ', tag('code', command))
