"""Renders what MMEngine's log says about a training without GPUEfficiencyHook."""

from __future__ import annotations

from mmgpu_hooks.schema.framework_log import MMCV
from mmgpu_hooks.schema.judged import FirstAnswer
from mmgpu_hooks.schema.text import phrase, quoted
from mmgpu_hooks.show.document import Fact, Section, align, to_json
from mmgpu_hooks.show.recommendation import title_verdict
from mmgpu_hooks.show.text import short_path

_OWN = (
    'lines',
    'iter_s',
    'data_time_s',
    'data_time_share',
    'peak_memory_bytes',
    'num_workers',
    'batch_size',
    'switch_on',
)
"""Fields that only the answer on a training without GPUEfficiencyHook has."""


def describe_first_answer(answer: FirstAnswer) -> list[Section]:
    """Sections on a training without GPUEfficiencyHook: verdict, facts, next step."""
    peak = None
    if answer.peak_memory_bytes is not None:
        peak = phrase("{peak_memory_bytes}: torch's peak on one card", answer)
    loader = None
    if answer.num_workers is not None:
        loader = phrase('{num_workers:d} workers', answer)
        if answer.batch_size is not None:
            loader = phrase('{num_workers:d} workers, batches of {batch_size}', answer)
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
    lines = {label: answer.switch_on, phrase('Then'): 'mmgpu recommend WORK_DIR'}
    verdict = answer.verdict
    said = [verdict.why, answer.no_change_reason]
    return [
        Section(title_verdict(verdict), 'verdict', said),
        Section(facts=[fact for fact in facts if fact.value is not None]),
        Section(name='switch-on', code=align(lines)),
    ]


def render_first_answer(answer: FirstAnswer) -> str:
    """JSON of the diagnosis of a training that ran without GPUEfficiencyHook."""
    return to_json(
        run=answer.log,
        source=answer.source,
        verdict=answer.verdict,
        findings=(),
        changes=(),
        no_change_reason=answer.no_change_reason,
        advice=answer.advice,
        evidence=answer.evidence,
        first_answer={name: getattr(answer, name) for name in _OWN},
        notes=answer.notes,
    )
