from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from mmengine.hooks import Hook

from benchmarks.overhead_loop import BareLoop, NoWork, build
from benchmarks.overhead_turns import SteppedLoop, train_side_by_side


class Diary(Hook):
    """Notes what its training does in a diary that all share."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self._name, self._notes = name, notes

    def before_train(self, runner: Any) -> None:
        self._notes.append(f'{self._name} begins')

    def after_train_iter(self, runner: Any, batch_idx: int, **rest: Any) -> None:
        self._notes.append(f'{self._name}{batch_idx}')

    def after_train(self, runner: Any) -> None:
        self._notes.append(f'{self._name} ends')


def test_each_trains_when_it_is_asked_to_and_all_end(tmp_path: Path):
    notes: list[str] = []
    own: list[set[int]] = []
    workers: list[set[int]] = []
    before = os.sched_getaffinity(0)
    stepped = {'type': SteppedLoop, 'max_epochs': 1}
    bare = {'type': BareLoop, 'iterations': 8}
    a, b = (
        build(tmp_path / name, NoWork(), 8, [Diary(name, notes)], train_cfg=cfg)
        for name, cfg in (('a', stepped), ('b', bare))
    )

    def drive() -> None:
        for runner in (a, b, b, a):
            runner.train_loop.take()
        own.append(os.sched_getaffinity(0))
        for worker in a.train_loop.dataloader._iterator._workers:
            for task in Path(f'/proc/{worker.pid}/task').iterdir():
                workers.append(os.sched_getaffinity(int(task.name)))

    train_side_by_side([a, b], drive)
    begun, ended = ['a begins', 'b begins'], ['b ends', 'a ends']
    assert notes == [*begun, 'a0', 'b0', 'b1', 'a1', *ended]
    assert own == [{min(before)}]
    # all of their threads: those that send batches too
    assert len(workers) > 2
    assert all(cores == (before - own[0] or own[0]) for cores in workers)
    assert os.sched_getaffinity(0) == before
