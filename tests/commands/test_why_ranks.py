"""``mmgpu why`` of several ranks: which one the others wait for, and why."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fakes.replaced import replace
from fakes.runs import make_evidence, make_run, render_evidence
from mmgpu_hooks.schema.lines import encode_line
from mmgpu_hooks.schema.recorded import EndRecord, StuckRecord
from mmgpu_hooks.schema.run_folder import evidence_name

IN_STEP = ('torch/autograd/graph.py:9 in _engine_run_backward',)
SAVING = (
    'torch/serialization.py:9 in save',
    'mmengine/dist/utils.py:427 in wrapper',
    'torch/distributed/elastic/multiprocessing/errors/__init__.py:355 in wrapper',
)
IN_GATHER = ('torch/distributed/distributed_c10d.py:3151 in all_gather_object',)


def stand(part: str, **fields: Any) -> StuckRecord:
    """A standstill of a rank that has trained 117 batches of its epoch."""
    known = {'iteration': 117, 'waited_s': 61.0, 'has_met': True, **fields}
    return StuckRecord(part=part, **known)


def in_step(**fields: Any) -> StuckRecord:
    """It waits for the gradients of the others, in its 119th batch."""
    known = {'iteration': 118, 'batches_taken': 119, 'epoch_batches': 119, **fields}
    return stand('step', stack=IN_STEP, **known)


def note(stuck: StuckRecord) -> StuckRecord:
    """The same, noted for the others alone."""
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
TIMED_OUT = failed(
    'RuntimeError: [gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting '
    '1800000ms for recv operation to complete'
)
COMPLETED = EndRecord(status='completed', iterations=118, duration_s=9.0, ledger_s={})


@pytest.fixture
def ask_ranks(ask, tmp_path):
    """Ask why, of a run with these records of its ranks, by rank."""

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
            'another number of batches',
            id='uneven, the long rank raised',
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
def test_who_the_ranks_wait_for(ask_ranks, ranks, size, batches, cause, rank, said):
    answer = ask_ranks(ranks, size, batches)
    assert (answer['cause'], answer['rank']) == (cause, rank)
    assert said in answer['sentence']
    if cause == 'unused_parameters':
        named = 'no gradient on rank 1: bbox_head.reg.weight, bbox_head.reg.bias'
        assert answer['proof'][0]['text'] == named


def test_a_sample_of_a_skipped_batch_is_named(ask_ranks):
    skipping = stand('resume', worker=1, pid=9, state='S', sample=37, has_met=None)
    answer = ask_ranks({0: [skipping]}, 1, {})
    assert (answer['cause'], answer['sample']) == ('worker_stuck', '37')
