"""What figures of a run say about the line that its console ended with."""

from __future__ import annotations

import io

import pytest

from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_run
from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import judge_end, read_log
from mmgpu_hooks.measure.now import parse_oom_kills, parse_process_start
from mmgpu_hooks.schema import EndRecord, HostNow, HostWindow

WORKER = 'RuntimeError: DataLoader worker (pid 4) is killed by signal: Killed.'
RANK = 'failed (exitcode: -9) local_rank: 3 (pid: 8) of binary: python'
GONE = HostNow(is_alive=False)


def make_end(**fields):
    """An end record of a run of no iterations."""
    fields = {'status': 'completed', 'iterations': 0, 'duration_s': 0.0, **fields}
    return EndRecord(ledger_s={}, **fields)


def judge(text, *, free=None, limit=None, kills=None, end=None, host=GONE):
    """Judge a run of 64 GiB by the last line of its console."""
    run = make_run(pid=7, oom_kills=None if kills is None else 2)
    limits = replace(run.host, ram_total_bytes=64 * GIB, cgroup_memory_bytes=limit)
    evidence = replace(make_evidence(run=replace(run, host=limits)), end=end)
    window = HostWindow(ram_available_bytes=None if free is None else free * GIB)
    last = replace(evidence.intervals[-1], host=window)
    evidence = replace(evidence, intervals=(*evidence.intervals[:-1], last))
    if kills is not None:
        host = replace(host, oom_kills=2 + kills)
    logs = [('console', read_log(io.BytesIO(text.encode())))] if text else []
    return judge_end(logs, [Rank(evidence, host)])


@pytest.mark.parametrize(
    ('text', 'figures', 'cause', 'certainty'),
    [
        (WORKER, {}, 'oom_host', 'likely'),
        (WORKER, {'kills': 1}, 'oom_host', 'sure'),
        (WORKER, {'kills': 1, 'limit': 8 * GIB}, 'oom_cgroup', 'sure'),
        (WORKER, {'kills': 0}, 'worker_killed', 'likely'),
        (WORKER, {'free': 40}, 'worker_killed', 'likely'),
        # the limit may have been reached, whatever the host had
        (WORKER, {'free': 40, 'limit': 8 * GIB}, 'oom_host', 'likely'),
        (WORKER, {'free': 1}, 'oom_host', 'likely'),
        (RANK, {'kills': 0}, 'rank_lost', 'likely'),
        ('Killed', {'kills': 0}, 'interrupted', 'likely'),
        ('Killed', {'free': 1}, 'oom_host', 'likely'),
        ('', {}, 'unknown', 'unknown'),
        ('', {'kills': 2, 'limit': GIB}, 'oom_cgroup', 'sure'),
        ('', {'free': 1}, 'oom_host', 'likely'),
        ('', {'free': 40}, 'interrupted', 'likely'),
        ('', {'host': HostNow()}, 'unknown', 'unknown'),
        ('', {'host': HostNow(is_alive=True)}, None, 'sure'),
        (WORKER, {'end': make_end()}, None, 'sure'),
    ],
)
def test_figures_confirm_or_refute(text, figures, cause, certainty):
    why = judge(text, **figures)
    assert (why.cause, why.certainty) == (cause, certainty)


@pytest.mark.parametrize(
    ('fields', 'cause', 'certainty'),
    [
        (
            {'error': 'KeyboardInterrupt', 'status': 'interrupted'},
            'interrupted',
            'sure',
        ),
        ({'error': 'SystemExit', 'status': 'interrupted'}, 'interrupted', 'likely'),
        (
            {'error': 'OutOfMemoryError', 'message': 'CUDA out of memory. Tried'},
            'oom_gpu',
            'sure',
        ),
        (
            {
                'error': 'RuntimeError',
                'message': 'DataLoader worker (pid(s) 4) exited unexpectedly',
                'causes': (WORKER,),
                'oom_kills': 3,
            },
            'oom_host',
            'sure',
        ),
        (
            {
                'error': 'RuntimeError',
                'message': '[enforce fail at inline_container.cc:1] . unexpected pos 1',
                'disk_free_bytes': 0,
            },
            'disk_full',
            'sure',
        ),
        ({'error': 'ValueError', 'message': 'x'}, 'unknown', 'unknown'),
        ({'error': 'ValueError', 'sample': 'index 7'}, 'sample_raised', 'sure'),
    ],
)
def test_the_end_record_alone(fields, cause, certainty):
    end = make_end(**{'status': 'failed', **fields})
    evidence = replace(make_evidence(run=make_run(oom_kills=2)), end=end)
    why = judge_end([], [Rank(evidence, GONE)])
    assert (why.cause, why.certainty) == (cause, certainty)
    assert why.sample == fields.get('sample')


def test_another_rank_tells_the_reason():
    lost = 'gloo/transport/tcp/pair.cc:5] Connection closed by peer [127.0.0.1]:1'
    first = make_end(status='failed', error='RuntimeError', message=lost)
    raised = 'CUDA out of memory. Tried to allocate 1 GiB'
    second = make_end(status='failed', error='OutOfMemoryError', message=raised)
    ranks = [
        replace(make_evidence(run=make_run(rank=rank, world_size=2)), end=end)
        for rank, end in enumerate((first, second))
    ]
    assert judge_end([], [Rank(ranks[0], GONE)]).cause == 'rank_lost'
    why = judge_end([], [Rank(one, GONE) for one in ranks])
    assert (why.cause, why.rank) == ('oom_gpu', 1)


def test_proc_and_cgroup():
    stat = '41 (a) b) S ' + ' '.join(str(n) for n in range(4, 53))
    assert parse_process_start(stat) == ('S', 22)
    assert parse_oom_kills('low 0\noom 3\noom_kill 2\noom_group_kill 0\n') == 2
    assert parse_oom_kills('under_oom 0\n') is None
