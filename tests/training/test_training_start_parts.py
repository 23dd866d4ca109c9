"""Tests the parts of a training's start, and the record that a kill leaves."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.dataset import BaseDataset
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, MODELS
from mmengine.runner import FlexibleRunner, Runner

from mmgpu_hooks.hooks import start_source
from mmgpu_hooks.measure.process_start import read_process_age_s
from mmgpu_hooks.schema.recorded import START_PARTS
from training.detection import environ
from training.toy import (
    HOOK,
    ToyDataset,
    ToyModel,
    build_runner,
    evidence_of,
    log_of,
    train,
    validation,
)

INIT = BaseDataset.__init__
SLOW_S = 0.15


@DATASETS.register_module(force=True)
class PlantedDataset(BaseDataset):
    """Data set whose phases of initialisation take known times."""

    def load_data_list(self) -> list[dict[str, Any]]:
        time.sleep(SLOW_S)
        return [{'img_id': number} for number in range(64)]

    def filter_data(self) -> list[dict[str, Any]]:
        time.sleep(SLOW_S)
        return self.data_list

    def __getitem__(self, index: int) -> Any:
        return ToyDataset(64)[index]


@MODELS.register_module(force=True)
class SlowModel(ToyModel):
    """Model whose weight initialisation and first step take a known time."""

    def init_weights(self) -> None:
        time.sleep(SLOW_S)

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = 'x') -> Any:
        if not hasattr(self, 'is_warm'):
            self.is_warm = True
            time.sleep(SLOW_S)
        return super().forward(inputs, data_samples, mode)


class SlowHook(Hook):
    """Hook that takes a known time before the run."""

    def before_run(self, runner: Any) -> None:
        time.sleep(SLOW_S)


class SlowFirstBatch(ToyDataset):
    """Data set whose first sample takes a known time."""

    is_first = True

    def __getitem__(self, index: int) -> Any:
        if SlowFirstBatch.is_first:
            SlowFirstBatch.is_first = False
            time.sleep(SLOW_S)
        return super().__getitem__(index)


def is_planted(seconds: float, planted_s: float) -> bool:
    """True if a measured duration is the planned one, or less than 1 s longer."""
    return planted_s <= seconds < planted_s + 1.0


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_planted_parts_are_found_and_add_up(tmp_path, monkeypatch, loop):
    monkeypatch.setattr('training.toy.ToyModel', SlowModel)
    SlowFirstBatch.is_first = True
    monkeypatch.setattr(
        PlantedDataset,
        '__getitem__',
        lambda self, index: SlowFirstBatch.__getitem__(SlowFirstBatch(64), index),
    )
    monkeypatch.setattr(start_source, '_seen', set())
    runner = build_runner(
        tmp_path,
        loop=loop,
        dataset={'type': 'PlantedDataset', 'pipeline': []},
        iterations=6,
        custom_hooks=[SlowHook()],
        evaluation_s=0.0,
    )
    began_s = time.perf_counter() - (read_process_age_s() or 0.0)
    train(runner)
    start = evidence_of(tmp_path).start
    parts = start.parts_s
    assert list(parts) == [part for part in START_PARTS if part in parts]
    for part in ('weights', 'hooks', 'first_batch', 'first_step'):
        assert is_planted(parts[part], SLOW_S), part
    assert is_planted(parts['train_data'], 2 * SLOW_S)
    assert {'optimizer', 'validation_data', 'load', 'runner'} <= set(parts)
    assert sum(parts.values()) == pytest.approx(start.wall_s)
    assert start.wall_s < time.perf_counter() - began_s
    (data_set,) = start.data_sets
    assert data_set.kind == 'PlantedDataset'
    assert is_planted(data_set.read_s, SLOW_S)
    assert is_planted(data_set.filter_s, SLOW_S)
    assert data_set.read_s + data_set.filter_s < data_set.wall_s < parts['train_data']
    assert data_set.read_cpu_s < SLOW_S / 2
    assert data_set.samples == 64
    assert not data_set.is_validation
    assert start.cpu_s is not None


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
@pytest.mark.parametrize('workers', [0, 2])
def test_nothing_of_the_start_watch_is_left_in_the_training(tmp_path, kind, workers):
    runner = build_runner(
        tmp_path,
        kind=kind,
        dataset={'type': 'PlantedDataset', 'pipeline': []},
        iterations=4,
        loop='iter',
        num_workers=workers,
    )
    before = set(vars(runner))
    train(runner)
    assert BaseDataset.__init__ is INIT
    left = set(vars(runner)) - before
    assert not left & {*start_source.METHODS, 'call_hook'}
    assert 'full_init' not in vars(runner.train_dataloader.dataset)
    assert not list(tmp_path.rglob('before_training*'))
    record = evidence_of(tmp_path).start
    assert record is not None
    assert ('workers' in record.parts_s) or not workers


def test_nothing_of_the_start_watch_is_left_after_a_start_that_raises(
    tmp_path, monkeypatch
):
    monkeypatch.setattr('mmgpu_hooks.hooks.memory_source._PERIOD_S', 0.05)
    runner = build_runner(tmp_path, iterations=4, load_from=str(tmp_path / 'none.pth'))
    with pytest.raises(FileNotFoundError):
        runner.train()
    until_s = time.monotonic() + 30
    while BaseDataset.__init__ is not INIT and time.monotonic() < until_s:
        time.sleep(0.02)
    assert BaseDataset.__init__ is INIT
    assert not {*start_source.METHODS, 'call_hook'} & set(vars(runner))
    assert not list(tmp_path.rglob('before_training*'))


def test_of_two_hooks_one_follows_the_start(tmp_path):
    runner = build_runner(tmp_path, custom_hooks=[HOOK])
    train(runner)
    assert evidence_of(tmp_path).start is not None
    assert 'call_hook' not in vars(runner)
    assert 'load_or_resume' not in vars(runner)


def test_training_twice_leaves_two_starts(tmp_path):
    runner = build_runner(tmp_path)
    runner.train()
    runner._train_loop._epoch = 0
    runner.train()
    for name in ('gpu_efficiency.jsonl', 'gpu_efficiency.2.jsonl'):
        start = evidence_of(tmp_path, name).start
        assert sum(start.parts_s.values()) == pytest.approx(start.wall_s)
        assert start.wall_s > 0


def test_a_resume_by_loading_is_part_of_the_start(tmp_path):
    class Resumed(Hook):
        def before_run(self, runner: Any) -> None:
            runner.train_loop._iter = 6

    train(
        build_runner(
            tmp_path,
            loop='iter',
            iterations=10,
            item_s=0.01,
            custom_hooks=[Resumed()],
        )
    )
    parts_s = evidence_of(tmp_path).start.parts_s
    assert parts_s['resume'] >= 12 * 0.01
    assert parts_s['first_batch'] >= 2 * 0.01


def test_what_is_long_is_said_before_and_after(tmp_path, monkeypatch):
    path = tmp_path / 'train.json'
    path.write_text('x' * 3 * 2**20)
    for name, value in (('SAID_BYTES', 2**20), ('SAID_S', 0.1), ('SUMMED_S', 0.1)):
        monkeypatch.setattr(start_source, name, value)
    runner = build_runner(
        tmp_path / 'work',
        dataset={'type': 'PlantedDataset', 'ann_file': str(path), 'pipeline': []},
        custom_hooks=[SlowHook()],
        load_from=str(save_weights(tmp_path)),
    )
    train(runner)
    said = re.findall(r'GPUEfficiencyHook: (.*)', log_of(runner))
    loads = [line for line in said if 'train.json' in line]
    assert loads[0] == f'loading {path}, 3 MiB (PlantedDataset).'
    assert re.fullmatch(rf'loaded {path} in \S+ s, 64 samples\.', loads[1])
    assert [line for line in said if line.startswith('start: training data took ')]
    (whole,) = [line for line in said if line.startswith('the start took ')]
    assert ' training data 0.' in whole
    start = evidence_of(tmp_path / 'work').start
    assert start.checkpoint == str(tmp_path / 'weights.pth')
    assert start.checkpoint_bytes == (tmp_path / 'weights.pth').stat().st_size


@DATASETS.register_module(force=True)
class ManyFiles(PlantedDataset):
    """Data set that reads a file per image when it is initialised."""

    def load_data_list(self) -> list[dict[str, Any]]:
        for path in sorted(Path(self.data_root).glob('*.xml')):
            path.read_text()
        return super().load_data_list()


@pytest.mark.parametrize('has_list', [True, False], ids=['a list', 'a folder'])
def test_many_small_files_are_said_before_and_after(tmp_path, monkeypatch, has_list):
    monkeypatch.setattr('mmgpu_hooks.judge.thresholds.MANY_FILES', 20)
    folder, names = tmp_path / 'data', [f'{number:02d}' for number in range(30)]
    folder.mkdir()
    for name in names:
        (folder / f'{name}.xml').write_text('<annotation/>')
    (tmp_path / 'train.txt').write_text('\n'.join(names))
    ann_file = str(tmp_path / 'train.txt') if has_list else ''
    dataset = {'type': 'ManyFiles', 'data_root': str(folder), 'pipeline': []}
    runner = train(
        build_runner(tmp_path / 'work', dataset={**dataset, 'ann_file': ann_file})
    )
    source = ann_file or str(folder)
    said = re.findall(r'GPUEfficiencyHook: (load.*)', log_of(runner))
    before = f'loading {folder} (ManyFiles): 20 files read so far.'
    if has_list:
        before = f'loading {source}, a list of 30 lines (ManyFiles).'
    assert said[0] == before
    assert re.fullmatch(rf'loaded {source} in \S+ s, 64 samples\.', said[1])
    assert len(said) == 2
    (data_set,) = evidence_of(tmp_path / 'work').start.data_sets
    assert (data_set.file, data_set.files) == (source, 30)


def test_few_files_are_not_said(tmp_path):
    (tmp_path / 'train.txt').write_text('a\n' * 999)
    dataset = {'type': 'PlantedDataset', 'ann_file': str(tmp_path / 'train.txt')}
    runner = train(build_runner(tmp_path / 'work', dataset={**dataset, 'pipeline': []}))
    assert 'GPUEfficiencyHook: load' not in log_of(runner)


def save_weights(folder: Path) -> Path:
    path = folder / 'weights.pth'
    torch.save({'state_dict': ToyModel().state_dict()}, path)
    return path


def test_what_still_runs_is_said_where_a_thread_can_run(tmp_path, monkeypatch):
    monkeypatch.setattr(start_source, 'STILL_S', 0.05)
    monkeypatch.setattr('mmgpu_hooks.hooks.memory_source._PERIOD_S', 0.05)
    dataset = {'type': 'PlantedDataset', 'ann_file': 'none.txt', 'pipeline': []}
    runner = train(build_runner(tmp_path, dataset=dataset))
    assert 'GPUEfficiencyHook: still loading none.txt (PlantedDataset), ' in log_of(
        runner
    )


@pytest.fixture
def annotation_file(tmp_path) -> Path:
    path = tmp_path / 'data' / 'train.json'
    path.parent.mkdir()
    path.write_text('x' * 2**20)
    return path


def start_process(folder: Path, path: Path, parse_s: float) -> subprocess.Popen:
    words = ['-m', 'training.started', str(folder), str(path), str(parse_s)]
    return subprocess.Popen(
        [sys.executable, *words],
        env=environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def test_parts_add_up_to_the_age_of_the_process(tmp_path, annotation_file):
    began_s = time.time()
    process = start_process(tmp_path / 'work', annotation_file, 0.3)
    assert process.wait(60) == 0
    evidence = evidence_of(tmp_path / 'work')
    start = evidence.start
    lived_s = time.time() - began_s
    assert start.parts_s['before_hook'] > 0.5
    assert is_planted(start.data_sets[0].read_s, 0.3)
    assert start.parts_s['train_data'] >= start.data_sets[0].wall_s
    assert start.wall_s < lived_s
    # all of it from the process's start to when it says that an iteration has ended
    said_s = (evidence.run.started_unix_s - began_s) - start.wall_s
    assert abs(said_s) < 1.0
    assert start.parts_s['other'] < 0.2 * start.wall_s


SOURCES = {'a small file': 'train.json', 'a list': 'train.txt', 'a folder': 'images'}


@pytest.mark.parametrize('case', SOURCES)
def test_a_kill_in_the_middle_of_a_parse_names_the_data_set(tmp_path, ask, case):
    work_dir, source = tmp_path / 'work', tmp_path / SOURCES[case]
    if case == 'a folder':
        source.mkdir()
    else:
        source.write_text('x' * 100)
    process = start_process(work_dir, source, 60)
    try:
        until = time.monotonic() + 60
        while not list(work_dir.rglob('before_training.jsonl')):
            assert time.monotonic() < until
            time.sleep(0.05)
        # a line takes a moment to be whole
        time.sleep(0.1)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    answer = ask('why', work_dir)
    size = '' if case == 'a folder' else ' 100 bytes,'
    said = f'SlowlyParsed began to load {source},{size} '
    assert said in answer['sentence']
    assert [proof for proof in answer['proof'] if said in proof['text']]


def test_a_validation_has_its_own_data_sets(tmp_path):
    own = validation(0.0)
    own['val_dataloader']['dataset'] = {'type': 'PlantedDataset', 'pipeline': []}
    train(build_runner(tmp_path, **own))
    start = evidence_of(tmp_path).start
    assert [found.is_validation for found in start.data_sets] == [True]
    assert is_planted(start.parts_s['validation_data'], 2 * SLOW_S)


def test_annotations_are_kept_in_a_training(tmp_path, monkeypatch):
    path = tmp_path / 'train.json'
    path.write_text('x' * 100)
    monkeypatch.setenv('MMGPU_CACHE', str(tmp_path / 'cache' / 'annotations'))
    hook = {**HOOK, 'optimize': 'annotations,small_tensors'}
    time.sleep(0.3)
    found = []
    for number in range(2):
        work_dir = tmp_path / str(number)
        dataset = {'type': 'PlantedDataset', 'ann_file': str(path), 'pipeline': []}
        runner = train(
            build_runner(work_dir, dataset=dataset, hook=hook, num_workers=2)
        )
        evidence = evidence_of(work_dir)
        found += [data_set.is_cached for data_set in evidence.start.data_sets]
        assert 'annotations' in evidence.run.optimized
        assert [each.is_kept for each in evidence.start.data_sets] == [not number]
        assert 'optimize=annotations is on: parsed annotations are kept in' in log_of(
            runner
        )
    assert found == [False, True]


@pytest.mark.parametrize('case', ['refused', 'no data set of MMEngine'])
def test_a_cache_that_kept_nothing_is_not_listed(tmp_path, monkeypatch, case):
    path = tmp_path / 'train.json'
    path.write_text('x' * 100)
    monkeypatch.setenv('MMGPU_CACHE', str(tmp_path / 'cache' / 'annotations'))
    more: dict[str, Any] = {}
    reason = 'no data set of MMEngine was initialised'
    refused = []
    if case == 'refused':
        dataset = {'type': 'PlantedDataset', 'ann_file': str(path), 'pipeline': []}
        more = {'dataset': {**dataset, 'serialize_data': False}}
        reason = 'no data set could be kept, for the reasons above'
        refused = ['its samples are Python objects (serialize_data=False)']
    runner = train(
        build_runner(
            tmp_path / 'work', hook={**HOOK, 'optimize': 'annotations,ema'}, **more
        )
    )
    evidence = evidence_of(tmp_path / 'work')
    assert 'annotations' not in evidence.run.optimized
    found = [each.refused for each in evidence.start.data_sets]
    assert found == refused
    said = f'optimize=annotations is not used: {reason}; training goes on as it was.'
    assert said in log_of(runner)
    assert BaseDataset.__init__ is INIT
