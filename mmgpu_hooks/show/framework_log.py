"""Renders what MMEngine's log tells of a training without GPUEfficiencyHook.

Keys:
    run (str): Path of the log file.
    source (str): Framework that wrote the log: ``mmengine`` or ``mmcv``.
    verdict (Verdict): Where the time goes, at low confidence.
    findings (Tuple[Finding]): Empty: rules judge evidence alone.
    changes (Tuple[Change]): Empty, for the same reason.
    no_change_reason (str): Why ``changes`` is empty.
    advice (Tuple[str]): Sentences about what would help; never applied.
    evidence (EvidenceCounts): How much it rests on.
    first_answer (LogFigures): Figures of the log.
    notes (Tuple[str]): Sentences for the reader.
"""

from __future__ import annotations

from mmgpu_hooks.schema.framework_log import MMCV
from mmgpu_hooks.schema.judged import FirstAnswer
from mmgpu_hooks.schema.text import phrase, quoted
from mmgpu_hooks.show.document import Fact, Section, align, to_json
from mmgpu_hooks.show.recommendation import title_verdict
from mmgpu_hooks.show.text import short_path


def describe_first_answer(answer: FirstAnswer) -> list[Section]:
    """Describes a training without GPUEfficiencyHook: verdict, facts, next step."""
    figures, peak, loader = answer.figures, None, None
    if figures.peak_memory_bytes is not None:
        peak = phrase("{peak_memory_bytes}: torch's peak on one card", figures)
    if figures.num_workers is not None:
        loader = phrase('{num_workers:d} workers', figures)
        if figures.batch_size is not None:
            loader = phrase('{num_workers:d} workers, batches of {batch_size}', figures)
    facts = [
        Fact(phrase('Log     '), quoted(short_path(answer.log) or answer.log)),
        Fact(phrase('Loader  '), loader),
        Fact(phrase('Memory  '), peak),
        *(Fact(phrase('Note    '), note) for note in answer.notes),
        *(Fact(phrase('Also    '), said) for said in answer.advice),
    ]
    label = phrase('Switch on')
    if answer.source == MMCV:
        label = phrase('With 3.x')
    lines = {label: figures.switch_on, phrase('Then'): 'mmgpu recommend WORK_DIR'}
    verdict = answer.verdict
    said = [verdict.why, answer.no_change_reason]
    return [
        Section(title_verdict(verdict), 'verdict', said),
        Section(facts=[fact for fact in facts if fact.value is not None]),
        Section(name='switch-on', code=align(lines)),
    ]


def render_first_answer(answer: FirstAnswer) -> str:
    """Renders as JSON the diagnosis of a training without GPUEfficiencyHook."""
    return to_json(
        run=answer.log,
        source=answer.source,
        verdict=answer.verdict,
        findings=(),
        changes=(),
        no_change_reason=answer.no_change_reason,
        advice=answer.advice,
        evidence=answer.evidence,
        first_answer=answer.figures,
        notes=answer.notes,
    )
