"""Tests log intervals and time ledger of real trainings, in every kind of loop."""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner, loops

import mmgpu_hooks
from benchmarks.ledger import TAPE, WORKER_START_S, build_planted
from mmgpu_hooks import GPUEfficiencyHook
from mmgpu_hooks.measure.ledger import TimeLedger
from mmgpu_hooks.measure.loader.probe import LoaderProbe
from mmgpu_hooks.schema.run import RunEvidence
from training.toy import HOOK, AfterIteration, build_runner, evidence_of, train


def run_toy(work_dir: Path, **arguments: Any) -> RunEvidence:
    train(build_runner(work_dir, **arguments))
    return evidence_of(work_dir)


@pytest.mark.parametrize(
    ('arguments', 'ends'),
    [
        # LoggerHook leaves the tail of an epoch out: it joins the next interval
        ({'iterations': 10, 'epochs': 2}, [4, 8, 14, 18, 20]),
        ({'iterations': 10, 'epochs': 2, 'ignore_last': False}, [4, 8, 10, 14, 18, 20]),
        ({'iterations': 10, 'loop': 'iter'}, [4, 8, 10]),
        ({'iterations': 3, 'epochs': 2}, [3, 6]),
        ({'iterations': 10, 'epochs': 2, 'hook': {**HOOK, 'interval': 7}}, [7, 14, 20]),
        ({'iterations': 6, 'hook': {**HOOK, 'interval': 100}}, [6]),
        ({'iterations': 6, 'hook': {**HOOK, 'interval': 1}}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_intervals_hold_every_iteration_once(tmp_path, arguments, ends):
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


@pytest.mark.timing
@pytest.mark.parametrize('loop', ['epoch', 'iter', 'custom'])
def test_each_part_is_what_was_planted(tmp_path, loop):
    epochs = 2 if loop == 'epoch' else 1
    runner = build_planted(
        tmp_path, iterations=12, save_interval=5, loop=loop, epochs=epochs
    )
    runner.train()
    evidence, loader = evidence_of(tmp_path), runner.train_dataloader
    end, elapsed_s = evidence.end, 0.0
    assert end is not None
    ledger = end.ledger_s
    assert math.fsum(ledger.values()) == pytest.approx(end.duration_s, abs=1e-6)
    planted = {name: math.fsum(seconds) for name, seconds in TAPE.seconds.items()}
    # 1 ms per occurrence, as the benchmark allows
    for part, count in (('checkpoint_save', 2), ('validation', 2), ('step', 12)):
        error = abs(ledger[part] - planted.get(part, 0.0))
        assert error <= max(0.02 * planted.get(part, 0.0), 0.001 * count), part
    loading = math.fsum([*loader.waits, *loader.creations, *loader.ends])
    # the hook's constructor is the first of us that runs, in mid-building
    build_s = evidence.run.build_s
    assert build_s == pytest.approx(planted['build'], rel=0.02, abs=0.012)
    found = ledger['data_wait'] + ledger['startup'] - build_s
    loading -= loader.creations[0] if loop == 'iter' else 0.0
    assert found == pytest.approx(loading, rel=0.02, abs=0.012)
    assert end.hooks_s['GPUEfficiencyHook'] > 0.0
    for name in ('PlantedBefore', 'PlantedAfter'):
        assert end.hooks_s[name] == pytest.approx(planted[name], rel=0.02, abs=0.012)
    # the hook that saves has that time taken off
    assert end.hooks_s['CheckpointHook'] < 0.05 < planted['checkpoint_save']
    assert math.fsum(end.hooks_s.values()) <= ledger['hooks']
    assert ledger['other'] < 0.01 * math.fsum(ledger.values())
    for record in evidence.intervals:
        assert record.hooks_s['PlantedBefore'] >= 0.003 * record.iterations
        assert math.fsum(record.hooks_s.values()) <= record.ledger_s['hooks'] + 1e-9
        parts_s = math.fsum(record.ledger_s.values())
        assert parts_s == pytest.approx(record.duration_s, abs=1e-6)
        elapsed_s = elapsed_s or record.elapsed_s - record.duration_s
        elapsed_s += record.duration_s
        assert record.elapsed_s == pytest.approx(elapsed_s, abs=1e-6)


@pytest.mark.timing
def test_starting_and_ending_workers_is_no_wait(tmp_path, monkeypatch):
    # the hook reads the workers before they end: its own work, and no teardown
    read_s: list[float] = []
    before_wait = LoaderProbe.before_wait

    def stamped(probe: LoaderProbe, iterator: Any) -> None:
        begin = time.perf_counter()
        before_wait(probe, iterator)
        read_s.append(time.perf_counter() - begin)

    monkeypatch.setattr(LoaderProbe, 'before_wait', stamped)
    runner = build_planted(tmp_path, iterations=12, save_interval=5, workers=2)
    runner.train()
    evidence, loader = evidence_of(tmp_path), runner.train_dataloader
    assert evidence.end is not None
    startup_s = evidence.end.ledger_s['startup'] - evidence.run.build_s
    begins = loader.begins
    others = [w for i, w in enumerate(loader.waits) if i not in begins]
    usual_s = statistics.median(others)
    # all of the very first wait is start-up
    later_s = math.fsum(max(loader.waits[i] - usual_s, 0.0) for i in begins[1:])
    planted = math.fsum([loader.waits[0], later_s, *loader.creations])
    assert startup_s == pytest.approx(planted, rel=0.02, abs=0.002)
    assert startup_s >= 2 * WORKER_START_S
    teardown_s = evidence.end.ledger_s['teardown']
    ends_s = math.fsum(loader.ends) - math.fsum(read_s)
    assert teardown_s == pytest.approx(ends_s, rel=0.02, abs=0.002)
    assert evidence.end.ledger_s['data_wait'] < 0.1


def test_a_validation_that_never_ended_does_not_swallow_the_rest(tmp_path):
    class FailingValidation(Hook):
        def after_train_iter(self, runner: Runner, batch_idx: int, **_: Any) -> None:
            if batch_idx == 3:
                runner.call_hook('before_val')

    evidence = run_toy(tmp_path, step_s=0.02, custom_hooks=[FailingValidation()])
    assert evidence.end is not None
    assert evidence.end.ledger_s['step'] >= 12 * 0.02
    # all but what passed until the next part began
    assert evidence.end.ledger_s['validation'] < evidence.end.ledger_s['step']


def test_without_workers_the_loop_knows_its_own_loading(tmp_path):
    evidence = run_toy(tmp_path, num_workers=0, item_s=0.01)
    assert evidence.run.loader.num_workers == 0
    for record in evidence.intervals:
        assert record.workers is not None
        assert record.workers.count == 0
        assert record.workers.batch_time is not None
        assert record.workers.batch_time.count == 4
        assert record.workers.batch_time.mean_s >= 0.02


@pytest.mark.parametrize('persistent', [False, True])
def test_the_first_wait_of_each_epoch_is_flagged(tmp_path, persistent):
    options = {'num_workers': 2, 'persistent_workers': persistent}
    evidence = run_toy(tmp_path, iterations=8, epochs=3, **options)
    assert evidence.run.loader.persistent_workers is persistent
    assert [record.first_waits for record in evidence.intervals] == [1, 0, 1, 0, 1, 0]
    for record in evidence.intervals:
        has_first = 0 < record.first_wait_s <= record.data_wait.total_s
        assert has_first == bool(record.first_waits)


@pytest.mark.parametrize('persistent', [False, True])
def test_a_restart_of_the_loader_in_an_iteration_based_run_is_flagged(
    tmp_path, monkeypatch, persistent
):
    # MMEngine sleeps two seconds there, which is no normal wait
    shorter = SimpleNamespace(sleep=lambda _: time.sleep(0.2))
    monkeypatch.setattr(loops, 'time', shorter)
    options = {'num_workers': 1, 'persistent_workers': persistent}
    evidence = run_toy(tmp_path, loop='iter', iterations=8, length=12, **options)
    assert [record.first_waits for record in evidence.intervals] == [1, 1]
    assert evidence.intervals[1].ledger_s['loop'] >= 0.2


def test_batches_of_no_dataloader_have_their_reason(tmp_path):
    class Batches(list):
        dataset: Any = None

    runner = build_runner(tmp_path)
    loader = runner.build_dataloader(runner._train_dataloader)
    batches = Batches(loader)
    batches.dataset = loader.dataset
    runner._train_dataloader = batches
    train(runner)
    run = evidence_of(tmp_path).run
    assert 'Batches' in run.unknown['loader workers']
    assert run.loader.num_workers is None


class LateLoss(torch.Tensor):
    """Loss tensor whose ``item()`` waits, as on a GPU."""

    def item(self) -> float:
        time.sleep(0.005)
        return float(super().item())


@pytest.mark.parametrize(('device', 'part'), [('cuda', 'step'), ('cpu', 'hooks')])
def test_losses_are_waited_for_where_a_device_works_in_the_background(
    tmp_path, monkeypatch, device, part
):
    monkeypatch.setattr('mmgpu_hooks.hooks.recorder.read_device', lambda _: device)
    runner = build_runner(tmp_path, iterations=20)
    step = runner.model.train_step

    def train_step(*args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        losses = step(*args, **kwargs)
        return {k: v.detach().as_subclass(LateLoss) for k, v in losses.items()}

    runner.model.train_step = train_step
    runner.train()
    end = evidence_of(tmp_path).end
    assert end is not None
    assert end.ledger_s[part] > 20 * 0.005
    assert (end.hooks_s['RuntimeInfoHook'] > 0.09) == (part == 'hooks')


def test_no_more_cpu_is_in_the_waits_than_the_process_used(tmp_path):
    runner = build_runner(tmp_path, iterations=6, item_s=0.05, num_workers=1)
    begin = time.process_time()
    train(runner)
    used_s = time.process_time() - begin
    waited = [record.data_wait_cpu_s for record in evidence_of(tmp_path).intervals]
    assert None not in waited
    assert sum(waited) <= min(used_s, 0.2)  # of 0.6 s of waiting


class Own(GPUEfficiencyHook):
    """User's subclass of the hook with methods of its own at the same hook points."""

    def __init__(self) -> None:
        super().__init__(interval=4)
        self.calls: list[str] = []

    def before_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None
    ) -> None:
        self.calls.append(f'before {batch_idx}')

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        super().after_train_iter(runner, batch_idx, data_batch, outputs)
        self.calls.append(f'after {batch_idx}')


def test_what_a_subclass_does_at_our_points_is_done(tmp_path):
    hook = Own()
    runner = build_runner(tmp_path, num_workers=1, hook=None)
    runner.register_hook(hook)
    runner.train()
    assert hook.calls == [
        f'{when} {index}' for index in range(12) for when in ('before', 'after')
    ]
    assert 'after_train_iter' not in vars(hook)
    assert [record.iterations for record in evidence_of(tmp_path).intervals] == [4] * 3


class WithoutSuper(GPUEfficiencyHook):
    """User's subclass of the hook that replaces ``after_train_iter``."""

    def __init__(self) -> None:
        super().__init__(interval=4)
        self.ended: list[int] = []

    def after_train_iter(
        self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None
    ) -> None:
        self.ended.append(batch_idx)


def test_a_subclass_that_never_calls_super_is_recorded(tmp_path):
    hook = WithoutSuper()
    runner = build_runner(tmp_path, hook=None)
    runner.register_hook(hook)
    runner.train()
    assert hook.ended == [*range(12)]
    evidence = evidence_of(tmp_path)
    assert [record.iterations for record in evidence.intervals] == [4] * 3
    # what it does counts as the hook's own time
    assert evidence.end is not None and 'WithoutSuper' in evidence.end.hooks_s


class ByKeyword(WithoutSuper):
    """Takes what the Runner gives by keyword, as a method may."""

    def after_train_iter(self, runner: Any, **given: Any) -> None:  # type: ignore
        assert set(given) == {'batch_idx', 'data_batch', 'outputs'}
        super().after_train_iter(runner, **given)


class OtherOrder(WithoutSuper):
    """Has its arguments in another order than MMEngine's."""

    def after_train_iter(  # type: ignore[override]
        self, runner: Any, outputs: Any, data_batch: Any, batch_idx: int
    ) -> None:
        assert 'loss' in outputs and 'inputs' in data_batch
        self.ended.append(batch_idx)


class AfterEachIteration(GPUEfficiencyHook):
    """Replaces what MMEngine calls after an iteration of any loop."""

    def __init__(self) -> None:
        super().__init__(interval=4)
        self.ended: list[int] = []

    def _after_iter(self, runner: Any, batch_idx: int, **_: Any) -> None:
        self.ended.append(batch_idx)


class OnTheInstance(AfterEachIteration):
    """Sets ``after_train_iter`` on the hook itself."""

    def __init__(self) -> None:
        super().__init__()
        self.after_train_iter = self._after_iter


@pytest.mark.parametrize(
    'own', [ByKeyword, OtherOrder, AfterEachIteration, OnTheInstance]
)
def test_a_subclass_is_called_as_the_runner_calls_it(tmp_path, own):
    hook = own()
    runner = build_runner(tmp_path, hook=None)
    runner.register_hook(hook)
    runner.train()
    assert hook.ended == [*range(12)]
    assert [record.iterations for record in evidence_of(tmp_path).intervals] == [4] * 3


def test_an_iteration_that_ends_nothing_runs_four_functions_of_ours(tmp_path):
    folder = str(Path(mmgpu_hooks.__file__).parent)
    # by the iteration before them
    called: list[list[str]] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == 'call' and frame.f_code.co_filename.startswith(folder):
            called[-1].append(frame.f_code.co_name)

    def begin(_: Any) -> None:
        called.append([])
        sys.setprofile(note)

    late = AfterIteration(begin, 'VERY_LOW')
    runner = build_runner(tmp_path, num_workers=1, custom_hooks=[late])
    try:
        runner.train()
    finally:
        sys.setprofile(None)
    # a line and an interval end with every fourth
    ordinary = [calls for done, calls in enumerate(called, 1) if (done + 1) % 4][:-1]
    assert len(ordinary) == 8
    for calls in ordinary:
        counts = Counter(calls)
        # the CPU of some waits is read
        counts.pop('add_wait_cpu', None)
        assert counts == {'timed': 1, 'call_hook': 2, 'after_train_iter': 1}


def test_a_ledger_that_failed_keeps_no_stamps(tmp_path, monkeypatch):
    tapes: list[list[Any]] = []
    sum_up = TimeLedger.sum_up

    def fail(ledger: TimeLedger) -> None:
        if not tapes and ledger.totals.parts_s:
            tapes.append(ledger.stamps)
            raise ValueError('planted')
        sum_up(ledger)

    monkeypatch.setattr(TimeLedger, 'sum_up', fail)
    runner = build_runner(tmp_path, iterations=80)
    lengths: list[int] = []
    step = runner.model.train_step

    def train_step(*args: Any, **kwargs: Any) -> Any:
        if tapes:
            lengths.append(len(tapes[0]))
        return step(*args, **kwargs)

    runner.model.train_step = train_step
    runner.train()
    assert len(lengths) > 30
    assert lengths[2] == lengths[-1]
    assert 'call_hook' not in vars(runner)
