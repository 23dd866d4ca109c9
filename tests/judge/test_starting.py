"""Tests what rules, summary, page and ``why`` say about a training's start."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.judge.why_start import add_start_parts
from mmgpu_hooks.recommend.advice import advise
from mmgpu_hooks.schema.judged import Why
from mmgpu_hooks.schema.lines import decode_line, encode_line
from mmgpu_hooks.schema.recorded import DatasetStart, StartPartRecord, StartRecord
from mmgpu_hooks.schema.run import RunEvidence
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.show.start import describe_start, list_start
from mmgpu_hooks.show.summary import render_training_summary

MIB = 2**20
COCO = DatasetStart(
    kind='CocoDataset',
    file='data/train.json',
    file_bytes=448 * MIB,
    files=1,
    wall_s=48.0,
    cpu_s=47.0,
    read_s=40.0,
    read_cpu_s=39.5,
    filter_s=1.0,
    serialise_s=7.0,
    samples=117_266,
    bytes=300 * MIB,
)
VOC = replace(COCO, kind='VOCDataset', file='data/train.txt', files=16_551)
SLOW = replace(COCO, read_cpu_s=5.0, cpu_s=12.0, mount='nfs4')
PARTS = {'before_hook': 20.0, 'train_data': 48.5, 'first_batch': 1.5}


def make_start(*data_sets: DatasetStart, **more: Any) -> StartRecord:
    parts = {**PARTS, **more.pop('parts', {})}
    return StartRecord(
        wall_s=sum(parts.values()), parts_s=parts, data_sets=data_sets, **more
    )


def make_run_of(start: StartRecord | None, ranks: int = 1, **ledger: float) -> Run:
    """Returns a run with the given start record and seconds in its time ledger."""
    evidence: RunEvidence = make_evidence(run=make_run(world_size=ranks))
    assert evidence.end is not None
    parts = {**evidence.end.ledger_s, **ledger}
    end = replace(evidence.end, ledger_s=parts, duration_s=sum(parts.values()))
    return Run(replace(evidence, start=start, end=end))


def list_found(run: Run) -> dict[str, str]:
    """Returns the findings on a training's start by rule code."""
    findings = diagnose_run(run).findings
    return {each.code: each.detail for each in findings if each.code[:3] == 'MG7'}


PARSED = (
    'Parsing annotations took 48.0 s (CocoDataset data/train.json: 48.0 s), as it will '
    "at each start; optimize='annotations' maps what was parsed once."
)
CASES: dict[str, tuple[Run, dict[str, str]]] = {
    'older evidence': (make_run_of(None), {}),
    'parsed': (make_run_of(make_start(COCO)), {'MG702': PARSED}),
    'parsed on ranks': (
        make_run_of(make_start(COCO), ranks=8),
        {'MG702': PARSED.replace('48.0 s (', '48.0 s on each of 8 ranks (', 1)},
    ),
    'mapped': (make_run_of(make_start(replace(COCO, is_cached=True))), {}),
    'kept': (make_run_of(make_start(replace(COCO, is_kept=True))), {}),
    'refused': (
        make_run_of(make_start(replace(COCO, refused='it lists folders'))),
        {
            'MG702': PARSED.replace(
                'maps what was parsed once',
                'kept nothing of it, since it lists folders',
            )
        },
    ),
    'little': (make_run_of(make_start(replace(COCO, wall_s=9.0, read_s=9.0))), {}),
    'little of a long run': (make_run_of(make_start(COCO), step=50_000.0), {}),
    'minutes of a long run': (
        make_run_of(make_start(replace(COCO, wall_s=130.0)), step=50_000.0),
        {'MG702': PARSED.replace('48.0', '130.0')},
    ),
    'a file an image': (
        make_run_of(make_start(VOC)),
        {
            'MG702': PARSED.replace(
                'CocoDataset data/train.json', 'VOCDataset data/train.txt'
            ),
            'MG703': '16551 annotation files were read one by one in 40.0 s '
            '(VOCDataset data/train.txt); one file for all is read at once, and '
            "optimize='annotations' keeps what was parsed.",
        },
    ),
    'a slow mount': (
        make_run_of(make_start(SLOW)),
        {
            'MG702': PARSED,
            'MG704': 'Reading CocoDataset data/train.json on nfs4 waited 35.0 s of '
            '40.0 s for storage; a copy on a local disk is read faster.',
        },
    ),
    'a checkpoint': (
        make_run_of(
            make_start(
                parts={'load': 30.0}, checkpoint='w.pth', checkpoint_bytes=800 * MIB
            )
        ),
        {
            'MG705': 'Loading w.pth (800 MiB) took 30.0 s; a copy on a local disk, or '
            'one without the state of the optimizer, loads faster.'
        },
    ),
    'lines of parameters': (
        make_run_of(make_start(parts={'optimizer': 12.0}, parameter_lines=4000)),
        {
            'MG706': 'Building the optimizer took 12.0 s, with 4000 lines of '
            "paramwise_options in the log; log_level='WARNING' leaves them out."
        },
    ),
    'a slow optimizer': (make_run_of(make_start(parts={'optimizer': 12.0})), {}),
    'a resume': (
        make_run_of(None, resume=60.0),
        {
            'MG701': 'Resuming loaded 0 batches only to skip them, in 60.0 s (56 % of '
            "the run); optimize='resume' skips them without loading."
        },
    ),
    'a short resume': (make_run_of(None, resume=5.0), {}),
}


@pytest.mark.parametrize('case', CASES)
def test_long_parts_of_a_start_are_found_with_their_rule(case):
    run, expected = CASES[case]
    assert list_found(run) == expected


def test_the_cure_is_advice_and_stands_first_where_it_is_much():
    run = make_run_of(make_start(COCO))
    assert next(advise(run)) == f'MG702: {PARSED}'
    little = make_run_of(make_start(replace(COCO, wall_s=130.0)), step=50_000.0)
    assert [said for said in advise(little) if 'MG702' in said]


def end_with(run: Run, status: Any) -> Run:
    assert run.end is not None
    return Run(replace(run.evidence, end=replace(run.end, status=status)))


VERDICTS = {
    'much of a whole run': (make_run_of(make_start(COCO)), 'start_bound'),
    'little of a whole run': (make_run_of(make_start(COCO), step=500.0), 'other'),
    'much of a run that was stopped': (
        end_with(make_run_of(make_start(COCO)), 'interrupted'),
        'other',
    ),
}


@pytest.mark.parametrize('case', VERDICTS)
def test_a_start_that_is_much_of_a_whole_run_is_the_verdict(case):
    run, expected = VERDICTS[case]
    verdict = diagnose_run(run).verdict
    is_start = verdict.name == 'start_bound'
    assert is_start == (expected == 'start_bound')
    assert (verdict.sentence == f'Bound by its start: {PARSED}') == is_start


def test_a_resume_by_the_sampler_is_no_finding():
    run = make_run_of(None, resume=60.0)
    meta = replace(run.meta, optimized=('resume',))
    assert not list_found(Run(replace(run.evidence, run=meta)))


def test_the_summary_has_a_start_that_is_long():
    run = make_run_of(make_start(COCO))
    text = render_training_summary(run, diagnose_run(run))
    rows = ' '.join(text.split())
    assert (
        'start 70.0 s to the first iteration: training data 48.5 s, before the hook '
        '20.0 s, first batch 1.5 s'
    ) in rows
    assert len(text.splitlines()) <= 11
    short = make_run_of(make_start(), step=50_000.0)
    assert '  start ' not in render_training_summary(short, diagnose_run(short))


def test_the_page_has_parts_and_data_sets():
    sections = list(list_start(make_run_of(make_start(COCO, cpu_s=66.0))))
    assert [section.name for section in sections] == ['start', 'start-data']
    assert sections[0].sentences == [
        '70.0 s from the start of the process to the end of the first iteration, with '
        '66.0 s of CPU.'
    ]
    assert list(sections[0].table.rows[0]) == ['before the hook', '20.0 s', '29 %']
    assert sections[1].table.rows[0][:4] == [
        'CocoDataset',
        'training',
        'data/train.json',
        '448 MiB',
    ]
    assert list(list_start(make_run_of(None))) == []


def test_the_log_names_the_largest_part_first():
    said = describe_start(make_start())
    assert said == (
        'the start took 70.0 s: training data 48.5 s, before the hook 20.0 s, first '
        'batch 1.5 s.'
    )


def test_a_start_is_a_line_of_the_evidence():
    start = make_start(COCO, VOC, cpu_s=60.0, checkpoint='w.pth')
    assert decode_line(encode_line(start)) == start


def begin_start(rank: int, *parts: StartPartRecord) -> RunEvidence:
    """Returns the records of one rank in a start of two; it never began to train."""
    run = make_run(rank=rank, world_size=2)
    return RunEvidence(path='', run=run, intervals=(), start_parts=parts)


def test_why_names_what_began_last():
    parts = [
        StartPartRecord(part='load', elapsed_s=1.0, file='w.pth', file_bytes=3 * MIB),
        StartPartRecord(
            part='train_data',
            elapsed_s=2.1,
            data_set='CocoDataset',
            file='data/train.json',
            file_bytes=448 * MIB,
        ),
    ]
    why = Why('unknown', 'unknown', 'unknown', quoted('It left no evidence.'))
    began = [begin_start(0), begin_start(1, *parts)]
    told = add_start_parts(why, [began[0], replace(began[1], run=make_run())])
    text = (
        'CocoDataset began to load data/train.json, 448 MiB, 2.1 s after the hook was '
        'built (training data)'
    )
    assert told.sentence == f'It left no evidence. What began last: {text}.'
    assert [proof.text for proof in told.proof] == [text]
    assert add_start_parts(why, began[:1]) == why
    told = add_start_parts(why, [begin_start(0, parts[0])])
    assert 'the Runner began to load w.pth, 3 MiB, 1.0' in told.sentence
    refused = replace(why, cause='resume_refused')
    assert add_start_parts(refused, began) == refused


@pytest.mark.parametrize('judged', [None, 1], ids=['nobody', 'rank 1'])
def test_of_several_ranks_the_one_that_is_judged_is_named(judged):
    load = StartPartRecord(part='load', elapsed_s=1.0, file='w.pth')
    ranks = [begin_start(number, load) for number in range(2)]
    left = quoted('It left no evidence.')
    why = Why('unknown', 'unknown', 'unknown', left, rank=judged)
    told = add_start_parts(why, ranks)
    assert f'What began last (rank {judged or 0}): the Runner began' in told.sentence
