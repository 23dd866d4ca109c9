"""The ledger against stamps that lie in the planted objects, in every kind of loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.planted import TAPE, WORKER_START_S, build_planted
from mmgpu_hooks.records import RunEvidence
from training.toy import evidence_of


def train(work_dir: Path, **arguments: Any) -> tuple[Any, RunEvidence]:
    runner = build_planted(work_dir, iterations=12, save_interval=5, **arguments)
    runner.train()
    return runner, evidence_of(work_dir)


CASES = {
    'epoch': {'loop': 'epoch'},
    'iter': {'loop': 'iter', 'epochs': 1},
    'custom': {'loop': 'custom', 'epochs': 1},
    'flexible': {'loop': 'epoch', 'flexible': True},
}


@pytest.mark.parametrize('case', list(CASES))
def test_each_part_is_what_was_planted(tmp_path: Path, case: str) -> None:
    runner, evidence = train(tmp_path, **CASES[case])
    end = evidence.end
    assert end is not None
    ledger, loader = end.ledger_s, runner.train_dataloader
    planted = {name: math.fsum(seconds) for name, seconds in TAPE.seconds.items()}
    # 1 ms per occurrence, as the benchmark allows
    for part, count in (('checkpoint_save', 2), ('validation', 2), ('step', 12)):
        error = abs(ledger[part] - planted.get(part, 0.0))
        assert error <= max(0.02 * planted.get(part, 0.0), 0.001 * count), part
    loading = math.fsum([*loader.waits, *loader.creations, *loader.ends])
    found = ledger['data_wait'] + ledger['worker_startup']
    assert found == pytest.approx(loading, rel=0.02, abs=0.012)
    for name in ('PlantedBefore', 'PlantedAfter'):
        assert end.hooks_s[name] == pytest.approx(planted[name], rel=0.02, abs=0.012)
    # whoever saves has that time taken off
    assert end.hooks_s['CheckpointHook'] < 0.05 < planted['checkpoint_save']
    assert math.fsum(end.hooks_s.values()) <= ledger['hooks']
    assert math.fsum(ledger.values()) == pytest.approx(end.duration_s, rel=1e-6)
    assert ledger['other'] < 0.01 * math.fsum(ledger.values())


def test_starting_and_ending_workers_is_no_wait(tmp_path: Path) -> None:
    runner, evidence = train(tmp_path, num_workers=2)
    loader = runner.train_dataloader
    assert evidence.end is not None
    startup_s = evidence.end.ledger_s['worker_startup']
    firsts = [loader.waits[index] for index in loader.begins]
    others = math.fsum(loader.waits) - math.fsum(firsts)
    normal_s = others / (len(loader.waits) - len(firsts))
    planted = math.fsum([*firsts, *loader.creations, *loader.ends]) - 2 * normal_s
    assert startup_s == pytest.approx(planted, rel=0.02, abs=0.002)
    assert startup_s >= 2 * WORKER_START_S
    assert evidence.end.ledger_s['data_wait'] < 0.1


def test_intervals_name_the_hooks_that_ran_in_them(tmp_path: Path) -> None:
    _, evidence = train(tmp_path)
    for record in evidence.intervals:
        assert record.hooks_s['PlantedBefore'] >= 0.003 * record.iterations
        assert math.fsum(record.hooks_s.values()) <= record.ledger_s['hooks'] + 1e-9
