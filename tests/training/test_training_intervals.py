"""What the records say, against trainings whose every second was planted."""

from __future__ import annotations

import math
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner, loops

from mmgpu_hooks.judge.run import Run
from mmgpu_hooks.schema import RunEvidence
from training.toy import HOOK, SleepyHook, build_runner, evidence_of, train

pytestmark = pytest.mark.timing

LOOPS = pytest.mark.parametrize('loop', ['epoch', 'iter'])


def run_toy(work_dir: Path, **arguments: Any) -> RunEvidence:
    train(build_runner(work_dir, **arguments))
    return evidence_of(work_dir)


@pytest.mark.parametrize(
    ('arguments', 'ends'),
    [
        # LoggerHook leaves the tail of an epoch out: it joins the next interval
        ({'iterations': 10, 'epochs': 2}, [4, 8, 14, 18, 20]),
        (
            {'iterations': 10, 'epochs': 2, 'ignore_last': False},
            [4, 8, 10, 14, 18, 20],
        ),
        ({'iterations': 10, 'loop': 'iter'}, [4, 8, 10]),
        ({'iterations': 3, 'epochs': 2}, [3, 6]),
        ({'iterations': 10, 'epochs': 2, 'hook': {**HOOK, 'interval': 7}}, [7, 14, 20]),
        ({'iterations': 6, 'hook': {**HOOK, 'interval': 100}}, [6]),
        ({'iterations': 6, 'hook': {**HOOK, 'interval': 1}}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_intervals_hold_every_iteration_once(
    tmp_path: Path, arguments: dict[str, Any], ends: list[int]
) -> None:
    evidence = run_toy(tmp_path, **arguments)
    assert [record.iteration for record in evidence.intervals] == ends
    counts = [record.iterations for record in evidence.intervals]
    assert counts == [end - begin for begin, end in zip([0, *ends], ends)]
    for record in evidence.intervals:
        assert record.data_wait.count == record.step.count == record.iterations
        assert record.iter.count == record.iterations
        assert record.images == 2 * record.iterations
    assert evidence.end is not None
    assert evidence.end.iterations == sum(counts)


class Stopwatch(Hook):
    """Wall clock from the first hook of training to the last."""

    def before_train(self, runner: Runner) -> None:
        self.begin = time.perf_counter()

    def after_train(self, runner: Runner) -> None:
        self.seconds = time.perf_counter() - self.begin


@LOOPS
def test_the_parts_add_up_to_the_wall_clock(tmp_path: Path, loop: str) -> None:
    watch = Stopwatch()
    evidence = run_toy(
        tmp_path,
        loop=loop,
        iterations=12,
        step_s=0.01,
        evaluation_s=0.02,
        val_interval=1 if loop == 'epoch' else 5,
        checkpoint={'interval': 6, 'by_epoch': False},
        custom_hooks=[watch],
    )
    elapsed = evidence.intervals[0].elapsed_s - evidence.intervals[0].duration_s
    assert 0 <= elapsed < 0.01
    for record in evidence.intervals:
        parts = math.fsum(record.ledger_s.values())
        assert parts == pytest.approx(record.duration_s, abs=1e-6)
        elapsed += record.duration_s
        assert record.elapsed_s == pytest.approx(elapsed, abs=1e-6)
    end = evidence.end
    assert end is not None
    assert math.fsum(end.ledger_s.values()) == pytest.approx(end.duration_s, abs=1e-6)
    loop_s = end.duration_s - evidence.run.build_s
    assert watch.seconds <= loop_s <= watch.seconds + 0.1


@LOOPS
def test_planted_wait_and_step_are_found(tmp_path: Path, loop: str) -> None:
    evidence = run_toy(
        tmp_path, loop=loop, iterations=10, item_s=0.02, step_s=0.03, log_interval=5
    )
    record = evidence.intervals[-1]
    # medians: the machine may be busy with something else for a moment
    assert record.data_wait.p50_s == pytest.approx(0.04, rel=0.2, abs=0.005)
    assert record.data_wait.p50_s >= 0.04
    assert record.step.p50_s == pytest.approx(0.03, rel=0.2, abs=0.005)
    assert record.step.p50_s >= 0.03
    assert record.iter.mean_s >= record.data_wait.mean_s + record.step.mean_s


@LOOPS
def test_workers_hide_what_they_can(tmp_path: Path, loop: str) -> None:
    evidence = run_toy(
        tmp_path,
        loop=loop,
        iterations=10,
        item_s=0.02,
        step_s=0.08,
        num_workers=2,
        log_interval=5,
    )
    # a batch takes 40 ms to make, two workers make one each 20 and a step takes 80:
    # long beside what a busy machine takes to wake a worker that hands a batch over
    assert evidence.intervals[-1].data_wait.p50_s < 0.02


class SleepyModel(Hook):
    """Makes the runner's own saving slow, as a slow disk would."""

    def __init__(self, save_s: float) -> None:
        self.save_s = save_s

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        time.sleep(self.save_s)


@LOOPS
def test_hooks_saves_and_validation_are_told_apart(tmp_path: Path, loop: str) -> None:
    evidence = run_toy(
        tmp_path,
        loop=loop,
        iterations=12,
        epochs=1 if loop == 'iter' else 2,
        checkpoint={'interval': 5, 'by_epoch': False},
        evaluation_s=0.2,
        val_interval=1 if loop == 'epoch' else 6,
        custom_hooks=[SleepyHook(0.02), SleepyModel(0.15)],
    )
    saves = 2 if loop == 'iter' else 4
    sleeps = 12 if loop == 'iter' else 24
    assert evidence.end is not None
    ledger = evidence.end.ledger_s
    assert ledger['validation'] == pytest.approx(0.4, abs=0.15)
    assert ledger['validation'] >= 0.4
    assert saves * 0.15 <= ledger['checkpoint_save'] <= saves * 0.15 + 0.3
    assert sleeps * 0.02 <= ledger['hooks'] <= sleeps * 0.02 + 0.4
    assert sum(record.saves for record in evidence.intervals) == saves
    # not one of them is in a wait or a step
    for record in evidence.intervals:
        assert record.data_wait.p50_s < 0.01
        assert record.step.p50_s < 0.01
    waits = [record.data_wait.p95_s for record in evidence.intervals]
    assert statistics.median(waits) < 0.1


class NestedHook(Hook):
    """Calls a hook point of its own inside a hook, as plugins do."""

    priority = 'LOW'

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        runner.call_hook('after_my_own_point')
        time.sleep(0.02)


def test_a_hook_point_inside_a_hook_changes_nothing(tmp_path: Path) -> None:
    evidence = run_toy(
        tmp_path, iterations=12, item_s=0.005, custom_hooks=[NestedHook()]
    )
    assert evidence.end is not None
    ledger = evidence.end.ledger_s
    assert ledger['hooks'] >= 12 * 0.02
    # the first batch is start-up
    assert ledger['data_wait'] >= 11 * 0.01
    assert ledger['step'] < 12 * 0.01


class FailingValidation(Hook):
    """Validates inside a hook and lives with its failure."""

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        if batch_idx == 3:
            try:
                runner.call_hook('before_val')
                raise OSError('planted')
            except OSError:
                return


def test_a_validation_that_never_ended_does_not_swallow_the_rest(
    tmp_path: Path,
) -> None:
    evidence = run_toy(
        tmp_path, iterations=12, step_s=0.02, custom_hooks=[FailingValidation()]
    )
    assert evidence.end is not None
    assert evidence.end.ledger_s['step'] >= 12 * 0.02
    assert evidence.end.ledger_s['validation'] < 0.1


def test_without_workers_the_loop_tells_of_its_own_loading(tmp_path: Path) -> None:
    evidence = run_toy(tmp_path, num_workers=0, item_s=0.01)
    assert evidence.run.loader.num_workers == 0
    for record in evidence.intervals:
        assert record.workers is not None
        assert record.workers.count == 0
        assert record.workers.occupancy is not None
        assert record.workers.occupancy.count == 4
        assert record.workers.occupancy.mean_s >= 0.02


@LOOPS
def test_workers_are_counted_with_their_cpu(tmp_path: Path, loop: str) -> None:
    evidence = run_toy(tmp_path, loop=loop, num_workers=2, step_s=0.005)
    windows = [record.workers for record in evidence.intervals]
    assert [one.count for one in windows if one] == [2, 2, 2]
    assert windows[0] is not None and windows[0].cpu_s > 0
    assert sum(one.ready_mean is not None for one in windows if one) == 3


@pytest.mark.parametrize('persistent', [False, True])
def test_the_first_wait_of_each_epoch_is_flagged(
    tmp_path: Path, persistent: bool
) -> None:
    evidence = run_toy(
        tmp_path,
        iterations=8,
        epochs=3,
        num_workers=2,
        persistent_workers=persistent,
    )
    assert evidence.run.loader.persistent_workers is persistent
    assert [record.first_waits for record in evidence.intervals] == [1, 0, 1, 0, 1, 0]
    for record in evidence.intervals:
        has_first = 0 < record.first_wait_s <= record.data_wait.total_s
        assert has_first == bool(record.first_waits)


@pytest.mark.parametrize(('persistent', 'sleep_s'), [(False, 2.0), (True, 0.2)])
def test_a_restart_of_the_loader_in_an_iteration_based_run_is_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, persistent: bool, sleep_s: float
) -> None:
    # MMEngine sleeps two seconds there, which is no normal wait; once is enough for us
    if sleep_s != 2.0:
        shorter = SimpleNamespace(sleep=lambda _: time.sleep(sleep_s))
        monkeypatch.setattr(loops, 'time', shorter)
    evidence = run_toy(
        tmp_path,
        loop='iter',
        iterations=8,
        length=12,
        num_workers=1,
        persistent_workers=persistent,
    )
    assert [record.first_waits for record in evidence.intervals] == [1, 1]
    assert evidence.intervals[1].ledger_s['loop'] >= sleep_s


def test_the_save_that_ends_a_training_is_counted(tmp_path: Path) -> None:
    evidence = run_toy(tmp_path, checkpoint={'interval': 1, 'by_epoch': True})
    assert list(tmp_path.glob('epoch_1.pth'))
    assert evidence.end is not None
    assert evidence.end.ledger_s['checkpoint_save'] > 0
    assert Run(evidence).saves == 1


def test_workers_that_stay_tell_of_short_epochs(tmp_path: Path) -> None:
    evidence = run_toy(
        tmp_path,
        iterations=5,
        epochs=12,
        num_workers=2,
        persistent_workers=True,
        log_interval=5,
    )
    assert [record.images for record in evidence.intervals] == [10] * 12
