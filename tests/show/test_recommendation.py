from __future__ import annotations

import json

import pytest

from fakes.replaced import replace
from fakes.reported import make_full_run
from fakes.runs import make_evidence
from fakes.saves import make_calm, make_contended, make_save, with_saves
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.answer import Answer
from mmgpu_hooks.recommend.recommendation import with_save_cures
from mmgpu_hooks.schema.judged import Change, Recommendation
from mmgpu_hooks.schema.text import quoted
from mmgpu_hooks.show.page import render_page
from mmgpu_hooks.show.recommendation import (
    describe_answer,
    render_json,
)
from mmgpu_hooks.show.run_sections import describe_details
from mmgpu_hooks.show.terminal import render

HOG = {'workers': 0, 'workers_cpu_s': 0.0, 'other_cpu_s': 8.0}


def answer(*saves) -> Answer:
    run = Run(with_saves(make_evidence(), saves))
    found = with_save_cures(Recommendation(reason=quoted('Nothing.')), run)
    return Answer('run.jsonl', diagnose_run(run), found, run)


def render_text(answer: Answer, *, details: bool = False) -> str:
    describe = describe_details if details else describe_answer
    return render(describe(answer))


def words_of(text: str) -> str:
    return ' '.join(text.split())


def test_the_answer_is_short_and_the_details_are_not():
    full = make_full_run()
    short, long = render_text(full), render_text(full, details=True)
    assert len(short.splitlines()) <= 25
    assert max(map(len, short.splitlines())) <= 80
    assert 'num_workers 2 3 ' in words_of(short)
    assert 'A note.' in words_of(short)
    assert f'findings: {len(full.diagnosis.findings)}' in short
    for said in ('MG101', 'EMAHook', 'peak', 'GPU swings', 'pin_memory'):
        assert said.lower() in long.lower()
        assert said.lower() not in short.lower()
    # nothing is said twice
    for said in ('Rank 1 is the slowest', 'A note.', 'whole training'):
        assert (short.count(said), long.count(said)) == (1, 1)
    # which rank is judged comes before the reason; a loss is no gain
    key, why = 'train_dataloader.num_workers', quoted('')
    worse = Change(key, 6, 2, why, 'low', (), 0.05, -1.1, -14.7, 12.5)
    found = replace(full.recommendation, changes=(worse,))
    words = render_text(replace(full, recommendation=found, diff='+x\n' * 12))
    assert 'A note.' in words and 'Why' not in words
    assert '1.1 % more (-12.5 to 14.7 %)' in words


def test_details_have_the_reason_of_every_change():
    full = make_full_run()
    first = full.recommendation.changes[0]
    second = Change(
        'train_dataloader.pin_memory', False, True, quoted('Copies wait.'), 'high'
    )
    third = replace(second, key='train_dataloader.persistent_workers')
    found = replace(full.recommendation, changes=(first, second, third))
    full = replace(full, recommendation=found)
    words = words_of(render_text(full, details=True))
    assert words_of(first.reason) in words
    # what has the same reason has it once
    assert 'pin_memory, persistent_workers Copies wait.' in words
    assert words.count('Copies wait.') == 1
    assert 'Copies wait.' not in words_of(render_text(full))
    page = render_page(full, 'run1')
    assert 'pin_memory, persistent_workers' in page
    assert 'Copies wait.' in page


def test_slow_saves_have_their_cause():
    slow = [make_contended(n, run_delay_s=2.0, **HOG) for n in (100, 110, 120)]
    failed = make_save(130, blocked_s=1.5, error='OSError')
    words = words_of(render_text(answer(*make_calm(3), *slow, failed), details=True))
    assert words.lower().count('other programs') >= 3
    assert '1 failed, the last with OSError.' in words


def test_the_json_answer_lists_every_save():
    slow = make_contended(100, run_delay_s=2.0, workers_cpu_s=17.0, workers_busy=7.5)
    body = json.loads(render_json(answer(*make_calm(3), slow)))
    saves = body['checkpoint_saves']
    assert [save['iteration'] for save in saves] == [10, 20, 30, 100]
    asked = {'wall_s', 'cpu_s', 'bytes', 'workers_busy', 'uncontended_s'}
    assert asked | {'gross_delay_s', 'sentence'} <= set(saves[0])
    assert (saves[0]['cause'], saves[3]['cause']) == (None, 'workers')
    assert saves[3]['phases']['serialise']['run_delay_s'] == 1.5
    assert saves[3]['net_delay_s'] == pytest.approx(2.0)
    assert {cure['name'] for cure in body['save_cures']} >= {'worker_nice'}
    assert json.loads(render_json(answer()))['checkpoint_saves'] == []
    assert 'Nothing to change. Nothing.' in render_text(answer())
