"""Tests reading synthetic NCCL flight recorder dumps with torch's reader."""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fakes.dumps import REDUCE, SPREAD, make_dump, make_entry, write_dumps
from fakes.replaced import replace
from fakes.runs import make_run
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.flight_recorder import list_dump_prefixes, read_flight_record

DONE = [make_entry(1, SPREAD), make_entry(2, REDUCE)]
STARTED = make_entry(3, REDUCE, state='started')
ALONE = make_entry(3, SPREAD, state='started')
LARGE = make_entry(3, REDUCE, size=65, state='started')
WAITING = make_entry(3, REDUCE, state='scheduled')


def make_ranks(prefix: str, size: int) -> list[Any]:
    run = make_run(world_size=size, started_unix_s=1.0, flight_recorder=(prefix,))
    return [replace(run, rank=rank) for rank in range(size)]


@pytest.mark.parametrize(
    ('ranks', 'behind', 'others', 'name'),
    [
        ({0: [STARTED], 1: [STARTED], 2: []}, (2,), {}, 'all_reduce'),
        ({0: [], 1: [STARTED], 2: [STARTED]}, (0,), {}, 'all_reduce'),
        ({0: [STARTED], 1: [ALONE], 2: [STARTED]}, (), {1: 'broadcast'}, 'all_reduce'),
        ({0: [ALONE], 1: [STARTED], 2: [STARTED]}, (), {0: 'broadcast'}, 'all_reduce'),
        ({0: [STARTED], 1: [STARTED], 2: [LARGE]}, (), {2: 'all_reduce'}, 'all_reduce'),
    ],
    ids=[
        'rank 2 is behind',
        'rank 0 is behind',
        'another collective',
        'another collective of rank 0',
        'other sizes',
    ],
)
def test_the_rank_that_is_behind_is_named(tmp_path, ranks, behind, others, name):
    dumped = {rank: [*DONE, *last] for rank, last in ranks.items()}
    record = read_flight_record(make_ranks(write_dumps(tmp_path, dumped), 3))
    assert record is not None
    assert (record.behind, record.others) == (behind, others)
    assert (record.name, record.number) == (name, 3)
    assert record.group == '0:default_pg'
    assert record.calls == ('/w/heads.py:88 in forward',)


@pytest.mark.parametrize(
    'ranks',
    [
        {},
        {0: [STARTED], 1: [STARTED]},
        {0: [STARTED], 1: [WAITING]},
        {0: [], 1: []},
    ],
    ids=['no dumps', 'all in one', 'all in one, one on its way', 'all ended'],
)
def test_ranks_that_agree_are_no_finding(tmp_path, ranks):
    dumped = {rank: [*DONE, *last] for rank, last in ranks.items()}
    assert read_flight_record(make_ranks(write_dumps(tmp_path, dumped), 2)) is None


def test_a_dump_of_an_older_run_is_left_alone(tmp_path):
    prefix = write_dumps(tmp_path, {0: [*DONE, STARTED], 1: DONE})
    for rank in range(2):
        os.utime(f'{prefix}{rank}', (0.5, 0.5))
    assert read_flight_record(make_ranks(prefix, 2)) is None


class Command:
    """Object whose pickle runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize(
    'make',
    [
        lambda path: pickle.dumps(Command(path)),
        lambda path: pickle.dumps(
            make_dump(DONE, f'\'__import__("os").mkdir("{path}")\'')
        ),
        lambda path: b'no pickle',
        lambda path: pickle.dumps([1]),
    ],
    ids=['code', 'code as a list of ranks', 'no pickle', 'no dump'],
)
def test_what_is_no_dump_is_refused_and_never_run(tmp_path, make):
    (tmp_path / 'trace_rank_0').write_bytes(make(tmp_path / 'made'))
    with pytest.raises(SourceError, match="expected what NCCL's flight recorder"):
        read_flight_record(make_ranks(str(tmp_path / 'trace_rank_'), 2))
    assert not (tmp_path / 'made').exists()


def test_what_torchs_reader_cannot_take_is_said(tmp_path):
    entries = [{'no': 'entry'}]
    with pytest.raises(SourceError, match="torch's reader of NCCL's flight recorder"):
        read_flight_record(make_ranks(write_dumps(tmp_path, {0: entries}), 2))


@pytest.mark.parametrize(
    ('environ', 'first'),
    [
        ({'TORCH_FR_DUMP_TEMP_FILE': '/d/rank_'}, '/d/rank_'),
        ({'TORCH_NCCL_DEBUG_INFO_TEMP_FILE': '/old/rank_'}, '/old/rank_'),
        ({'HOME': '/home/u'}, '/home/u/.cache/torch/comm_lib_trace_rank_'),
        ({'XDG_CACHE_HOME': '/c'}, '/c/torch/comm_lib_trace_rank_'),
    ],
    ids=['newer torch', 'older torch', 'home', 'cache folder'],
)
def test_the_place_of_dumps_follows_the_variables_that_torch_reads(environ, first):
    assert list_dump_prefixes(environ)[0] == first


def test_no_dump_of_a_rank_is_said(tmp_path):
    prefix = write_dumps(tmp_path, {0: [*DONE, STARTED], 1: DONE}, size=3)
    record = read_flight_record(make_ranks(prefix, 3))
    # nothing shows what rank 2 did
    assert record is None or record.without_dump == (2,)


GLOO = """
import http.client, json, os, pickle, socket, sys, time
from pathlib import Path

import torch
import torch.distributed as ranks
from torch._C._distributed_c10d import _WorkerServer

folder = Path(sys.argv[1])
ranks.init_process_group('gloo')
rank = ranks.get_rank()
path = str(folder / f'socket_{rank}')
server = _WorkerServer(path)


class Local(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(path)


ranks.all_reduce(torch.ones(4))
if rank == 0:
    waiting = ranks.all_reduce(torch.ones(8), async_op=True)
asking = Local('localhost')
asking.request('POST', '/handler/fr_trace_json')
dump = json.loads(asking.getresponse().read())
(folder / f'written_{rank}').write_bytes(pickle.dumps(dump))
(folder / f'written_{rank}').rename(folder / f'trace_rank_{rank}')
while len(list(folder.glob('trace_rank_*'))) < 2:
    time.sleep(0.05)
os._exit(0)
"""


@pytest.mark.slow
def test_what_torch_recorded_of_gloo_names_the_rank_that_is_behind(tmp_path):
    with socket.socket() as listening:
        listening.bind(('127.0.0.1', 0))
        port = str(listening.getsockname()[1])
    shared = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=port, WORLD_SIZE='2')
    running = [
        subprocess.Popen(
            [sys.executable, '-c', GLOO, str(tmp_path)],
            env={**os.environ, **shared, 'RANK': str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(120) for process in running] == [0, 0]
    record = read_flight_record(make_ranks(str(tmp_path / 'trace_rank_'), 2))
    assert record is not None
    assert (record.name, record.behind) == ('all_reduce', (1,))
