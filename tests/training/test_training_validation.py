"""Validations of real trainings: what is recorded of them, and what it is good for."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest
from mmengine.runner import ValLoop

from mmgpu_hooks.commands.main import main
from mmgpu_hooks.hooks.validation import _ValidationLoop
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.recommend.validation import advise_validation
from mmgpu_hooks.schema import RunEvidence
from training.conftest import DEFAULT_HOOKS, ITERATIONS, LOGGED, PLAIN, Detections
from training.toy import (
    ToyMetric,
    build_runner,
    evidence_of,
    log_of,
    losses_of,
    train,
)
from training.validate import BATCHES, validate


@pytest.mark.timing
@pytest.mark.parametrize('loop', ['epoch', 'iter'])
@pytest.mark.parametrize(
    ('num_workers', 'persistent'), [(0, False), (2, False), (2, True)]
)
def test_each_validation_is_one_record(
    tmp_path: Path, loop: str, num_workers: int, persistent: bool
) -> None:
    limits: dict[str, Any] = (
        {'iterations': 8, 'val_interval': 4} if loop == 'iter' else {}
    )
    validate(
        tmp_path,
        num_workers,
        persistent=persistent,
        item_s=0.01,
        metric={'type': ToyMetric, 'evaluation_s': 0.1},
        loop=loop,
        **limits,
    )
    evidence = evidence_of(tmp_path)
    assert [one.iteration for one in evidence.validations] == [4, 8]
    assert evidence.end is not None
    walls_s = sum(one.wall_s for one in evidence.validations)
    assert walls_s == pytest.approx(evidence.end.ledger_s['validation'], abs=0.02)
    for one in evidence.validations:
        assert one.loader.num_workers == num_workers
        assert one.loader.batch_size == 1
        assert (one.iterations, one.first_waits) == (BATCHES, 1)
        assert one.data_wait is not None and one.step is not None
        assert one.data_wait.count == one.step.count == BATCHES
        # 3 x 8 x 8 numbers and a target, 4 bytes each
        assert (one.batch_tensors, one.batch_bytes) == (2, 772)
        assert one.workers is not None and one.workers.occupancy is not None
        assert one.workers.occupancy.count == BATCHES
        assert one.workers.count == num_workers
        assert one.workers.occupancy.p50_s == pytest.approx(0.0105, abs=0.0015)
        # the metric is in no iteration
        assert one.wall_s > 0.1 + one.data_wait.total_s + one.step.total_s
        assert one.train_workers_cpu_s == 0.0


def test_workers_of_training_that_live_on_are_counted(tmp_path: Path) -> None:
    runner = build_runner(
        tmp_path, epochs=2, num_workers=1, persistent_workers=True, evaluation_s=0.0
    )
    train(runner)
    (one, _) = evidence_of(tmp_path).validations
    assert one.train_workers_cpu_s is not None and one.train_workers_cpu_s < 0.1


class Inspected(ValLoop):
    """Looks at itself after each validation."""

    is_patched: ClassVar[list[bool]] = []

    def run(self) -> Any:
        metrics = super().run()
        self.is_patched.append('_get_iterator' in vars(self.dataloader))
        return metrics


def test_what_is_switched_off_leaves_the_loop_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise RuntimeError('planted')

    monkeypatch.setattr(Inspected, 'is_patched', [])
    validate(tmp_path / 'whole', 0, cfg={'type': Inspected})
    assert Inspected.is_patched == [True, True]
    monkeypatch.setattr(_ValidationLoop, '_got', failing)
    validate(tmp_path / 'off', 0, cfg={'type': Inspected})
    assert Inspected.is_patched == [True, True, False, False]


@pytest.fixture(scope='module')
def plain_losses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return losses_of(validate(tmp_path_factory.mktemp('plain'), 1, hook=None))


@pytest.mark.parametrize(
    ('target', 'recorded'),
    [
        ('hooks.validation.LoaderProbe', 0),
        ('hooks.validation.count_tensors', 0),
        ('hooks.validation._ValidationLoop._ask', 0),
        ('hooks.validation._ValidationLoop._got', 0),
        ('hooks.validation._ValidationLoop.end', 0),
        ('hooks.validation.read_loader_settings', 0),
    ],
)
def test_training_and_validation_never_notice_a_failure(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plain_losses: list[str],
    target: str,
    recorded: int,
) -> None:
    def failing(*_: Any, **__: Any) -> Any:
        raise RuntimeError('planted')

    module, name = target.rsplit('.', 1)
    try:
        holder: Any = importlib.import_module(f'mmgpu_hooks.{module}')
    except ModuleNotFoundError:
        parent, class_name = module.rsplit('.', 1)
        holder = getattr(importlib.import_module(f'mmgpu_hooks.{parent}'), class_name)
    monkeypatch.setattr(holder, name, failing)
    runner = validate(tmp_path, 1)
    assert losses_of(runner) == plain_losses
    assert (
        log_of(runner).count(
            'validation is switched off for this run (RuntimeError: planted)'
        )
        == 1
    )
    evidence = evidence_of(tmp_path)
    assert len(evidence.validations) == recorded
    assert [off.source for off in evidence.sources_off] == ['validation']
    assert evidence.end is not None and evidence.end.status == 'completed'


class FailsAt(ToyMetric):
    """Raises in the midst of a validation."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        super().process(data_batch, data_samples)
        if len(self.results) == 3:
            raise ValueError('of the user')


def test_an_error_of_the_users_passes_through(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match='of the user'):
        validate(tmp_path, 1, metric={'type': FailsAt})
    evidence = evidence_of(tmp_path)
    assert evidence.validations == ()
    assert evidence.end is not None and evidence.end.status == 'failed'


@pytest.mark.timing
def test_what_is_predicted_is_what_more_workers_give(tmp_path: Path) -> None:
    def loop_s(evidence: RunEvidence) -> float:
        told = advise_validation(Run(evidence)).outlook
        assert told is not None and told.loop_s is not None
        return told.loop_s

    # long enough that the first batches of many workers do not weigh
    slow = {'item_s': 0.02, 'batches': 160, 'persistent': True}
    validate(tmp_path / 'one', 1, **slow)
    one = evidence_of(tmp_path / 'one')
    advice = advise_validation(Run(one))
    assert [c.key for c in advice.changes] == ['val_dataloader.num_workers']
    workers = advice.changes[0].new
    validate(tmp_path / 'more', workers, **slow)
    more_s = loop_s(evidence_of(tmp_path / 'more'))
    assert advice.outlook is not None and advice.outlook.gain_s is not None
    # not what is left: a step of 1 ms takes half of that once it never waits
    saved_s = loop_s(one) - more_s
    assert advice.outlook.gain_s == pytest.approx(saved_s, rel=0.1)


def test_a_detector_is_validated_as_it_is_without_us(detections: Detections) -> None:
    scores = [
        re.findall(r'bbox_mAP[_a-z0-9]*: [-.0-9]+', detections.log(name))
        for name in (DEFAULT_HOOKS, f'{PLAIN}_{DEFAULT_HOOKS}')
    ]
    assert scores[0] and scores[0] == scores[1]
    evidence = evidence_of(detections.work_dir(DEFAULT_HOOKS))
    assert [one.iteration for one in evidence.validations] == LOGGED[1::2]
    for one in evidence.validations:
        assert one.iterations == ITERATIONS
        assert (one.loader.num_workers, one.loader.persistent_workers) == (1, True)
    # a worker times every so many of its batches, the first among them
    workers = evidence.validations[0].workers
    assert workers is not None and 'LoadImageFromFile' in workers.transforms


def test_a_detectors_validation_is_spoken_of(
    detections: Detections, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = detections.work_dir(DEFAULT_HOOKS)
    assert main(['recommend', str(folder), '--dry-run', '--details']) == 0
    printed = ' '.join(capsys.readouterr().out.split())
    assert "Validation's loader: 2 validation(s) took" in printed
