"""Tests trainings that end, save or draw samples while their loader is tuned."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fakes.tuning import judge, propose, settings
from mmgpu_hooks.judge.run import Run
from training import test_training_tuned
from training.detection import environ
from training.test_training_tuned import NONE, TUNED, TWO, Seen, train_taped
from training.toy import (
    HOOK,
    ToyDataset,
    build_runner,
    evidence_of,
    find_evidence,
    load_checkpoint,
    losses_of,
    train,
)
from training.tuned_ends import ENDINGS, PLAIN

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
    assert [record.action for record in evidence.switches] == ['change']
    assert tuned.seen['workers'] == (2 if name == 'drained' else 2 + 3)


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


class Joined(ToyDataset):
    """Two data sets in one, as MMDetection's ConcatDataset."""

    def __init__(self) -> None:
        super().__init__(120)
        self.datasets = [ToyDataset(40), ToyDataset(80)]

    def get_data_info(self, index: int) -> dict[str, Any]:
        return {'width': 100 + 37 * (index % 5), 'height': 200}

    def get_dataset_source(self, index: int) -> int:
        return int(index >= 40)


def make_videos() -> Any:
    """Returns a data set of 24 videos of five frames each."""
    from mmdet.datasets import BaseVideoDataset

    class Videos(BaseVideoDataset):
        def filter_data(self) -> list[dict[str, Any]]:
            return self.data_list

        def load_data_list(self) -> list[dict[str, Any]]:
            return [
                {
                    'video_id': number,
                    'video_length': 5,
                    'images': [{'width': 100 + 37 * (number % 5), 'height': 200}] * 5,
                }
                for number in range(24)
            ]

        def __getitem__(self, index: tuple[int, int]) -> Any:
            video, frame = index
            return ToyDataset(120)[5 * video + frame]

    return Videos(metainfo={'classes': ('any',)})


TRACKED = {'type': 'mmdet.TrackImgSampler'}
BY_RATIO = {'type': 'mmdet.MultiDataAspectRatioBatchSampler', 'num_datasets': 2}
SAMPLERS: dict[str, Any] = {
    'frames': ({'sampler': TRACKED}, make_videos),
    'frames by aspect ratio': (
        {
            'sampler': TRACKED,
            'batch_sampler': {'type': 'mmdet.TrackAspectRatioBatchSampler'},
        },
        make_videos,
    ),
    'several data sets by aspect ratio': (
        {
            'sampler': {'type': 'mmdet.MultiDataSampler', 'dataset_ratio': [1, 2]},
            'batch_sampler': BY_RATIO,
            'batch_size': [2, 3],
        },
        Joined,
    ),
    'part of a data set': (
        {
            'sampler': {
                'type': 'mmdet.CustomSampleSizeSampler',
                'dataset_size': [20, -1],
            }
        },
        Joined,
    ),
}


def take_samples(
    work_dir: Path, hook: dict[str, Any] | None, loader: dict[str, Any], dataset: Any
) -> list[float]:
    """Trains three epochs; returns the labels of the samples in their order."""
    seen = Seen()
    runner = build_runner(
        work_dir, dataset=dataset, epochs=3, hook=hook, custom_hooks=[seen]
    )
    runner._train_dataloader.update(loader)
    train(runner)
    return seen.labels


@pytest.mark.parametrize('hook', [HOOK, TUNED], ids=['measured', 'tuned'])
def test_no_sample_is_drawn_to_count_batches(tmp_path, script, hook):
    """Tests that batches are not counted where counting would change the samples."""
    pytest.importorskip('mmdet.datasets.samplers', exc_type=ImportError)
    sampler = {'type': 'mmdet.CustomSampleSizeSampler', 'dataset_size': [20, -1]}
    loader = {'sampler': sampler, 'batch_sampler': BY_RATIO, 'batch_size': [2, 3]}

    script(propose(NONE, TWO), judge(TWO, TWO, 'gain'))
    ours = take_samples(tmp_path / 'ours', hook, loader, Joined())
    assert ours == take_samples(tmp_path / 'plain', None, loader, Joined())


@pytest.mark.parametrize('name', SAMPLERS)
def test_samples_come_in_the_same_order_with_samplers_of_mmdetection(
    tmp_path, script, name
):
    pytest.importorskip('mmdet.datasets.samplers', exc_type=ImportError)
    loader, make = SAMPLERS[name]

    script(
        propose(NONE, TWO),
        judge(TWO, TWO, 'gain'),
        propose(TWO, NONE),
        judge(NONE, NONE, 'gain'),
    )
    tuned = take_samples(tmp_path / 'tuned', TUNED, loader, make())
    assert tuned == take_samples(tmp_path / 'plain', None, loader, make())
    changes = evidence_of(tmp_path / 'tuned').switches
    assert [(each.new, each.is_within) for each in changes] == [
        (TWO, True),
        (NONE, True),
    ]


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
