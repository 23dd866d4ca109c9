"""Every finding, the settings of the run, and what was odd."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mmgpu_hooks.judge.rules import RULES
from mmgpu_hooks.schema import Finding, RunRecord
from mmgpu_hooks.show.figures import format_pct
from mmgpu_hooks.show.html.panel import (
    each_run,
    render_empty,
    render_section,
    render_table,
    words,
)
from mmgpu_hooks.show.markup import Markup, join, tag
from mmgpu_hooks.show.reported_run import ReportedRun

_SEVERITIES = {
    'problem': ('!', 'problem'),
    'notice': ('-', 'notice'),
    'ok': ('+', 'fine'),
    'unknown': ('?', 'cannot tell'),
}


def render_findings(runs: Sequence[ReportedRun]) -> Markup:
    """Each judgement with its numbers, and the text of its rule behind it."""
    return render_section('findings', 'Findings', each_run(runs, _findings))


def _findings(run: ReportedRun) -> Markup:
    findings = run.answer.diagnosis.findings
    if not findings:
        return render_empty('No rule had anything to say about this run.')
    return tag('ul', *(_finding(finding) for finding in findings), class_='findings')


def _finding(finding: Finding) -> Markup:
    sign, severity = _SEVERITIES.get(finding.severity, ('?', finding.severity))
    share = ''
    if finding.share is not None:
        share = f' · {format_pct(100 * finding.share)} of the time'
    rule = RULES.get(finding.code)
    explained = rule and tag(
        'details',
        tag('summary', f'What {finding.code} means'),
        *(tag('p', *_literals(part)) for part in rule.explanation.split('\n\n')),
    )
    return tag(
        'li',
        tag(
            'p',
            tag('span', sign, aria_hidden='true', class_='sign'),
            tag('strong', f'{finding.title}. '),
            tag('span', f'{severity}{share} · {finding.code}', class_='basis'),
        ),
        tag('p', words(finding.detail)),
        explained or None,
        class_=finding.severity if finding.severity in _SEVERITIES else None,
    )


def _literals(text: str) -> Iterator[object]:
    """Text with what stands between double backticks as code."""
    for place, part in enumerate(text.split('``')):
        yield tag('code', part) if place % 2 else part


def render_settings(runs: Sequence[ReportedRun]) -> Markup:
    """What the run was started with, as it was when it ran."""
    return render_section('settings', 'The run and its settings', each_run(runs, _run))


def _run(run: ReportedRun) -> Markup:
    summary = run.answer.summary
    if summary is None:
        return render_empty(run.why_no_evidence)
    rows = list(_facts(summary.run))
    rows.append(('evidence', run.answer.run_path))
    return render_table(
        'As the loader and the runner had them', ['setting', 'value'], rows, texts=2
    )


def _facts(run: RunRecord) -> Iterator[tuple[str, str]]:
    loader = run.loader
    for name, value in (
        ('num_workers', loader.num_workers),
        ('persistent_workers', loader.persistent_workers),
        ('prefetch_factor', loader.prefetch_factor),
        ('pin_memory', loader.pin_memory),
        ('batch_size per rank', loader.batch_size),
        ('batches per epoch', loader.batches_per_epoch),
        ('samples in the data set', loader.dataset_length),
        ('start method of workers', loader.start_method),
        ('loop', run.loop),
        ('epochs', run.max_epochs),
        ('iterations', run.max_iters),
        ('iterations before this run', run.start_iteration),
        ('gradients accumulated over', run.accumulative_counts),
        ('optimizer wrapper', run.optim_wrapper),
        ('device', run.gpu.name if run.gpu and run.gpu.name else run.device),
        ('ranks', run.world_size),
        ('config', run.config_path),
        ('work_dir', run.work_dir),
    ):
        yield name, 'none' if value is None else str(value)
    versions = ', '.join(f'{name} {version}' for name, version in run.versions.items())
    yield 'versions', versions or 'unknown'


def render_notes(runs: Sequence[ReportedRun]) -> Markup:
    """What was odd, and why figures are missing."""
    return render_section('notes', 'Notes and what is unknown', each_run(runs, _notes))


def _notes(run: ReportedRun) -> Markup:
    notes = [tag('li', words(note)) for note in run.answer.notes]
    summary = run.answer.summary
    unknown = summary.unknown if summary is not None else {}
    notes += [
        tag('li', tag('strong', f'{source} unknown: '), words(reason))
        for source, reason in unknown.items()
    ]
    if not notes:
        return render_empty('Nothing was odd, and nothing is missing.')
    return join(tag('ul', *notes, class_='notes'))
