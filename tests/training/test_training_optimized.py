"""Tests that ``optimize`` leaves a training's checkpoints identical bit by bit."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from mmengine.optim import OptimWrapper
from mmengine.runner import FlexibleRunner
from torch import nn

from benchmarks.equal import is_equal
from mmgpu_hooks.config.hook_arguments import OPTIMIZATIONS
from mmgpu_hooks.optimize.param_groups import QuickGroup
from mmgpu_hooks.optimize.turns import Turns
from mmgpu_hooks.schema.recorded import SparedTime
from mmgpu_hooks.schema.run import read_evidence
from training.detection import Task, environ, render_config, train_all
from training.toy import (
    HOOK,
    LossTape,
    ToyModel,
    build_runner,
    load_checkpoint,
    log_of,
    train,
)

PARAMWISE = {'norm_decay_mult': 0.0, 'bias_decay_mult': 0.0}
ADAMW = {
    'optimizer': {'type': 'AdamW', 'lr': 0.01, 'weight_decay': 0.05},
    'paramwise_cfg': PARAMWISE,
    'clip_grad': {'max_norm': 1.0},
}
SCHEDULERS = [
    {'type': 'LinearLR', 'start_factor': 0.1, 'by_epoch': False, 'end': 6},
    {'type': 'MultiStepLR', 'milestones': [1], 'by_epoch': True},
]
EMA = {'type': 'EMAHook', 'update_buffers': True, 'momentum': 0.01}


class DeepModel(ToyModel):
    """Toy model with further layers, and so with more parameter groups."""

    def __init__(self, step_s: float = 0.0) -> None:
        super().__init__(step_s)
        more = [layer for _ in range(2) for layer in (nn.Conv2d(4, 4, 1), nn.ReLU())]
        self.convolution = nn.Sequential(
            self.convolution, nn.BatchNorm2d(4), *more, nn.BatchNorm2d(4)
        )
        for weights in self.parameters():
            weights.data.uniform_(generator=torch.Generator().manual_seed(1))


class Autocast(OptimWrapper):
    """Optimizer wrapper with bfloat16 autocast on the CPU."""

    def optim_context(self, model: Any) -> Any:
        return torch.autocast('cpu', dtype=torch.bfloat16)


class Meddler(Hook):
    """Hook that reads, edits and keeps parameter groups during training."""

    def before_train(self, runner: Any) -> None:
        self.held = runner.optim_wrapper.optimizer.param_groups[3]

    def after_train_iter(self, runner: Any, batch_idx: int, *_: Any, **__: Any) -> None:
        groups = runner.optim_wrapper.optimizer.param_groups
        if batch_idx == 4:
            self.held['weight_decay'] = 0.2
            groups[1]['lr'] = groups[1]['lr'] / 2
        if batch_idx == 7:
            layer = runner.model.convolution[0]
            layer.weight.requires_grad_(False)
            layer.weight.grad = None


def run(
    folder: Path,
    optimize: Any,
    monkeypatch: pytest.MonkeyPatch,
    **arguments: Any,
) -> Any:
    """Trains two epochs; returns the Runner."""
    monkeypatch.setattr('training.toy.ToyModel', DeepModel)
    hook = {**HOOK, 'summary': False, 'write_config': False}
    if optimize is not None:
        hook['optimize'] = optimize
    given: dict[str, Any] = {
        'custom_hooks': [EMA, LossTape(), Meddler()],
        'optim_wrapper': json.loads(json.dumps(ADAMW)),
        'param_scheduler': SCHEDULERS,
        'checkpoint': {'interval': 1},
        'num_workers': 1,
        'iterations': 8,
        'epochs': 2,
        **arguments,
    }
    return train(build_runner(folder, hook=hook, **given))


def load(path: Path) -> dict[str, Any]:
    """Loads a checkpoint without the entries that differ between equal runs."""
    saved: dict[str, Any] = load_checkpoint(path)
    del saved['meta']
    scalars = saved['message_hub']['log_scalars']
    for name in [name for name in scalars if re.search('time', name)]:
        del scalars[name]
    info = saved['message_hub']['runtime_info']
    for name in ('last_ckpt', 'cfg', 'eta', 'keep_ckpt_ids', 'experiment_name'):
        info.pop(name, None)
    return saved


def is_same_training(plain: Path, ours: Path) -> bool:
    """True if all checkpoints of two trainings hold the same bits."""
    names = sorted(path.name for path in plain.glob('*.pth'))
    assert names
    assert names == sorted(path.name for path in ours.glob('*.pth'))
    return all(is_equal(load(plain / name), load(ours / name)) for name in names)


def said(runner: Any) -> list[str]:
    """Returns what the log says about ``optimize``."""
    return re.findall(r'GPUEfficiencyHook: (optimize=.*)', log_of(runner))


CASES: dict[str, dict[str, Any]] = {
    'epochs': {},
    'iterations': {'loop': 'iter', 'param_scheduler': SCHEDULERS[:1]},
    'SGD, accumulated': {
        'optim_wrapper': {
            'optimizer': {
                'type': 'SGD',
                'lr': 0.01,
                'momentum': 0.9,
                'weight_decay': 1e-4,
            },
            'paramwise_cfg': PARAMWISE,
            'accumulative_counts': 3,
        }
    },
    'autocast, foreach': {
        'optim_wrapper': {
            'type': Autocast,
            'optimizer': {
                'type': 'Adam',
                'lr': 0.01,
                'weight_decay': 0.0,
                'foreach': True,
            },
            'paramwise_cfg': PARAMWISE,
        }
    },
    'FlexibleRunner': {'kind': FlexibleRunner},
}


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """Folder of a training without ``optimize``."""
    folder = tmp_path_factory.mktemp('as_it_is')
    with pytest.MonkeyPatch.context() as patch:
        run(folder, None, patch)
    return folder


@pytest.mark.parametrize('case', CASES)
def test_checkpoints_are_the_same_to_the_last_bit(tmp_path, monkeypatch, case, plain):
    ours = tmp_path / 'ours'
    if CASES[case]:
        plain = tmp_path / 'plain'
        run(plain, None, monkeypatch, **CASES[case])
    runner = run(ours, 'all', monkeypatch, **CASES[case])
    on = [line for line in said(runner) if ' is on: ' in line]
    assert [line.split()[0] for line in on] == [
        f'optimize={name}'
        for name in ('small_tensors', 'param_groups', 'ema', 'history')
    ]
    assert is_same_training(plain, ours)


def test_a_run_resumes_from_either(tmp_path, monkeypatch):
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    folders = {}
    for first in (None, 'all'):
        for second in (None, list(OPTIMIZATIONS)):
            folder = tmp_path / f'{first}_{bool(second)}'
            run(folder / 'first', first, monkeypatch, epochs=1)
            run(
                folder / 'second',
                second,
                monkeypatch,
                epochs=3,
                load_from=str(folder / 'first' / 'epoch_1.pth'),
                resume=True,
            )
            folders[first, bool(second)] = folder / 'second'
    plain = folders.pop((None, False))
    assert all(is_same_training(plain, other) for other in folders.values())


def test_nothing_of_ours_is_left_nor_in_a_checkpoint(tmp_path, monkeypatch):
    runner = run(tmp_path, OPTIMIZATIONS, monkeypatch)
    (path,) = tmp_path.glob('epoch_2.pth')
    with zipfile.ZipFile(path) as archive:
        (name,) = [one for one in archive.namelist() if one.endswith('data.pkl')]
        # the config, which is in it as text, names the hook
        pickled = archive.read(name).replace(b'mmgpu_hooks.GPUEfficiencyHook', b'')
    assert b'mmgpu' not in pickled
    assert 'step' not in vars(runner.optim_wrapper.optimizer)
    assert 'update_scalar' not in vars(runner.message_hub)
    for group in runner.optim_wrapper.optimizer.param_groups:
        assert type(group) is not QuickGroup
    for buffer in runner.message_hub.log_scalars.values():
        assert type(buffer) is HistoryBuffer
    for hook in runner.hooks:
        assert 'update_parameters' not in vars(getattr(hook, 'ema_model', hook))
    assert 'mmgpu' not in type(runner.train_dataloader.worker_init_fn).__module__
    pickle.dumps(runner.optim_wrapper.optimizer)


class Stop(Hook):
    """Hook that ends training in the second epoch and keeps the Runner."""

    def before_train_epoch(self, runner: Any) -> None:
        self.runner = runner
        if runner.epoch == 1:
            raise RuntimeError('planted')


def test_an_exception_takes_all_back(tmp_path, monkeypatch):
    stop = Stop()
    with pytest.raises(RuntimeError, match='planted'):
        run(tmp_path, 'all', monkeypatch, custom_hooks=[EMA, stop])
    assert len([line for line in said(stop.runner) if ' is on: ' in line]) == 4
    assert 'step' not in vars(stop.runner.optim_wrapper.optimizer)
    assert 'update_scalar' not in vars(stop.runner.message_hub)


def test_what_cannot_be_used_is_said_in_a_sentence(tmp_path, monkeypatch):
    arguments = {
        'custom_hooks': [LossTape()],
        'optim_wrapper': {'optimizer': {'type': 'SGD', 'lr': 0.01}},
        'num_workers': 0,
    }
    runner = run(tmp_path / 'ours', 'all', monkeypatch, **arguments)
    lines = said(runner)
    assert lines[:3] == [
        'optimize=small_tensors is not used: no worker sends batches; training goes on '
        'as it was.',
        'optimize=param_groups is not used: no two of 1 parameter groups are alike; '
        'training goes on as it was.',
        'optimize=ema is not used: no EMAHook averages the model; training goes on as '
        'it was.',
    ]
    run(tmp_path / 'plain', None, monkeypatch, **arguments)
    assert is_same_training(tmp_path / 'plain', tmp_path / 'ours')


@pytest.mark.slow
@pytest.mark.parametrize(
    'compiled',
    [
        {'cfg': {'compile': {'backend': 'eager'}}},
        {'kind': FlexibleRunner, 'compile': {'backend': 'eager'}},
    ],
    ids=['Runner', 'FlexibleRunner'],
)
def test_a_step_that_is_compiled_is_left_alone(tmp_path, monkeypatch, compiled):
    # each training begins without the graphs of others, as in a process of its own
    torch._dynamo.reset()
    runner = run(tmp_path / 'ours', 'all', monkeypatch, **compiled)
    (refused,) = [line for line in said(runner) if ' is not used: ' in line]
    assert refused == (
        "optimize=param_groups is not used: `compile` compiles the optimizer's step, "
        'too; training goes on as it was.'
    )
    assert evidence_of(tmp_path / 'ours').run.overhead.is_compiled
    torch._dynamo.reset()
    run(tmp_path / 'plain', None, monkeypatch, **compiled)
    assert is_same_training(tmp_path / 'plain', tmp_path / 'ours')


@pytest.mark.parametrize(
    ('name', 'place'),
    [
        ('param_groups', 'mmgpu_hooks.optimize.param_groups.StepMerger._merge'),
        ('ema', 'mmgpu_hooks.optimize.ema._make_lists'),
        ('history', 'mmgpu_hooks.optimize.history.GrowingHistories.__init__'),
    ],
)
def test_an_optimisation_that_fails_is_taken_back(
    tmp_path, monkeypatch, name, place, plain
):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError('planted')

    with monkeypatch.context() as planted:
        planted.setattr(place, fail)
        runner = run(tmp_path / 'ours', 'all', monkeypatch)
    (line,) = [line for line in said(runner) if 'taken back' in line]
    assert line == (
        f'optimize={name} is taken back (RuntimeError: planted); training goes on '
        'without it.'
    )
    assert is_same_training(plain, tmp_path / 'ours')


def test_a_first_step_without_memory_ends_as_it_does(tmp_path, monkeypatch):
    """Tests that a first step out of memory restores the plain parameter groups."""

    original = torch.optim.AdamW._init_group

    def raise_out_of_memory(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        # not where it is first tried on a few tensors
        if len(optimizer.param_groups) > 5:
            raise torch.OutOfMemoryError('planted')
        return original(optimizer, *args, **kwargs)

    stop, lengths = Stop(), {}
    monkeypatch.setattr(torch.optim.AdamW, '_init_group', raise_out_of_memory)
    for optimize in (None, 'all'):
        with pytest.raises(torch.OutOfMemoryError, match='planted'):
            run(tmp_path / f'{optimize}', optimize, monkeypatch, custom_hooks=[stop])
        optimizer = stop.runner.optim_wrapper.optimizer
        lengths[optimize] = len(optimizer.param_groups)
        assert 'step' not in vars(optimizer)
    assert 'optimize=param_groups is on' in log_of(stop.runner)
    assert lengths['all'] == lengths[None] > 5


def evidence_of(folder: Path) -> Any:
    (path,) = folder.glob('*/vis_data/gpu_efficiency.jsonl')
    return read_evidence(path)


def test_what_a_step_has_the_host_do_is_counted_once(tmp_path, plain):
    evidence = evidence_of(plain)
    counted = evidence.run.overhead
    assert (counted.optimizer, counted.groups, counted.settings) == ('AdamW', 10, 2)
    assert (counted.clipped_tensors, counted.is_fused) == (10, False)
    assert not counted.fills_new_tensors
    # the Runner was built without a config
    assert evidence.run.hook_place is None
    (average,) = counted.averages
    assert (average.kind, average.interval) == ('ExponentialMovingAverage', 1)
    # with its buffers: mean, variance and count of two
    assert average.tensors == 16
    # a CPU has nothing to wait for
    assert [each.read_scalars for each in evidence.intervals][:2] == [0, None]
    # images of 768 bytes, and their labels
    assert evidence.intervals[0].small_tensors == 4
    assert evidence.intervals[0].small_tensor_bytes == 2 * 768 + 2 * 4
    assert evidence.end.spared == {}


def test_what_was_spared_is_said_when_training_ends(tmp_path, monkeypatch):
    runner = run(tmp_path, 'all', monkeypatch)
    spared = evidence_of(tmp_path).end.spared
    assert set(spared) == {'param_groups', 'ema'}
    assert all(each.plain_s > 0 and each.ours_s > 0 for each in spared.values())
    gave = [line for line in said(runner) if ' gave ' in line]
    assert [line.split()[0] for line in gave] == [
        'optimize=param_groups',
        'optimize=ema',
    ]
    assert all('of both ways' in line for line in gave)


def test_an_optimisation_without_a_gain_is_said_to_give_nothing(tmp_path, monkeypatch):
    """Tests that the log says so if an optimisation gave no gain."""
    slower = SparedTime(plain_s=160e-6, ours_s=196e-6, calls=8)
    monkeypatch.setattr(Turns, 'spared', slower)
    runner = run(tmp_path, 'param_groups', monkeypatch)
    assert said(runner)[-1] == (
        'optimize=param_groups gave nothing here: 160 -> 196 us of CPU of the training '
        'thread for each call (median of 8 of both ways).'
    )


def test_hooks_of_the_optimizer_end_merging_with_a_sentence(
    tmp_path, monkeypatch, plain
):
    class Registers(Hook):
        """Hook that registers an optimizer hook in the middle of training."""

        def before_train_epoch(self, runner: Any) -> None:
            if runner.epoch == 1:
                optimizer = runner.optim_wrapper.optimizer
                optimizer.register_step_post_hook(lambda *_: None)

    custom_hooks = [EMA, LossTape(), Meddler(), Registers()]
    runner = run(tmp_path / 'ours', 'all', monkeypatch, custom_hooks=custom_hooks)
    (line,) = [line for line in said(runner) if 'taken back' in line]
    assert line == (
        'optimize=param_groups is taken back (hooks that are registered for the step '
        'of AdamW may read its groups); training goes on without it.'
    )
    assert set(evidence_of(tmp_path / 'ours').end.spared) == {'ema'}
    assert is_same_training(plain, tmp_path / 'ours')


def test_nothing_is_said_unless_asked_for(tmp_path, monkeypatch):
    assert said(run(tmp_path, '', monkeypatch)) == []


def find_run(folder: Path) -> str:
    (path,) = folder.glob('*/*.log')
    return path.read_text()


@pytest.fixture(scope='module')
def detectors(images, tmp_path_factory):
    """Trainings of RTMDet: plain, with ``optimize``, and under ``mmgpu run``."""
    pytest.importorskip('mmdet', exc_type=ImportError)
    folder = tmp_path_factory.mktemp('detectors')
    dotted = "gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook')"
    tail = (
        "custom_hooks = [dict(type='EMAHook', ema_type='ExpMomentumEMA', "
        'momentum=0.0002, update_buffers=True, priority=49)]'
    )
    text = render_config(
        images, default_hooks=dotted, num_workers=2, epochs=2, tail=tail
    )
    (folder / 'config.py').write_text(text)
    key = 'default_hooks.gpu_efficiency.optimize'
    options = {
        'plain': [],
        # MMEngine makes a list of it
        'ours': ['--cfg-options', f'{key}=param_groups,ema,small_tensors,history'],
    }
    tasks = {}
    for name, words in options.items():
        (folder / name).mkdir()
        work_dir = ['--work-dir', str(folder / name / 'work')]
        tasks[name] = Task(
            [str(folder / 'config.py'), *work_dir, *words], str(folder / name / 'log')
        )
    assert train_all(tasks) == dict.fromkeys(tasks, 0), [
        Path(task.log).read_text()[-3000:] for task in tasks.values()
    ]
    return folder


def test_a_detector_is_the_same_to_the_last_bit(detectors):
    plain, ours = detectors / 'plain' / 'work', detectors / 'ours' / 'work'
    assert is_same_training(plain, ours)
    text = find_run(ours)
    lines = re.findall(r'optimize=(\w+) is on: (.*)', text)
    assert [name for name, _ in lines] == [
        'small_tensors',
        'param_groups',
        'ema',
        'history',
    ]
    assert re.search(r'the step of AdamW takes \d{3} parameter groups as 2', text)
    assert 'ExpMomentumEMA averages' in text
    counted = evidence_of(ours).run
    assert counted.hook_place == 'default_hooks.gpu_efficiency'
    assert counted.overhead == evidence_of(plain).run.overhead
    # as its config has it: deterministic
    assert counted.overhead.fills_new_tensors
    assert counted.overhead.settings == 2 < counted.overhead.groups
    # each with what a call took in both ways, where that could be timed
    assert re.search(
        r'^  optimized  small_tensors, param_groups [\d.]+ \S* ?-> [\d.]+ \w+, '
        r'ema [\d.]+ ',
        text,
        re.M,
    )
    assert 'optimize=' not in find_run(plain)


def test_two_ranks_train_to_the_same_bits(tmp_path):
    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.optimized_ranks', str(tmp_path)]
    done = subprocess.run(command, env=environ(), capture_output=True, timeout=240)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    assert is_same_training(tmp_path / 'plain', tmp_path / 'all')
    # each rank merges, averages and receives; the first one says so
    assert find_run(tmp_path / 'all').count(' is on: ') == 4
