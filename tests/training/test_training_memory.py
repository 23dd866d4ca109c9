"""Tests which processes hold memory in real trainings, from the start on."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from mmengine.registry import DATASETS

from mmgpu_hooks.hooks import memory_source
from training.toy import ToyDataset, ToyMetric, build_runner, evidence_of, log_of, train

MIB = 2**20
PARSED = 64 * MIB


@DATASETS.register_module(force=True)
class ParsedDataset(ToyDataset):
    """Data set that keeps large parsed annotations."""

    def __init__(self, length: int, *, fails: bool = False) -> None:
        super().__init__(length)
        self.parsed = np.ones(PARSED // 8)
        if fails:
            time.sleep(0.5)
            raise RuntimeError('no annotations')


class KeepingMetric(ToyMetric):
    """Metric that keeps 4 MiB per batch."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(np.ones(4 * MIB // 8))


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_source, '_SHORTEST_S', 0.05)
    monkeypatch.setattr(memory_source, '_FIRST_S', 0.1)
    monkeypatch.setattr(memory_source, '_VALIDATION_S', 0.05)
    monkeypatch.setattr(memory_source, '_MOST_SHARE', 1.0)


def test_workers_process_and_results_of_a_metric_are_recorded(tmp_path):
    runner = build_runner(
        tmp_path,
        num_workers=2,
        iterations=40,
        step_s=0.02,
        val_dataloader={
            'dataset': ToyDataset(40, 0.01),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': 0,
        },
        val_cfg={},
        val_evaluator={'type': KeepingMetric},
    )
    train(runner)
    records = evidence_of(tmp_path).memory
    trained = [record for record in records if record.phase == 'train']
    assert max(record.workers for record in trained) == 2
    assert all(record.worker_bytes for record in trained if record.workers)
    assert all((record.process_bytes or 0) > 20 * MIB for record in records)
    validated = [record for record in records if record.phase == 'validation']
    assert max(record.result_bytes or 0 for record in validated) > 40 * MIB
    assert not any(record.is_low for record in records)
    assert not list(tmp_path.rglob('before_training*'))


def test_what_the_data_set_takes_is_recorded(tmp_path):
    runner = build_runner(
        tmp_path, dataset={'type': 'ParsedDataset', 'length': 8}, iterations=4
    )
    train(runner)
    taken = evidence_of(tmp_path).run.dataset_bytes
    assert taken == pytest.approx(PARSED, rel=0.1)


def test_a_data_set_that_raises_leaves_neither_thread_nor_file(tmp_path, monkeypatch):
    monkeypatch.setattr(memory_source, '_PERIOD_S', 0.05)
    dataset = {'type': 'ParsedDataset', 'length': 8, 'fails': True}
    # a Runner of another test that was built and never trained has one
    before = threading.enumerate()
    with pytest.raises(RuntimeError, match='no annotations'):
        build_runner(tmp_path, dataset=dataset).train()
    assert not list(tmp_path.rglob('before_training*'))
    left = [thread for thread in threading.enumerate() if thread not in before]
    assert memory_source.HOLDERS_THREAD not in [thread.name for thread in left]


def test_a_start_that_lasts_leaves_who_holds_memory_until_there_is_evidence(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(memory_source, '_PERIOD_S', 0.05)
    seen = list[str]()

    class Slow(ParsedDataset):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            time.sleep(0.5)
            (path,) = tmp_path.rglob('before_training.jsonl')
            seen.append(path.read_text())

    DATASETS.register_module(module=Slow, name='SlowlyParsed', force=True)
    dataset = {'type': 'SlowlyParsed', 'length': 8}
    train(build_runner(tmp_path, dataset=dataset, iterations=4))
    assert '"phase":"start"' in seen[0]
    assert not list(tmp_path.rglob('before_training*'))


def test_memory_that_is_nearly_full_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(memory_source, '_LOW_SHARE', 1.1)
    runner = build_runner(tmp_path, num_workers=1, iterations=40, step_s=0.02)
    train(runner)
    text = log_of(runner)
    assert text.count('memory is nearly full: of ') == 1
    said = text.partition('memory is nearly full: ')[2].partition('\n')[0]
    assert '1 worker ' in said
    assert 'training process ' in said
    assert evidence_of(tmp_path).memory[-1].is_low
