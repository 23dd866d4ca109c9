"""Tests known calls that never end, each with its cause and remedy."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.runs import make_evidence, make_run
from mmgpu_hooks.judge.causes import CAUSES
from mmgpu_hooks.judge.hanging_frames import HANGING_FRAMES, find_hanging_frame
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import judge_end
from mmgpu_hooks.schema.judged import HostNow
from mmgpu_hooks.schema.recorded import StuckRecord

FETCH = 'torch/utils/data/_utils/fetch.py:54 in fetch'
IDLE = 'multiprocessing/connection.py:947 in wait'


@pytest.mark.parametrize('row', HANGING_FRAMES, ids=lambda row: row.example[-30:])
def test_why_names_cause_and_cure_of_each_frame(row):
    where: dict[str, Any] = {'pin_stack': (row.example,)}
    if not row.is_pinning:
        outer = () if row.call else ('coco.py:88 in load',)
        where = {'stack': (*outer, row.example, FETCH), 'call': row.call}
    stuck = StuckRecord(
        iteration=40, part='data_wait', waited_s=70.0, worker=1, state='S', **where
    )
    evidence = make_evidence(intervals=1, run=make_run())
    evidence = type(evidence)(
        path=evidence.path, run=evidence.run, intervals=(), stuck=(stuck,)
    )
    why = judge_end([], [Rank(evidence, HostNow(is_alive=True))])
    assert (why.cause, why.certainty) == (row.cause, 'likely')
    assert why.do[0] == row.do
    assert row.reason in [proof.text for proof in why.proof]
    assert row.cause in CAUSES


@pytest.mark.parametrize(
    'calls',
    [
        (IDLE, HANGING_FRAMES[0].example),
        ('mmdet/datasets/transforms/loading.py:99 in load', FETCH),
        ('cv2/__init__.py:1 in imread',),
        ('threading.py:324 in wait', 'queue.py:171 in get'),
        (*['coco.py:88 in load'] * 9, HANGING_FRAMES[0].example),
    ],
    ids=['idle', 'a transform', 'an image', 'a queue', 'far out'],
)
def test_healthy_calls_match_no_row(calls):
    assert find_hanging_frame(calls) is None
    assert find_hanging_frame((IDLE, *calls), is_pinning=True) is None


@pytest.mark.parametrize(
    ('call', 'innermost', 'is_found'),
    [
        ('futex', 'transforms.py:41 in resize', True),
        ('read', 'transforms.py:41 in resize', False),
        (None, 'transforms.py:41 in resize', False),
        ('futex', '/usr/lib/python3.11/threading.py:324 in wait', False),
        (
            'futex',
            '/usr/lib/python3.11/concurrent/futures/_base.py:451 in result',
            False,
        ),
    ],
    ids=['C code at a lock', 'a file', 'unknown', 'an event', 'a thread of its own'],
)
def test_user_code_in_a_futex_call_is_a_hang_in_openmp(call, innermost, is_found):
    found = find_hanging_frame((innermost, FETCH), call=call)
    assert (found is not None and 'OpenMP' in found.reason) is is_found
