"""Tests that workers' batches sent by value equal those sent as files, bit by bit."""

from __future__ import annotations

import gc
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import resource_sharer, resource_tracker
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmengine.registry import init_default_scope
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader

from fakes.sent import (
    LargeDataset,
    SentDataset,
    collate,
    describe,
    make_kinds,
    seed_worker,
)
from mmgpu_hooks.experiment.demo_dataset import CATEGORIES, write_demo_dataset
from mmgpu_hooks.optimize import bundles, small_tensors
from mmgpu_hooks.optimize.bundles import Bundle, Message, reduce_storage
from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.optimize.small_tensors import (
    SmallTensors,
    rebuild,
    rebuild_array,
    reduce_array,
    reduce_by_value,
)

TESTS = Path(__file__).parents[1]


def fail(error: Exception) -> None:
    raise AssertionError('taken back') from error


def make_loader(method: str = 'fork', **more: Any) -> Any:
    # a batch that a worker fails to send is waited for as long as this
    given = dict(num_workers=2, batch_size=4, worker_init_fn=seed_worker, timeout=60)
    return DataLoader(
        more.pop('dataset', None) or SentDataset(),
        collate_fn=collate,
        multiprocessing_context=method,
        generator=torch.Generator().manual_seed(5),
        **{**given, **more},
    )


def end_workers(loader: Any) -> None:
    if loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Asserts that no shared memory file or file descriptor outlives a test."""
    gc.collect()
    # whichever test is the first that spawns starts it, and it stays
    resource_tracker.ensure_running()
    files, descriptors = list_shared_files(), count_open()
    yield
    # of what a test pickled and nobody received
    resource_sharer.stop(timeout=10)
    gc.collect()
    assert list_shared_files() <= files
    until = time.monotonic() + 5
    # threads of queues close their ends a moment later
    while count_open() > descriptors + 1 and time.monotonic() < until:
        time.sleep(0.01)
    assert count_open() <= descriptors + 1


def list_shared_files() -> set[str]:
    """Returns PyTorch's shared memory files that no other living process made."""
    names = [name for name in os.listdir('/dev/shm') if name.startswith('torch_')]
    owners = {name: name.split('_')[1] for name in names}
    return {
        name
        for name, owner in owners.items()
        if owner == str(os.getpid()) or not Path('/proc', owner).exists()
    }


def count_open() -> int:
    """Returns the number of open file descriptors of this process."""
    return len(os.listdir('/proc/self/fd'))


@pytest.mark.parametrize(
    'method', ['fork', 'spawn', pytest.param('forkserver', marks=pytest.mark.slow)]
)
def test_batches_are_the_same_to_the_last_bit(method):
    # each worker that is spawned imports torch anew
    workers = 2 if method == 'fork' else 1
    plain, ours = (make_loader(method, num_workers=workers) for _ in range(2))
    small = SmallTensors(ours, fail)
    received = [[describe(batch) for batch in loader] for loader in (plain, ours)]
    assert received[0] == received[1]
    assert len(received[0]) == 6
    small.close()
    assert ours.worker_init_fn is seed_worker


def build_detection_data(root: Path) -> Any:
    """Returns MMDetection's data set with mosaic, mix-up and a mask per box."""
    from mmdet.registry import DATASETS

    init_default_scope('mmdet')
    write_demo_dataset(root, images=8, width=320, height=240)
    listed = json.loads((root / 'annotations.json').read_text())
    for note in listed['annotations']:
        left, top, width, height = note['bbox']
        right, bottom = left + width, top + height
        corners = [left, top, right, top, right, bottom, left, bottom]
        note['segmentation'] = [corners]
    (root / 'masks.json').write_text(json.dumps(listed))
    size = (240, 320)
    return DATASETS.build(
        dict(
            type='CocoDataset',
            data_root=str(root),
            ann_file='masks.json',
            data_prefix=dict(img='images/'),
            metainfo=dict(classes=CATEGORIES),
            pipeline=[
                dict(type='LoadImageFromFile'),
                dict(type='LoadAnnotations', with_bbox=True, with_mask=True),
                dict(type='CachedMosaic', img_scale=size, max_cached_images=4),
                dict(type='RandomResize', scale=size, ratio_range=(0.5, 2.0)),
                dict(type='RandomCrop', crop_size=size),
                dict(type='RandomFlip', prob=0.5),
                dict(type='Pad', size=size),
                dict(type='CachedMixUp', img_scale=size, max_cached_images=4),
                dict(type='PackDetInputs'),
            ],
        )
    )


def seed_all(worker_id: int) -> None:
    """Seeds a worker as MMEngine does."""
    for seed in (np.random.seed, random.seed, torch.manual_seed):
        seed(7 + worker_id)


def test_mosaic_mix_up_and_masks_of_mmdetection_are_the_same(tmp_path):
    dataset = build_detection_data(tmp_path)
    received: list[list[Any]] = []
    largest = 0
    for is_ours in (False, True):
        loader = make_loader(dataset=dataset, worker_init_fn=seed_all)
        if is_ours:
            SmallTensors(loader, fail)
        received.append([])
        for batch in loader:
            received[-1].append(describe(batch))
            masks = [item['data_samples'].gt_instances.masks for item in batch]
            largest = max(largest, *(mask.masks.nbytes for mask in masks))
    assert received[0] == received[1]
    assert largest >= small_tensors.LEAST_BYTES


def test_persistent_workers_go_on_from_epoch_to_epoch():
    plain, ours = (make_loader(persistent_workers=True) for _ in range(2))
    small = SmallTensors(ours, fail)
    for _ in range(2):
        assert [describe(b) for b in plain] == [describe(b) for b in ours]
    small.close()
    for loader in (plain, ours):
        end_workers(loader)


def test_a_tensor_that_two_hold_is_one_where_it_arrives():
    loader = make_loader(num_workers=1)
    SmallTensors(loader, fail)
    kinds = next(iter(loader))[1]['kinds']
    one, view = kinds['alias']
    one[0] = 7.0
    assert view[0, 0] == 7.0
    stored, storage = kinds['storage']
    assert stored.data_ptr() == storage.data_ptr()
    first, second = kinds['twice']
    assert first is second
    kinds['scalar'] += 1
    kinds['limit'][0] = 3.0
    assert not kinds['limit'].is_shared()
    assert kinds['above'].is_shared()
    assert kinds['limit'].data_ptr() % 64 == 0


BY_VALUE = {'empty', 'scalar', 'flags', 'half', 'limit', 'row'}


def test_only_small_plain_tensors_of_their_own_go_by_value():
    kinds = make_kinds(3)
    lone = {
        name: reduce_by_value(kinds[name])[0] is rebuild
        for name in kinds
        if type(kinds[name]) is torch.Tensor
    }
    assert {name for name, is_sent in lone.items() if is_sent} == BY_VALUE
    nested = torch.nested.nested_tensor([torch.rand(2), torch.rand(3)])
    for tensor in (nested, torch.rand(3, device='meta')):
        assert reduce_by_value(tensor)[0] is not rebuild


LARGE = {'masks', 'gray reversed', 'one mask reversed', 'odd stride'}


def test_only_large_plain_arrays_go_as_files(monkeypatch):
    kinds = make_kinds(3)
    sent = {
        name: reduce_array(array)[0] is rebuild_array
        for name, array in kinds.items()
        if isinstance(array, np.ndarray)
    }
    assert {name for name, is_sent in sent.items() if is_sent} == LARGE
    # the rest of shared memory is for tensors, which have no other way
    monkeypatch.setattr(small_tensors, 'SPARE_SHM_BYTES', 2**60)
    assert reduce_array(kinds['masks'])[0] is not rebuild_array
    loader = make_loader(num_workers=1)
    SmallTensors(loader, fail)
    masks = next(iter(loader))[0]['kinds']['masks']
    masks += 1
    assert masks[0, 0, 0] == 1


@pytest.mark.parametrize(
    'place',
    [
        (torch, 'from_numpy'),
        (ForkingPickler, 'dumps'),
        (torch.Tensor, 'numpy'),
        (small_tensors, '_may_go_as_file'),
        (small_tensors, '_may_go_by_value'),
    ],
    ids=lambda place: place[1],
)
def test_what_cannot_be_sent_so_goes_as_ever(monkeypatch, place):
    """Tests that data that cannot be sent by value are sent as PyTorch sends them."""

    def raise_error(*_: Any) -> None:
        raise ValueError('strides')

    kinds = make_kinds(3)
    with monkeypatch.context() as patch:
        patch.setattr(*place, raise_error)
        sent = [reduce_array(kinds[name]) for name in LARGE]
        sent += [reduce_by_value(kinds[name]) for name in BY_VALUE]
    ours = [pickled[0] in (rebuild, rebuild_array) for pickled in sent]
    assert ours.count(False) in (len(LARGE), len(BY_VALUE))


def count_files(loader: Any) -> int:
    """Returns how many file descriptors a batch keeps open in this process."""
    before = len(os.listdir('/proc/self/fd'))
    iterator = iter(loader)
    batch = next(iterator)
    held = len(os.listdir('/proc/self/fd')) - before
    del batch, iterator
    return held


def test_a_batch_holds_fewer_open_files():
    plain, ours = (make_loader(num_workers=1, prefetch_factor=1) for _ in range(2))
    SmallTensors(ours, fail)
    assert count_files(ours) < count_files(plain)


@pytest.fixture
def connections(monkeypatch) -> list[Any]:
    """Keys by which this process connected to workers to receive files, in order."""
    made: list[Any] = []
    connect = bundles._sharer.get_connection

    def count(ident: Any) -> Any:
        made.append(ident)
        return connect(ident)

    monkeypatch.setattr(bundles._sharer, 'get_connection', count)
    return made


def receive(tensors: int, is_ours: bool, **more: Any) -> list[Any]:
    """Returns the two batches of a data set of large tensors, loaded by one worker."""
    given = dict(num_workers=1, batch_size=1, prefetch_factor=1)
    loader = make_loader(dataset=LargeDataset(tensors), **{**given, **more})
    if is_ours:
        SmallTensors(loader, fail)
    return list(loader)


@pytest.mark.parametrize(
    ('tensors', 'expected'), [(0, 0), (8, 1), (63, 1), (64, 2), (300, 5)]
)
def test_all_files_of_a_batch_take_one_connection(connections, tensors, expected):
    plain = [describe(batch) for batch in receive(tensors, is_ours=False)]
    # one that the data set holds comes on top
    assert len(connections) == 2 * (tensors + bool(tensors))
    connections.clear()
    assert [describe(batch) for batch in receive(tensors, is_ours=True)] == plain
    assert len(connections) == 2 * expected


def test_aliases_of_large_tensors_stay_aliases(connections):
    (first,), (second,) = receive(3, is_ours=True)
    assert len(connections) == 2
    assert first['twice'][0] is first['images'][0]
    transposed, part = first['views'][:2]
    first['images'][0][3, 1] = 77
    assert transposed[1, 3] == 77
    assert part[0, 1] == 77
    # the data set returns the same tensor each time
    assert first['held'].data_ptr() == second['held'].data_ptr()
    assert first['held'].is_shared()


@pytest.mark.parametrize(
    'place',
    [
        (Bundle, 'add'),
        (bundles, 'get_sharing_strategy'),
        (bundles, 'torch_worker'),
        (bundles, '_sharer'),
    ],
    ids=lambda place: place[1],
)
def test_files_that_cannot_go_together_go_one_by_one(monkeypatch, connections, place):
    plain = [describe(batch) for batch in receive(5, is_ours=False)]

    def raise_error(*_: Any) -> None:
        raise OSError('too many')

    connections.clear()
    monkeypatch.setattr(*place, raise_error)
    assert [describe(batch) for batch in receive(5, is_ours=True)] == plain
    assert len(connections) == 12


def test_a_users_own_way_to_send_files_stays(monkeypatch, connections):
    def reduce_own(storage: Any) -> Any:
        return reductions.reduce_storage(storage)

    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    monkeypatch.setitem(reducers, torch.UntypedStorage, reduce_own)
    receive(5, is_ours=True)
    assert len(connections) == 12


class Unloadable:
    """Object of a user's that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ('no number',)


def pickle_message(content: Any, monkeypatch: Any) -> bytes:
    """Returns the bytes of a message as a worker pickles it."""
    reducers = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    monkeypatch.setitem(reducers, torch.UntypedStorage, reduce_storage)
    return bytes(ForkingPickler.dumps(Message(content)))


def wait_for_open(expected: int) -> None:
    """Waits until the thread that sends files has closed what it sent."""
    for _ in range(200):
        if count_open() == expected:
            return
        time.sleep(0.01)
    raise AssertionError(f'{count_open()} files are open, not {expected}')


def test_a_message_that_cannot_be_loaded_leaves_no_file_open(monkeypatch):
    images = [torch.rand(2000).share_memory_() for _ in range(5)]
    # starts the thread that sends them
    reduce_storage(images[0].untyped_storage())
    before = count_open()
    message = pickle_message([*images[:2], Unloadable(), *images[2:]], monkeypatch)
    assert count_open() == before + 5
    with pytest.raises(ValueError, match='no number'):
        pickle.loads(message)
    wait_for_open(before)


def test_a_message_is_loaded_in_another_thread(monkeypatch):
    images = [torch.rand(2000) for _ in range(3)]
    message = pickle_message(images, monkeypatch)
    with ThreadPoolExecutor(1) as pinning:
        loaded = pinning.submit(pickle.loads, message).result()
    assert all(torch.equal(*pair) for pair in zip(images, loaded))


def test_a_process_that_may_open_no_more_files_says_so():
    loader = make_loader(dataset=LargeDataset(60), num_workers=1, batch_size=1)
    SmallTensors(loader, fail)
    iterator, limits = iter(loader), resource.getrlimit(resource.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir('/proc/self/fd')}
    most = [number for number in range(limits[0]) if number not in used][30]
    before = count_open()
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    try:
        with pytest.raises(OSError, match='Too many open files'):
            next(iterator)
        assert count_open() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        iterator._shutdown_workers()


def test_what_is_pickled_after_a_message_goes_as_ever(monkeypatch):
    message = pickle_message([torch.rand(2000)], monkeypatch)
    sent = reduce_storage(torch.rand(2000).untyped_storage())
    assert isinstance(sent[1][1], resource_sharer.DupFd)
    assert len(pickle.loads(message)) == 1


def test_an_exception_of_the_data_set_arrives_as_ever():
    loader = make_loader(dataset=LargeDataset(3, failing_at=1), batch_size=1)
    SmallTensors(loader, fail)
    with pytest.raises(ValueError, match='no such image'):
        list(loader)


def test_a_killed_worker_is_said_as_ever():
    loader = make_loader(dataset=SentDataset(killed_at=9))
    SmallTensors(loader, fail)
    iterator = iter(loader)
    with pytest.raises((RuntimeError, ConnectionError)):
        list(iterator)
    iterator._shutdown_workers()


INTERRUPTED = """
    import sys, time
    from fakes.sent import SentDataset, collate
    from mmgpu_hooks.optimize.small_tensors import SmallTensors
    from torch.utils.data import DataLoader

    if __name__ == '__main__':
        loader = DataLoader(SentDataset(10**6), 4, num_workers=2, collate_fn=collate)
        SmallTensors(loader, print)
        for number, batch in enumerate(loader):
            if number == 3:
                print('now', flush=True)
            time.sleep(0.01)
"""


def test_ctrl_c_leaves_no_process(tmp_path):
    script = tmp_path / 'train.py'
    script.write_text(textwrap.dedent(INTERRUPTED))
    path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, 'PYTHONPATH': path},
        start_new_session=True,
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == 'now\n'
        os.killpg(program.pid, signal.SIGINT)
        _, errors = program.communicate(timeout=60)
    assert 'KeyboardInterrupt' in errors
    for _ in range(50):
        try:
            os.killpg(program.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    raise AssertionError('processes are left')


class OwnPickle:
    """User's own ``worker_init_fn`` that changes how tensors are pickled."""

    def __call__(self, worker_id: int) -> None:
        ForkingPickler.register(torch.Tensor, lambda tensor: (list, ((1, 2),)))


def test_a_users_own_way_stays():
    loader = make_loader(worker_init_fn=OwnPickle(), num_workers=1)
    SmallTensors(loader, fail)
    assert next(iter(loader))[0]['kinds']['scalar'] == [1, 2]


def test_loaders_without_workers_and_without_the_count_are_refused(monkeypatch):
    loader = make_loader()
    with pytest.raises(RefusalError, match='no worker sends batches'):
        SmallTensors(DataLoader(SentDataset()), fail)
    monkeypatch.setattr(small_tensors, '_count_uses', lambda storage: 2)
    with pytest.raises(RefusalError, match='does not say who else uses a tensor'):
        SmallTensors(loader, fail)
    monkeypatch.setattr(small_tensors, '_count_uses', None)
    with pytest.raises(RefusalError, match='does not say who else uses a tensor'):
        SmallTensors(loader, fail)
    assert loader.worker_init_fn is seed_worker
