from __future__ import annotations

import json
import time

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence
from fakes.saves import make_aftermath, make_calm, make_contended, make_save
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from mmgpu_hooks.recommend.save_cures import with_save_cures
from mmgpu_hooks.schema import Recommendation
from mmgpu_hooks.show.recommendation import Answer, render_json, render_text
from mmgpu_hooks.show.saves_text import describe_saves
from mmgpu_hooks.show.summary import render_training_summary

ASKED_FOR = [
    'iteration',
    'occasion',
    'wall_s',
    'cpu_s',
    'run_delay_s',
    'blocked_s',
    'bytes',
    'workers_busy',
    'cause',
    'uncontended_s',
    'gross_delay_s',
    'net_delay_s',
    'phases',
    'sentence',
]


def fold(*saves):
    after = tuple(make_aftermath(save.iteration) for save in saves)
    evidence = replace(make_evidence(), save_records=saves, save_aftermaths=after)
    return Run(evidence)


def describe(*saves) -> list[str]:
    summary = fold(*saves)
    return describe_saves(summary, diagnose_run(summary).saves).splitlines()


def answer(*saves) -> Answer:
    summary = fold(*saves)
    found = with_save_cures(Recommendation(reason='Nothing.'), summary)
    return Answer('run.jsonl', diagnose_run(summary), found, summary)


HOG = {'workers': 0, 'workers_cpu_s': 0.0, 'strangers_cpu_s': 8.0}


def test_healthy_saves_take_two_lines():
    assert describe(*make_calm(3), make_save(90, cpu_s=0.5, blocked_s=0.1)) == [
        '4 save(s) of up to 200 MiB took 0.400 s (median), 0.600 s at most (iteration '
        '90), 1.800 s in all',
        'mean: serialise 0.319 s, write 0.131 s; on a core 0.425 s, waiting for one '
        '0.0 ms, blocked 25.0 ms',
    ]


def test_slow_saves_are_summed_by_cause():
    slow = [make_contended(n, run_delay_s=2.0, **HOG) for n in (100, 110, 120)]
    lines = describe(*make_calm(3), *slow, make_save(130, blocked_s=1.5))
    assert lines[2:] == [
        '3 slow, other programs had the cores: 6.000 s longer in all (gross), net '
        '6.000 s',
        '1 slow, blocked in the write to storage: 1.500 s longer in all (gross), net '
        '1.500 s',
    ]


def test_a_net_delay_that_is_partly_known_is_said_to_be():
    saves = [make_save(n, blocked_s=1.5) for n in (10, 20)]
    summary = fold(*make_calm(3, bytes=1), *saves)
    for known, expected in ((1, 'net of 1 1.300 s'), (0, 'net unknown')):
        after = tuple(make_aftermath(20) for _ in range(known))
        partly = summary.altered(save_aftermaths=after)
        text = describe_saves(partly, diagnose_run(partly).saves)
        assert text.endswith(expected)


def test_saves_that_tell_little_are_described_all_the_same():
    bare = make_save(7, cpu_s=0.3, bytes=None, phases={}, error='OSError')
    bare = replace(bare, cpu_s=None, run_delay_s=None, blocked_s=None)
    assert describe(bare) == [
        '1 save(s) took 0.300 s (median), 0.300 s at most (iteration 7), 0.300 s in '
        'all',
        '1 failed, the last with OSError',
    ]


def test_the_summary_of_a_training_has_a_row_for_its_saves():
    summary = fold(*make_calm(3))
    text = render_training_summary(summary, diagnose_run(summary))
    assert '  saves      3 save(s) of up to 200 MiB took 0.400 s (median)' in text
    empty = fold()
    text = render_training_summary(empty, diagnose_run(empty))
    assert '  saves   ' not in text


@pytest.mark.parametrize('count', [1, 5000])
def test_it_stays_short_and_cheap(count):
    summary = fold(*(make_contended(n) for n in range(count)))
    judged = diagnose_run(summary).saves
    since = time.process_time()
    lines = describe_saves(summary, judged).splitlines()
    assert time.process_time() - since < 0.2
    assert len(lines) <= 3


def test_the_json_answer_lists_every_save():
    slow = make_contended(100, run_delay_s=2.0, workers_cpu_s=17.0, workers_busy=7.5)
    body = json.loads(render_json(answer(*make_calm(3), slow)))
    saves = body['checkpoint_saves']
    assert [save['iteration'] for save in saves] == [10, 20, 30, 100]
    assert [key for key in ASKED_FOR if key not in saves[0]] == []
    assert (saves[0]['cause'], saves[3]['cause']) == (None, 'workers')
    assert saves[3]['phases']['serialise']['run_delay_s'] == 1.5
    assert saves[3]['net_delay_s'] == pytest.approx(2.0)
    assert {cure['name'] for cure in body['save_cures']} >= {'polite_workers'}
    assert json.loads(render_json(answer()))['checkpoint_saves'] == []


def test_the_text_answer_says_what_would_help():
    slow = make_contended(100, run_delay_s=2.0, workers_cpu_s=17.0)
    text = ' '.join(render_text(answer(slow)).split())
    assert 'What would make saves cost less - Polite workers, GPUEff' in text
    assert '1 slow, loader workers had the cores: 2.000 s longer' in text
    assert 'What would make' not in render_text(answer(*make_calm(1)))
