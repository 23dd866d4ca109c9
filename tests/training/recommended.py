"""Runs trainings of config files in processes that end well, fail or are killed.

Also run as ``python -m training.recommended CONFIG FOLDER``; by torchrun, as a rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from mmengine.config import Config
from mmengine.runner import Runner

from mmgpu_hooks.adviser.process import ask_adviser
from mmgpu_hooks.hooks import gpu_efficiency_hook
from training.toy import AfterIteration

BASE = """\
model = dict(type='training.toy.ToyModel', step_s={step_s})
train_dataloader = dict(
    batch_size=2,
    num_workers={num_workers},
    dataset=dict(type='training.toy.ToyDataset', length={length}, item_s={item_s}),
    sampler=dict(type='DefaultSampler', shuffle=True),
    collate_fn=dict(type='pseudo_collate'))
train_cfg = dict(by_epoch=True, max_epochs=1)
optim_wrapper = dict(optimizer=dict(type='SGD', lr=0.01))
default_hooks = dict(
    logger=dict(type='LoggerHook', interval=4),
    checkpoint=dict(type='CheckpointHook', interval=-1, save_last=False),
    gpu_efficiency=dict(type='mmgpu_hooks.GPUEfficiencyHook', stuck_after_s=0))
env_cfg = dict(cudnn_benchmark=False)
visualizer = dict(type='Visualizer', vis_backends=[dict(type='LocalVisBackend')])
"""
CHILD = "_base_ = ['../base/{base}.py']\nrandomness = dict(seed=3)\n"
PURE = """\
from mmengine.config import read_base

with read_base():
    from ..base.{base} import *

randomness = dict(seed=3)
"""
LAST_ITERATION = 35
NOT_ALLOWED, SCRIPT_CODE = 77, 5
"""Exit codes of a training: a file system cannot be mounted; the script ended it."""
IN_FOLDER = 'in the folder: '


def write_configs(folder: Path, style: str = CHILD, **settings: Any) -> Path:
    """Writes ``configs/mine.py`` and its base config; returns the path.

    Args:
        folder: It is made, where it is missing.
        style: `CHILD` or `PURE`.
        settings: ``num_workers``, ``item_s``, ``step_s`` of the training; by default it
            waits for its data most of the time.
    """
    loader = {'num_workers': 0, 'length': 72, 'item_s': 0.015}
    values = {**loader, 'step_s': 0.01, **settings}
    for name, text in (('base/toy.py', BASE), ('configs/mine.py', style)):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.format(base='toy', **values))
    return folder / 'configs' / 'mine.py'


def read_settings(config: Path) -> dict[str, Any]:
    """Returns a loaded config without its ``work_dir``."""
    loaded = Config.fromfile(config).to_dict()
    return {key: value for key, value in loaded.items() if key != 'work_dir'}


@dataclass
class Ended:
    """Result of an ended training: exit code, console output, work_dir."""

    code: int
    console: str
    work_dir: Path

    @property
    def folder(self) -> Path:
        """Folder of the run, named by its start time."""
        (folder,) = filter(Path.is_dir, self.work_dir.glob('[0-9]*'))
        return folder

    @property
    def written(self) -> list[Path]:
        """All files with the name of a recommended config."""
        return sorted(self.work_dir.parent.rglob('*_recommended*'))

    @property
    def last_lines(self) -> list[str]:
        """Lines of the printed summary, from its row ``next`` on."""
        lines = self.console.splitlines()
        starts = [n for n, line in enumerate(lines) if line.startswith('  next ')]
        last = lines[starts[-1] :][:2] if starts else []
        return [line for line in last if line.startswith('  ')]


def train(
    config: Path | dict[str, Any],
    work_dir: Path,
    end: Callable[[Runner], Any] | None = None,
    options: Mapping[str, Any] | None = None,
    begin: Callable[[Path], Any] | None = None,
) -> Ended:
    """Trains a config as ``tools/train.py CONFIG --work-dir DIR`` does.

    Args:
        config: A file, or what is in memory alone.
        work_dir: Of the training.
        end: Called at the end of its last iteration.
        options: By dotted key.
        begin: Called before the Runner is built.
    """
    work_dir.mkdir(parents=True)
    console = work_dir / 'console.txt'
    process = multiprocessing.get_context('fork').Process(
        target=_train, args=(config, work_dir, end, options or {}, begin, console)
    )
    process.start()
    process.join(60)
    assert process.exitcode is not None, console.read_text()
    return Ended(process.exitcode, console.read_text(), work_dir)


def _train(
    config: Path | dict[str, Any],
    work_dir: Path,
    end: Callable[[Runner], Any] | None,
    options: Mapping[str, Any],
    begin: Callable[[Path], Any] | None,
    console: Path,
) -> None:
    sys.stdout = sys.stderr = stream = console.open('w', buffering=1)
    for number in (1, 2):
        os.dup2(stream.fileno(), number)
    _allow_for_a_busy_machine()
    # the layout of the config's copy is a second of every start
    layout: Any = importlib.import_module('mmengine.config.config')
    layout.FormatCode = lambda text, **_: (text, True)
    if begin is not None:
        begin(work_dir)
    loaded = Config(config) if isinstance(config, dict) else Config.fromfile(config)
    sys.argv = ['tools/train.py', str(config)]
    loaded.merge_from_dict(dict(options))
    loaded.work_dir = str(work_dir)
    loaded.launcher = 'none'
    runner = Runner.from_cfg(loaded)

    def do_once(runner: Runner) -> None:
        if end is not None and runner.iter == LAST_ITERATION:
            end(runner)

    runner.register_hook(AfterIteration(do_once, 'LOWEST'))
    runner.train()
    # where a file system of its own is seen by it alone
    print(f'{IN_FOLDER}{sorted(os.listdir(runner.log_dir))}')
    sys.exit(SCRIPT_CODE)


def _allow_for_a_busy_machine() -> None:
    gpu_efficiency_hook.ask_adviser = functools.partial(ask_adviser, limit_s=60.0)


def interrupt(runner: Runner) -> None:
    """Interrupts the training, as Ctrl-C does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def interrupt_adviser(runner: Runner) -> None:
    """Interrupts the process that writes the recommended config, as Ctrl-C does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config, begun = Path(runner.cfg.filename), Path(runner.work_dir, 'begun.txt')
    code = f'import time\nopen({str(begun)!r}, "w").close()\ntime.sleep(60)\n'
    config.write_text(config.read_text() + code)

    def press() -> None:
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


def fail(runner: Runner) -> None:
    """Raises an exception, as a user's code might."""
    raise ValueError('planted')


def kill(runner: Runner) -> None:
    """Kills the training by SIGKILL, as the kernel does when memory is full."""
    os.kill(os.getpid(), signal.SIGKILL)


def leave(runner: Runner) -> None:
    """Exits the training script with an exit code of its own."""
    sys.exit(7)


def put_a_folder_there(runner: Runner) -> None:
    """Creates a folder in place of the recommended config."""
    os.mkdir(Path(runner.log_dir, 'mine_recommended.py'))


_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def enter_own_mounts(work_dir: Path) -> None:
    """Gives this process and its children mounts of their own."""
    library = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    if library.unshare(_CLONE_NEWNS if user == 0 else _CLONE_NEWNS | _CLONE_NEWUSER):
        os._exit(NOT_ALLOWED)
    if user:
        Path('/proc/self/setgroups').write_text('deny')
        Path('/proc/self/uid_map').write_text(f'0 {user} 1')
        Path('/proc/self/gid_map').write_text(f'0 {group} 1')
    _mount('', '/', '', _MS_REC | _MS_PRIVATE)


def make_read_only(runner: Runner) -> None:
    """Makes the run's folder read-only, except for files already open."""
    folder = runner.log_dir
    _mount(folder, folder, '', _MS_BIND)
    _mount('', folder, '', _MS_BIND | _MS_REMOUNT | _MS_RDONLY)


def train_on_small_disk(work_dir: Path) -> None:
    """Mounts a file system with few inodes as work_dir."""
    enter_own_mounts(work_dir)
    _mount('tmpfs', str(work_dir), 'tmpfs', 0, 'nr_inodes=100')


def fill_disk(runner: Runner) -> None:
    """Fills the file system so that no further file can be created.

    Without a watchdog: it would remove a file of its own when training ends.
    """
    with contextlib.suppress(OSError):
        for number in range(100):
            Path(runner.work_dir, f'{number}.txt').touch()


def _mount(source: str, target: str, kind: str, flags: int, options: str = '') -> None:
    library = ctypes.CDLL(None, use_errno=True)
    words = [word.encode() for word in (source, target, kind)]
    if library.mount(*words, ctypes.c_ulong(flags), options.encode()):
        os._exit(NOT_ALLOWED)


def train_ranks(config: Path, work_dir: Path) -> subprocess.CompletedProcess[str]:
    """Trains a config on two ranks by torchrun."""
    from training.detection import environ

    command = [sys.executable, '-m', 'torch.distributed.run', '--standalone']
    command += ['--nproc_per_node=2', '-m', 'training.recommended']
    words: Sequence[str] = [*command, str(config), str(work_dir)]
    return subprocess.run(
        words, env=environ(), capture_output=True, text=True, timeout=120
    )


def _main(config: str, work_dir: str) -> None:
    _allow_for_a_busy_machine()
    torch.set_num_threads(1)
    launcher = 'pytorch' if 'RANK' in os.environ else 'none'
    if launcher != 'none':
        torch.distributed.init_process_group('gloo')
    loaded = Config.fromfile(config)
    loaded.work_dir, loaded.launcher = work_dir, launcher
    Runner.from_cfg(loaded).train()
    with contextlib.suppress(Exception):
        torch.distributed.destroy_process_group()


if __name__ == '__main__':
    _main(*sys.argv[1:])
