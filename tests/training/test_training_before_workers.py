"""Tests what the hook sets up before workers start, in epoch and iteration loops."""

from __future__ import annotations

import functools
import gc
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import BaseLoop, FlexibleRunner, Runner

from mmgpu_hooks import GPUEfficiencyHook
from training.toy import HOOK, LossTape, build_runner, evidence_of, losses_of, train

INIT = BaseLoop.__init__


def train_with(
    work_dir: Path, method: str, loop: str, workers: int, **more: Any
) -> Any:
    runner = build_runner(
        work_dir,
        loop=loop,
        length={'epoch': 48, 'iter': 96}[loop],
        iterations=24,
        num_workers=workers,
        custom_hooks=[LossTape()],
        env_cfg={'mp_cfg': {'mp_start_method': method}},
        **more,
    )
    # hooks that other tests built, and never trained with, refer to themselves
    gc.collect()
    assert (BaseLoop.__init__ is INIT) == (more.get('hook', HOOK) is None)
    return train(runner)


@pytest.fixture(scope='module')
def plain_losses(tmp_path_factory):
    """Losses of trainings without the hook, by kind of loop."""
    folder = tmp_path_factory.mktemp('plain')
    return {
        loop: losses_of(train_with(folder / loop, 'fork', loop, 1, hook=None))
        for loop in ('epoch', 'iter')
    }


@pytest.fixture
def start_methods():
    """Restores the start method of processes that MMEngine sets for good."""
    multiprocessing.set_forkserver_preload(['mmengine.runner'])
    yield
    multiprocessing.set_start_method('fork', force=True)


@pytest.mark.parametrize(
    ('loop', 'method', 'kind', 'workers'),
    [
        ('iter', 'fork', Runner, 2),
        ('iter', 'fork', FlexibleRunner, 2),
        # a worker that is spawned imports torch and MMEngine, in seconds
        ('iter', 'spawn', Runner, 1),
        ('epoch', 'forkserver', Runner, 2),
    ],
)
def test_workers_are_measured_inside_and_losses_are_the_same_bit_for_bit(
    tmp_path, start_methods, plain_losses, loop, method, kind, workers
):
    runner = train_with(tmp_path, method, loop, workers, kind=kind)
    assert len(losses_of(runner)) == 24
    assert losses_of(runner) == plain_losses[loop]
    loader = vars(runner.train_dataloader)
    assert not [name for name, value in loader.items() if 'mmgpu' in repr(value)]
    assert BaseLoop.__init__ is INIT
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    assert multiprocessing.get_start_method() == method
    windows = [record.workers for record in evidence.intervals]
    made = [
        window.batch_time.count for window in windows if window and window.batch_time
    ]
    # the last batches of an epoch are made before its last interval
    assert 24 <= sum(made) <= 24 + 2 * workers
    assert [record.images for record in evidence.intervals] == [8] * 6
    assert {record.largest_batch_pixels for record in evidence.intervals} == {128}
    assert windows[0] is not None and windows[0].cpu_s > 0


def test_a_hook_that_never_runs_leaves_nothing_but_what_others_replaced():
    hook, other = GPUEfficiencyHook(), GPUEfficiencyHook()
    del hook
    gc.collect()
    assert BaseLoop.__init__ is not INIT
    del other
    gc.collect()
    assert BaseLoop.__init__ is INIT
    hook = GPUEfficiencyHook()
    theirs = functools.partialmethod(BaseLoop.__init__)
    try:
        BaseLoop.__init__ = theirs
        del hook
        gc.collect()
        assert vars(BaseLoop)['__init__'] is theirs
    finally:
        BaseLoop.__init__ = INIT
