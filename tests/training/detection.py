"""Runs MMDetection's ``tools/train.py`` on several configs in forked processes.

Importing MMDetection takes longer than a training of these: one process imports it and
forks for each training. Nothing of ours is imported before the fork, so how a config
makes the hook known is tested for real.
"""

from __future__ import annotations

import importlib.util
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1]
MODULE = [sys.executable, '-m', 'training.detection']

IMPORTED_ONCE = (
    'mmdet.apis',
    'mmdet.datasets',
    'mmdet.engine',
    'mmdet.evaluation',
    'mmdet.models',
    'torch._dynamo',
    'torch.utils.tensorboard',
)

CONFIG = """\
_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'
default_hooks = dict(logger=dict(interval={log_interval}), {default_hooks})
model = dict(
    backbone=dict(init_cfg=None, widen_factor=0.125),
    neck=dict(in_channels=[32, 64, 128], out_channels=32),
    bbox_head=dict(num_classes=2, in_channels=32, feat_channels=32),
)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='RandomResize', scale=(96, 96), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(64, 64)),
    dict(type='RandomFlip', prob=0.5),
    dict(type='Pad', size=(64, 64), pad_val=dict(img=(114, 114, 114))),
    dict(type='PackDetInputs'),
]
train_dataloader = dict(
    batch_size={batch_size}, num_workers={num_workers},
    persistent_workers={persistent_workers},
    dataset=dict(
        data_root='{data_root}/', ann_file='annotations.json',
        data_prefix=dict(img='images/'),
        metainfo=dict(classes=('rectangle', 'ellipse')),
        pipeline=train_pipeline,
    ),
)
train_cfg = {train_cfg}
val_cfg = val_dataloader = val_evaluator = None
test_cfg = test_dataloader = test_evaluator = None
visualizer = dict(
    vis_backends=[dict(type='LocalVisBackend'), dict(type='TensorboardVisBackend')])
randomness = dict(seed=7, deterministic=True)
{tail}
"""
"""Text of a small RTMDet-tiny config for a few small images."""

ITERATIONS = (
    "dict(_delete_=True, type='IterBasedTrainLoop', max_iters={iterations}, "
    'val_interval=1000)'
)


def render_config(
    data_root: Path,
    *,
    epochs: int = 1,
    iterations: int | None = None,
    tail: str = '',
    **settings: Any,
) -> str:
    """Returns a config's text; ``iterations`` selects the iteration-based loop."""
    train_cfg = f'dict(max_epochs={epochs}, dynamic_intervals=None)'
    if iterations is not None:
        train_cfg = ITERATIONS.format(iterations=iterations)
        tail += '\nlog_processor = dict(by_epoch=False)'
    defaults = {'batch_size': 2, 'num_workers': 0, 'log_interval': 5}
    given: dict[str, Any] = {'default_hooks': '', **defaults, **settings}
    given['persistent_workers'] = given['num_workers'] > 0
    return CONFIG.format(data_root=data_root, train_cfg=train_cfg, tail=tail, **given)


def environ() -> dict[str, str]:
    """Returns an environment with one thread per process and the tests on the path."""
    path = os.pathsep.join([str(TESTS), os.environ.get('PYTHONPATH', '')])
    return {
        **os.environ,
        'PYTHONPATH': path.rstrip(os.pathsep),
        'OMP_NUM_THREADS': '1',
        'PYTHONUNBUFFERED': '1',
    }


class Task(NamedTuple):
    """Run of ``train.py``: its arguments, log file and environment."""

    words: list[str]
    """Command line arguments of the run."""
    log: str
    """Path of the log file; the run's working directory is the file's folder."""
    environ: dict[str, str] | None = None


def find_tools() -> Path:
    """Returns the folder of MMDetection's own scripts."""
    # found, not imported: importing MMDetection takes seconds and torch
    spec = importlib.util.find_spec('mmdet')
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / '.mim' / 'tools'


def train_all(
    tasks: Mapping[str, Task], at_once: int = 2, **more: str
) -> dict[str, int]:
    """Runs each task in a separate process; returns exit codes by name.

    Args:
        tasks: By name.
        at_once: Trainings that run at a time.
        more: More environment of all of them, from the start of their process.

    Returns:
        Exit codes by name; negative for a signal.
    """
    done = subprocess.run(
        [*MODULE, str(find_tools() / 'train.py'), str(at_once)],
        env={**environ(), **more},
        input=json.dumps(tasks),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=220,
    )
    codes: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return codes


def main(script: str, at_once: int) -> None:
    """Imports the packages once, then forks a process for each task on stdin."""
    tasks = json.load(sys.stdin)
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    # MMEngine lays out the whole config seven times per training, 0.6 s each
    layout = importlib.import_module('mmengine.config.config')
    layout.FormatCode = lambda text, **_: (text, True)  # type: ignore[attr-defined]
    assert not [name for name in sys.modules if name.startswith('mmgpu_hooks')]
    running: dict[int, str] = {}
    codes = {}
    while tasks or running:
        if tasks and len(running) < at_once:
            name = next(iter(tasks))
            running[_fork(script, Task(*tasks.pop(name)))] = name
        else:
            pid, status = os.wait()
            codes[running.pop(pid)] = os.waitstatus_to_exitcode(status)
    print(json.dumps(codes))


def _fork(script: str, task: Task) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(log, descriptor)
        os.chdir(Path(task.log).parent)
        os.environ.update(task.environ or {})
        sys.argv = [script, *task.words]
        runpy.run_path(script, run_name='__main__')
        code = 0
    except BaseException:  # noqa: BLE001  # a fork must not return into the parent
        traceback.print_exc()
    finally:
        # the workers of an iteration-based run live as long as their loader
        for worker in multiprocessing.active_children():
            worker.kill()
        os._exit(code)


if __name__ == '__main__':
    main(sys.argv[1], int(sys.argv[2]))
