"""Tests trainings that end, save or draw samples while their loader is tuned."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.tuning import judge, propose, settings
from mmgpu_hooks.judge.run import Run
from training import test_training_tuned
from training.detection import environ
from training.test_training_tuned import NONE, TUNED, TWO, train_taped
from training.toy import (
    HOOK,
    AfterIteration,
    evidence_of,
    find_evidence,
    load_checkpoint,
    losses_of,
)
from training.tuned_ends import ENDINGS, PLAIN
from training.tuned_samplers import BY_RATIO, CASES, Case, Joined, take_samples

script = test_training_tuned.script

INTERRUPTED = [name for name, ending in ENDINGS.items() if ending.victim is None]
KILLED = [name for name in ENDINGS if name not in INTERRUPTED]


class Ended(NamedTuple):
    """Training that has ended, with what it left."""

    folder: Path
    code: int
    left: dict[str, list[Any]]
    """Processes and shared memory files that the training has left behind."""

    @property
    def last_line(self) -> str:
        """Last line that the training printed, which says what ended it."""
        return (self.folder / 'log.txt').read_text().splitlines()[-1]

    @property
    def seen(self) -> dict[str, int]:
        """Numbers of tuning processes, shared files and workers just before the end."""
        seen: dict[str, int] = json.loads((self.folder / 'seen').read_text())
        return seen


@pytest.fixture(scope='module')
def ended(tmp_path_factory) -> dict[str, Ended]:
    """Trainings ended while workers are switched, and untuned ones, by name."""
    folder = tmp_path_factory.mktemp('ended')
    plain = (f'{PLAIN}{name}' for name in ('start', 'owed', 'old'))
    names = [*ENDINGS, *plain]
    done = subprocess.run(
        [sys.executable, '-m', 'training.tuned_ends', str(folder), *names],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: Ended(folder / name, **end) for name, end in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize('name', INTERRUPTED)
def test_ctrl_c_in_the_switch_ends_a_training_as_an_untouched_one(ended, name):
    tuned = ended[name]
    plain = ended[f'{PLAIN}{"owed" if name in ("owed", "shutdown") else "start"}']
    assert (tuned.code, tuned.last_line) == (plain.code, plain.last_line)
    assert tuned.last_line == 'KeyboardInterrupt'
    evidence = evidence_of(tuned.folder / 'run')
    assert evidence.end.status == 'interrupted'
    # what was not begun is not recorded
    made = {record.action for record in evidence.switches}
    assert made == (set() if name == 'start' else {'change'})


@pytest.mark.slow
@pytest.mark.parametrize('name', KILLED)
def test_a_worker_killed_after_the_change_ends_a_training_as_ever(ended, name):
    tuned, plain = ended[name], ended[f'{PLAIN}old']
    assert tuned.code == plain.code == 1
    for end in (tuned, plain):
        # one of PyTorch's two sentences, by what the training is doing just then
        assert end.last_line.startswith('RuntimeError: DataLoader worker (pid')
    evidence = evidence_of(tuned.folder / 'run')
    assert (evidence.end.status, evidence.end.error) == ('failed', 'RuntimeError')
    made = [record.action for record in evidence.switches]
    # what was not begun is not recorded
    assert made == ['change'] or (name == 'forking' and not made)
    workers = {'drained': 2, 'forking': 2 + 1}.get(name, 2 + 3)
    assert tuned.seen['workers'] == workers


@pytest.mark.slow
def test_nothing_is_left_of_a_training_that_ends_in_the_switch(ended):
    left = {name: end.left for name, end in ended.items() if any(end.left.values())}
    assert left == {}
    # what could have been left: the tuning process, and batches in shared memory
    assert {ended[name].seen['tuning'] for name in ENDINGS} == {1}
    assert min(ended[name].seen['files'] for name in KILLED) > 0


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_a_checkpoint_saved_at_the_change_is_as_one_of_an_untouched_training(
    tmp_path, script, monkeypatch, loop
):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    is_within = loop == 'iter'
    script(
        propose(NONE, TWO, cost_s=0.0 if is_within else 1000.0),
        judge(TWO, TWO, 'gain'),
    )
    # of an iteration-based training one epoch: it would sleep between two
    options: dict[str, Any] = {
        'loop': loop,
        'checkpoint': {'by_epoch': not is_within, 'interval': 1},
        'iterations': 40 if is_within else 12,
    }
    tuned = train_taped(tmp_path / 'tuned', **options)
    plain = train_taped(tmp_path / 'plain', None, **options)
    change, _ = evidence_of(tmp_path / 'tuned').tuned
    at = change.iteration
    assert change.is_within is is_within
    saves = [f'iter_{at}', f'iter_{at + 1}'] if is_within else ['epoch_1', 'epoch_2']
    for save in saves:
        ours, theirs = (
            load_checkpoint(tmp_path / name / f'{save}.pth')
            for name in ('tuned', 'plain')
        )
        assert ours.keys() == theirs.keys()
        assert ours['meta']['iter'] == theirs['meta']['iter'] >= at
        for name, weights in theirs['state_dict'].items():
            assert ours['state_dict'][name].equal(weights)
    options |= {'load_from': str(tmp_path / f'tuned/{saves[0]}.pth'), 'resume': True}
    resumed = train_taped(tmp_path / 'resumed', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    assert losses_of(resumed) == losses_of(plain)[at:]


@pytest.mark.parametrize('hook', [HOOK, TUNED], ids=['measured', 'tuned'])
def test_no_sample_is_drawn_to_count_batches(tmp_path, script, monkeypatch, hook):
    """Tests that batches are not counted where counting would change the samples."""
    pytest.importorskip('mmdet.datasets.samplers', exc_type=ImportError)
    # what it counts, it draws
    sampler = {'type': 'mmdet.CustomSampleSizeSampler', 'dataset_size': [20, -1]}
    loader = {'sampler': sampler, 'batch_sampler': BY_RATIO, 'batch_size': [2, 3]}
    monkeypatch.setitem(CASES, 'both', Case(loader, Joined))

    script(propose(NONE, TWO), judge(TWO, TWO, 'gain'))
    place = 'in the middle of an epoch'
    ours = take_samples(tmp_path / 'ours', 'both', place, hook)
    assert ours == take_samples(tmp_path / 'plain', 'both', place, None)


@pytest.mark.slow
def test_other_load_that_comes_and_goes_is_not_chased(tmp_path):
    """Tests that programs that take all cores for a while end no good change."""
    busy: list[subprocess.Popen[bytes]] = []

    def come_and_go(runner: Any) -> None:
        if runner.iter == 150:
            burn = [sys.executable, '-c', 'while True: pass']
            busy.extend(subprocess.Popen(burn) for _ in range(os.cpu_count() or 1))
        if runner.iter == 450:
            while busy:
                busy[-1].kill()
                busy.pop().wait()

    options: dict[str, Any] = {'loop': 'iter', 'iterations': 700, 'log_interval': 50}
    try:
        tuned = train_taped(
            tmp_path / 'tuned',
            {**HOOK, 'tune': True},
            hooks=[AfterIteration(come_and_go)],
            item_s=0.02,
            step_s=0.005,
            **options,
        )
    finally:
        for program in busy:
            program.kill()
    # an image is the same however long it takes
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    actions = [record.action for record in evidence_of(tmp_path / 'tuned').tuned]
    assert 1 <= actions.count('change') <= 2
    assert tuned.train_dataloader.num_workers > 0


@pytest.mark.timing
@pytest.mark.slow
def test_a_slow_loader_is_tuned_by_epochs_and_the_order_stays(tmp_path):
    """Tests that tuning a slow loader between epochs leaves the order of samples."""
    options: dict[str, Any] = {'iterations': 200, 'epochs': 3, 'step_s': 0.005}
    hook = {**HOOK, 'tune': True}
    tuned = train_taped(tmp_path / 'tuned', hook, item_s=0.03, **options)
    # an image is the same however long it takes
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    run = Run.read(find_evidence(tmp_path / 'tuned'))
    assert run.begun_with == settings(0)
    change, *_ = run.evidence.tuned
    assert (change.reason, change.old.num_workers) == ('predicted', 0)
    assert tuned.train_dataloader.num_workers > 0
    assert run.evidence.tuned[-1].action == 'keep'
