"""Trains MMDetection with its own ``tools/train.py``, several configs in one go.

Importing MMDetection takes longer than a training of these: ``train_forked`` imports
it once and forks for each training. Nothing of ours is imported before the fork, so
how a config makes the hook known is tested for real.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

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
    batch_size=2, num_workers={num_workers}, persistent_workers={persistent_workers},
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


def train_forked(trainings: dict[str, list[str]], folder: Path) -> None:
    """Run ``train.py`` with each list of arguments; two at a time.

    Args:
        trainings: Arguments by name; the log is left in ``<folder>/<name>.log``.
        folder: Where the logs go, and the current folder of the trainings.

    Raises:
        AssertionError: If one fails; its log is in the message.
    """
    done = subprocess.run(
        command_of(trainings, folder),
        cwd=folder,
        env=environ(),
        capture_output=True,
        text=True,
        timeout=200,
    )
    logs = '\n'.join(
        f'== {name}\n{(folder / f"{name}.log").read_text()[-3000:]}'
        for name in done.stdout.split()
    )
    assert done.returncode == 0, done.stderr + logs


def command_of(trainings: dict[str, list[str]], folder: Path) -> list[str]:
    """What :func:`train_forked` runs, which prints the names of those that failed.

    While a training runs its process id is in ``<folder>/<name>.pid``, and then its
    exit code in ``<folder>/<name>.exit``.
    """
    from mmgpu_hooks.experiments.training import find_train_script

    script = str(find_train_script())
    command = [sys.executable, '-m', 'training.detection', script, str(folder)]
    for name, arguments in trainings.items():
        command += ['--run', name, *arguments]
    return command


def main(arguments: list[str]) -> int:
    """Import, fork and wait; prints the names of the trainings that failed."""
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    # MMEngine lays out the whole config seven times per training, 0.6 s each
    layout = importlib.import_module('mmengine.config.config')
    layout.FormatCode = lambda text, **_: (text, True)  # type: ignore[attr-defined]
    assert not [name for name in sys.modules if name.startswith('mmgpu_hooks')]
    script, folder = arguments[0], Path(arguments[1])
    starts = [i for i, word in enumerate(arguments) if word == '--run']
    trainings = [
        arguments[start + 1 : end]
        for start, end in zip(starts, [*starts[1:], len(arguments)])
    ]
    running: dict[int, str] = {}
    failed = []
    while trainings or running:
        while trainings and len(running) < 2:
            name, *words = trainings.pop(0)
            pid = _fork([script, *words], folder / f'{name}.log')
            (folder / f'{name}.pid').write_text(str(pid))
            running[pid] = name
        pid, status = os.wait()
        name = running.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        (folder / f'{name}.exit').write_text(str(code))
        if status != 0:
            failed.append(name)
    print('\n'.join(failed))
    return 1 if failed else 0


def _fork(words: list[str], log: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for descriptor in (1, 2):
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
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
    sys.exit(main(sys.argv[1:]))
