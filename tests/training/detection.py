"""Trains MMDetection with its own ``tools/train.py``, several configs in one go.

Importing MMDetection takes longer than a training of these: a :class:`TrainServer`
imports it once and forks for each training. Nothing of ours is imported before the
fork, so how a config makes the hook known is tested for real.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import runpy
import select
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]

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
{head}
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
"""RTMDet-tiny made thinner still, on a few small images."""

BASE = "_base_ = 'mmdet::rtmdet/rtmdet_tiny_8xb32-300e_coco.py'"

ITERATIONS = (
    "dict(_delete_=True, type='IterBasedTrainLoop', max_iters={iterations}, "
    'val_interval=1000)'
)


def render_config(
    data_root: Path,
    *,
    head: str = BASE,
    default_hooks: str = '',
    batch_size: int = 2,
    num_workers: int = 0,
    log_interval: int = 5,
    epochs: int = 1,
    iterations: int | None = None,
    tail: str = '',
) -> str:
    """Config text; ``iterations`` asks for the iteration-based loop."""
    train_cfg = f'dict(max_epochs={epochs}, dynamic_intervals=None)'
    if iterations is not None:
        train_cfg = ITERATIONS.format(iterations=iterations)
        tail += '\nlog_processor = dict(by_epoch=False)'
    return CONFIG.format(
        head=head,
        default_hooks=default_hooks,
        batch_size=batch_size,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        log_interval=log_interval,
        data_root=data_root,
        train_cfg=train_cfg,
        tail=tail,
    )


def environ() -> dict[str, str]:
    """One thread per process; our toys importable, as a user's own modules are."""
    path = os.pathsep.join([str(TESTS), os.environ.get('PYTHONPATH', '')])
    return {
        **os.environ,
        'PYTHONPATH': path.rstrip(os.pathsep),
        'OMP_NUM_THREADS': '1',
        'PYTHONUNBUFFERED': '1',
    }


class TrainServer:
    """A process that has imported MMDetection, and forks for each training.

    While a training runs its process id is in ``<folder>/<name>.pid``, and then its
    exit code in ``<folder>/<name>.exit``; what it prints is in ``<folder>/<name>.log``.

    Args:
        at_once: Trainings that run at a time.
        more: More environment.
    """

    def __init__(self, at_once: int = 2, **more: str) -> None:
        from mmgpu_hooks.experiment.training import find_train_script

        script = str(find_train_script())
        command = [sys.executable, '-m', 'training.detection', script, str(at_once)]
        self._process = subprocess.Popen(
            command, env={**environ(), **more}, stdin=subprocess.PIPE, text=True
        )

    def start(
        self,
        name: str,
        words: list[str],
        folder: Path,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Have ``train.py`` run with these arguments in the folder, once it is time."""
        assert self._process.stdin is not None
        task = {
            'name': name,
            'words': words,
            'folder': str(folder),
            'environ': dict(environ or {}),
        }
        self._process.stdin.write(json.dumps(task) + '\n')
        self._process.stdin.flush()

    def wait(self, name: str, folder: Path, seconds: float = 200.0) -> int:
        """Exit code of that training; negative for a signal."""
        exit_code, deadline_s = folder / f'{name}.exit', time.monotonic() + seconds
        while not exit_code.exists():
            assert self._process.poll() is None, 'the server of trainings is gone'
            assert time.monotonic() < deadline_s, (folder / f'{name}.log').read_text()
            time.sleep(0.02)
        return int(exit_code.read_text())

    def train(self, trainings: dict[str, list[str]], folder: Path) -> None:
        """Run ``train.py`` with each list of arguments.

        Args:
            trainings: Arguments by name.
            folder: Where the logs go, and the current folder of the trainings.

        Raises:
            AssertionError: If one fails; its log is in the message.
        """
        for name, words in trainings.items():
            self.start(name, words, folder)
        failed = [name for name in trainings if self.wait(name, folder)]
        logs = [(folder / f'{name}.log').read_text()[-3000:] for name in failed]
        assert not failed, '\n'.join(map('== {}\n{}'.format, failed, logs))

    def close(self) -> None:
        """End it; it waits for its trainings."""
        self._process.communicate(timeout=30)


def main(script: str, at_once: str) -> None:
    """Import, then fork for each line of standard input, until it ends."""
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    # MMEngine lays out the whole config seven times per training, 0.6 s each
    layout = importlib.import_module('mmengine.config.config')
    layout.FormatCode = lambda text, **_: (text, True)  # type: ignore[attr-defined]
    assert not [name for name in sys.modules if name.startswith('mmgpu_hooks')]
    running: dict[int, Path] = {}
    tasks: list[dict[str, Any]] = []
    text, is_open = b'', True
    while is_open or tasks or running:
        pause_s = 0.02 if running or tasks else None
        if select.select([0] if is_open else [], [], [], pause_s)[0]:
            told = os.read(0, 2**16)
            is_open = bool(told)
            *lines, text = (text + told).split(b'\n')
            tasks += map(json.loads, lines)
        while tasks and len(running) < int(at_once):
            task = tasks.pop(0)
            path = Path(task['folder']) / task['name']
            pid = _fork(
                [script, *task['words']], path.with_suffix('.log'), task['environ']
            )
            path.with_suffix('.pid').write_text(str(pid))
            running[pid] = path
        _note_ends(running)


def _note_ends(running: dict[int, Path]) -> None:
    """Leave the exit codes of those that have ended."""
    for pid in list(running):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            path = running.pop(pid).with_suffix('.exit')
            # whole at once: somebody waits for it
            path.with_suffix('.part').write_text(str(os.waitstatus_to_exitcode(status)))
            path.with_suffix('.part').replace(path)


def _fork(words: list[str], log: Path, environ: dict[str, str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for descriptor in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
        os.chdir(log.parent)
        os.environ.update(environ)
        sys.argv = words
        runpy.run_path(words[0], run_name='__main__')
        code = 0
    except BaseException:  # noqa: BLE001  # a fork must not return into the parent
        traceback.print_exc()
    finally:
        # the workers of an iteration-based run live as long as their loader
        for worker in multiprocessing.active_children():
            worker.kill()
        os._exit(code)


if __name__ == '__main__':
    main(*sys.argv[1:])
