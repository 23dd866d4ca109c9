"""Tests memory readings from a fake ``/proc``, and the size of a data set."""

from __future__ import annotations

import itertools
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmgpu_hooks.measure.memory import (
    MemoryFigures,
    MemoryMeter,
    read_free_bytes,
    read_group_bytes,
    weigh_objects,
    weigh_results,
)

PAGE = os.sysconf('SC_PAGE_SIZE')


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Fake ``/proc`` of this process, worker 7 with three threads, hidden worker 8."""
    for name, pages in (('self', 1000), ('7', 200)):
        for thread in '123':
            (tmp_path / name / 'task' / thread).mkdir(parents=True)
        (tmp_path / name / 'statm').write_text(f'9999 {pages} 10 1 0 5 0\n')
    for number in '0126':
        (tmp_path / 'self' / 'fd' / number).mkdir(parents=True)
    (tmp_path / '9').mkdir()
    (tmp_path / '9' / 'statm').write_text('garbage')
    return tmp_path


def test_memory_is_read_once_a_second_and_the_hidden_left_out(proc):
    now = [0.0]
    meter = MemoryMeter(proc, proc / 'none', clock=lambda: now[0])
    read = meter.read([7, 8, 9])
    assert read == MemoryFigures(
        process_rss_bytes=1000 * PAGE,
        process_own_bytes=990 * PAGE,
        group_free_bytes=None,
        worker_own_bytes=190 * PAGE,
    )
    now[0] = 0.5
    assert meter.read([7]) is None
    now[0] = 1.0
    assert meter.read([7, 8, 9]) == read._replace(worker_threads=3, open_files=4)
    now[0] = 2.0
    # threads and files are counted with one read of five
    assert meter.read([]) == read._replace(worker_own_bytes=None)


def test_memory_that_takes_long_to_read_is_read_seldom(proc):
    # each look at the clock is 30 ms later
    clock = itertools.count(0.0, 0.03).__next__
    meter = MemoryMeter(proc, proc / 'none', clock=clock)
    reads = sum(meter.read([]) is not None for _ in range(3000))
    assert 10 <= reads <= 16


@pytest.mark.parametrize(
    ('files', 'expected'),
    [
        ({'memory.current': '900', 'memory.stat': 'anon 1\ninactive_file 300\n'}, 600),
        (
            {
                'memory.usage_in_bytes': '900',
                'memory.stat': 'inactive_file 1\ntotal_inactive_file 500\n',
            },
            400,
        ),
        ({'memory.current': '100', 'memory.stat': 'inactive_file 300\n'}, 0),
        ({'memory.current': 'max', 'memory.stat': ''}, None),
        ({}, None),
    ],
)
def test_memory_of_a_control_group_is_without_its_page_cache(tmp_path, files, expected):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_group_bytes(tmp_path) == expected


def test_what_a_new_process_could_have_is_the_least_of_host_and_groups(tmp_path):
    proc, group = tmp_path / 'proc', tmp_path / 'sys' / 'fs' / 'cgroup' / 'job'
    (proc / 'self').mkdir(parents=True)
    group.mkdir(parents=True)
    assert read_free_bytes(proc, tmp_path / 'sys') is None
    (proc / 'meminfo').write_text('MemTotal: 9000 kB\nMemAvailable:    5000 kB\n')
    assert read_free_bytes(proc, tmp_path / 'sys') == 5000 * 1024
    (proc / 'self' / 'cgroup').write_text('0::/job\n')
    (group / 'memory.max').write_text(f'{4000 * 1024}\n')
    (group / 'memory.current').write_text(f'{3000 * 1024}\n')
    (group / 'memory.stat').write_text(f'inactive_file {1000 * 1024}\n')
    assert read_free_bytes(proc, tmp_path / 'sys') == 2000 * 1024


class Holder:
    """Data set with the given attributes."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Hostile:
    """Object that raises an error on every access."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __sizeof__(self) -> int:
        raise RuntimeError('size')

    def __len__(self) -> int:
        raise RuntimeError('length')


NAMES = [f'class {n}' for n in range(1203)]
RECORDS = [{'id': n, 'name': f'{n}.jpg', 'box': [n + 0.5] * 4} for n in range(20_000)]


@pytest.mark.parametrize(
    ('dataset', 'name', 'entries'),
    [
        (Holder(data_list=RECORDS), 'Holder.data_list', 20_000),
        (Holder(dataset=Holder(items=RECORDS)), 'Holder.items', 20_000),
        (
            Holder(datasets=[Holder(a=RECORDS[:9000]), Holder(b=RECORDS)]),
            'Holder.b',
            20_000,
        ),
        (Holder(coco=Holder(anns=dict(enumerate(RECORDS)))), 'Holder.coco', 1),
        (Holder(by_id=defaultdict(list, enumerate(RECORDS))), 'Holder.by_id', 20_000),
        (Holder(hostile=[Hostile()], data_list=RECORDS), 'Holder.data_list', 20_000),
    ],
    ids=[
        'a list',
        'of a wrapped one',
        'of the second of two',
        'a dict',
        'a default dict',
        'beside a hostile one',
    ],
)
def test_objects_of_a_dataset_are_weighed_and_named(dataset, name, entries):
    found = weigh_objects(dataset)
    assert found is not None
    assert (found.name, found.entries) == (name, entries)
    # a dict of 184 bytes, a list of 88, a number of 24, a name of 54
    assert 300 * len(RECORDS) < found.bytes < 700 * len(RECORDS)


@pytest.mark.parametrize(
    'dataset',
    [
        None,
        Holder(hostile=[Hostile()]),
        Holder(data_bytes=np.zeros(10**7, np.uint8), short=[1, 2, 3]),
        Holder(file=os),
        # a number in its place would be read as a length
        Holder(samples=(n for n in range(9))),
        Holder(names=[NAMES] * 9000),
    ],
    ids=[
        'none',
        'hostile',
        'an array',
        'a module',
        'a generator',
        'one list many times',
    ],
)
def test_what_is_not_copied_is_not_weighed(dataset):
    assert weigh_objects(dataset) is None


def test_a_dataset_that_holds_itself_comes_to_an_end():
    dataset = Holder(data_list=RECORDS)
    vars(dataset).update(dataset=dataset, items=[dataset])
    found = weigh_objects(dataset)
    assert found is not None and found.name == 'Holder.data_list'


def test_results_of_metrics_are_weighed_with_their_arrays():
    boxes = [{'boxes': np.zeros((100, 4)), 'id': n} for n in range(5000)]
    masks = [torch.zeros(1, 512, 512, dtype=torch.uint8) for _ in range(8)]
    odd = [torch.ones(2000, 500).to_sparse(), torch.ones(2000, 500, device='meta')]
    holders = (Holder(results=results) for results in (masks, boxes, odd))
    metrics = [*holders, Hostile()]
    found = weigh_results(metrics)
    assert found is not None
    assert (found.name, found.entries) == ('Holder.results', 5000)
    assert found.bytes == pytest.approx(5000 * 3200 + 8 * 2**18, rel=0.15)
    assert weigh_results([Holder(results=[1.0, 2.0]), Holder()]) is None
