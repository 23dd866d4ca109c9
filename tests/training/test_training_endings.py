"""However a training ends or begins: the evidence says so and nothing is changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmgpu_hooks.schema.reader import read_evidence
from mmgpu_hooks.schema.run_folder import read_run_folder
from training.detection import TrainServer, environ, render_config
from training.toy import (
    HOOK,
    LossTape,
    ToyDataset,
    ToyMetric,
    build_runner,
    collate_branches,
    evidence_of,
    find_evidence,
    log_of,
    losses_of,
    scalar_lines,
    train,
)

ROOT = Path(__file__).parents[2]
KILLERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class UserError(Exception):
    """Something only the user's own code raises."""


class Bomb(Hook):
    """Raises once, at one iteration, after ours."""

    priority = 'LOW'

    def __init__(self, at: int, error: BaseException) -> None:
        self.at = at
        self.error: BaseException | None = error

    def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
        if runner.iter == self.at and self.error is not None:
            error, self.error = self.error, None
            raise error


@pytest.mark.parametrize(
    ('error', 'status'),
    [
        (UserError('planted'), 'failed'),
        (KeyboardInterrupt(), 'interrupted'),
        (SystemExit(3), 'interrupted'),
    ],
    ids=['error', 'ctrl_c', 'exit'],
)
@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_what_ends_training_passes_through_untouched(
    tmp_path: Path, loop: str, error: BaseException, status: str
) -> None:
    runner = build_runner(tmp_path, loop=loop, custom_hooks=[Bomb(6, error)])
    with pytest.raises(type(error)) as caught:
        runner.train()
    assert caught.value is error
    assert caught.value.__context__ is None
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert (frames[-1].name, frames[-1].filename) == ('after_train_iter', __file__)
    evidence = evidence_of(tmp_path)
    assert evidence.end is not None
    assert (evidence.end.status, evidence.end.error) == (status, type(error).__name__)
    # the interval that was under way is not lost
    assert [record.iterations for record in evidence.intervals] == [4, 3]
    assert f'{status} after 7 iterations' in log_of(runner)


def test_the_summary_begins_with_the_verdict_and_ends_with_the_next_command(
    tmp_path: Path,
) -> None:
    runner = build_runner(tmp_path, num_workers=1)
    train(runner)
    log = log_of(runner)
    assert log.count('  verdict    ') == 1
    lines = log[log.index('  verdict    ') :].splitlines()
    labels = [line[2:13].strip() for line in lines if line[2:13].strip()]
    assert labels[:5] == ['verdict', 'iteration', 'loader', 'machine', 'GPU']
    last = next(line for line in lines if line.startswith('  next'))
    assert f'mmgpu recommend {tmp_path}' in last
    assert lines.index(last) <= 9


def test_signals_keep_the_effect_they_had(tmp_path: Path) -> None:
    # a handler of Python's would never run in a process that hangs in a collective
    handlers: list[Any] = []

    class Look(Hook):
        def after_train_iter(self, runner: Runner, **rest: Any) -> None:
            handlers.append([signal.getsignal(number) for number in KILLERS])

    before = [signal.getsignal(number) for number in KILLERS]
    build_runner(tmp_path, iterations=2, custom_hooks=[Look()]).train()
    assert handlers == [before, before]


def test_a_child_that_user_code_forks_says_nothing(tmp_path: Path) -> None:
    class Fork(Hook):
        def after_train_iter(self, runner: Runner, batch_idx: int, **rest: Any) -> None:
            if batch_idx == 5:
                child = os.fork()
                if child == 0:
                    try:
                        raise SystemExit
                    finally:
                        # as sys.exit would, but the rest of pytest stays out of it
                        ours = [h for h in runner.hooks if hasattr(h, '_finish')]
                        ours[0]._finish(SystemExit())
                        os._exit(0)
                os.waitpid(child, 0)

    runner = build_runner(tmp_path, custom_hooks=[Fork()])
    runner.train()
    text = find_evidence(tmp_path).read_text()
    assert text.count('"kind":"end"') == 1
    assert log_of(runner).count('  verdict    ') == 1


def test_no_summary_when_it_is_not_wanted(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, hook={**HOOK, 'summary': False})
    runner.train()
    assert '  verdict    ' not in log_of(runner)
    assert evidence_of(tmp_path).end is not None


def recommend(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, 'tools/recommend.py', str(folder), *words],
        cwd=ROOT,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=60,
    )


KILLED_BY = (signal.SIGKILL, signal.SIGTERM)


@pytest.fixture(scope='module')
def killed(
    images: Path, train_server: TrainServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[int, Path]:
    """Folders of MMDetection trainings that were killed, side by side, by signal."""
    folder = tmp_path_factory.mktemp('killed')
    folders = {number: folder / number.name for number in KILLED_BY}
    hooks = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook', interval=2)"
    config = folder / 'config.py'
    config.write_text(render_config(images, default_hooks=hooks, epochs=1000))
    for number, work_dir in folders.items():
        words = [str(config), '--work-dir', str(work_dir)]
        train_server.start(number.name, words, folder)
    deadline = time.monotonic() + 120
    try:
        for number, work_dir in folders.items():
            log = folder / f'{number.name}.log'
            while _count_intervals(work_dir) < 12:
                is_over = (folder / f'{number.name}.exit').exists()
                assert not is_over, log.read_text()[-3000:]
                assert time.monotonic() < deadline, log.read_text()[-3000:]
                time.sleep(0.05)
    finally:
        for number in KILLED_BY:
            pid = folder / f'{number.name}.pid'
            if pid.exists() and not pid.with_suffix('.exit').exists():
                os.kill(int(pid.read_text()), number)
    codes = [train_server.wait(number.name, folder, 20) for number in KILLED_BY]
    assert codes == [-9, -15]
    return folders


def _count_intervals(folder: Path) -> int:
    found = list(folder.glob('*/vis_data/gpu_efficiency.jsonl'))
    return found[0].read_text().count('"kind":"interval"') if found else 0


@pytest.mark.parametrize('number', KILLED_BY)
def test_a_training_killed_outright_leaves_evidence_for_the_tool(
    killed: dict[int, Path], number: signal.Signals
) -> None:
    evidence = evidence_of(killed[number])
    assert evidence.end is None
    assert len(evidence.intervals) >= 12
    done = recommend(killed[number], '--dry-run', '--format', 'json')
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer['verdict']['name'] not in ('unknown', 'not_enough_evidence')
    assert answer['evidence']['iterations'] >= 24


def build_resumable(work_dir: Path, loop: str, **arguments: Any) -> Runner:
    by_epoch = loop == 'epoch'
    checkpoint = {'interval': 1 if by_epoch else 8, 'by_epoch': by_epoch}
    limits: dict[str, Any] = {'iterations': 8, 'epochs': 1} | arguments
    return build_runner(work_dir, loop=loop, checkpoint=checkpoint, **limits)


@pytest.mark.parametrize('loop', ['epoch', 'iter'])
def test_a_resumed_run_counts_on_where_it_left(
    tmp_path: Path, loop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # torch >= 2.6 refuses MMEngine's checkpoints otherwise
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    build_resumable(tmp_path / 'first', loop).train()
    # of an iteration-based run one epoch: it would sleep two seconds between two
    more = (
        {'epochs': 2, 'length': 16}
        if loop == 'epoch'
        else {'iterations': 16, 'length': 32}
    )
    runner = build_resumable(
        tmp_path / 'second',
        loop,
        resume=True,
        load_from=str(tmp_path / 'first' / f'{loop}_{1 if loop == "epoch" else 8}.pth'),
        **more,
    )
    runner.train()
    assert evidence_of(tmp_path / 'first').run.start_iteration == 0
    evidence = evidence_of(tmp_path / 'second')
    assert evidence.run.start_iteration == 8
    assert [record.iteration for record in evidence.intervals] == [12, 16]
    assert evidence.end is not None
    assert evidence.end.iterations == 8
    # nothing of the first run is shown as if it were of the second
    lines = scalar_lines(tmp_path / 'second')
    assert [line['step'] for line in lines] == [12, 16]
    for line, record in zip(lines, evidence.intervals):
        assert line['data_wait_s'] == pytest.approx(
            record.data_wait.mean_s, rel=1e-6, abs=1e-9
        )


def with_test(work_dir: Path) -> Runner:
    return build_runner(
        work_dir,
        evaluation_s=0.0,
        test_dataloader={
            'dataset': ToyDataset(2),
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            'batch_size': 2,
            'num_workers': 0,
        },
        test_cfg={},
        test_evaluator={'type': ToyMetric},
        custom_hooks=[LossTape()],
    )


@pytest.mark.parametrize('call', ['val', 'test'])
def test_a_run_that_does_not_train_leaves_nothing(tmp_path: Path, call: str) -> None:
    runner = with_test(tmp_path)
    assert getattr(runner, call)() == {'score': 1.0}
    assert not list(tmp_path.rglob('gpu_efficiency*'))
    assert 'call_hook' not in vars(runner)
    assert 'GPUEfficiencyHook: ' not in log_of(runner)


def test_validation_and_test_around_a_training_change_nothing(tmp_path: Path) -> None:
    runner = with_test(tmp_path)
    runner.val()
    runner.train()
    runner.val()
    runner.test()
    assert 'run' not in vars(runner.train_loop)
    assert 'call_hook' not in vars(runner)
    evidence = evidence_of(tmp_path)
    assert evidence.end is not None
    assert evidence.end.iterations == len(losses_of(runner)) == 12
    assert log_of(runner).count('  verdict    ') == 1


def test_training_twice_leaves_two_readable_runs(tmp_path: Path) -> None:
    runner = with_test(tmp_path)
    runner.train()
    runner.val()
    runner.train_loop._max_epochs = 2
    runner.train()
    assert len(losses_of(runner)) == 24
    assert 'run' not in vars(runner.train_loop)
    paths = sorted(tmp_path.glob('*/vis_data/gpu_efficiency*.jsonl'))
    runs = [read_evidence(path) for path in paths]
    counts = {(run.run.start_iteration, run.end and run.end.iterations) for run in runs}
    assert counts == {(0, 12), (12, 12)}
    assert read_run_folder(tmp_path).evidence == find_evidence(tmp_path)


def test_training_on_after_an_error_leaves_a_readable_run(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, custom_hooks=[Bomb(6, UserError('planted'))])
    with pytest.raises(UserError):
        runner.train()
    runner.train()
    evidence = evidence_of(tmp_path)
    assert evidence.end is not None
    assert evidence.end.status == 'failed'


def test_gradient_accumulation_is_recorded(tmp_path: Path) -> None:
    wrapper = {
        'type': 'OptimWrapper',
        'accumulative_counts': 4,
        'optimizer': {'type': 'SGD', 'lr': 0.01},
    }
    runner = build_runner(tmp_path, optim_wrapper=wrapper)
    runner.train()
    run = evidence_of(tmp_path).run
    assert (run.accumulative_counts, run.optim_wrapper) == (4, 'OptimWrapper')


def test_the_run_record_describes_the_live_run(tmp_path: Path) -> None:
    runner = build_runner(tmp_path, batch_size=3, iterations=4, epochs=2)
    runner.train()
    run = evidence_of(tmp_path).run
    assert (run.rank, run.world_size, run.device) == (0, 1, 'cpu')
    assert (run.max_epochs, run.max_iters, run.interval_iterations) == (2, 8, 4)
    assert (run.loader.batch_size, run.loader.batches_per_epoch) == (3, 4)
    assert run.host.usable_cores == len(os.sched_getaffinity(0)) or (
        run.host.cgroup_cpu_cores is not None
    )
    assert set(run.unknown) >= {'GPU', 'GPU memory'}


def test_images_that_cannot_be_counted_are_unknown(tmp_path: Path) -> None:
    build_runner(tmp_path, collate_fn=collate_branches).train()
    evidence = evidence_of(tmp_path)
    assert [record.images for record in evidence.intervals] == [None] * 3
    assert 'images_per_s' not in scalar_lines(tmp_path)[0]
