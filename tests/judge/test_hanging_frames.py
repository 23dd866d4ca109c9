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
PACKAGES = '/env/lib/python3.11/site-packages'
IDLE = 'multiprocessing/connection.py:947 in wait'


@pytest.mark.parametrize('row', HANGING_FRAMES, ids=lambda row: row.example[-30:])
def test_why_names_cause_and_cure_of_each_frame(row):
    where: dict[str, Any] = {'pin_stack': (row.example,)}
    if not row.is_pinning:
        outer = 'coco.py:88 in load', FETCH
        where = {'stack': (row.example, *outer), 'call': (*row.calls, None)[0]}
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
        ('coco.py:88 in load', HANGING_FRAMES[2].example),
        ('/data/http/my/dataset.py:40 in __getitem__', FETCH),
        ('/home/u/data/socket.py:40 in wait', FETCH),
        ('/home/u/requests/train_set.py:7 in load', FETCH),
        ('/home/u/h5py/read.py:7 in imshow', FETCH),
        (f'{PACKAGES}/matplotlib/backends/backend_agg.py:70 in draw_path', FETCH),
    ],
    ids=[
        'idle',
        'a transform',
        'an image',
        'a queue',
        'who called it',
        'a folder named http',
        'a file named socket',
        'a repository named requests',
        'a folder named h5py',
        'a plot into a file',
    ],
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
def test_user_code_in_a_futex_call_may_be_a_hang_in_openmp(call, innermost, is_found):
    found = find_hanging_frame((innermost, FETCH), call=call)
    assert (found is not None and 'OpenMP' in found.reason) is is_found
    # another start than by fork leaves no lock behind
    assert find_hanging_frame((innermost, FETCH), call=call, is_forked=False) is None


H5 = f'{PACKAGES}/h5py/_hl/selections.py:3 in _expand_ellipsis'
EMIT = '/usr/lib/python3.11/logging/__init__.py:1113 in emit'
HANDLE = '/usr/lib/python3.11/logging/__init__.py:978 in handle'
OWN = '/p/transforms.py:20 in sample'


@pytest.mark.parametrize(
    ('stack', 'fields', 'cause', 'said'),
    [
        ((H5,), {'state': 'R'}, 'worker_stuck', None),
        ((H5,), {'call': 'read'}, 'worker_stuck', None),
        ((H5,), {'call': 'futex'}, 'worker_deadlock', 'HDF5'),
        ((H5,), {'call': 'futex', 'is_forked': False}, 'worker_stuck', None),
        ((EMIT, HANDLE), {'call': 'write'}, 'worker_stuck', 'nobody reads from'),
        ((EMIT, HANDLE), {}, 'worker_stuck', None),
        ((OWN,), {'call': 'futex', 'alike': 1}, 'worker_stuck', 'its own, or'),
        ((OWN,), {'call': 'futex', 'alike': 2}, 'worker_deadlock', 'its own, or'),
        (
            (OWN,),
            {'call': 'futex', 'alike': 2, 'is_forked': False},
            'worker_stuck',
            None,
        ),
    ],
    ids=[
        'it computes',
        'it reads',
        'it waits for a lock',
        'it was spawned',
        'a full pipe',
        'in what is unknown',
        'one in its own lock',
        'all in one lock',
        'all, and spawned',
    ],
)
def test_the_reason_fits_what_the_process_does(stack, fields, cause, said):
    known = {'state': 'S', 'sample': 27, **fields}
    stuck = StuckRecord(
        iteration=40,
        part='data_wait',
        waited_s=70.0,
        worker=1,
        stack=(*stack, FETCH),
        **known,
    )
    evidence = make_evidence(intervals=1, run=make_run())
    evidence = type(evidence)(
        path=evidence.path, run=evidence.run, intervals=(), stuck=(stuck,)
    )
    why = judge_end([], [Rank(evidence, HostNow(is_alive=True))])
    reasons = [row.reason for row in HANGING_FRAMES]
    given = [proof.text for proof in why.proof if proof.text in reasons]
    assert why.cause == cause
    assert (said in given[0]) if said else not given
