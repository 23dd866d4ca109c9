"""Tests that resuming by the sampler gives the same batches as by loading."""

from __future__ import annotations

import gc
import inspect
import json
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mmdet.datasets.samplers  # noqa: F401, registers the batch sampler
import numpy as np
import psutil
import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import IterBasedTrainLoop
from torch.utils.data import DataLoader, IterableDataset, Sampler

from mmgpu_hooks.optimize.refusal import RefusalError
from mmgpu_hooks.optimize.resume import SampledResume, SeededInit
from training.detection import environ
from training.toy import HOOK, ToyDataset, build_runner, evidence_of, log_of, train

IMAGES, BATCH, UNTIL = 40, 2, 60
"""Number of images, batch size, and last iteration: 20 batches per epoch."""
OURS = {**HOOK, 'optimize': 'resume', 'summary': False, 'write_config': False}


class SizedDataset(ToyDataset):
    """Data set of images; every third one has another aspect ratio."""

    def get_data_info(self, index: int) -> dict[str, int]:
        return {'width': 200 if index % 3 else 100, 'height': 150}

    def __getitem__(self, index: int) -> dict[str, Any]:
        drawn = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item()])
        return {**super().__getitem__(index), 'drawn': drawn}


class Resumed(Hook):
    """Hook that starts training at an iteration, and records the batches."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration
        self.seen: list[list[int]] = []
        self.drawn: list[float] = []

    def before_run(self, runner: Any) -> None:
        runner.train_loop._iter = self.iteration

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any) -> None:
        self.seen.append([int(index) for index in data_batch['data_samples']])
        self.drawn += data_batch.pop('drawn')[0].tolist()


SAMPLERS: dict[str, dict[str, Any]] = {
    'InfiniteSampler': {'sampler': {'type': 'InfiniteSampler', 'shuffle': True}},
    'DefaultSampler': {'sampler': {'type': 'DefaultSampler', 'shuffle': True}},
    'AspectRatioBatchSampler': {
        'sampler': {'type': 'DefaultSampler', 'shuffle': True},
        'batch_sampler': {'type': 'mmdet.AspectRatioBatchSampler'},
    },
    'AspectRatioBatchSampler without end': {
        'sampler': {'type': 'InfiniteSampler', 'shuffle': True},
        'batch_sampler': {'type': 'mmdet.AspectRatioBatchSampler'},
    },
}


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch):
    """Removes MMEngine's sleep of two seconds at the end of an epoch."""
    monkeypatch.setattr('mmengine.runner.loops.time.sleep', lambda seconds: None)


def build(folder: Path, resumed: Resumed, settings: dict[str, Any], **more: Any) -> Any:
    loader = {'num_workers': 0, 'persistent_workers': False}
    given = {key: more.pop(key) for key in list(more) if key in loader}
    runner = build_runner(
        folder,
        loop='iter',
        iterations=more.pop('until', UNTIL),
        batch_size=BATCH,
        dataset=SizedDataset(IMAGES),
        custom_hooks=[resumed, *more.pop('hooks', ())],
        **given,
        **more,
    )
    runner._train_dataloader.update(settings)
    return runner


def resume(folder: Path, at: int, settings: dict[str, Any], **more: Any) -> Any:
    """Trains from an iteration on; returns batches, random draws and log."""
    resumed = Resumed(at)
    runner = train(build(folder, resumed, settings, **more))
    return SimpleNamespace(seen=resumed.seen, drawn=resumed.drawn, log=log_of(runner))


@pytest.fixture(scope='module')
def wholes(tmp_path_factory):
    """Batches of an uninterrupted training, by sampler."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr('mmengine.runner.loops.time.sleep', lambda seconds: None)
        return {
            name: resume(tmp_path_factory.mktemp('whole'), 0, own, hook=None).seen
            for name, own in SAMPLERS.items()
        }


WORKERS = {
    'no workers': {},
    'workers': {'num_workers': 2},
    'persistent workers': {'num_workers': 2, 'persistent_workers': True},
}


@pytest.mark.parametrize('workers', WORKERS)
@pytest.mark.parametrize('sampler', SAMPLERS)
def test_the_batches_that_follow_are_the_same(tmp_path, wholes, sampler, workers):
    before = set(psutil.Process().children())
    for at in (5, 47) if sampler == 'DefaultSampler' else (33,):
        found = resume(
            tmp_path / str(at), at, SAMPLERS[sampler], hook=OURS, **WORKERS[workers]
        )
        assert found.seen == wholes[sampler][at:]
        assert len(found.seen) == UNTIL - at
        assert f'optimize=resume is on: {at} batches' in found.log
        assert re.search(rf'{at} of {at} batches were skipped in ', found.log)
    gc.collect()
    assert set(psutil.Process().children()) <= before


def test_skipping_is_booked_as_resume_and_nothing_is_loaded(tmp_path):
    loaded: list[int] = []

    class Counted(SizedDataset):
        def __getitem__(self, index: int) -> dict[str, Any]:
            loaded.append(index)
            return super().__getitem__(index)

    own = {**SAMPLERS['InfiniteSampler'], 'dataset': Counted(IMAGES)}
    resume(tmp_path, 50, own, hook=OURS)
    assert len(loaded) == BATCH * (UNTIL - 50)
    evidence = evidence_of(tmp_path)
    assert evidence.run.optimized == ('resume',)
    assert evidence.run.start_iteration == 50
    parts_s = evidence.end.ledger_s
    assert 0 < parts_s['resume'] < 1
    # all waits of the iterations are theirs: none is taken for a skipped batch
    assert evidence.intervals[0].data_wait.count == evidence.intervals[0].iterations
    assert evidence.intervals[-1].iteration == UNTIL


@pytest.mark.parametrize('workers', ['no workers', 'workers'])
def test_augmentation_does_not_repeat_that_of_the_start(tmp_path, workers):
    own, given = SAMPLERS['InfiniteSampler'], WORKERS[workers]
    whole = resume(tmp_path / 'whole', 0, own, hook=None, until=12, **given)
    once = resume(tmp_path / 'once', 8, own, hook=OURS, until=12, **given)
    again = resume(tmp_path / 'again', 8, own, hook=OURS, until=12, **given)
    later = resume(tmp_path / 'later', 9, own, hook=OURS, until=12, **given)
    assert once.drawn == again.drawn
    assert not set(once.drawn) & set(whole.drawn)
    assert not set(once.drawn) & set(later.drawn)


def test_loading_counts_the_skipped_over_ends_of_epochs(tmp_path, wholes):
    found = resume(tmp_path, 47, SAMPLERS['DefaultSampler'])
    assert found.seen == wholes['DefaultSampler'][47:]
    assert 'optimize=' not in found.log
    record = evidence_of(tmp_path).intervals[0]
    assert record.data_wait.total_s < record.ledger_s['resume']
    assert record.first_waits == 0


@pytest.mark.parametrize('error', [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize('workers', ['no workers', 'workers'])
def test_what_ends_a_skip_ends_the_training_and_leaves_nothing(
    tmp_path, monkeypatch, error, workers
):
    before = set(psutil.Process().children())
    resumed, own = Resumed(30), SAMPLERS['InfiniteSampler']

    def advance(self: SampledResume) -> int:
        draw, count = self._draw, self._count

        def interrupted(indices: Any, left: int) -> Any:
            draw(indices, min(3, count))
            raise error('planted')

        monkeypatch.setattr(self, '_draw', interrupted)
        return original(self)

    original = SampledResume._advance
    monkeypatch.setattr(SampledResume, '_advance', advance)
    runner = build(tmp_path, resumed, own, hook=OURS, **WORKERS[workers])
    with pytest.raises(error, match='planted'):
        train(runner)
    assert resumed.seen == []
    wrapper = runner.train_loop.dataloader_iterator
    assert type(wrapper._iterator).__module__.startswith('torch')
    wrapper._iterator = runner.train_dataloader._iterator = None
    gc.collect()
    assert set(psutil.Process().children()) <= before
    status = 'interrupted' if error is KeyboardInterrupt else 'failed'
    assert evidence_of(tmp_path).end.status == status


@pytest.mark.parametrize('workers', ['workers', 'persistent workers'])
def test_where_no_worker_can_be_started_the_old_ones_go_on(
    tmp_path, monkeypatch, wholes, workers
):
    def fail(self: SampledResume, indices: Any) -> Any:
        raise BlockingIOError(11, 'Resource temporarily unavailable')

    monkeypatch.setattr(SampledResume, '_start_workers', fail)
    found = resume(
        tmp_path, 33, SAMPLERS['InfiniteSampler'], hook=OURS, **WORKERS[workers]
    )
    assert found.seen == wholes['InfiniteSampler'][33:]
    assert re.search(r'29 of 33 batches were skipped in ', found.log)
    assert 'optimize=resume is taken back (BlockingIOError' in found.log


class Endless(IterableDataset):
    """Endless iterable-style data set without a sampler."""

    def __iter__(self) -> Any:
        while True:
            yield 0


class Drawn(Sampler):
    """Sampler that draws from NumPy's global random numbers."""

    def __init__(self) -> None:
        pass

    def __iter__(self) -> Any:
        return iter(np.random.permutation(8).tolist())

    def __len__(self) -> int:
        return 8


class OwnLoop(IterBasedTrainLoop):
    """Train loop with its own ``run``, which may skip batches in its own way."""

    def run(self) -> Any:
        return super().run()


def refuse(change: Callable[[Any], None], **loader: Any) -> str:
    """Returns why a changed loop's batches cannot be skipped by the sampler."""
    given = {'dataset': list(range(8)), **loader}
    loop = object.__new__(IterBasedTrainLoop)
    loop._dataloader = loop.dataloader = DataLoader(**given)
    loop._iter = 5
    from mmengine.runner.loops import _InfiniteDataloaderIterator

    loop.dataloader_iterator = _InfiniteDataloaderIterator(loop.dataloader)
    change(loop)
    with pytest.raises(RefusalError) as refusal:
        SampledResume(SimpleNamespace(train_loop=loop), lambda error: None)
    return str(refusal.value)


def set_iterator(loop: Any) -> None:
    loop.dataloader_iterator._iterator = iter([1, 2])


REFUSALS: dict[str, tuple[Callable[[Any], None], dict[str, Any], str]] = {
    'nothing is resumed': (
        lambda loop: setattr(loop, '_iter', 0),
        {},
        'training starts at its first iteration',
    ),
    'the fork': (
        lambda loop: setattr(loop, 'fast_forward_on_resume', False),
        {},
        'this MMEngine skips without loading by itself',
    ),
    'a loop of its own': (
        lambda loop: setattr(loop, '__class__', OwnLoop),
        {},
        'OwnLoop runs in a way of its own',
    ),
    'a wrapper of its own': (
        lambda loop: setattr(loop, 'dataloader_iterator', iter([])),
        {},
        'its batches come from a list_iterator',
    ),
    'an iterator of its own': (
        set_iterator,
        {},
        "list_iterator is no iterator of PyTorch's own",
    ),
    'another PyTorch': (
        lambda loop: delattr(loop.dataloader_iterator._iterator, '_sampler_iter'),
        {},
        'the iterators of this PyTorch have no _sampler_iter',
    ),
    'no sampler': (
        lambda loop: None,
        {'dataset': Endless()},
        'an IterableDataset has no sampler',
    ),
    'out of order': (
        lambda loop: setattr(loop.dataloader, 'in_order', False),
        {},
        'the loader gives batches out of order (in_order=False)',
    ),
    'random numbers of the training': (
        lambda loop: None,
        {'shuffle': True},
        'RandomSampler may draw its order from random numbers that loading draws from, '
        'too',
    ),
    'a sampler of its own': (
        lambda loop: None,
        {'sampler': Drawn()},
        'Drawn may draw its order from random numbers that loading draws from, too',
    ),
    'all are loaded': (
        lambda loop: None,
        {'num_workers': 1, 'prefetch_factor': 6},
        'workers have loaded the 5 batches to skip already',
    ),
}


@pytest.mark.parametrize('case', REFUSALS)
def test_what_cannot_be_skipped_is_left_alone(case):
    change, loader, reason = REFUSALS[case]
    assert refuse(change, **loader) == reason


def test_a_loop_by_epochs_skips_nothing(tmp_path):
    runner = train(build_runner(tmp_path, hook=OURS))
    assert (
        'optimize=resume is not used: a loop by epochs resumes between two, and skips '
        'nothing; training goes on as it was.'
    ) in log_of(runner)


def test_seeds_of_workers_stay_apart():
    seeds = set()
    for iteration in (8, 9):
        for worker in range(4):
            SeededInit(lambda number: torch.manual_seed(3 + number), iteration)(worker)
            seeds.add((torch.initial_seed(), random.random(), np.random.rand()))
    assert len({seed for seed, *_ in seeds}) == len(seeds) == 8


class Recorded(Hook):
    """Hook that records the iteration number and the batch of each iteration."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any) -> None:
        batch = [int(index) for index in data_batch['data_samples']]
        self.seen.append((runner.iter, batch))


@pytest.mark.slow
def test_each_rank_goes_on_with_its_own_batches(tmp_path):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.resumed_ranks', str(tmp_path)]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    both = [json.loads((tmp_path / f'seen_{rank}.json').read_text()) for rank in (0, 1)]
    assert both[0] != both[1]
    for found in both:
        for workers in (0, 2):
            whole, after = (found[f'{workers} workers from {at}'] for at in (0, 33))
            assert after == whole[33:]
            assert len(after) == 27


def test_a_run_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    # torch >= 2.6 refuses MMEngine's checkpoints otherwise
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    own, given = SAMPLERS['InfiniteSampler'], WORKERS['persistent workers']
    saves = {'checkpoint': {'interval': 30, 'by_epoch': False}, **given}
    whole = Recorded()
    train(build(tmp_path / 'whole', Resumed(0), own, hook=None, hooks=[whole], **saves))
    again = Recorded()
    saved = str(tmp_path / 'whole' / 'iter_30.pth')
    plain = build(
        tmp_path / 'again',
        Resumed(30),
        own,
        hook=OURS,
        hooks=[again],
        load_from=saved,
        resume=True,
        **saves,
    )
    train(plain)
    assert again.seen == whole.seen[30:]
    parts_s = evidence_of(tmp_path / 'again').start.parts_s
    assert {'load', 'resume'} <= set(parts_s)


def skips_by_itself() -> bool:
    return 'fast_forward_on_resume' in inspect.signature(IterBasedTrainLoop).parameters


@pytest.mark.skipif(
    not skips_by_itself(), reason='MMEngine itself loads what it skips: see the fork'
)
def test_a_loop_that_skips_by_itself_is_left_alone(tmp_path, wholes):
    own = SAMPLERS['InfiniteSampler']
    found = resume(tmp_path, 33, own, hook=OURS, num_workers=2)
    assert found.seen == wholes['InfiniteSampler'][33:]
    assert 'not used: this MMEngine skips without loading by itself' in found.log
    evidence = evidence_of(tmp_path)
    # what it waits for are batches that it trains on
    assert evidence.end.ledger_s['resume'] == 0
    assert evidence.intervals[0].data_wait.count == evidence.intervals[0].iterations
