"""What must stand before workers start, in loops that start them as they are built."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import BaseLoop, FlexibleRunner, Runner

from mmgpu_hooks import GPUEfficiencyHook
from training.toy import HOOK, LossTape, build_runner, evidence_of, losses_of, train

INIT = BaseLoop.__init__


def build(work_dir: Path, loop: str, **arguments: Any) -> Any:
    by_loop = {'length': 96, 'iterations': 24} if loop == 'iter' else {'epochs': 2}
    runner = build_runner(
        work_dir,
        loop=loop,
        num_workers=2,
        custom_hooks=[LossTape()],
        **{**by_loop, **arguments},
    )
    assert arguments.get('hook', True) is None or BaseLoop.__init__ is not INIT
    return runner


def nothing_is_left(runner: Any) -> bool:
    loader = runner.train_dataloader
    return BaseLoop.__init__ is INIT and not {'_get_iterator', 'worker_init_fn'} & {
        name for name, value in vars(loader).items() if 'mmgpu' in repr(value)
    }


@pytest.mark.parametrize(
    ('loop', 'method', 'kind'),
    [
        ('iter', 'fork', Runner),
        ('iter', 'fork', FlexibleRunner),
        ('iter', 'spawn', Runner),
        ('iter', 'forkserver', Runner),
        ('epoch', 'spawn', Runner),
    ],
)
def test_workers_are_measured_inside_and_losses_are_the_same_bit_for_bit(
    tmp_path: Path, loop: str, method: str, kind: type[Any]
) -> None:
    ours, plain = (
        train(
            build(
                tmp_path / str(hook is None),
                loop,
                kind=kind,
                hook=hook,
                env_cfg={'mp_cfg': {'mp_start_method': method}},
            )
        )
        for hook in (HOOK, None)
    )
    multiprocessing.set_start_method('fork', force=True)
    assert len(losses_of(ours)) == 24
    assert losses_of(ours) == losses_of(plain)
    assert nothing_is_left(ours)
    evidence = evidence_of(tmp_path / 'False')
    assert evidence.sources_off == ()
    assert evidence.run.loader.start_method == method
    windows = [record.workers for record in evidence.intervals]
    made = [one.occupancy.count for one in windows if one and one.occupancy]
    # the last batches of an epoch are made before its last interval
    assert 24 <= sum(made) <= 24 + 4
    assert [record.images for record in evidence.intervals] == [8] * 6
    assert {record.largest_batch_pixels for record in evidence.intervals} == {128}


def test_a_hook_that_never_runs_leaves_nothing(tmp_path: Path) -> None:
    hook = GPUEfficiencyHook()
    assert BaseLoop.__init__ is not INIT
    other = GPUEfficiencyHook()
    del hook
    gc.collect()
    assert BaseLoop.__init__ is not INIT
    del other
    gc.collect()
    assert BaseLoop.__init__ is INIT


def test_what_somebody_else_replaced_meanwhile_is_left_alone() -> None:
    hook = GPUEfficiencyHook()
    ours = BaseLoop.__init__

    def theirs(loop: Any, *args: Any, **kwargs: Any) -> None:
        ours(loop, *args, **kwargs)

    try:
        BaseLoop.__init__ = theirs
        del hook
        gc.collect()
        assert BaseLoop.__init__ is theirs
    finally:
        BaseLoop.__init__ = INIT


def test_validating_alone_leaves_nothing(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, evaluation_s=0.0)
    runner.val()
    assert BaseLoop.__init__ is INIT
    assert '_get_iterator' not in vars(runner.val_dataloader)
