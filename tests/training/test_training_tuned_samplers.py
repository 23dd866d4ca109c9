"""Tests that samples come in an untouched training's order where workers change."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mmengine.runner import loops

from mmgpu_hooks.hooks import possible_gain, tuner
from mmgpu_hooks.schema.run_folder import evidence_name
from training.detection import environ
from training.toy import evidence_of
from training.tuned_samplers import (
    CASES,
    NONE,
    TUNED,
    TWO,
    list_rank_trainings,
    list_trainings,
    script,
    take_samples,
)

pytest.importorskip('mmdet.datasets.samplers', exc_type=ImportError)

TRAININGS = list_trainings()


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the 2 s sleep between two passes of MMEngine's endless iterator."""
    monkeypatch.setattr(loops.time, 'sleep', lambda seconds: None)
    monkeypatch.setattr(tuner, 'ASK_AGAIN', 1.0)
    monkeypatch.setattr(tuner, 'FIRST_ASKED', 0)


def test_all_samplers_that_are_registered_are_tried():
    import mmdet.registry
    import mmengine.registry

    found = {
        kind.__name__
        for package in (mmengine, mmdet)
        for kind in package.registry.DATA_SAMPLERS.module_dict.values()
        if kind.__module__.partition('.')[0] in ('mmengine', 'mmdet')
    }
    configs = [part for case in CASES.values() for part in case.loader.values()]
    tried = {part['type'].split('.')[-1] for part in configs if isinstance(part, dict)}
    # MMEngine and MMDetection of older versions have fewer
    assert found <= tried


@pytest.mark.parametrize(('name', 'place'), TRAININGS)
def test_samples_come_in_the_same_order(tmp_path, monkeypatch, name, place):
    # whether it waits for data or not
    monkeypatch.setattr(possible_gain, 'LEAST_WAIT', 0.0)
    monkeypatch.setattr(tuner, 'TuningAdviser', lambda *_, **__: script(place))
    tuned = take_samples(tmp_path / 'tuned', name, place, TUNED)
    assert tuned == take_samples(tmp_path / 'plain', name, place, None)
    assert len(tuned) > 60
    changes = evidence_of(tmp_path / 'tuned').switches
    is_within = place != "at an epoch's end"
    made = [(each.new, each.is_within) for each in changes]
    assert made == [(TWO, is_within), (NONE, is_within)]


@pytest.fixture(scope='module')
def two_ranks(tmp_path_factory) -> Path:
    """Folder of trainings with two ranks, tuned and not, named by number."""
    folder: Path = tmp_path_factory.mktemp('ranks')
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.tuned_samplers', str(folder)]
    done = subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=230
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def read_labels(work_dir: Path) -> list[list[float]]:
    return [
        json.loads((work_dir / f'labels_{rank}.json').read_text()) for rank in (0, 1)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(('number', 'case'), list(enumerate(list_rank_trainings())))
def test_each_rank_takes_the_samples_that_are_its_own(two_ranks, number, case):
    tuned, plain = two_ranks / f'{number}_tuned', two_ranks / f'{number}_plain'
    assert read_labels(tuned) == read_labels(plain)
    changes = [evidence_of(tuned, evidence_name(rank)).switches for rank in (0, 1)]
    made = [[(each.new, each.iteration) for each in rank] for rank in changes]
    assert made[0] == made[1]
    assert [new for new, _ in made[0]] == [TWO, NONE]
