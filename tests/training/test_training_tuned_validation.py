"""Tests trainings whose validation gets another loader setting while they train."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmengine.dataset import pseudo_collate
from torch.utils.data import DataLoader

from fakes.tuning import (
    NoAdviser,
    ScriptedAdviser,
    judge,
    propose,
    settings,
)
from mmgpu_hooks.hooks import shared_room, tuner, validation_tuner
from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.measure.absent import SourceError
from mmgpu_hooks.measure.host import FileSystem
from mmgpu_hooks.recommend.recommendation import recommend_settings
from mmgpu_hooks.schema.tuning import TuneAnswer
from training.test_training_tuned import TUNED, AtHome, Refusing, Streamed
from training.toy import (
    LossTape,
    ToyDataset,
    build_runner,
    evidence_of,
    log_of,
    losses_of,
    train,
    validation,
)

OF_VALIDATION: dict[str, Any] = {'loader': 'validation'}
NONE, TWO = settings(0), settings(2)
CHANGE = propose(NONE, TWO, **OF_VALIDATION)
GAIN = judge(TWO, TWO, 'gain', **OF_VALIDATION)
LOSS = judge(TWO, NONE, 'loss', **OF_VALIDATION)


class Scripts:
    """Fake tuning processes, each of which gives one of the scripted answers."""

    def __init__(self, *answers: TuneAnswer | Exception) -> None:
        self._answers = iter(answers)
        self.started: list[ScriptedAdviser] = []

    def __call__(self, *_: Any, **__: Any) -> ScriptedAdviser:
        answer = next(self._answers, None)
        self.started.append(ScriptedAdviser([] if answer is None else [answer]))
        return self.started[-1]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function that sets the answers of fake tuning processes."""
    monkeypatch.setattr(validation_tuner, 'LEAST_WAIT_S', 0.0)
    # the train loader stays as it is
    monkeypatch.setattr(tuner, 'TuningAdviser', lambda *_, **__: ScriptedAdviser([]))

    def write(*answers: TuneAnswer | Exception) -> Scripts:
        scripts = Scripts(*answers)
        monkeypatch.setattr(validation_tuner, 'TuningAdviser', scripts)
        return scripts

    return write


def train_validated(
    work_dir: Path, hook: dict[str, Any] | None = TUNED, **more: Any
) -> Any:
    options: dict[str, Any] = {'iterations': 12, 'epochs': 5, 'log_interval': 4, **more}
    runner = build_runner(
        work_dir, evaluation_s=0.0, hook=hook, custom_hooks=[LossTape()], **options
    )
    try:
        return train(runner)
    finally:
        live = getattr(runner.val_dataloader, '_iterator', None)
        if live is not None:
            live._shutdown_workers()


def workers_by_validation(work_dir: Path) -> list[int | None]:
    return [each.loader.num_workers for each in evidence_of(work_dir).validations]


def resume_validated(work_dir: Path, between: Callable[[], Any]) -> tuple[Any, Run]:
    """Trains 5 epochs, then resumes for 4 more; returns the Runner and its evidence.

    Args:
        work_dir: Of both runs.
        between: Called before the second run.
    """
    options: dict[str, Any] = {'checkpoint': {'interval': 1}}
    train_validated(work_dir, **options)
    (first,) = work_dir.glob('*/vis_data/gpu_efficiency.jsonl')
    os.rename(first.parents[1], work_dir / '20200101_000000')
    between()
    resumed = train_validated(work_dir, epochs=9, resume=True, **options)
    assert resumed.train_dataloader.num_workers == 0
    return resumed, Run.read(
        Path(resumed.log_dir) / 'vis_data' / 'gpu_efficiency.jsonl'
    )


def test_a_resumed_run_validates_with_what_was_found(tmp_path, script, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    script(CHANGE, GAIN)
    later: list[Scripts] = []
    resumed, run = resume_validated(tmp_path, lambda: later.append(script()))
    (found,) = run.evidence.tuned
    assert (found.loader, found.reason) == ('validation', 'found_before')
    assert (found.old, found.new) == (NONE, TWO)
    assert [each.loader.num_workers for each in run.validations] == [2] * 4
    # judged before: it is not looked for again
    assert later[0].started == []
    said = 'val_dataloader: num_workers 0 -> 2, which the run that is resumed had found'
    assert said in log_of(resumed)
    (workers,) = [
        change
        for change in recommend_settings(run).changes
        if change.key == 'val_dataloader.num_workers'
    ]
    assert (workers.old, workers.new) == (0, 2)


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_a_resumed_run_validates_as_before_where_no_worker_starts(
    tmp_path, script, monkeypatch
):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    script(CHANGE, GAIN)
    _, run = resume_validated(tmp_path, lambda: Refusing(monkeypatch, 1))
    found, failed = run.evidence.tuned
    assert (found.reason, found.new) == ('found_before', TWO)
    assert (failed.reason, failed.old, failed.new) == ('failed', TWO, NONE)
    assert [each.loader.num_workers for each in run.validations] == [0] * 4
    assert run.evidence.end is not None
    assert run.evidence.end.status == 'completed'


@pytest.mark.parametrize('persistent', [False, True])
def test_the_next_validation_begins_with_what_was_found(tmp_path, script, persistent):
    new = settings(2, persistent_workers=persistent)
    scripts = script(
        propose(NONE, new, **OF_VALIDATION), judge(new, new, 'gain', **OF_VALIDATION)
    )
    tuned = train_validated(tmp_path / 'tuned')
    plain = train_validated(tmp_path / 'plain', None)
    assert losses_of(tuned) == losses_of(plain)
    assert workers_by_validation(tmp_path / 'tuned') == [0, 0, 2, 2, 2]
    change, keep = evidence_of(tmp_path / 'tuned').tuned
    assert (change.loader, change.iteration, change.new) == ('validation', 36, new)
    assert (keep.loader, keep.action, keep.iteration) == ('validation', 'keep', 40)
    # one process for each question, which ends with its answer
    assert [each.questions[0].can_change for each in scripts.started] == [True, False]
    assert all(each.is_ended for each in scripts.started)
    log = log_of(tuned)
    assert 'tune: val_dataloader: num_workers 0 -> 2' in log
    said = (
        'val_dataloader: num_workers=2 is kept: an iteration of validation took 0.300 s'
    )
    assert said in log
    assert tuned.train_dataloader.num_workers == 0


def test_a_loss_is_taken_back_before_the_next_validation(tmp_path, script):
    scripts = script(CHANGE, LOSS, CHANGE)
    train_validated(tmp_path)
    assert workers_by_validation(tmp_path) == [0, 0, 2, 0, 0]
    actions = [record.action for record in evidence_of(tmp_path).tuned]
    assert actions == ['change', 'roll_back']
    assert len(scripts.started) == 2


def test_a_change_is_looked_for_three_times(tmp_path, script):
    scripts = script()
    runner = train_validated(tmp_path, epochs=8)
    assert len(scripts.started) == 3
    assert evidence_of(tmp_path).tuned == ()
    said = 'val_dataloader stays as it is: no other setting is surely faster.'
    assert log_of(runner).count(said) == 1


def test_no_process_is_started_for_a_validation_that_does_not_wait(
    tmp_path, script, monkeypatch
):
    scripts = script(CHANGE)
    monkeypatch.setattr(validation_tuner, 'LEAST_WAIT_S', 1.0)
    train_validated(tmp_path)
    assert scripts.started == []


def test_nothing_is_asked_after_the_last_validation(tmp_path, script):
    scripts = script(CHANGE)
    train_validated(tmp_path, epochs=2)
    assert scripts.started == []


@pytest.mark.filterwarnings('ignore::pytest.PytestUnraisableExceptionWarning')
def test_validation_goes_on_where_no_workers_can_be_started(
    tmp_path, script, monkeypatch
):
    script(CHANGE)
    # the first one loads for trial, then one of two starts
    Refusing(monkeypatch, 2)
    runner = train_validated(tmp_path)
    assert runner.iter == 60
    assert workers_by_validation(tmp_path) == [0, 0, 0, 0, 0]
    made = [(record.action, record.reason) for record in evidence_of(tmp_path).tuned]
    assert made == [('change', 'predicted'), ('roll_back', 'failed')]
    assert 'val_dataloader: num_workers 2 -> 0: the new workers could not' in (
        log_of(runner)
    )


def test_a_data_set_that_no_worker_can_load_stays_without_workers(tmp_path, script):
    script(CHANGE)
    given = validation(0.0)
    given['val_dataloader']['dataset'] = AtHome(2)
    runner = train_validated(tmp_path, **given)
    assert workers_by_validation(tmp_path) == [0, 0, 0, 0, 0]
    said = (
        'val_dataloader: num_workers 0 -> 2 would be next and is not done: a worker '
        'could not load a batch (RuntimeError: not in a worker).'
    )
    assert log_of(runner).count(said) == 1


def test_a_loader_that_cannot_be_tuned_says_why_and_training_is_tuned(tmp_path, script):
    scripts = script(CHANGE)
    given = validation(0.0)
    given['val_dataloader'] = DataLoader(Streamed(), 2, collate_fn=pseudo_collate)
    runner = train_validated(tmp_path, **given)
    assert runner.iter == 60
    assert scripts.started == []
    said = 'val_dataloader stays as it is: its data set, a Streamed, deals samples out'
    log = log_of(runner)
    assert log.count(said) == 1
    assert 'tune is switched off' not in log


def test_workers_do_not_come_where_shared_memory_holds_no_more_batches(
    tmp_path, script, monkeypatch
):
    script(CHANGE)
    full = FileSystem(2**40, 0)
    monkeypatch.setattr(shared_room, 'read_file_system', lambda _: full)
    runner = train_validated(tmp_path)
    assert workers_by_validation(tmp_path) == [0, 0, 0, 0, 0]
    said = 'is not done: their batches do not fit into /dev/shm.'
    assert log_of(runner).count(said) == 1


def test_a_loop_by_iterations_is_validated_with_what_was_found(tmp_path, script):
    script(CHANGE, GAIN)
    options: dict[str, Any] = {'loop': 'iter', 'iterations': 60, 'val_interval': 12}
    tuned = train_validated(tmp_path / 'tuned', **options)
    plain = train_validated(tmp_path / 'plain', None, **options)
    assert losses_of(tuned) == losses_of(plain)
    assert workers_by_validation(tmp_path / 'tuned') == [0, 0, 2, 2, 2]


@pytest.mark.parametrize('answer', ['none', 'dies'])
def test_training_goes_on_without_the_child(tmp_path, script, monkeypatch, answer):
    script(SourceError('its process ended with exit code -9'))
    if answer == 'none':
        monkeypatch.setattr(validation_tuner, 'TuningAdviser', NoAdviser)
    runner = train_validated(tmp_path)
    said = {'none': 'planted', 'dies': 'exit code -9'}[answer]
    off = 'tune of val_dataloader is switched off for this run'
    assert off in log_of(runner)
    assert said in log_of(runner)
    assert workers_by_validation(tmp_path) == [0, 0, 0, 0, 0]


@pytest.mark.slow
def test_a_validation_that_waits_finds_its_workers_by_itself(tmp_path):
    """Tests that validation's loader is tuned by the real child process."""
    given = validation(0.0)
    given['val_dataloader'].update(dataset=ToyDataset(60, 0.05), batch_size=1)
    runner = train_validated(tmp_path, iterations=100, epochs=8, step_s=0.02, **given)
    change, *_ = evidence_of(tmp_path).tuned
    assert (change.loader, change.reason) == ('validation', 'predicted')
    assert change.new.num_workers > 0
    assert runner.val_dataloader.num_workers == change.new.num_workers
    walls_s = [record.wall_s for record in evidence_of(tmp_path).validations]
    assert walls_s[-1] < 0.8 * walls_s[0]
