"""Program of ``benchmarks.why``: a training that fails or hangs on purpose.

A toy model on MMEngine's own Runner with the hook on; `benchmarks.why` starts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import torch
from mmengine.dist import get_dist_info
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import DATA_SAMPLERS
from mmengine.runner import Runner
from torch.utils.data import Dataset, Sampler

from benchmarks import why_hangs
from benchmarks.toy import HOOK, build_runner

AT, AT_ITERATION = 27, 20
"""Sample and iteration at which the training fails: batch 13, loaded by worker 1."""
ITERATIONS, BATCH = 40, 2

PLANT, FOLDER, STUCK_AFTER_S = (*sys.argv[1:], '', '', '')[:3]
SLOW_S = 10.0
"""Seconds of a slow part of the training: twice the limit for a hang alarm."""
LOCK = threading.Lock()
RANK = os.environ.get('RANK')


def stand_on_rank(number: int) -> None:
    """Sleeps for ever on one rank, but not on the others."""
    if str(number) == RANK:
        time.sleep(3600)


def begin_and_stand() -> None:
    note_begin()
    stand_on_rank(1)


def compute(seconds: float) -> None:
    """Computes on one core for ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(100_000))


def parse_on_rank_1() -> None:
    """Works on rank 1 before training, while other ranks wait."""
    compute(SLOW_S * (RANK == '1'))


def burn() -> None:
    while True:
        sum(range(10_000))


def read_fifo() -> None:
    path = Path(FOLDER, f'{AT:012d}.jpg')
    os.mkfifo(path)
    path.read_bytes()


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def limit_files() -> None:
    used = max(int(name) for name in os.listdir('/proc/self/fd'))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 2, used + 2))


def be_killed_for_memory() -> None:
    Path(FOLDER, 'group', 'memory.events').write_text('oom 1\noom_kill 1\n')
    send(signal.SIGKILL)


def raise_on_rank_1() -> None:
    if RANK == '1':
        raise ValueError('boxes of this image have no area')


def debug() -> None:
    import pdb

    read_end, write_end = os.pipe()
    types = threading.Timer(SLOW_S, os.write, (write_end, b'continue\n'))
    types.start()
    with open(read_end) as keys:
        pdb.Pdb(stdin=keys, stdout=sys.stderr, readrc=False).set_trace()


IN_SAMPLE: dict[str, Callable[[], object]] = {
    'sleep': partial(time.sleep, 3600),
    'burn': burn,
    'kill worker': partial(send, signal.SIGKILL),
    'crash worker': partial(send, signal.SIGSEGV),
    'stop worker': partial(send, signal.SIGSTOP),
    'missing file': Path(f'data/train/{AT:012d}.jpg').read_bytes,
    'fifo': read_fifo,
    'backtrack': partial(re.match, '(a+)+b', 'a' * 64),
    'sleep on rank 1': lambda: time.sleep(3600 * (RANK == '1')),
    **why_hangs.IN_SAMPLE,
}
IN_ITERATION: dict[str, Callable[[], object]] = {
    'few files': limit_files,
    'kill for memory': be_killed_for_memory,
    'kill run': partial(send, signal.SIGKILL),
    'kill rank 1': lambda: send(signal.SIGKILL) if RANK == '1' else None,
    'raise on rank 1': raise_on_rank_1,
    'work on rank 0': partial(stand_on_rank, 0),
    'ctrl-c': partial(send, signal.SIGINT),
    'debugger': debug,
}


SLOW_VALIDATIONS = 'validation', 'a slow metric on rank 0'
STANDING_VALIDATIONS = 'process stands', 'metric stands'
SHARDED = 'uneven', 'uneven and a validation'


def note_begin() -> None:
    """Writes the time at which the training begins to fail or hang."""
    with contextlib.suppress(FileExistsError), open(f'{FOLDER}/began', 'x') as file:
        file.write(str(time.time()))


class Images(Dataset[dict[str, Any]]):
    """Data set with one image that makes the training fail or hang."""

    metainfo: ClassVar[dict[str, Any]] = {}

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(0.005)
        if PLANT in IN_SAMPLE and (index == AT or PLANT == 'OpenMP'):
            note_begin()
            IN_SAMPLE[PLANT]()
        if PLANT == 'lock':
            note_begin()
            LOCK.acquire()
        if PLANT == 'slow batch':
            note_begin()
            time.sleep(SLOW_S)
        if PLANT == 'slow epoch' and index < 4 and not Path(FOLDER, 'second').exists():
            time.sleep(SLOW_S / 3)
        side = 1024 if PLANT == 'shm' and index == AT else 8
        return {'inputs': torch.ones(3, side, side), 'data_samples': 1.0}


@DATA_SAMPLERS.register_module()
class Shards(Sampler[int]):
    """Sampler with unequal shards: rank 1 has two batches fewer than rank 0."""

    def __init__(self, dataset: Any, **_: Any) -> None:
        rank, ranks = get_dist_info()
        count = len(dataset) // ranks - 2 * BATCH * (rank == 1)
        self.indices = range(rank, rank + ranks * count, ranks)

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return len(self.indices)


class Model(BaseModel):
    """Model with one convolution and enough weights for a checkpoint of 0.4 MB."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Conv2d(3, 4, 3)
        self.ballast = torch.nn.Linear(300, 300, bias=False)
        if PLANT == 'no gradient':
            self.branch = torch.nn.Linear(1, 1)
        self.steps = 0

    def forward(self, inputs: Any, data_samples: Any = None, mode: str = '') -> Any:
        found = self.layer(torch.stack(inputs)).mean()
        if mode != 'loss':
            return [found]
        time.sleep(0.02)
        self.steps += 1
        is_nan = PLANT == 'nan' and self.steps > AT_ITERATION
        loss = found * float('nan') if is_nan else found
        # a branch that one rank's batches do not take
        if PLANT == 'no gradient' and (RANK != '1' or self.steps < AT_ITERATION):
            loss = loss + self.branch(loss.reshape(1, 1)).sum()
        return {'loss': loss + 0.0 * self.ballast.weight.sum()}


class Score(BaseMetric):
    """Metric that is slow or hangs, per image or in ``compute_metrics``."""

    def process(self, data_batch: Any, data_samples: Any) -> None:
        if PLANT == 'process stands':
            stand()
        compute(0.5 * (PLANT in SLOW_VALIDATIONS))
        self.results.append(1.0)

    def compute_metrics(self, results: list[Any]) -> dict[str, float]:
        if PLANT == 'metric stands':
            stand()
        compute(SLOW_S * (PLANT in SLOW_VALIDATIONS))
        return {'score': 1.0}


def stand() -> None:
    """Waits for a lock that nobody releases."""
    note_begin()
    with LOCK:
        LOCK.acquire()


class Plant(Hook):
    """Hook that makes the training fail or hang between two iterations."""

    def after_train_iter(self, runner: Any, batch_idx: int, **_: Any) -> None:
        if batch_idx == AT_ITERATION and PLANT in IN_ITERATION:
            note_begin()
            IN_ITERATION[PLANT]()

    def after_train_epoch(self, runner: Any) -> None:
        Path(FOLDER, 'second').touch()
        if PLANT in SHARDED:
            note_begin()

    def before_save_checkpoint(self, runner: Any, checkpoint: Any) -> None:
        time.sleep(SLOW_S * (PLANT in ('slow save', 'a slow save on rank 0')))


def mount_small(path: Path, kib: int) -> None:
    """Mounts a small file system at a path, visible only to this training."""
    path.mkdir(exist_ok=True)
    mount = ['mount', '-t', 'tmpfs', '-o', f'size={kib}k', 'tmpfs', str(path)]
    subprocess.run(mount, check=True)


def plant_group(group: Path) -> None:
    """Makes a folder this process's control group, with a memory limit."""
    import msgspec

    from mmgpu_hooks.hooks import sources
    from mmgpu_hooks.measure import now
    from mmgpu_hooks.measure.cgroup import GroupFolder
    from mmgpu_hooks.measure.host import read_host_limits

    group.mkdir()
    (group / 'memory.events').write_text('oom 0\noom_kill 0\n')
    limits = read_host_limits(ranks_on_host=1)
    limits = msgspec.structs.replace(limits, cgroup_memory_bytes=2**33)
    for module, name, found in (
        (now, 'read_cgroup_folders', [GroupFolder(2, group)]),
        (sources, 'read_host_limits', limits),
    ):
        mock.patch.object(module, name, return_value=found).start()


def prepare() -> dict[str, Any]:
    """Prepares a planned failure or hang; returns additional Runner arguments."""
    folder = Path(FOLDER)
    # a shell's background job ignores it
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if PLANT == 'kill for memory':
        plant_group(folder / 'group')
    if PLANT == 'shm':
        mount_small(Path('/dev/shm'), 4096)
    if PLANT == 'disk':
        mount_small(folder / 'disk', 128)
    if PLANT == 'lock':
        threading.Thread(target=LOCK.acquire).start()
    if PLANT in why_hangs.BEFORE_FORK:
        why_hangs.BEFORE_FORK[PLANT]()
    more: dict[str, Any] = {}
    if PLANT in (
        *SLOW_VALIDATIONS,
        *STANDING_VALIDATIONS,
        'uneven and a validation',
    ):
        loader = {'dataset': Images(16), 'sampler': {'type': 'DefaultSampler'}}
        more = dict(
            val_dataloader={**loader, 'batch_size': 1, 'num_workers': 0},
            val_cfg={},
            val_evaluator={'type': Score},
        )
    if RANK is not None:
        torch.distributed.init_process_group('gloo')
        # without it MMEngine gives each rank a GPU of its own
        wrapper = {'type': 'MMDistributedDataParallel', 'device_ids': None}
        more.update(
            launcher='pytorch',
            env_cfg={'dist_cfg': {'backend': 'gloo'}},
            cfg={'model_wrapper_cfg': wrapper},
        )
    return more


class StandingRunner(Runner):
    """Runner whose rank 1 does not take part in broadcasting the weights."""

    def wrap_model(self, *args: Any, **kwargs: Any) -> Any:
        begin_and_stand()
        return super().wrap_model(*args, **kwargs)


def train() -> None:
    """Trains until the planned failure or hang."""
    torch.set_num_threads(1)
    more = prepare()
    if PLANT == 'before the weights':
        more['kind'] = StandingRunner
    checkpoint: dict[str, Any] = {'type': 'CheckpointHook', 'interval': -1}
    if PLANT in ('disk', 'slow save', 'a slow save on rank 0'):
        checkpoint.update(interval=25, by_epoch=False)
    if PLANT == 'disk':
        checkpoint.update(out_dir=f'{FOLDER}/disk')
    watched = {'type': HOOK['type'], 'stuck_after_s': float(STUCK_AFTER_S)}
    optimizer = 'SDG' if PLANT == 'typo' else 'SGD'
    runner = build_runner(
        Model(),
        Images(ITERATIONS * BATCH * int(os.environ.get('WORLD_SIZE', '1'))),
        f'{FOLDER}/run',
        loader={
            'batch_size': 8 if PLANT == 'slow batch' else BATCH,
            'num_workers': 2 * (PLANT != 'backtrack'),
            'pin_memory': PLANT == 'pin thread',
        },
        hooks={
            'logger': {'type': 'LoggerHook', 'interval': 5},
            'checkpoint': checkpoint,
            'gpu_efficiency': watched,
        },
        train_cfg={'by_epoch': True, 'max_epochs': 2},
        optim_wrapper={'optimizer': {'type': optimizer, 'lr': 0.01}},
        custom_hooks=[Plant()],
        log_level='INFO',
        **more,
    )
    if PLANT in SHARDED:
        runner._train_dataloader['sampler'] = {'type': 'Shards'}
    if PLANT == 'a rank that never came':
        # as where its checkpoint lies on a mount that does not answer
        runner.load_or_resume = begin_and_stand
    if PLANT == 'a slow start of rank 1':
        runner.load_or_resume = parse_on_rank_1
    try:
        runner.train()
    except ValueError:
        # one with a thread of its own lives on, and the other ranks wait for it
        traceback.print_exc()
        time.sleep(3600)


if __name__ == '__main__':
    train()
