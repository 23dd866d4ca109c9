"""Tests that evidence files tell how trainings ended, without changing their end."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from mmdet.models.data_preprocessors import BatchSyncRandomResize
from mmengine.hooks import Hook
from mmengine.runner import BaseLoop, Runner

from mmgpu_hooks.schema.run import read_evidence
from mmgpu_hooks.schema.run_folder import read_run_folder
from training.ranks import build_rank
from training.toy import (
    AfterIteration,
    LossTape,
    ToyDataset,
    build_runner,
    collate_branches,
    evidence_of,
    find_evidence,
    log_of,
    losses_of,
    scalar_lines,
    validation,
)

INIT = BaseLoop.__init__
PATIENCE_S = 20.0


def list_own_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith('mmgpu')]


class Unfreezing(Hook):
    """Hook that adds a parameter to the wrapped model before our hook sees it."""

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        runner.model.module.scale = torch.nn.Parameter(torch.ones(1))


class UserError(Exception):
    """Exception that only user code raises."""


def bomb(at: int, error: BaseException) -> AfterIteration:
    """Returns a hook that raises an error once, at one iteration."""
    errors = [error]

    def explode(runner: Runner) -> None:
        if runner.iter == at and errors:
            raise errors.pop()

    return AfterIteration(explode, 'LOW')


@pytest.mark.parametrize(
    ('error', 'status', 'loop'),
    [
        (UserError('planted'), 'failed', 'epoch'),
        (UserError('planted'), 'failed', 'iter'),
        (KeyboardInterrupt(), 'interrupted', 'epoch'),
        (SystemExit(3), 'interrupted', 'iter'),
    ],
)
def test_what_ends_training_passes_through_untouched(tmp_path, loop, error, status):
    runner = build_runner(tmp_path, loop=loop, custom_hooks=[bomb(6, error)])
    with pytest.raises(type(error)) as caught:
        runner.train()
    assert caught.value is error
    assert caught.value.__context__ is None
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].name, frames[-1].filename) == ('explode', __file__)
    evidence = evidence_of(tmp_path)
    assert (evidence.end.status, evidence.end.error) == (status, type(error).__name__)
    # the interval that was under way is not lost
    assert [record.iterations for record in evidence.intervals] == [4, 3]
    # training on leaves it as it is
    runner.train()
    assert evidence_of(tmp_path).end == evidence.end


@pytest.fixture
def one_rank(tmp_path, monkeypatch):
    """The process group of a training of one rank."""
    monkeypatch.setenv('LOCAL_RANK', '0')
    store = f'file://{tmp_path}/store'
    torch.distributed.init_process_group('gloo', store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures('one_rank')
@pytest.mark.parametrize('unfrozen', [False, True], ids=['frozen', 'others unfrozen'])
def test_a_parameter_that_was_frozen_too_late_is_named(tmp_path, unfrozen):
    def freeze(runner: Runner) -> None:
        layer = runner.model.module.convolution
        layer.weight.requires_grad = False

    more: dict[str, Any] = {'custom_hooks': [AfterIteration(freeze, 'LOW')]}
    if unfrozen:
        # DistributedDataParallel counts from the wrapping on
        more['custom_hooks'].append(Unfreezing())
    runner = build_rank(tmp_path / 'run', **more)
    with pytest.raises(RuntimeError, match='Expected to have finished reduction'):
        runner.train()
    end = evidence_of(tmp_path / 'run').end
    assert end.without_gradient == (() if unfrozen else ('convolution.weight',))


def test_a_child_that_user_code_forks_says_nothing(tmp_path):
    def fork(runner: Runner) -> None:
        child = os.fork() if runner.iter == 5 else -1
        if child == 0:
            (ours,) = (hook for hook in runner.hooks if hasattr(hook, '_finish'))
            # as ``sys.exit`` does, without ending pytest twice
            ours._finish(SystemExit())
            os._exit(0)
        if child > 0:
            os.waitpid(child, 0)

    runner = build_runner(tmp_path, custom_hooks=[AfterIteration(fork)])
    runner.train()
    assert find_evidence(tmp_path).read_text().count('"kind":"end"') == 1
    assert log_of(runner).count('  verdict    ') == 1


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_a_resumed_run_counts_on_where_it_left(tmp_path, loop, monkeypatch):
    # torch >= 2.6 refuses MMEngine's checkpoints otherwise
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    by_epoch = loop == 'epoch'
    checkpoint = {'interval': 1 if by_epoch else 8, 'by_epoch': by_epoch}
    options: dict[str, Any] = {'loop': loop, 'checkpoint': checkpoint}
    build_runner(tmp_path / 'first', iterations=8, **options).train()
    # of an iteration-based run one epoch: it would sleep two seconds between two
    more = {'epochs': 2} if by_epoch else {'iterations': 16, 'length': 32}
    saved = tmp_path / 'first' / f'{loop}_{1 if by_epoch else 8}.pth'
    options = {'iterations': 8, **options, **more, 'load_from': str(saved)}
    runner = build_runner(tmp_path / 'second', resume=True, **options)
    runner.train()
    assert evidence_of(tmp_path / 'first').run.start_iteration == 0
    evidence = evidence_of(tmp_path / 'second')
    assert evidence.run.start_iteration == 8
    assert evidence.end.iterations == 8
    # nothing of the first run is shown as if it were of the second
    lines, intervals = scalar_lines(tmp_path / 'second'), evidence.intervals
    steps = [interval.iteration for interval in intervals]
    assert [line['step'] for line in lines] == steps
    assert [interval.iteration for interval in intervals] == [12, 16]
    waits = [interval.data_wait.mean_s for interval in intervals]
    assert [line['data_wait_s'] for line in lines] == pytest.approx(waits)


def test_validating_between_and_training_twice_leave_two_readable_runs(tmp_path):
    both = validation(0.0)
    both.update({f'test{name[3:]}': value for name, value in validation(0.0).items()})
    runner = build_runner(tmp_path, custom_hooks=[LossTape()], **both)
    for call in (runner.val, runner.test):
        assert call() == {'score': 1.0}
        assert not list(tmp_path.rglob('gpu_efficiency*'))
        assert BaseLoop.__init__ is INIT
        assert 'call_hook' not in vars(runner)
        assert '_get_iterator' not in vars(runner.val_dataloader)
    # what each was spent on, and nothing else
    said = re.findall(r'GPUEfficiencyHook: (\w+) took', log_of(runner))
    assert said == ['validation', 'test']
    assert log_of(runner).count('GPUEfficiencyHook: ') == 2
    runner.train()
    assert len(losses_of(runner)) == 12
    assert log_of(runner).count('  verdict    ') == 1
    runner.val()
    runner.test()
    runner.train_loop._max_epochs = 2
    runner.train()
    assert len(losses_of(runner)) == 24
    assert 'run' not in vars(runner.train_loop)
    assert 'call_hook' not in vars(runner)
    paths = sorted(tmp_path.glob('*/vis_data/gpu_efficiency*.jsonl'))
    runs = [read_evidence(path) for path in paths]
    counts = {(run.run.start_iteration, run.end and run.end.iterations) for run in runs}
    assert counts == {(0, 12), (12, 12)}
    assert read_run_folder(tmp_path).evidence == find_evidence(tmp_path)


def test_the_run_record_describes_the_live_run(tmp_path):
    sgd = {'type': 'SGD', 'lr': 0.01}
    wrapper: dict[str, Any] = {
        'type': 'OptimWrapper',
        'accumulative_counts': 4,
        'optimizer': sgd,
    }
    options: dict[str, Any] = {
        'batch_size': 3,
        'iterations': 4,
        'epochs': 2,
        'optim_wrapper': wrapper,
    }
    # images in it cannot be counted
    runner = build_runner(tmp_path, collate_fn=collate_branches, **options)
    runner.model.data_preprocessor.batch_augments = [BatchSyncRandomResize((32, 64))]
    runner.train()
    evidence = evidence_of(tmp_path)
    run = evidence.run
    assert (run.rank, run.world_size, run.device) == (0, 1, 'cpu')
    assert (run.max_epochs, run.max_iters, run.interval_iterations) == (2, 8, 4)
    assert (run.loader.batch_size, run.loader.batches_per_epoch) == (3, 4)
    assert (run.accumulative_counts, run.optim_wrapper) == (4, 'OptimWrapper')
    assert run.host.usable_cores == len(os.sched_getaffinity(0)) or (
        run.host.cgroup_cpu_cores is not None
    )
    assert set(run.unknown) >= {'GPU', 'GPU memory'}
    assert 'BatchSyncRandomResize' in run.unknown['batch largest_batch_pixels']
    assert [record.images for record in evidence.intervals] == [None] * 2
    assert 'images_per_s' not in scalar_lines(tmp_path)[0]


AT = 13
"""Index of the sample that ends the training."""


class EndingDataset(ToyDataset):
    """Data set that raises, waits or kills its process at sample `AT`."""

    def __init__(self, length: int, kind: str) -> None:
        super().__init__(length)
        self.kind = kind

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == AT:
            if self.kind.startswith('raise'):
                raise FileNotFoundError(2, 'No such file', f'data/{index:06d}.jpg')
            if self.kind == 'wait':
                time.sleep(60)
            os.kill(os.getpid(), getattr(signal, self.kind))
        return super().__getitem__(index)


def train_to_the_end(kind: str, folder: Path) -> None:
    """Trains in this process until the end, with output in ``console.txt``."""
    sys.stdout = sys.stderr = console = (folder / 'console.txt').open('w', buffering=1)
    for stream in (1, 2):
        os.dup2(console.fileno(), stream)
    workers = 0 if kind in ('raise_without_workers', 'wait') else 2
    options: dict[str, Any] = {'log_interval': 2, 'num_workers': workers}
    runner = build_runner(folder, dataset=EndingDataset(48, kind), **options)
    runner._train_dataloader['sampler']['shuffle'] = False
    runner.train()


@pytest.fixture
def start(tmp_path):
    def start_one(kind: str) -> Any:
        process = multiprocessing.get_context('fork').Process(
            target=train_to_the_end, args=(kind, tmp_path)
        )
        process.start()
        return process

    return start_one


@pytest.mark.parametrize(
    ('kind', 'cause', 'alone'),
    [
        ('raise', 'sample_raised', 'sample_raised'),
        ('raise_without_workers', 'sample_raised', 'sample_raised'),
        # the kernel counted no kill for memory, which the console cannot know
        ('SIGKILL', 'worker_killed', 'oom_host'),
        ('SIGSEGV', 'worker_killed', 'worker_killed'),
    ],
)
def test_why_names_what_ended_a_training(start, ask, tmp_path, kind, cause, alone):
    ended = start(kind)
    ended.join(60)
    assert ended.exitcode == 1
    console = tmp_path / 'console.txt'
    both = ask('why', tmp_path, '--log', console)
    folder, printed = ask('why', tmp_path), ask('why', '--log', console)
    assert {both['state'], folder['state'], printed['state']} == {'ended'}
    if 'killed by signal' not in console.read_text():
        # PyTorch's other sentence alone (exited unexpectedly), which names no signal
        alone = cause
    assert (both['cause'], folder['cause'], printed['cause']) == (cause, cause, alone)
    if cause == 'sample_raised':
        assert str(AT) in folder['sample']
        assert f'{AT:06d}.jpg' in printed['sample']
        assert Path(__file__).name in str(folder['proof'])


def test_a_training_that_is_killed_leaves_evidence_to_judge(start, ask, tmp_path):
    child = start('wait')
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = list(tmp_path.rglob('gpu_efficiency.jsonl'))
        if found and found[0].read_text().count('"interval"') >= 3:
            break
        time.sleep(0.05)
    try:
        running = ask('why', tmp_path)
    finally:
        child.kill()
        child.join()
    assert (running['state'], running['cause']) == ('running', None)
    for words in ([tmp_path], [tmp_path, '--log', tmp_path / 'console.txt']):
        answer = ask('why', *words)
        assert (answer['state'], answer['cause']) == ('ended', 'interrupted')
        assert answer['certainty'] == 'likely'
    evidence = evidence_of(tmp_path)
    assert evidence.end is None
    answer = ask('recommend', tmp_path, '--dry-run')
    assert answer['evidence']['iterations'] == sum(
        record.iterations for record in evidence.intervals
    )


@pytest.mark.parametrize('cause', ['config_error', 'resume_refused'])
def test_why_judges_a_restart_that_came_to_no_iteration(tmp_path, capsys, ask, cause):
    work_dir, console = tmp_path / 'run', tmp_path / 'console.txt'
    saved = {'interval': 1, 'by_epoch': True}
    build_runner(work_dir, checkpoint=saved).train()
    capsys.readouterr()
    first = ask('why', work_dir)
    assert (first['state'], first['cause']) == ('completed', None)
    more: dict[str, Any] = {'dataset': {'type': 'NoSuchData'}}
    if cause == 'resume_refused':
        more = {'load_from': str(work_dir / 'epoch_1.pth'), 'resume': True}
    # MMEngine names folders by the second
    while time.strftime('%Y%m%d_%H%M%S') <= Path(first['run']).name:
        time.sleep(0.1)
    with pytest.raises(Exception) as caught:  # noqa: PT011  # KeyError, UnpicklingError
        build_runner(work_dir, epochs=2, **more).train()
    console.write_text(''.join(traceback.format_exception(caught.value)))
    # no hook is told of it, but what watched the start notices
    until_s = time.monotonic() + PATIENCE_S
    while list_own_threads() and time.monotonic() < until_s:
        time.sleep(0.05)
    assert list_own_threads() == []
    capsys.readouterr()
    alone, both = ask('why', work_dir), ask('why', work_dir, '--log', console)
    assert (alone['state'], alone['cause']) == ('unknown', 'unknown')
    assert (both['state'], both['cause']) == ('ended', cause)
    assert alone['run'] == both['run'] > first['run']
    assert Path(first['run']).name in both['notes'][0]
    answer = ask('recommend', work_dir, '--dry-run')
    assert any('left no evidence' in note for note in answer['notes'])
