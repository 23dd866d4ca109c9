"""Tests real trainings that hang until the watchdog raises an alarm."""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from torch.utils.data import get_worker_info

from mmgpu_hooks.judge.standstill import Rank
from mmgpu_hooks.judge.why import judge_end
from mmgpu_hooks.measure.watchdog import WATCHDOG_THREAD
from mmgpu_hooks.schema.lines import decode_line
from mmgpu_hooks.schema.recorded import StuckRecord
from mmgpu_hooks.schema.writer import EvidenceWriter
from training.toy import (
    HOOK,
    AfterIteration,
    ToyDataset,
    ToyModel,
    build_runner,
    evidence_of,
    log_of,
    train,
)

AFTER_S, PATIENCE_S = 0.4, 30.0
AGAIN_S = (*(AFTER_S * count for count in range(60)), math.inf)
"""Seconds of a standstill at which the test's watchdog raises its alarms."""
STUCK_SAMPLE = 37
WATCHED = {**HOOK, 'stuck_after_s': AFTER_S, 'summary': False}


def list_alarms(folder: Path, **fields: Any) -> list[StuckRecord]:
    """Returns the standstill alarms in a folder's runs that have the given fields."""
    found = []
    for path in folder.glob('*/vis_data/gpu_efficiency.jsonl'):
        for line in path.read_bytes().splitlines(keepends=True):
            is_whole = line.endswith(b'\n') and b'"kind":"stuck"' in line
            record = decode_line(line) if is_whole else None
            if isinstance(record, StuckRecord) and is_about(record, **fields):
                found.append(record)
    return found


def is_about(record: StuckRecord, **fields: Any) -> bool:
    """True if a record is an alarm with the given fields, about a long hang."""
    is_long = record.sample_s is None or record.sample_s > AFTER_S / 2
    has_fields = all(getattr(record, name) == said for name, said in fields.items())
    return has_fields and is_long and not record.is_over


def stand_still(
    folder: Path, idle: Callable[[], Any] = lambda: time.sleep(0.1), **fields: Any
) -> None:
    """Hangs until the watchdog has raised an alarm with the given fields."""
    fields = fields or {'sample': STUCK_SAMPLE}
    before, until = len(list_alarms(folder, **fields)), time.monotonic() + PATIENCE_S
    while time.monotonic() < until and len(list_alarms(folder, **fields)) == before:
        idle()


def burn(folder: Path) -> None:
    # long: the log shows four calls, and those of the question are deeper
    stand_still(folder, lambda: sum(range(10_000_000)))


def read_fifo(folder: Path) -> None:
    (folder / 'fifo').read_bytes()


def stop_itself(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def free(folder: Path, ended: threading.Event) -> None:
    """Lets a hanging training continue once the watchdog has raised an alarm."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until and not list_alarms(folder, sample=STUCK_SAMPLE):
        if ended.wait(0.1):
            return
    with contextlib.suppress(OSError):  # nobody reads it
        os.close(os.open(folder / 'fifo', os.O_WRONLY | os.O_NONBLOCK))
    for worker in multiprocessing.active_children():
        os.kill(worker.pid or 0, signal.SIGCONT)


def name_cause(runner: Any, alarm: StuckRecord) -> str | None:
    """Returns the cause that ``mmgpu why`` would name during a hang now over."""
    evidence = evidence_of(Path(runner.work_dir))
    assert Rank(evidence).stuck is None
    before = [row for row in evidence.intervals if row.iteration <= alarm.iteration]
    cut = replace(evidence, stuck=(alarm,), intervals=tuple(before), end=None)
    return judge_end([], [Rank(cut)]).cause


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.measure.watchdog.AGAIN_S', AGAIN_S)

    def train_with(
        sample: Callable[[Path], None] | None = None,
        how: Callable[[Any], Any] = train,
        **more: Any,
    ) -> tuple[Any, list[StuckRecord]]:
        load = ToyDataset.__getitem__
        folder = tmp_path / 'run'
        folder.mkdir()
        os.mkfifo(folder / 'fifo')

        def load_or_stand(dataset: ToyDataset, index: int) -> Any:
            if index == STUCK_SAMPLE and sample is not None:
                sample(folder)
            return load(dataset, index)

        monkeypatch.setattr(ToyDataset, '__getitem__', load_or_stand)
        ended = threading.Event()
        helper = threading.Thread(target=free, args=(folder, ended), daemon=True)
        helper.start()
        options: dict[str, Any] = {'iterations': 40, 'num_workers': 2, 'hook': WATCHED}
        try:
            runner = how(build_runner(folder, **{**options, **more}))
        finally:
            ended.set()
            helper.join(PATIENCE_S)
        return runner, list(evidence_of(folder).stuck)

    yield train_with
    assert WATCHDOG_THREAD not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ('loop', 'sample', 'state', 'line', 'cause'),
    [
        ('epoch', stand_still, 'S', 'stand_still', 'worker_stuck'),
        ('epoch', burn, 'R', 'burn', 'worker_stuck'),
        ('epoch', stop_itself, 'T', None, 'worker_stuck'),
        ('iter', read_fifo, 'S', 'read_fifo', 'storage_stalled'),
    ],
)
def test_the_worker_and_the_sample_are_named(run, loop, sample, state, line, cause):
    runner, records = run(sample, loop=loop, length=80)
    stuck = next(record for record in records if is_about(record, sample=STUCK_SAMPLE))
    over = next(record for record in records[records.index(stuck) :] if record.is_over)
    assert (stuck.part, stuck.is_over, stuck.state) == ('data_wait', False, state)
    assert over.waited_s >= stuck.waited_s >= AFTER_S
    log = log_of(runner)
    assert f'Worker {stuck.worker} (pid {stuck.pid})' in log
    assert f'sample {STUCK_SAMPLE} ' in log
    assert name_cause(runner, stuck) == cause
    assert (line is None) == (stuck.stack == ())
    if line is not None:
        assert any(f' in {line}' in call for call in stuck.stack)
        assert f' in {line}' in log


def stop_within_a_write(folder: Path) -> None:
    """Stops the worker while it holds the lock of the queue that all write into."""
    caller = sys._getframe()
    while 'data_queue' not in caller.f_locals:
        assert caller.f_back is not None
        caller = caller.f_back
    with caller.f_locals['data_queue']._wlock:
        (folder / 'locked').touch()
        stop_itself(folder)


class AfterLock(ToyDataset):
    """Data set whose first worker waits until another one holds the queue's lock."""

    folder: Path

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        worker = get_worker_info()
        assert worker is not None
        while worker.id == 0 and not (self.folder / 'locked').exists():
            time.sleep(0.01)
        return super().__getitem__(index)


def test_a_stopped_worker_that_keeps_the_others_from_delivering_is_named(run, tmp_path):
    dataset = AfterLock(80)
    dataset.folder = tmp_path / 'run'

    def train_far_ahead(runner: Any) -> Any:
        # up to the sample with nothing delivered
        runner._train_dataloader['prefetch_factor'] = 40
        return train(runner)

    runner, records = run(stop_within_a_write, dataset=dataset, how=train_far_ahead)
    stuck = next(record for record in records if is_about(record, sample=STUCK_SAMPLE))
    # the loop waits for the first batch, which worker 0 has loaded
    assert (stuck.iteration, stuck.worker, stuck.state) == (0, 1, 'T')
    assert name_cause(runner, stuck) == 'worker_stuck'


class Folder(BaseDataset):
    """Data set of MMEngine whose file names contain control characters."""

    def load_data_list(self) -> list[dict[str, Any]]:
        return [{'img_path': f'photos/\x1b[31m{number}.jpg'} for number in range(80)]


class Opening:
    """Transform that hangs at one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, results: dict[str, Any]) -> dict[str, Any]:
        if results['sample_idx'] == STUCK_SAMPLE:
            stand_still(self.folder)
        return {'inputs': torch.ones(3, 8, 8), 'data_samples': torch.tensor(1.0)}


@pytest.mark.parametrize('num_workers', [0, 1])
def test_the_file_of_the_sample_is_named(run, num_workers):
    own = BaseDataset.get_data_info

    def train_on_files(runner: Any) -> Any:
        folder = Path(runner.work_dir)
        runner._train_dataloader['dataset'] = Folder(pipeline=[Opening(folder)])
        return train(runner)

    runner, records = run(num_workers=num_workers, how=train_on_files)
    stuck = next(record for record in records if is_about(record, sample=STUCK_SAMPLE))
    worker = 0 if num_workers else None
    found = stuck.part, stuck.worker, stuck.sample
    assert found == ('data_wait', worker, STUCK_SAMPLE)
    assert stuck.image == f'photos/\x1b[31m{STUCK_SAMPLE}.jpg'
    assert any(' in stand_still' in call for call in stuck.stack)
    assert f', photos/\\x1b[31m{STUCK_SAMPLE}.jpg' in log_of(runner)
    assert BaseDataset.get_data_info is own


def test_alarms_come_while_the_work_folder_does_not_answer(tmp_path, monkeypatch):
    monkeypatch.setattr('mmgpu_hooks.hooks.alarms._FILES_S', 0.1)
    monkeypatch.setattr('mmgpu_hooks.measure.watchdog.AGAIN_S', (0, 0.1, math.inf))
    said, write = threading.Event(), EvidenceWriter.write

    def write_late(writer: EvidenceWriter, record: Any) -> None:
        if isinstance(record, StuckRecord):
            said.wait(PATIENCE_S)
        write(writer, record)

    def wait(runner: Any) -> None:
        until = time.monotonic() + PATIENCE_S
        while runner.iter == 20 and time.monotonic() < until and not said.is_set():
            if log_of(runner).count('in AfterIteration') > 1:
                said.set()
            time.sleep(0.02)

    monkeypatch.setattr(EvidenceWriter, 'write', write_late)
    hooks = [AfterIteration(wait)]
    runner = build_runner(tmp_path, iterations=40, hook=WATCHED, custom_hooks=hooks)
    train(runner)
    assert said.is_set()
    assert 'AfterIteration' in [record.part for record in evidence_of(tmp_path).stuck]
    assert WATCHDOG_THREAD not in [thread.name for thread in threading.enumerate()]


def test_a_stop_in_the_midst_of_an_interval_does_not_hide_it(tmp_path):
    def stand_and_stop(runner: Any) -> None:
        if runner.iter == 18:
            stand_still(tmp_path, part='AfterIteration')
            raise KeyboardInterrupt

    hooks = [AfterIteration(stand_and_stop)]
    runner = build_runner(tmp_path, iterations=40, hook=WATCHED, custom_hooks=hooks)
    with pytest.raises(KeyboardInterrupt):
        train(runner)
    rank = Rank(evidence_of(tmp_path))
    assert rank.stuck and rank.stuck.iteration == 18
    assert 'in AfterIteration (iteration 19)' in judge_end([], [rank]).sentence


def test_a_step_is_told_by_its_stack(run, tmp_path, monkeypatch):
    forward, calls = ToyModel.forward, []

    def forward_or_stand(model: ToyModel, *args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 25:
            stand_still(tmp_path / 'run', part='step')
        return forward(model, *args, **kwargs)

    monkeypatch.setattr(ToyModel, 'forward', forward_or_stand)
    _, records = run()
    stuck = [record for record in records if is_about(record, part='step')][-1]
    assert (stuck.part, stuck.worker) == ('step', None)
    assert any(' in forward_or_stand' in call for call in stuck.stack)


def test_what_has_not_ended_once_is_given_more_time(run, monkeypatch):
    load, calls = ToyDataset.__getitem__, []

    def load_slowly_first(dataset: ToyDataset, index: int) -> Any:
        calls.append(1)
        time.sleep(4 * AFTER_S if len(calls) == 1 else 0.0)
        return load(dataset, index)

    monkeypatch.setattr(ToyDataset, '__getitem__', load_slowly_first)
    _, records = run(num_workers=0)
    assert [record for record in records if record.iteration == 0] == []


def test_a_first_batch_that_took_as_long_before_raises_no_alarm(tmp_path, monkeypatch):
    load, slow_s = ToyDataset.__getitem__, 1.5
    calls: list[int] = []

    def load_slowly_first(dataset: ToyDataset, index: int) -> Any:
        time.sleep(0.0 if len(calls) % 40 else slow_s)
        calls.append(index)
        return load(dataset, index)

    monkeypatch.setattr(ToyDataset, '__getitem__', load_slowly_first)
    # without a usual time its limit is ten times as long
    hook = {**WATCHED, 'stuck_after_s': 0.1}
    runner = build_runner(tmp_path, iterations=20, epochs=3, num_workers=0, hook=hook)
    train(runner)
    assert len(calls) == 3 * 40
    alarms = list_alarms(tmp_path, part='data_wait')
    assert [alarm.iteration for alarm in alarms] == [0]


class Upload(Hook):
    """Hook that works between epochs for longer than a standstill may last."""

    def after_train_epoch(self, runner: Any) -> None:
        time.sleep(3 * AFTER_S)


def test_a_hook_that_took_as_long_before_raises_no_alarm(tmp_path):
    build = partial(build_runner, tmp_path, hook=WATCHED, custom_hooks=[Upload()])
    runner = train(build(iterations=12, epochs=4))
    alarms = [stuck for stuck in list_alarms(tmp_path) if stuck.part == 'Upload']
    assert len([stuck for stuck in alarms if not stuck.is_over]) == 1
    assert 'training goes on after 1 s in Upload (iteration' in log_of(runner)


def test_with_stuck_after_s_0_no_thread_watches_training(tmp_path):
    threads: list[str] = []

    def look(_: Any) -> None:
        threads.extend(thread.name for thread in threading.enumerate())

    hook = {**WATCHED, 'stuck_after_s': 0}
    train(build_runner(tmp_path, hook=hook, custom_hooks=[AfterIteration(look)]))
    assert threads and WATCHDOG_THREAD not in threads
