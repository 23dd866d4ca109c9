"""A real training whose intervals all hold a save and a validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.judge.verdict import diagnose_run
from training.toy import HOOK, build_runner, evidence_of, train


@pytest.mark.timing
def test_the_cause_of_the_waits_is_named(tmp_path: Path) -> None:
    runner = build_runner(
        tmp_path,
        epochs=4,
        iterations=18,
        log_interval=12,
        num_workers=2,
        persistent_workers=True,
        item_s=0.02,
        evaluation_s=0.05,
        checkpoint={'interval': 1},
    )
    train(runner)
    evidence = evidence_of(tmp_path)
    busy = [
        record.ledger_s['checkpoint_save'] * record.ledger_s['validation'] > 0
        for record in evidence.intervals
    ]
    assert busy == [False, True, True, True, True]
    for one in evidence.validations:
        assert one.whole_cpu_s is not None and one.process_cpu_s is not None
        assert one.process_cpu_s < one.whole_cpu_s < 2 * one.wall_s
        assert one.run_delay_s is not None and one.run_delay_s < one.wall_s
    summary = Run(evidence)
    assert summary.main_cpu_s is not None and 0 < summary.main_cpu_s < 0.02
    assert summary.main_run_delay_s is not None
    diagnosis = diagnose_run(summary)
    # workers sleep 40 ms for a batch of two
    assert diagnosis.verdict.name == 'data_bound_storage'


def test_an_only_interval_with_a_save_is_judged(tmp_path: Path) -> None:
    runner = build_runner(
        tmp_path,
        epochs=2,
        iterations=25,
        num_workers=2,
        hook={**HOOK, 'interval': 1000},
        checkpoint={'interval': 1},
    )
    train(runner)
    evidence = evidence_of(tmp_path)
    (only,) = evidence.intervals
    assert only.ledger_s['checkpoint_save'] > 0
    assert Run(evidence).main_cpu_s is not None


class Batches(list):
    """A loader of one's own."""

    dataset = None


def test_a_loader_of_ones_own_is_named(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, iterations=12)
    loader = runner.build_dataloader(runner._train_dataloader)
    batches = Batches(loader)
    batches.dataset = loader.dataset
    runner._train_dataloader = batches
    train(runner)
    run = evidence_of(tmp_path).run
    assert run.unknown['loader workers'] == (
        'batches come from a Batches, which is no DataLoader of PyTorch: its settings '
        'and workers cannot be seen'
    )
    assert run.loader.num_workers is None
