"""Validations of real trainings: what is recorded of them, in whatever loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mmengine.runner import ValLoop
from torch.utils.data import DataLoader

from training.toy import (
    ToyDataset,
    ToyMetric,
    build_runner,
    evidence_of,
    open_files,
    train,
)

BATCHES = 24


def validate(
    work_dir: Path,
    num_workers: int,
    *,
    persistent: bool = False,
    before: bool = False,
    item_s: float = 0.0,
    metric: dict[str, Any] | None = None,
    cfg: dict[str, Any] | None = None,
    **arguments: Any,
) -> Any:
    """Train, with validations that have a loader of their own; the runner."""
    files = open_files()
    runner = build_runner(
        work_dir,
        val_dataloader={
            'dataset': ToyDataset(BATCHES, item_s),
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
    for validation in evidence.validations:
        assert validation.loader.num_workers == num_workers
        assert validation.loader.batch_size == 1
        assert (validation.iterations, validation.first_waits) == (BATCHES, 1)
        assert validation.data_wait.count == validation.step.count == BATCHES
        # 3 x 8 x 8 numbers and a target, 4 bytes each
        assert (validation.batch_tensors, validation.batch_bytes) == (2, 772)
        assert validation.workers.occupancy.count == BATCHES
        assert validation.workers.count == num_workers
        assert validation.workers.occupancy.p50_s == pytest.approx(0.0105, abs=0.0015)
        # the metric is in no iteration
        assert (
            validation.wall_s
            > 0.1 + validation.data_wait.total_s + validation.step.total_s
        )
        assert validation.train_workers_cpu_s == 0.0


class Keeps(ToyMetric):
    """Keeps half a MiB of each batch."""

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
    """Raises in the midst of a validation."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        super().process(data_batch, data_samples)
        if len(self.results) == 3:
            raise ValueError('of the user')


def test_an_error_of_the_users_passes_through(tmp_path):
    with pytest.raises(ValueError, match='of the user'):
        validate(tmp_path, 1, metric={'type': FailsAt})
    evidence = evidence_of(tmp_path)
    assert evidence.validations == ()
    assert evidence.end is not None and evidence.end.status == 'failed'


class TwicePassing(ValLoop):
    """As in semi-supervised detection, where teacher and student are validated."""

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
    """Has a loader of its own."""

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
