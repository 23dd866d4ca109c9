"""Tests the records of real trainings' validations, in all kinds of loops."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.runner import ValLoop
from torch import Tensor
from torch.utils.data import DataLoader

from benchmarks.ledger import Tape
from training.detection import environ
from training.standing_metric import MARKER
from training.toy import (
    HOOK,
    ToyDataset,
    ToyMetric,
    ToyModel,
    build_runner,
    evidence_of,
    log_of,
    open_files,
    train,
)

BATCHES = 24

TAPE = Tape()
"""Record of the true seconds of planted sleeps, which end late on a busy machine."""


class StampedDataset(ToyDataset):
    """Data set that leaves in a file how long each image took to load.

    Args:
        length: Images.
        item_s: Seconds that each takes to load.
        path: File that gets a line for each image, in seconds, from any process.
    """

    def __init__(self, length: int, item_s: float, path: Path) -> None:
        super().__init__(length, item_s)
        self.path = path

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        began_s = time.perf_counter()
        item = super().__getitem__(index)
        took_s = time.perf_counter() - began_s
        with self.path.open('a') as file:
            file.write(f'{took_s}\n')
        return item


def validate(
    work_dir: Path,
    num_workers: int,
    *,
    persistent: bool = False,
    before: bool = False,
    item_s: float = 0.0,
    metric: Any = None,
    cfg: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """Trains with validations by a separate loader; returns the Runner."""
    TAPE.seconds.clear()
    files = open_files()
    runner = build_runner(
        work_dir,
        val_dataloader={
            'dataset': StampedDataset(BATCHES, item_s, work_dir / 'items.txt'),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': num_workers,
            'persistent_workers': persistent,
        },
        val_cfg=cfg or {},
        val_evaluator=metric or {'type': ToyMetric},
        **{'iterations': 4, 'epochs': 2, **arguments},
    )
    if before:
        runner.val()
    loader = runner.val_dataloader
    try:
        train(runner)
    finally:
        if persistent and loader._iterator is not None:
            loader._iterator._shutdown_workers()
    # what a loader has open is its own affair
    left = open_files() - files
    assert not [name for name in left if name.startswith('/proc')]
    assert '_get_iterator' not in vars(loader)
    assert loader.worker_init_fn is None or 'mmgpu' not in repr(loader.worker_init_fn)
    return runner


def by_validation(seconds: Iterable[float]) -> list[tuple[float, ...]]:
    """Returns what each batch took, of each validation, in seconds."""
    return list(zip(*[iter(seconds)] * BATCHES, strict=True))


def read_items(work_dir: Path) -> list[tuple[float, ...]]:
    """Returns how long each image took to load, of each validation, in seconds."""
    return by_validation(map(float, (work_dir / 'items.txt').read_text().split()))


@pytest.mark.timing
@pytest.mark.parametrize(
    ('loop', 'num_workers', 'persistent'),
    [('epoch', 0, False), ('epoch', 2, False), ('epoch', 2, True), ('iter', 1, False)],
)
def test_each_validation_is_one_record(tmp_path, loop, num_workers, persistent):
    more: dict[str, Any] = {'metric': {'type': ToyMetric, 'evaluation_s': 0.1}}
    if loop == 'iter':
        more |= {'iterations': 8, 'val_interval': 4}
    validate(
        tmp_path, num_workers, persistent=persistent, item_s=0.01, loop=loop, **more
    )
    evidence = evidence_of(tmp_path)
    assert [validation.iteration for validation in evidence.validations] == [4, 8]
    walls_s = sum(validation.wall_s for validation in evidence.validations)
    assert walls_s == pytest.approx(evidence.end.ledger_s['validation'], abs=0.02)
    for validation, items_s in zip(evidence.validations, read_items(tmp_path)):
        assert validation.loader.num_workers == num_workers
        assert validation.loader.batch_size == 1
        assert (validation.iterations, validation.first_waits) == (BATCHES, 1)
        assert validation.data_wait.count == validation.step.count == BATCHES
        # 3 x 8 x 8 numbers and a target, 4 bytes each
        assert (validation.batch_tensors, validation.batch_bytes) == (2, 772)
        assert validation.workers.batch_time.count == BATCHES
        assert validation.workers.count == num_workers
        item_s = statistics.median(items_s)
        assert validation.workers.batch_time.p50_s == pytest.approx(item_s, abs=0.0015)
        # the metric is in no iteration
        assert (
            validation.wall_s
            > 0.1 + validation.data_wait.total_s + validation.step.total_s
        )
        assert validation.train_workers_cpu_s == 0.0


FORWARD_S, PROCESS_S, METRIC_S = 0.01, 0.02, 0.3


class Slow(ToyMetric):
    """Metric that takes a known time per batch and at the end."""

    def __init__(self) -> None:
        super().__init__(METRIC_S)
        self.prefix = 'slow'

    def process(self, data_batch: Any, data_samples: Any) -> None:
        with TAPE.stamp('process'):
            time.sleep(PROCESS_S)
        super().process(data_batch, data_samples)


def predict_slowly(model: ToyModel, data: Any) -> Any:
    with TAPE.stamp('forward'):
        time.sleep(FORWARD_S)
    return BaseModel.val_step(model, data)


class SavesBest(Hook):
    """Hook that saves a checkpoint after each validation."""

    def after_val_epoch(self, runner: Any, metrics: Any = None) -> None:
        with TAPE.stamp('save'):
            runner.save_checkpoint(runner.work_dir, 'best.pth')


def expect_untouched(runner: Any, loop: Any) -> None:
    """Asserts that no method of model, metrics, Runner or loops is still replaced."""
    timed = {'val_step', 'test_step', 'process', 'evaluate', 'compute_metrics'}
    evaluator = loop.evaluator
    for owner in (runner.model, evaluator, *evaluator.metrics):
        assert timed & vars(owner).keys() == set()
    assert {'save_checkpoint', 'call_hook'} & vars(runner).keys() == set()
    for each in (runner._train_loop, loop):
        assert isinstance(each, dict) or 'run' not in vars(each)
    assert '_get_iterator' not in vars(loop.dataloader)


@pytest.mark.timing
def test_a_validation_is_taken_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(ToyModel, 'val_step', predict_slowly, raising=False)
    runner = validate(
        tmp_path,
        0,
        item_s=0.005,
        metric=[{'type': Slow}, {'type': ToyMetric, 'evaluation_s': 0.1}],
        custom_hooks=[SavesBest()],
    )
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    planted = zip(
        by_validation(TAPE.seconds['process']),
        by_validation(TAPE.seconds['forward']),
        read_items(tmp_path),
        TAPE.seconds['save'],
    )
    records = zip(evidence.validations, evidence.save_records, planted)
    for validation, save, (process_s, forward_s, items_s, save_s) in records:
        parts_s = validation.parts_s
        assert sum(parts_s.values()) == pytest.approx(validation.wall_s)
        assert list(validation.metrics_s) == ['Slow', 'ToyMetric']
        assert validation.metrics_s['Slow'] == pytest.approx(METRIC_S, abs=0.01)
        assert parts_s['metric'] == pytest.approx(METRIC_S + 0.1, abs=0.02)
        assert parts_s['process'] == pytest.approx(sum(process_s), abs=0.03)
        of_metric_s = validation.process_s['Slow']
        assert of_metric_s == pytest.approx(parts_s['process'], abs=0.01)
        assert parts_s['forward'] == pytest.approx(sum(forward_s), abs=0.03)
        assert parts_s['data_wait'] == pytest.approx(sum(items_s), abs=0.03)
        assert parts_s['save'] == pytest.approx(save_s, abs=0.01)
        # what recording the save takes belongs to the part, and not to its record
        assert 0.0 < save.wall_s <= parts_s['save']
        # hooks, logs and the loop itself, of some 1.3 s that are planted
        assert parts_s['rest'] < 0.1 * validation.wall_s
    expect_untouched(runner, runner.val_loop)
    assert log_of(runner).count('GPUEfficiencyHook: validation took ') == 2


def build_lone(work_dir: Path, loop: str, metric: type[ToyMetric]) -> Any:
    """Builds a Runner with a test or val loop of four batches."""
    more: dict[str, Any] = {
        f'{loop}_dataloader': {
            'dataset': ToyDataset(4, 0.01),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 1,
            'num_workers': 0,
        },
        f'{loop}_cfg': {},
        f'{loop}_evaluator': {'type': metric},
    }
    return build_runner(work_dir, **more)


@pytest.mark.parametrize('loop', ['test', 'val'])
def test_a_loop_without_a_training_is_taken_apart(tmp_path, loop):
    runner = build_lone(tmp_path, loop, Slow)
    getattr(runner, loop)()
    expect_untouched(runner, getattr(runner, f'{loop}_loop'))
    name = {'val': 'validation'}.get(loop, loop)
    (said,) = re.findall(f'GPUEfficiencyHook: {name} took (.*)', log_of(runner))
    assert re.search(r'metric .* \(Slow\), process .* \(Slow\), data wait ', said)
    assert not [*tmp_path.glob('*/vis_data/gpu_efficiency.jsonl')]


class StandsAt(ToyMetric):
    """Metric that hangs or computes for some seconds in one of its methods."""

    method: ClassVar[str]
    seconds: ClassVar[float]
    computes: ClassVar[bool] = False

    def _stand(self, method: str) -> None:
        if method != self.method:
            return
        until = time.monotonic() + self.seconds
        while self.computes and time.monotonic() < until:
            sum(range(10_000))
        # one that polls for what never comes
        while time.monotonic() < until:
            time.sleep(0.05)

    def process(self, data_batch: Any, data_samples: Any) -> None:
        super().process(data_batch, data_samples)
        if len(self.results) == 1:
            self._stand('process')

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        self._stand('compute_metrics')
        return {'score': 1.0}


PARTS = {'process': 'process', 'compute_metrics': 'metric'}
STUCK_AFTER_S = 1.5


def stand(work_dir: Path, method: str, seconds: float, *, computes: bool) -> list[Any]:
    """Trains with a metric that hangs or computes for long; returns the standstills."""
    StandsAt.method, StandsAt.seconds, StandsAt.computes = method, seconds, computes
    hook = {**HOOK, 'stuck_after_s': STUCK_AFTER_S, 'summary': False}
    metric = {'type': StandsAt}
    runner = validate(work_dir, 0, metric=metric, epochs=1, hook=hook)
    assert ('neither this process nor its children' in log_of(runner)) != computes
    return [each for each in evidence_of(work_dir).stuck if not each.is_over]


@pytest.mark.parametrize('method', PARTS)
def test_a_standstill_in_the_first_call_of_a_metric_is_named(tmp_path, method):
    (stuck,) = stand(tmp_path, method, 4.0, computes=False)
    assert (stuck.part, stuck.metric) == ('validation', 'StandsAt')
    assert stuck.validation_part == PARTS[method]
    # no ten times, as of a part of which nothing is known
    assert STUCK_AFTER_S <= stuck.idle_s <= stuck.waited_s <= 2 * STUCK_AFTER_S


def test_a_metric_that_computes_for_long_is_no_standstill(tmp_path):
    assert stand(tmp_path, 'compute_metrics', 4.0, computes=True) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ('method', 'after_s', 'words'),
    [
        (
            'compute_metrics',
            0.2,
            r'in compute_metrics of StandsFor in validation for \d.* '
            r'in all: process 2.* \(StandsFor\).*; batch 20 of 20\)',
        ),
        (
            'process',
            2.5,
            r'in process of StandsFor in validation for [12]\..*; batch 20 of 20\)',
        ),
        # no call lasts: what most of the time was spent on, and how far it had come
        ('short process', 4.0, r'in all: process [1-9].* \(StandsFor\).* of 600\)'),
    ],
)
def test_why_names_where_a_validation_was_killed(tmp_path, ask, method, after_s, words):
    command = [sys.executable, '-m', 'training.standing_metric', str(tmp_path), method]
    log = (tmp_path / 'console.txt').open('w')
    with log, subprocess.Popen(command, env=environ(), stdout=log, stderr=log) as run:
        try:
            until = time.monotonic() + 90
            while not (tmp_path / MARKER).exists() and time.monotonic() < until:
                time.sleep(0.05)
            time.sleep(after_s)
        finally:
            os.kill(run.pid, signal.SIGKILL)
    proof = [each['text'] for each in ask('why', tmp_path)['proof']]
    assert any(re.search(words, text) for text in proof), proof


class Keeps(ToyMetric):
    """Metric that keeps half a MiB per batch."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        self.results.append(np.zeros(2**16))


def test_workers_that_validated_before_training_are_followed(tmp_path):
    validate(tmp_path, 1, persistent=True, before=True)
    for validation in evidence_of(tmp_path).validations:
        assert (validation.iterations, validation.first_waits) == (BATCHES, 1)


def test_workers_of_training_that_live_on_are_counted(tmp_path):
    options: dict[str, Any] = {
        'num_workers': 1,
        'persistent_workers': True,
        'evaluation_s': 0.0,
    }
    train(build_runner(tmp_path, epochs=2, **options))
    (validation, _) = evidence_of(tmp_path).validations
    assert (
        validation.train_workers_cpu_s is not None
        and validation.train_workers_cpu_s < 0.5
    )


class FailsAt(ToyMetric):
    """Metric that raises an error in the middle of a validation."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        super().process(data_batch, data_samples)
        if len(self.results) == 3:
            raise ValueError('of the user')


def test_an_error_of_the_users_passes_through(tmp_path):
    built: list[Any] = []
    with pytest.raises(ValueError, match='of the user'):
        validate(tmp_path, 1, metric={'type': FailsAt}, custom_hooks=[Sees(built)])
    evidence = evidence_of(tmp_path)
    assert evidence.validations == ()
    assert evidence.end is not None and evidence.end.status == 'failed'
    (runner,) = built
    expect_untouched(runner, runner.val_loop)


class Sees(Hook):
    """Hook that keeps the Runner of a training that fails."""

    def __init__(self, built: list[Any]) -> None:
        self.built = built

    def before_run(self, runner: Any) -> None:
        self.built.append(runner)


@pytest.mark.parametrize('loop', ['test', 'val'])
def test_a_loop_without_a_training_that_fails_is_left_as_it_was(tmp_path, loop):
    runner = build_lone(tmp_path, loop, FailsAt)
    with pytest.raises(ValueError, match='of the user'):
        getattr(runner, loop)()
    expect_untouched(runner, getattr(runner, f'{loop}_loop'))


class TwicePassing(ValLoop):
    """Validation loop with two passes, as for teacher and student models."""

    def run(self) -> Any:
        self.runner.call_hook('before_val')
        self.runner.call_hook('before_val_epoch')
        self.runner.model.eval()
        for _ in range(2):
            for index, batch in enumerate(self.dataloader):
                self.run_iter(index, batch)
            metrics = self.evaluator.evaluate(len(self.dataloader.dataset))
        self.runner.call_hook('after_val_epoch', metrics=metrics)
        self.runner.call_hook('after_val')


@pytest.mark.parametrize('num_workers', [0, 1])
def test_a_loop_of_another_form_is_followed(tmp_path, num_workers):
    validate(tmp_path, num_workers, cfg={'type': TwicePassing}, metric={'type': Keeps})
    for validation in evidence_of(tmp_path).validations:
        assert (validation.iterations, validation.first_waits) == (2 * BATCHES, 2)
        assert (validation.batch_tensors, validation.batch_bytes) == (2, 772)
        assert (
            validation.data_wait.total_s + validation.step.total_s < validation.wall_s
        )
        # weighed before they are gone
        assert validation.result_bytes == pytest.approx(BATCHES * 2**19, rel=0.05)
        assert validation.result_name == 'Keeps.results'


class WithoutLoader(ValLoop):
    """Validation loop that makes its own loader."""

    def run(self) -> Any:
        known = self.dataloader
        own = DataLoader(known.dataset, collate_fn=known.collate_fn)
        self.runner.call_hook('before_val')
        for batch in own:
            self.runner.model.val_step(batch)
        self.runner.call_hook('after_val')


def test_a_loop_that_cannot_be_followed_is_timed_as_a_whole(tmp_path):
    validate(tmp_path, 0, cfg={'type': WithoutLoader})
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    assert len(evidence.validations) == 2
    for validation in evidence.validations:
        assert (validation.iterations, validation.data_wait) == (0, None)
        assert validation.wall_s > 0.0


class CocoMetric(ToyMetric):
    """Fake of MMDetection's CocoMetric that keeps its arguments as attributes."""

    __module__ = 'mmdet.evaluation.metrics.coco_metric'

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self._coco_api: Any = object()
        for name, value in arguments.items():
            setattr(self, name, value)


@pytest.mark.parametrize(
    ('metric', 'place'),
    [
        ({'type': CocoMetric}, 'key'),
        ([{'type': ToyMetric}, {'type': CocoMetric, 'prefix': 'second'}], 'list'),
        ({'type': CocoMetric, 'use_mp_eval': True}, 'no'),
        ({'type': CocoMetric, 'outfile_prefix': 'files'}, 'no'),
        ({'type': CocoMetric, 'format_only': True}, 'no'),
        ({'type': CocoMetric, '_coco_api': None}, 'no'),
        ({'type': ToyMetric}, 'no'),
        ({'type': type('CocoMetric', (ToyMetric,), {})}, 'no'),
    ],
    ids=['alone', 'in a list', 'pool', 'files', 'format', 'no file', 'other', 'poses'],
)
def test_it_is_recorded_where_a_faster_metric_helps(tmp_path, metric, place):
    validate(tmp_path, 0, metric=metric, epochs=1)
    assert evidence_of(tmp_path).run.fast_metric == place
