"""Tests trainings whose loader is tuned, against untuned ones."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.popen_fork
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from mmengine.dataset import pseudo_collate
from mmengine.runner import FlexibleRunner, Runner
from torch.utils.data import DataLoader, IterableDataset

from fakes.tuning import (
    NOTHING,
    NoAdviser,
    Script,
    ScriptedAdviser,
    judge,
    propose,
    settings,
)
from mmgpu_hooks.hooks import possible_gain, shared_room, tuner
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.host import FileSystem
from mmgpu_hooks.measure.loader.switch import LoaderSwitch
from mmgpu_hooks.schema.run_folder import evidence_name
from mmgpu_hooks.schema.text import phrase
from mmgpu_hooks.schema.tuning import TuneAnswer
from mmgpu_hooks.show.tuning import list_tuned
from mmgpu_hooks.show.words import say
from training.detection import environ
from training.toy import (
    HOOK,
    AfterIteration,
    LossTape,
    ToyDataset,
    ToyModel,
    build_runner,
    evidence_of,
    find_evidence,
    log_of,
    losses_of,
    scalar_lines,
    train,
)
from training.tuned_samplers import TUNED, Labels

NONE, TWO, THREE = settings(0), settings(2), settings(3)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    """Function that sets the answers of a fake tuning process."""
    # asked whether training waits for data or not
    monkeypatch.setattr(possible_gain, 'LEAST_WAIT', 0.0)

    def write(*answers: TuneAnswer | Exception) -> ScriptedAdviser:
        adviser = ScriptedAdviser(answers)
        monkeypatch.setattr(tuner, 'TuningAdviser', lambda *_, **__: adviser)
        # asked at each interval
        monkeypatch.setattr(tuner, 'ASK_AGAIN', 1.0)
        monkeypatch.setattr(tuner, 'FIRST_ASKED', 0)
        return adviser

    return write


def train_taped(
    work_dir: Path,
    hook: dict[str, Any] | None = TUNED,
    hooks: Sequence[Any] = (),
    **more,
) -> Any:
    options: dict[str, Any] = {'iterations': 40, 'epochs': 3, 'log_interval': 4, **more}
    return train(
        build_runner(work_dir, hook=hook, custom_hooks=[LossTape(), *hooks], **options)
    )


def workers_by_interval(work_dir: Path) -> list[int | None]:
    intervals = evidence_of(work_dir).intervals
    return [each.workers.count if each.workers else None for each in intervals]


@pytest.mark.parametrize('kind', [Runner, FlexibleRunner])
@pytest.mark.parametrize('loop', ['epoch', 'iter'])
@pytest.mark.parametrize(('before', 'after'), [(0, 2), (2, 0), (2, 3)])
def test_what_is_trained_stays_the_same_when_workers_change(
    tmp_path, script, kind, loop, before, after
):
    old, new = settings(before), settings(after)
    adviser = script(propose(old, new), judge(new, new, 'gain'))
    options = {'loop': loop, 'kind': kind, 'num_workers': before}
    tuned = train_taped(tmp_path / 'tuned', **options)
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    change, keep = evidence_of(tmp_path / 'tuned').tuned
    assert (change.action, change.is_within, change.new) == ('change', True, new)
    assert (keep.action, keep.reason, keep.new) == ('keep', 'gain', new)
    assert change.iteration < 25
    assert change.switch_s > 0
    assert tuned.train_dataloader.num_workers == after
    assert adviser.questions[0].iterations_left > 0
    log = log_of(tuned)
    assert f'num_workers {before} -> {after}' in log
    assert f'num_workers={after} is kept: an iteration took 0.300 s' in log


def test_a_change_that_does_not_pay_within_an_epoch_waits_for_its_end(tmp_path, script):
    script(propose(NONE, TWO, cost_s=1000.0), judge(TWO, TWO, 'gain'))
    tuned = train_taped(tmp_path / 'tuned')
    plain = train_taped(tmp_path / 'plain', None)
    assert losses_of(tuned) == losses_of(plain)
    change, _ = evidence_of(tmp_path / 'tuned').tuned
    assert (change.iteration, change.is_within) == (40, False)
    counts = workers_by_interval(tmp_path / 'tuned')
    assert set(counts[-8:]) == {2}


@pytest.mark.parametrize(
    ('short', 'most'), [('nothing', 5), ('memory', 3), ('/dev/shm', 3)]
)
def test_both_pools_of_workers_live_only_where_memory_holds_them(
    tmp_path, script, monkeypatch, short, most
):
    script(propose(TWO, THREE), judge(THREE, THREE, 'gain'))
    # a batch is of 1.5 KB: for two more, as one worker needs, and not for six
    little = {'memory': 0, '/dev/shm': 9_000}
    free = {**dict.fromkeys(little, 2**40), short: little.get(short, 0)}
    monkeypatch.setattr(tuner, 'read_free_bytes', lambda: free['memory'])
    monkeypatch.setattr(
        shared_room, 'read_file_system', lambda path: FileSystem(2**40, free[str(path)])
    )
    alive: list[int] = []
    count = AfterIteration(
        lambda runner: alive.append(len(multiprocessing.active_children())), 'LOWEST'
    )
    tuned = train_taped(tmp_path / 'tuned', num_workers=2, hooks=[count])
    plain = train_taped(tmp_path / 'plain', None, num_workers=2)
    assert losses_of(tuned) == losses_of(plain)
    assert tuned.train_dataloader.num_workers == 3
    assert max(alive) == most


def test_nobody_is_asked_where_training_does_not_wait(tmp_path, script, monkeypatch):
    # other tests take cores meanwhile
    monkeypatch.setattr(possible_gain, 'CROWDED', 99.0)
    monkeypatch.setattr(possible_gain, 'LEAST_WAIT', 0.5)
    adviser = script()
    workers: dict[str, Any] = {'num_workers': 1, 'persistent_workers': True}
    runner = train_taped(tmp_path, epochs=2, step_s=0.1, **workers)
    assert adviser.questions == []
    said = 'tune: nothing was changed: training does not wait for its loader.'
    assert said in log_of(runner)


def test_more_workers_do_not_come_where_shared_memory_holds_no_more_batches(
    tmp_path, script, monkeypatch
):
    script(propose(TWO, THREE))
    full = FileSystem(2**40, 0)
    monkeypatch.setattr(shared_room, 'read_file_system', lambda _: full)
    tuned = train_taped(tmp_path, num_workers=2)
    assert tuned.train_dataloader.num_workers == 2
    assert 'their batches do not fit into /dev/shm.' in log_of(tuned)


def test_a_loss_is_taken_back_and_ends_tuning(tmp_path, script):
    adviser = script(propose(NONE, TWO), judge(TWO, NONE, 'loss'), propose(NONE, THREE))
    tuned = train_taped(tmp_path / 'tuned')
    plain = train_taped(tmp_path / 'plain', None)
    assert losses_of(tuned) == losses_of(plain)
    change, back = evidence_of(tmp_path / 'tuned').tuned
    assert (back.action, back.reason, back.new) == ('roll_back', 'loss', NONE)
    assert back.iteration > change.iteration
    assert tuned.train_dataloader.num_workers == 0
    assert adviser.is_ended
    assert 'num_workers 2 -> 0, as before: an iteration took' in log_of(tuned)


def test_loader_settings_change_at_most_twice(tmp_path, script):
    script(
        propose(NONE, TWO),
        judge(TWO, TWO, 'gain'),
        propose(TWO, THREE),
        judge(THREE, THREE, 'unclear'),
        propose(THREE, NONE),
    )
    train_taped(tmp_path, loop='iter', iterations=120)
    changes = evidence_of(tmp_path).switches
    assert [record.new for record in changes] == [TWO, THREE]


def test_the_last_epoch_is_left_alone(tmp_path, script):
    script(propose(NONE, TWO, cost_s=1000.0))
    train_taped(tmp_path, epochs=2)
    assert evidence_of(tmp_path).tuned == ()


def test_one_epoch_is_left_alone_and_the_log_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, 'TuningAdviser', None)
    runner = train_taped(tmp_path, epochs=1)
    assert 'tune: nothing is tuned: the only epoch is the last one.' in log_of(runner)


class Streamed(IterableDataset[Any]):
    """Data set that is a stream of images."""

    metainfo: ClassVar[dict[str, Any]] = {}

    def __iter__(self) -> Iterator[Any]:
        return map(ToyDataset(80).__getitem__, range(80))

    def __len__(self) -> int:
        return 80


class OwnLoader(DataLoader[Any]):
    """DataLoader of a class of its own."""


REFUSED = {
    'stream': (
        lambda: DataLoader(Streamed(), 2, collate_fn=pseudo_collate),
        'its data set, a Streamed, deals samples out to its workers itself',
    ),
    'own loader': (
        lambda: OwnLoader(ToyDataset(80), 2, collate_fn=pseudo_collate),
        'batches come from a OwnLoader, which is no plain DataLoader',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_a_loader_that_cannot_be_tuned_says_why_once(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tuner, 'TuningAdviser', None)
    make, said = REFUSED[name]
    runner = build_runner(tmp_path, epochs=3, hook=TUNED)
    runner._train_dataloader = make()
    train(runner)
    assert log_of(runner).count(f'tune: nothing is tuned: {said}.') == 1
    assert runner.iter == 120


def test_a_training_in_which_nothing_was_changed_says_so(tmp_path, script):
    script()
    runner = train_taped(tmp_path)
    said = 'tune: nothing was changed: no other setting is surely faster.'
    assert log_of(runner).count(said) == 1


def test_nothing_is_started_where_it_was_not_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(tuner, 'TuningAdviser', None)
    runner = train_taped(tmp_path, {**TUNED, 'tune': False})
    assert 'tune' not in log_of(runner)
    assert evidence_of(tmp_path).tuned == ()


@pytest.mark.parametrize('answer', ['none', 'dies'])
def test_training_goes_on_without_the_child(tmp_path, script, monkeypatch, answer):
    if answer == 'none':
        monkeypatch.setattr(tuner, 'TuningAdviser', NoAdviser)
    else:
        script(SourceError('its process ended with exit code -9'))
    runner = train_taped(tmp_path)
    said = {'none': 'planted', 'dies': 'exit code -9'}[answer]
    assert re.search(f'tune is switched off for this run .*{said}', log_of(runner))
    assert runner.iter == 120


class Refusing:
    """Patch that lets a number of workers start, and then makes one start fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.left = count
        kind: Any = multiprocessing.popen_fork.Popen
        launch = kind._launch

        def limited(popen: Any, process: Any) -> Any:
            self.left -= 1
            if self.left == -1:
                popen.pid, popen.returncode = None, 1
                raise BlockingIOError(11, 'Resource temporarily unavailable')
            return launch(popen, process)

        monkeypatch.setattr(multiprocessing.popen_fork.Popen, '_launch', limited)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
@pytest.mark.parametrize('cost_s', [0.0, 1000.0], ids=['within', 'between'])
def test_training_goes_on_where_no_workers_can_be_started(
    tmp_path, script, monkeypatch, cost_s
):
    script(propose(NONE, THREE, cost_s=cost_s))
    # the first one loads for trial
    Refusing(monkeypatch, 2)
    tuned = train_taped(tmp_path / 'tuned')
    monkeypatch.undo()
    plain = train_taped(tmp_path / 'plain', None)
    assert losses_of(tuned) == losses_of(plain)
    assert tuned.train_dataloader.num_workers == 0
    assert 'BlockingIOError' in log_of(tuned)
    left = evidence_of(tmp_path / 'tuned').switches
    # what was begun before the next epoch was written down before it failed
    assert [record.reason for record in left] in ([], ['predicted', 'failed'])
    # what was predicted was not measured
    assert [record.gain_pct for record in left[1:]] in ([], [None])
    assert Run.read(find_evidence(tmp_path / 'tuned')).meta.loader.num_workers == 0


def test_a_loss_is_taken_back_as_soon_as_the_switch_is_over(
    tmp_path, script, monkeypatch
):
    script(propose(TWO, THREE), judge(THREE, TWO, 'loss'))
    # no memory for both: the old workers end first
    monkeypatch.setattr(tuner, 'read_free_bytes', lambda: 0)
    options: dict[str, Any] = {'loop': 'iter', 'iterations': 60, 'num_workers': 2}
    tuned = train_taped(tmp_path / 'tuned', **options)
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    _, back = evidence_of(tmp_path / 'tuned').tuned
    assert (back.reason, back.new) == ('loss', TWO)
    assert tuned.train_dataloader.num_workers == 2


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_roll_back_that_fails_once_the_old_workers_have_ended_is_recorded(
    tmp_path, script, monkeypatch
):
    # the switch is over before it is judged
    script(propose(TWO, THREE), NOTHING, NOTHING, judge(THREE, TWO, 'loss'))
    # no memory for both: the old workers end first
    monkeypatch.setattr(tuner, 'read_free_bytes', lambda: 0)
    Refusing(monkeypatch, 2 + 3)
    options: dict[str, Any] = {'loop': 'iter', 'iterations': 80, 'num_workers': 2}
    tuned = train_taped(tmp_path / 'tuned', **options)
    monkeypatch.undo()
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    evidence = evidence_of(tmp_path / 'tuned')
    *_, back, failed = evidence.tuned
    assert (back.action, back.reason, back.new) == ('roll_back', 'loss', TWO)
    assert (failed.reason, failed.new.num_workers) == ('failed', 3)
    assert tuned.train_dataloader.num_workers == 3
    assert Run.read(find_evidence(tmp_path / 'tuned')).meta.loader.num_workers == 3
    _, last = map(say, list_tuned(evidence))
    assert last == ('num_workers 2 -> 3: the new workers could not be started')


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_what_was_taken_back_does_not_return_when_workers_fail_later(
    tmp_path, script, monkeypatch
):
    script(propose(TWO, THREE, cost_s=1000.0), judge(THREE, TWO, 'loss'))
    # a sampler of the user's own, say
    reason = phrase('its sampler, Own, may depend on how far ahead it is asked')
    monkeypatch.setattr(LoaderSwitch, 'find_obstacle_within', lambda *_: reason)
    # in epochs of 2, 3, 2 and 2 workers
    Refusing(monkeypatch, 2 + 3 + 2 + 2)
    runner = build_runner(
        tmp_path, iterations=40, epochs=6, num_workers=2, log_interval=4, hook=TUNED
    )
    with pytest.raises(BlockingIOError):
        train(runner)
    # as ever: it is the training's own setting
    assert runner.epoch == 4
    assert runner.train_dataloader.num_workers == 2


class Unsendable(ToyDataset):
    """Data set that cannot be pickled."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.secret = lambda: None


def test_a_data_set_that_cannot_be_pickled_costs_no_training(
    tmp_path, script, monkeypatch
):
    script(propose(NONE, TWO))
    method = multiprocessing.get_start_method()
    multiprocessing.set_start_method('spawn', force=True)
    try:
        tuned = train_taped(
            tmp_path / 'tuned',
            dataset=Unsendable(80),
            env_cfg={'mp_cfg': {'mp_start_method': 'spawn'}},
        )
    finally:
        multiprocessing.set_start_method(method, force=True)
    assert tuned.iter == 120
    assert tuned.train_dataloader.num_workers == 0
    assert 'is not done: a worker could not load a batch' in log_of(tuned)


class AtHome(ToyDataset):
    """Data set that loads in the training process alone."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        if torch.utils.data.get_worker_info() is not None:
            raise RuntimeError('not in a worker')
        return super().__getitem__(index)


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
@pytest.mark.parametrize('cost_s', [0.0, 1000.0], ids=['within', 'between'])
def test_a_data_set_that_no_worker_can_load_stays_without_workers(
    tmp_path, script, loop, cost_s
):
    adviser = script(propose(NONE, TWO, cost_s=cost_s))
    options = {'loop': loop, 'dataset': AtHome(80)}
    tuned = train_taped(tmp_path / 'tuned', **options)
    plain = train_taped(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    assert tuned.train_dataloader.num_workers == 0
    assert adviser.is_ended
    # so that no one recommends it
    change, back = evidence_of(tmp_path / 'tuned').tuned
    assert (change.new, back.reason, back.new) == (TWO, 'failed', NONE)
    said = (
        'num_workers 0 -> 2 would be next and is not done: a worker could not load a '
        'batch (RuntimeError: not in a worker).'
    )
    assert log_of(tuned).count(said) == 1


class Switching(ToyDataset):
    """Data set with a mode that a hook switches, as MMDetection's mixed images."""

    is_switched = False

    def update_skip_type_keys(self, keys: Sequence[str]) -> None:
        self.is_switched = True

    def __getitem__(self, index: int) -> dict[str, Any]:
        item = super().__getitem__(index)
        if self.is_switched:
            item['data_samples'] = torch.tensor(-1.0)
        return item


class WithHead(ToyModel):
    """Model with the attribute that MMDetection's mode switch hook changes."""

    class Head:
        use_l1 = False

    def __init__(self) -> None:
        super().__init__()
        self.bbox_head: Any = self.Head()


def test_a_mode_that_a_hook_switches_reaches_workers_that_live_on(tmp_path, script):
    hooks = pytest.importorskip('mmdet.engine.hooks', exc_type=ImportError)
    kept = settings(2, persistent_workers=True)
    script(propose(NONE, kept), judge(kept, kept, 'gain'))
    seen = Labels()
    runner = build_runner(
        tmp_path,
        iterations=40,
        epochs=3,
        dataset=Switching(80),
        hook=TUNED,
        custom_hooks=[hooks.YOLOXModeSwitchHook(num_last_epochs=1), seen],
    )
    runner.model.bbox_head = WithHead.Head()
    train(runner)
    assert runner.train_dataloader.persistent_workers
    assert -1.0 not in seen.labels[:80]
    # MMDetection's own: from the epoch before the last ones on
    assert set(seen.labels[-80:]) == {-1.0}


def test_workers_do_not_begin_to_live_on_beside_a_hook_of_the_users_own(
    tmp_path, script
):
    adviser = script()
    train_taped(tmp_path)
    # LossTape is one
    assert not adviser.questions[0].may_persist


def test_a_resumed_run_begins_with_what_was_found(tmp_path, script, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    script(propose(NONE, TWO), judge(TWO, TWO, 'gain'))
    options: dict[str, Any] = {
        'loop': 'iter',
        'checkpoint': {'by_epoch': False, 'interval': 40},
    }
    train_taped(tmp_path, iterations=40, **options)
    (first,) = tmp_path.glob('*/vis_data/gpu_efficiency.jsonl')
    os.rename(first.parents[1], tmp_path / '20200101_000000')
    adviser = script()
    resumed = train_taped(tmp_path, iterations=80, resume=True, **options)
    path = Path(resumed.log_dir) / 'vis_data' / 'gpu_efficiency.jsonl'
    run = Run.read(path)
    (found,) = run.evidence.tuned
    assert (found.reason, found.old, found.new) == ('found_before', NONE, TWO)
    assert {each.workers.count for each in run.intervals} == {2}
    assert run.begun_with == NONE
    assert adviser.questions
    assert 'which the run that is resumed had found' in log_of(resumed)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_resumed_run_whose_workers_cannot_be_started_says_so(
    tmp_path, script, monkeypatch
):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    script(propose(NONE, TWO), judge(TWO, TWO, 'gain'))
    options: dict[str, Any] = {'checkpoint': {'interval': 1}}
    train_taped(tmp_path, epochs=2, **options)
    (first,) = tmp_path.glob('*/vis_data/gpu_efficiency.jsonl')
    os.rename(first.parents[1], tmp_path / '20200101_000000')
    adviser = script()
    Refusing(monkeypatch, 1)
    resumed = train_taped(tmp_path, epochs=4, resume=True, **options)
    run = Run.read(Path(resumed.log_dir) / 'vis_data' / 'gpu_efficiency.jsonl')
    found, failed = run.evidence.tuned
    assert (found.reason, found.new) == ('found_before', TWO)
    assert (failed.reason, failed.old, failed.new) == ('failed', TWO, NONE)
    assert run.meta.loader.num_workers == resumed.train_dataloader.num_workers == 0
    assert run.end.status == 'completed'
    assert 'num_workers 2 -> 0: the new workers could not be' in (log_of(resumed))
    # and is tuned as any other
    assert adviser.questions


def test_scalars_and_summary_show_it(tmp_path, script):
    script(propose(NONE, TWO), judge(TWO, TWO, 'gain'))
    hook = {**TUNED, 'scalars': 'all', 'summary': True}
    runner = train_taped(tmp_path, hook, loop='iter', iterations=120)
    shown = [
        line['num_workers'] for line in scalar_lines(tmp_path) if 'num_workers' in line
    ]
    assert shown[0] == 0
    assert shown[-1] == 2
    iteration = evidence_of(tmp_path).tuned[0].iteration
    said = ' '.join(log_of(runner).split())
    assert re.search(
        rf'tuned num_workers 0 -> 2 at iteration {iteration} in [\d.]+ m?s: predicted '
        '66 % less time, measured 66 %, kept',
        said,
    )


@pytest.mark.timing
@pytest.mark.slow
def test_a_training_finds_its_workers_by_itself(tmp_path):
    """Tests that a training is tuned from 0 workers by the real child process."""
    runner = train(
        build_runner(
            tmp_path,
            loop='iter',
            iterations=400,
            item_s=0.03,
            step_s=0.005,
            log_interval=50,
            hook={**HOOK, 'tune': True},
        )
    )
    run = Run.read(find_evidence(tmp_path))
    change, *_ = run.evidence.tuned
    assert (change.reason, change.old.num_workers) == ('predicted', 0)
    assert change.new.num_workers > 0
    assert run.evidence.tuned[-1].action == 'keep'
    assert runner.train_dataloader.num_workers == run.last_switch.new.num_workers
    before_s = run.intervals[1].iter.mean_s
    assert run.figures.iter_s < 0.8 * before_s


def start_ranks(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.tuned_ranks', str(folder), what]
    return subprocess.run(
        command, env=environ(), capture_output=True, text=True, timeout=150
    )


def read_json(folder: Path, name: str) -> list[Any]:
    return [json.loads((folder / f'{name}_{rank}.json').read_text()) for rank in (0, 1)]


@pytest.mark.slow
def test_two_ranks_switch_at_one_iteration(tmp_path):
    done = start_ranks(tmp_path, 'agree')
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_json(tmp_path / 'tuned', 'workers') == [2, 2]
    losses = [read_json(tmp_path / name, 'losses') for name in ('tuned', 'plain')]
    assert losses[0] == losses[1]
    records = [
        evidence_of(tmp_path / 'tuned', evidence_name(rank)).tuned for rank in (0, 1)
    ]
    assert [[each.action for each in rank] for rank in records] == [
        ['change', 'keep'],
        ['change', 'keep'],
    ]
    assert records[0][0].iteration == records[1][0].iteration
    seeds = [path.name.split('_')[0] for path in (tmp_path / 'tuned/seeds').iterdir()]
    # of the first epoch's workers, and of later ones, which have the seeds of the
    # change; of both ranks
    assert len({*seeds}) == 2 * 1 + 2 * 2


@pytest.mark.slow
def test_no_rank_switches_where_one_cannot(tmp_path):
    done = start_ranks(tmp_path, 'refuse')
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_json(tmp_path / 'tuned', 'workers') == [1, 1]
    assert 'cannot make the change, so none does' in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize('failing', [0, 1])
def test_all_ranks_end_with_what_one_of_them_could_not_leave(tmp_path, failing):
    done = start_ranks(tmp_path, f'fail_{failing}')
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_json(tmp_path / 'tuned', 'workers') == [1, 1]
    losses = [read_json(tmp_path / name, 'losses') for name in ('tuned', 'plain')]
    assert losses[0] == losses[1]
    records = [
        evidence_of(tmp_path / 'tuned', evidence_name(rank)).tuned for rank in (0, 1)
    ]
    assert records[failing] == ()
    change, back = records[1 - failing]
    assert (change.action, back.action) == ('change', 'roll_back')
    assert back.reason == ('loss' if failing else 'failed')


@pytest.mark.slow
def test_resumed_ranks_begin_with_what_was_found(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    done = start_ranks(tmp_path, 'resume')
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert read_json(tmp_path / 'tuned', 'resumed') == [[2], [2]]
    said = 'num_workers 1 -> 2, which the run that is resumed had found'
    assert said in done.stdout + done.stderr


@pytest.mark.slow
def test_a_rank_that_dies_in_the_decision_ends_the_training_as_ever(tmp_path):
    done = start_ranks(tmp_path, 'die')
    assert done.returncode != 0
    assert 'exitcode  : 3' in done.stdout + done.stderr
