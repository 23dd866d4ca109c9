"""Planted reasons for full memory in real trainings, and what is found.

Each case trains a toy model on MMEngine's own Runner, with the hook on, in a process of
its own. One thing in it takes memory, or cores; every other finding is a false alarm,
and in a healthy twin each is one.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import (
    Benchmark,
    at_least,
    at_most,
    exactly,
    find_evidence,
    recommend,
    render_table,
    say,
)

SECONDS = 40
"""Of training: a reading a second, 16 of them behind the first third."""
REPEATS, AT_ONCE = 3, 2
KEPT_BYTES = 200_000
"""What a planted list keeps of each sample or iteration."""
SHM_BYTES = 64 * 2**20
ABOUT = r'MG4\d\d|MG115'


@dataclass(frozen=True)
class Case:
    """One planted reason.

    Attributes:
        plant: What the training does.
        code: The rule that must find it; ``None`` is a twin.
        mib_per_1000: Growth per 1000 iterations that was planted.
        workers: Of the loader.
        threads: That OpenCV may use.
    """

    plant: str
    code: str | None = None
    mib_per_1000: float | None = None
    workers: int = 2
    threads: int = 0


_EACH = 1000 * KEPT_BYTES / 2**20
CASES = {
    'a list that grows in the training process': Case('main', 'MG401', _EACH),
    'a list that grows in the workers': Case('worker', 'MG401', 4 * _EACH),
    'a dataset that keeps 200,000 dicts': Case('dicts', 'MG402', workers=4),
    'twin: the same, serialised': Case('serialised', workers=4),
    '8 OpenCV threads in each of 4 workers': Case('blur', 'MG115', None, 4, 8),
    'twin: one in each': Case('blur', workers=4),
    '/dev/shm of 64 MiB': Case('shm', 'MG403'),
    'twin: nothing': Case('nothing'),
}


def train(case: Case, folder: str) -> None:
    """Train in this process until the time is up."""
    import time

    import cv2
    import numpy as np
    import torch
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.runner import Runner
    from torch.utils.data import Dataset

    from mmgpu_hooks import GPUEfficiencyHook

    plant = case.plant
    records = [{'id': n, 'box': [n + 0.1, n + 0.2, n + 0.3]} for n in range(200_000)]

    class Samples(Dataset):  # type: ignore[type-arg]
        def __init__(self) -> None:
            self.metainfo: dict[str, str] = {}
            self.kept: list[object] = []
            self.data_list = records if plant == 'dicts' else []
            self.data_bytes = np.zeros(60 * 2**20 * (plant == 'serialised'), np.uint8)

        def __len__(self) -> int:
            return len(records)

        def __getitem__(self, index: int) -> torch.Tensor:
            if plant == 'worker':
                self.kept.append(np.ones(KEPT_BYTES // 8))
            elif plant == 'dicts':
                self.data_list[index]['id']
            elif plant == 'blur':
                image = np.full((600, 800, 3), index % 255, np.uint8)
                for _ in range(6):
                    image = cv2.GaussianBlur(image, (9, 9), 2)
            return torch.ones((3, 512, 512) if plant == 'shm' else 8)

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.kept: list[object] = []

        def forward(self, inputs: torch.Tensor, mode: str = '') -> dict[str, object]:
            if plant == 'main':
                self.kept.append(np.ones(KEPT_BYTES // 8))
            time.sleep(0.01)
            return {'loss': self.layer(inputs.reshape(-1, 8)[:8]).mean()}

    class Stop(Hook):
        until_s = time.monotonic() + SECONDS

        def after_train_iter(self, runner: Runner, *_: object, **__: object) -> None:
            if time.monotonic() > self.until_s:
                runner.train_loop._max_iters = runner.iter + 1

    Runner(
        Model(),
        folder,
        train_dataloader={
            'dataset': Samples(),
            'batch_size': 4,
            'num_workers': case.workers,
            'persistent_workers': True,
            'sampler': {'type': 'InfiniteSampler'},
            'collate_fn': lambda batch: {'inputs': torch.stack(batch)},
        },
        train_cfg={'type': 'IterBasedTrainLoop', 'max_iters': 100_000},
        optim_wrapper={'optimizer': {'type': 'SGD', 'lr': 0.1}},
        custom_hooks=[GPUEfficiencyHook(), Stop()],
        default_hooks={'logger': {'type': 'LoggerHook', 'interval': 10}},
        env_cfg={'mp_cfg': {'opencv_num_threads': case.threads}},
        log_level='ERROR',
    ).train()


def play(name: str, folder: Path) -> None:
    """Train once, in a process of its own."""
    words = [sys.executable, '-m', 'benchmarks.memory_causes', '--train', name]
    words += ['--folder', str(folder)]
    if CASES[name].plant == 'shm':
        mount = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$@"'
        words = ['unshare', '-m', 'sh', '-c', mount, 'sh', *words]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f'{name}: {ended.stderr[-2000:]}')


def find(name: str, folder: Path) -> tuple[set[str], float | None]:
    """The rules that found something, and the growth in MiB per 1000 iterations."""
    found = {
        one['code']: one['detail']
        for one in recommend(find_evidence(folder))['findings']
        if re.fullmatch(ABOUT, one['code']) and one['severity'] != 'unknown'
    }
    say(f'{name}: {found}')
    grown = re.search(r'by ([\d.]+) (MiB|GiB) per 1000', found.get('MG401', ''))
    size = float(grown[1]) * {'MiB': 1, 'GiB': 1024}[grown[2]] if grown else None
    return set(found), size


def main(argv: list[str] | None = None) -> int:
    """Play, ask, judge."""
    parser = argparse.ArgumentParser()
    parser.add_argument('--train', choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument('--folder', help=argparse.SUPPRESS)
    bench = Benchmark('memory_causes', __doc__ or '', argv, parser=parser)
    if bench.options.train:
        train(CASES[bench.options.train], bench.options.folder)
        return 0
    mount = ['unshare', '-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']
    can_mount = not subprocess.run(mount, capture_output=True, check=False).returncode
    names = [name for name in CASES if can_mount or CASES[name].plant != 'shm']
    turns = names * (1 if bench.is_quick else REPEATS)
    root = Path(tempfile.mkdtemp(prefix='mmgpu-memory-'))
    try:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            folders = [root / str(number) for number in range(len(turns))]
            list(pool.map(play, turns, folders))
        played = list(zip(turns, map(find, turns, folders)))
    finally:
        shutil.rmtree(root, ignore_errors=True)
    right, false, errors_pct = [], 0, []
    for name, (codes, size) in played:
        case = CASES[name]
        false += len(codes - {case.code})
        if case.code:
            right.append(case.code in codes)
        if case.mib_per_1000:
            error = abs((size or 0.0) / case.mib_per_1000 - 1)
            errors_pct.append(100 * error)
    bench.add(
        at_least('right cause', 100 * sum(right) / len(right), 95, '%'),
        exactly('false alarms', false, 0, note=f'in {len(played)} trainings'),
        at_most('growth, furthest off what was planted', max(errors_pct), 15, '%'),
    )
    rows = [
        [
            name,
            str(CASES[name].code),
            ', '.join(
                ' '.join(sorted(codes)) or '-' for n, (codes, _) in played if n == name
            ),
        ]
        for name in CASES
    ]
    return bench.finish(render_table(['planted', 'rule', 'found, each time'], rows))


if __name__ == '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    sys.exit(main())
