"""Tests ``mmgpu why`` on several ranks: which rank the others wait for, and why."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.dumps import make_entry, write_dumps
from fakes.replaced import replace
from fakes.runs import GIB, make_evidence, make_run, render_evidence
from mmgpu_hooks.hooks.alarms import list_causes
from mmgpu_hooks.measure import now
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import (
    START_PART,
    EndRecord,
    MemoryRecord,
    RunRecord,
    StuckRecord,
)
from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import evidence_name, start_name

IN_STEP = ('torch/autograd/graph.py:9 in _engine_run_backward',)
SAVING = (
    'torch/serialization.py:9 in save',
    'mmengine/dist/utils.py:427 in wrapper',
    'torch/distributed/elastic/multiprocessing/errors/__init__.py:355 in wrapper',
)
IN_GATHER = ('torch/distributed/distributed_c10d.py:3151 in all_gather_object',)


def stand(part: str, **fields: Any) -> StuckRecord:
    """Returns the standstill record of a rank after 117 batches of its epoch."""
    known = {'iteration': 117, 'waited_s': 61.0, 'has_met': True, **fields}
    return StuckRecord(part=part, **known)


def in_step(**fields: Any) -> StuckRecord:
    """Returns a standstill record: the rank waits for gradients in its 119th batch."""
    known = {'iteration': 118, 'batches_taken': 119, 'epoch_batches': 119, **fields}
    return stand('step', stack=IN_STEP, **known)


def note(stuck: StuckRecord) -> StuckRecord:
    """Returns a copy of a standstill record, marked as recorded without an alarm."""
    return replace(stuck, is_alarm=False)


def failed(said: str, **fields: Any) -> EndRecord:
    lines = ('Traceback (most recent call last):', *said.split('\n'))
    known = {'iterations': 20, 'duration_s': 9.0, 'ledger_s': {}, **fields}
    return EndRecord(status='failed', error='RuntimeError', traceback=lines, **known)


SHORT = stand(
    'validation', iteration=118, stack=IN_GATHER, batches_taken=118, epoch_batches=118
)
LATE = in_step(iteration=0, batches_taken=1, has_met=False)
UNUSED = failed(
    'RuntimeError: Expected to have finished reduction in the prior iteration before '
    'starting a new one.',
    without_gradient=('bbox_head.reg.weight', 'bbox_head.reg.bias'),
)
PEER = failed(
    'RuntimeError: [gloo/transport/tcp/pair.cc:598] Connection closed by peer '
    '[127.0.0.1]:10895'
)
IN_ITERATION = (
    '  File "mmengine/runner/loops.py", line 134, in run_iter',
    PEER.traceback[-1],
)
TIMED_OUT = failed(
    'RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting '
    '1800000ms for recv operation to complete'
)
COMPLETED = EndRecord(status='completed', iterations=118, duration_s=9.0, ledger_s={})


@pytest.fixture
def ask_ranks(ask, tmp_path):
    """Function that runs ``mmgpu why`` on a run with the given records by rank."""

    def ask_of(
        ranks: Mapping[int, list[Any]], size: int, batches: Mapping[int, int]
    ) -> Any:
        folder = tmp_path / '20261127_080000' / 'vis_data'
        folder.mkdir(parents=True)
        for rank, records in ranks.items():
            run = make_run(rank=rank, world_size=size, loop='epoch')
            limits = replace(run.host, ranks_on_host=size)
            loader = replace(run.loader, batches_per_epoch=batches.get(rank, 119))
            run = replace(run, host=limits, loader=loader)
            evidence = replace(make_evidence(intervals=0, run=run), end=None)
            lines = [render_evidence(evidence)]
            lines += [encode_line(record).decode() for record in records]
            Path(folder, evidence_name(rank)).write_text(''.join(lines))
        return ask('why', tmp_path)

    return ask_of


@pytest.mark.parametrize(
    ('ranks', 'size', 'batches', 'cause', 'rank', 'said'),
    [
        pytest.param(
            {0: [in_step()], 1: [in_step()], 2: [SHORT]},
            3,
            {2: 118},
            'uneven_inputs',
            2,
            'ended its epoch after 118 batches, others wait in batch 119',
            id='uneven, all alarmed',
        ),
        pytest.param(
            {0: [in_step()], 1: [note(SHORT)]},
            2,
            {1: 118},
            'uneven_inputs',
            1,
            'Rank 1 ended its epoch',
            id='uneven, one is only noted',
        ),
        pytest.param(
            {0: [in_step()], 1: [COMPLETED]},
            2,
            {1: 118},
            'uneven_inputs',
            1,
            'Rank 1 came to the end of training',
            id='uneven at the end of training',
        ),
        pytest.param(
            {0: [COMPLETED], 1: [in_step()]},
            2,
            {0: 118},
            'uneven_inputs',
            0,
            'Rank 0 came to the end of training',
            id='uneven, rank 0 has ended',
        ),
        pytest.param(
            {0: [PEER], 1: [COMPLETED]},
            2,
            {1: 118},
            'uneven_inputs',
            1,
            'different numbers of batches',
            id='uneven, the long rank raised',
        ),
        pytest.param(
            {0: [in_step()], 1: [replace(SHORT, epoch_batches=119)]},
            2,
            {},
            'uneven_inputs',
            1,
            'Rank 1 ended its epoch after iteration 118, others wait in iteration 119',
            id='uneven, though the loaders announce as many',
        ),
        pytest.param(
            {
                0: [in_step(iteration=118, batches_taken=1)],
                1: [replace(SHORT, epoch_batches=119)],
            },
            2,
            {},
            'rank_waits',
            None,
            'wait for one another',
            id='one is in the next epoch, after as many batches',
        ),
        pytest.param(
            {
                0: [replace(PEER, iterations=118, traceback=IN_ITERATION)],
                1: [COMPLETED],
            },
            2,
            {},
            'uneven_inputs',
            1,
            'Rank 1 came to the end of training after 118 iterations',
            id='completed beside one that fails in an iteration',
        ),
        pytest.param(
            {0: [replace(PEER, iterations=118)], 1: [COMPLETED]},
            2,
            {},
            'rank_lost',
            None,
            'A rank is gone',
            id='completed beside one that fails after training',
        ),
        pytest.param(
            {0: [in_step(iteration=116)], 1: [replace(SHORT, epoch_batches=119)]},
            2,
            {},
            'rank_waits',
            None,
            'wait for one another',
            id='in validation, ahead of the other',
        ),
        pytest.param(
            {0: [in_step()], 1: [in_step()]},
            2,
            {},
            'rank_waits',
            None,
            'wait for one another',
            id='even ranks in one step',
        ),
        pytest.param(
            {0: [in_step()], 1: [in_step(epoch_batches=118, batches_taken=60)]},
            2,
            {1: 118},
            'rank_waits',
            None,
            'wait for one another',
            id='uneven, but in the midst of the epoch',
        ),
        pytest.param(
            {0: [stand('CheckpointHook', waited_s=1860.0)], 1: [in_step()]},
            2,
            {},
            'work_on_one_rank',
            0,
            'Stuck for 1860 s and more, in CheckpointHook',
            id='work on rank 0',
        ),
        pytest.param(
            {0: [stand('checkpoint_save', stack=SAVING)], 1: [in_step()]},
            2,
            {},
            'work_on_one_rank',
            0,
            'in a checkpoint save',
            id='a save, which MMEngine wraps for rank 0 alone',
        ),
        pytest.param(
            {0: [stand('WandbHook'), TIMED_OUT], 1: [in_step(), TIMED_OUT]},
            2,
            {},
            'work_on_one_rank',
            0,
            'wait for rank 0',
            id='work on rank 0 until the collective timed out',
        ),
        pytest.param(
            {
                0: [note(in_step())],
                1: [stand('data_wait', worker=2, pid=9, state='S', sample=118)],
            },
            2,
            {},
            'worker_stuck',
            1,
            'wait for rank 1',
            id='a rank that loads',
        ),
        pytest.param(
            {0: [LATE], 1: [LATE], 3: [LATE]},
            4,
            {},
            'rank_never_came',
            2,
            'Rank 2 left no evidence',
            id='a rank that never came',
        ),
        pytest.param(
            {0: [LATE], 1: [LATE]},
            2,
            {},
            'rank_never_came',
            None,
            'No iteration of the ranks together has ended',
            id='all came, and never met',
        ),
        pytest.param(
            {0: [PEER], 1: [UNUSED]},
            2,
            {},
            'unused_parameters',
            1,
            'gradients of parameters',
            id='a branch without gradient',
        ),
        pytest.param(
            {0: [UNUSED], 1: [UNUSED]},
            2,
            {},
            'unused_parameters',
            None,
            'gradients of parameters',
            id='a branch without gradient on all ranks',
        ),
        pytest.param(
            {0: [note(in_step())], 1: []},
            2,
            {},
            'unknown',
            None,
            'no end record',
            id='a wait that is no alarm',
        ),
    ],
)
def test_the_rank_that_the_others_wait_for_is_named_with_its_cause(
    ask_ranks, ranks, size, batches, cause, rank, said
):
    answer = ask_ranks(ranks, size, batches)
    assert (answer['cause'], answer['rank']) == (cause, rank)
    assert said in answer['sentence']
    if cause == 'unused_parameters':
        named = 'no gradient on rank 1: bbox_head.reg.weight, bbox_head.reg.bias'
        assert named in [proof['text'] for proof in answer['proof'][:2]]


IN_BARRIER = (
    '/env/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py:5 in f',
    '/p/hooks.py:110 in before_train_iter',
)


def test_ranks_in_different_collectives_are_shown_with_their_calls(ask_ranks):
    lone = stand('Upload', iteration=118, stack=IN_BARRIER, batches_taken=118)
    answer = ask_ranks({0: [lone], 1: [in_step()]}, 2, {})
    assert (answer['cause'], answer['rank']) == ('rank_waits', None)
    assert 'different collectives, which never meet' in answer['sentence']
    said = 'rank 0 waits in /p/hooks.py:110 in before_train_iter'
    assert answer['proof'][0]['text'] == said
    assert answer['do'] == ['Call each collective on every rank, or on none.']


def test_a_training_process_that_loads_itself_is_no_worker(ask_ranks):
    stack = ('/p/coco.py:88 in load', 'torch/utils/data/_utils/fetch.py:54 in fetch')
    loading = stand('data_wait', stack=stack, sample=27)
    answer = ask_ranks({0: [loading]}, 1, {})
    assert answer['cause'] == 'worker_stuck'
    assert 'Loading a sample is stuck, in the training process.' in answer['sentence']
    words = ' '.join((answer['sentence'], *answer['do']))
    assert 'loader worker' not in words and 'py-spy' not in words


def test_a_rank_of_another_run_is_left_out_and_a_missing_one_is_said(ask, tmp_path):
    folder = tmp_path / '20261127_080000' / 'vis_data'
    folder.mkdir(parents=True)
    for rank, began_s in ((0, 1.7e9), (1, 1.6e9)):
        run = make_run(rank=rank, world_size=3, started_unix_s=began_s)
        evidence = replace(make_evidence(intervals=0, run=run), end=None)
        (folder / evidence_name(rank)).write_text(
            render_evidence(evidence) + encode_line(in_step()).decode()
        )
    answer = ask('why', tmp_path)
    other, missing = answer['notes']
    assert 'of another run (it started 100000000 s apart)' in other
    assert missing == '1 of 3 ranks left evidence here; missing: 1, 2.'


def test_what_one_rank_raised_is_why_the_others_lost_it(ask_ranks):
    raised = failed("KeyError: 'lr_scale'")
    answer = ask_ranks({0: [PEER], 1: [raised]}, 2, {})
    assert (answer['cause'], answer['rank']) == ('rank_lost', 1)
    assert answer['proof'][0]['text'] == "KeyError: 'lr_scale'"


def test_a_rank_that_was_stopped_as_a_whole_is_named(ask, tmp_path):
    folder = tmp_path / '20261127_080000' / 'vis_data'
    folder.mkdir(parents=True)
    with subprocess.Popen(['sleep', '60']) as stopped:
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)
        start = now.read_start(stopped.pid)
        for rank, records in ((0, [in_step()]), (1, [])):
            run = make_run(rank=rank, world_size=2)
            if rank:
                run = replace(
                    run,
                    pid=stopped.pid,
                    process_start=start.ticks,
                    hostname=socket.gethostname(),
                )
            evidence = replace(make_evidence(intervals=0, run=run), end=None)
            lines = [render_evidence(evidence)]
            lines += [encode_line(record).decode() for record in records]
            (folder / evidence_name(rank)).write_text(''.join(lines))
        answer = ask('why', tmp_path)
        own, other = (read_evidence(folder / evidence_name(rank)) for rank in (0, 1))
        logged = list_causes(own, [other])
        stopped.kill()
    assert (answer['cause'], answer['rank']) == ('rank_waits', 1)
    said = f'Rank 1 was stopped (SIGSTOP, Ctrl-Z): process {stopped.pid}.'
    assert said in answer['sentence']
    assert said in logged[1] and len(logged) == 2
    assert answer['do'][0] == f'kill -CONT {stopped.pid} lets it go on.'


def test_a_rank_that_ended_itself_is_named_with_its_exit_code(ask_ranks):
    lines = (
        'Traceback (most recent call last):',
        '  File "/p/hooks.py", line 9, in after_train_iter',
        'SystemExit: 3',
    )
    ended = replace(PEER, status='interrupted', error='SystemExit', traceback=lines)
    answer = ask_ranks({0: [PEER], 1: [ended]}, 2, {})
    assert (answer['cause'], answer['rank']) == ('rank_lost', 1)
    assert 'Rank 1 ended itself: SystemExit: 3.' in answer['sentence']
    proof = [found['text'] for found in answer['proof']]
    assert proof == ['SystemExit: 3', 'raised at /p/hooks.py:9 in after_train_iter']


def test_a_handler_that_ended_a_standstill_leaves_it_the_cause(ask_ranks):
    stuck = stand('data_wait', worker=1, pid=9, state='S', sample=118)
    ended = replace(
        PEER, status='interrupted', error='SystemExit', traceback=('SystemExit: 143',)
    )
    answer = ask_ranks({0: [stuck, ended]}, 1, {})
    assert (answer['cause'], answer['sample']) == ('worker_stuck', '118')


def test_a_handler_of_sigterm_is_no_choice_of_the_program(ask_ranks):
    ended = replace(
        PEER, status='interrupted', error='SystemExit', traceback=('SystemExit: 143',)
    )
    answer = ask_ranks({0: [ended]}, 1, {})
    assert answer['cause'] == 'interrupted'
    assert 'Its handler of SIGTERM ended it' in answer['sentence']
    assert 'ended itself' not in answer['sentence']


def test_a_sample_of_a_skipped_batch_is_named(ask_ranks):
    skipping = stand('resume', worker=1, pid=9, state='S', sample=37, has_met=None)
    answer = ask_ranks({0: [skipping]}, 1, {})
    assert (answer['cause'], answer['sample']) == ('worker_stuck', '37')


IN_BROADCAST = (
    'torch/distributed/distributed_c10d.py:2901 in broadcast',
    'mmengine/runner/runner.py:926 in _init_model_weights',
)
PARSING = ('coco.py:88 in load', 'mmengine/runner/runner.py:1728 in train')


def stand_at_start(stack: tuple[str, ...], **fields: Any) -> StuckRecord:
    known = {'iteration': 0, 'has_met': False, 'stack': stack, **fields}
    return stand(START_PART, **known)


@pytest.fixture
def ask_starts(ask, tmp_path):
    """Function that runs ``mmgpu why`` on ranks that have not begun to train."""

    def ask_of(
        ranks: Mapping[int, list[Any]], size: int, trains: Mapping[int, list[Any]]
    ) -> Any:
        run = tmp_path / '20261127_080000'
        folder = run / 'vis_data'
        folder.mkdir(parents=True)
        (run / '20261127_080000.log').write_text('11/27 08:00:00 - mmengine - INFO -\n')
        for known, name in ((ranks, start_name), (trains, evidence_name)):
            for rank, records in known.items():
                loop = 'epoch' if known is trains else None
                who = RunRecord(
                    started_unix_s=1.0, rank=rank, world_size=size, loop=loop
                )
                who = replace(who, host=replace(who.host, ranks_on_host=size))
                lines = [encode_line(record) for record in (who, *records)]
                Path(folder, name(rank)).write_bytes(b''.join(lines))
        return ask('why', tmp_path)

    return ask_of


@pytest.mark.parametrize(
    ('ranks', 'trains', 'cause', 'rank', 'said'),
    [
        pytest.param(
            {0: [stand_at_start(IN_BROADCAST)], 1: [stand_at_start(PARSING)]},
            {},
            'rank_never_came',
            1,
            'Rank 1 has not begun to train',
            id='one stands in its data set',
        ),
        pytest.param(
            {0: [stand_at_start(IN_BROADCAST)]},
            {},
            'rank_never_came',
            1,
            'Rank 1 left no evidence',
            id='one left nothing',
        ),
        pytest.param(
            {0: [stand_at_start(IN_BROADCAST)], 1: []},
            {},
            'rank_never_came',
            1,
            'Rank 1 has not begun to train',
            id='one has said nothing yet',
        ),
        pytest.param(
            {0: [stand_at_start(IN_BROADCAST)], 1: [stand_at_start(IN_BROADCAST)]},
            {},
            'rank_never_came',
            None,
            'No iteration of the ranks together has ended',
            id='all wait',
        ),
        pytest.param(
            {0: [stand_at_start(PARSING)]},
            {1: [LATE]},
            'rank_never_came',
            0,
            'Rank 0 has not begun to train',
            id='rank 0 is late, the other trains',
        ),
        pytest.param(
            {1: [stand_at_start(PARSING)]},
            {0: [LATE]},
            'rank_never_came',
            1,
            'Rank 1 has not begun to train',
            id='rank 1 is late, rank 0 trains',
        ),
        pytest.param(
            {0: [stand_at_start(IN_BROADCAST, is_over=True)], 1: []},
            {},
            'unknown',
            None,
            'It left no evidence',
            id='it went on',
        ),
    ],
)
def test_the_rank_that_others_wait_for_before_training_is_named(
    ask_starts, ranks, trains, cause, rank, said
):
    answer = ask_starts(ranks, 2, trains)
    assert (answer['cause'], answer['rank']) == (cause, rank)
    assert said in answer['sentence']
    if ranks.get(rank) and ranks[rank][0].stack == PARSING:
        assert 'coco.py:88 in load' in [proof['text'] for proof in answer['proof']]


def test_a_start_alone_that_stands_still_says_where(ask_starts):
    answer = ask_starts({0: [stand_at_start(PARSING, has_met=None)]}, 1, {})
    assert answer['sentence'] == 'Stuck for 61 s and more, before training began.'
    assert answer['cause'] == 'unknown'


def test_a_killed_start_still_says_who_held_memory(ask_starts):
    record = MemoryRecord(
        phase='start',
        elapsed_s=9.0,
        bound='host',
        total_bytes=62 * GIB,
        used_bytes=60 * GIB,
        process_bytes=25 * GIB,
        is_low=True,
    )
    answer = ask_starts({0: [record], 1: [record]}, 2, {})
    assert answer['cause'] in ('oom_host', 'oom_cgroup')
    assert '2 training processes' in answer['proof'][-1]['text']


def test_dumps_of_nccls_flight_recorder_name_the_rank_that_is_behind(ask, tmp_path):
    ended = [make_entry(number, 'nccl:all_reduce') for number in range(1, 4)]
    waiting = make_entry(4, 'nccl:all_reduce', state='started')
    prefix = write_dumps(
        tmp_path, {0: [*ended, waiting], 1: ended, 2: [*ended, waiting]}
    )
    folder = tmp_path / 'run' / '20261127_080000' / 'vis_data'
    folder.mkdir(parents=True)
    for rank in range(3):
        run = make_run(
            rank=rank,
            world_size=3,
            device='cuda',
            started_unix_s=1.0,
            flight_recorder=(prefix,),
        )
        evidence = replace(make_evidence(intervals=0, run=run), end=None)
        lines = render_evidence(evidence) + encode_line(in_step()).decode()
        (folder / evidence_name(rank)).write_text(lines)
    answer = ask('why', tmp_path / 'run')
    assert (answer['cause'], answer['rank']) == ('rank_waits', 1)
    assert "Rank 1 is behind, by NCCL's flight recorder." in answer['sentence']
    proof = [found['text'] for found in answer['proof']]
    said = 'rank 1 never began all_reduce 4 of 0:default_pg, the others wait in it'
    assert proof[0] == said
    assert any('in or before' in text or 'before it' in text for text in proof)
    # one that is none costs the answer nothing else
    Path(f'{prefix}1').write_bytes(b'no dump')
    answer = ask('why', tmp_path / 'run')
    assert answer['cause'] == 'rank_waits' and answer['rank'] is None
    assert "expected what NCCL's flight recorder dumps" in answer['notes'][0]


SLOW = stand(
    'data_wait',
    iteration=0,
    waited_s=610.0,
    worker=1,
    pid=9,
    state='S',
    sample=37,
    sample_s=25.0,
    sample_number=3,
    batch_samples=16,
    batch_s=105.0,
    has_met=None,
)


@pytest.mark.parametrize(
    ('fields', 'cause'),
    [
        ({}, 'slow_loader'),
        ({'sample_s': 90.0, 'batch_s': 170.0}, 'slow_loader'),
        ({'sample_s': 600.0, 'batch_s': 602.0}, 'worker_stuck'),
        ({'sample_number': 1, 'batch_s': 25.0}, 'worker_stuck'),
        ({'sample_number': None, 'batch_samples': None}, 'worker_stuck'),
        ({'state': 'T'}, 'worker_stuck'),
    ],
    ids=[
        'as slow as others',
        'twice as slow',
        'hangs',
        'the first',
        'unseen',
        'stopped',
    ],
)
def test_a_worker_whose_samples_are_all_slow_is_not_stuck(ask_ranks, fields, cause):
    answer = ask_ranks({0: [replace(SLOW, **fields)]}, 1, {})
    assert answer['cause'] == cause
    if not fields:
        assert answer['sentence'].startswith('Slow, not stuck for 610 s and more')
        said = (
            'slow, not stuck: sample 3 of 16 is being loaded, the 2 before took 40.0 s '
            'each; at this rate the batch takes 10.7 min'
        )
        assert said in [proof['text'] for proof in answer['proof']]
