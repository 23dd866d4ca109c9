"""Validation loops that do not go as MMEngine's own does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmengine.runner import ValLoop

from training.toy import evidence_of, log_of
from training.validate import BATCHES, validate


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


class Foreign(ValLoop):
    """Has iterations of another kind."""

    def run(self) -> Any:
        self.runner.call_hook('before_val')
        for batch in self.dataloader:
            self.runner.model.val_step(batch)
        self.runner.call_hook('after_val')


@pytest.mark.parametrize('num_workers', [0, 1])
def test_a_loop_that_goes_through_its_loader_twice(
    tmp_path: Path, num_workers: int
) -> None:
    validate(tmp_path, num_workers, cfg={'type': TwicePassing})
    for one in evidence_of(tmp_path).validations:
        assert (one.iterations, one.first_waits) == (2 * BATCHES, 2)


class FromOne(ValLoop):
    """Counts from 1 and on, and names what it hands over."""

    def run(self) -> Any:
        self.runner.call_hook('before_val')
        self.runner.model.eval()
        for index, batch in enumerate(self.dataloader, 1):
            self.run_iter(data_batch=batch, idx=index)
        metrics = self.evaluator.evaluate(len(self.dataloader.dataset))
        self.runner.call_hook('after_val_epoch', metrics=metrics)
        self.runner.call_hook('after_val')


class OfBatches(ValLoop):
    """Its iterations take no index."""

    def run(self) -> Any:
        self.runner.call_hook('before_val')
        for batch in self.dataloader:
            self.run_iter(batch)
        self.runner.call_hook('after_val')

    def run_iter(self, batch: Any) -> None:
        self.runner.model.val_step(batch)


class WithoutLoader(ValLoop):
    """Names its loader otherwise."""

    def run(self) -> Any:
        loader = self.dataloader
        del self.dataloader
        self.runner.call_hook('before_val')
        for batch in loader:
            self.runner.model.val_step(batch)
        self.runner.call_hook('after_val')
        self.dataloader = loader


class Untouching(ValLoop):
    """Takes no batch of its loader."""

    def run(self) -> Any:
        self.runner.call_hook('before_val')
        self.runner.call_hook('after_val')


@pytest.mark.parametrize('loop', [FromOne, OfBatches, Foreign])
@pytest.mark.parametrize('num_workers', [0, 1])
def test_a_loop_that_names_its_iterations_otherwise(
    tmp_path: Path, num_workers: int, loop: type[ValLoop]
) -> None:
    validate(tmp_path, num_workers, cfg={'type': loop})
    for one in evidence_of(tmp_path).validations:
        assert (one.iterations, one.first_waits) == (BATCHES, 1)
        assert (one.batch_tensors, one.batch_bytes) == (2, 772)
        assert one.data_wait is not None and one.step is not None
        assert one.data_wait.total_s + one.step.total_s < one.wall_s


@pytest.mark.parametrize('loop', [Untouching, WithoutLoader])
def test_a_loop_that_cannot_be_followed_is_timed_as_a_whole(
    tmp_path: Path, loop: type[ValLoop]
) -> None:
    runner = validate(tmp_path, 0, cfg={'type': loop})
    assert 'is switched off' not in log_of(runner)
    evidence = evidence_of(tmp_path)
    assert evidence.sources_off == ()
    assert len(evidence.validations) == 2
    for one in evidence.validations:
        assert (one.iterations, one.data_wait) == (0, None)
        assert one.wall_s > 0.0
