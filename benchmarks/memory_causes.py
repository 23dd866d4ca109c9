"""Benchmark: finding the causes of growing or full memory in real trainings.

Each case trains a toy model on MMEngine's own Runner, with the hook on, in a process of
its own. One thing in it takes memory, or cores; every other finding is a false alarm,
and in a healthy twin each is one. Memory is read four times a second instead of once,
so that a training takes seconds. Cases that are about cores train alone. Then series of
readings are simulated: growth and forecast are held against what was planted, and what
is found in a healthy one is a false alarm. About 5 minutes.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from benchmarks.harness import (
    Benchmark,
    Figure,
    at_least,
    at_most,
    end_workers,
    exactly,
    find_evidence,
    quantile,
    recommend,
    say,
)
from benchmarks.markdown import render_table

MEMORY_S, CORES_S = 15, 8
"""Minimum training time in seconds, of cases on memory and of cases on CPU cores."""
MEMORY_ITERATIONS, CORES_ITERATIONS = 1000, 60
"""Minimum number of iterations, of cases on memory and of cases on CPU cores."""
PERIOD_S = 0.25
"""Seconds between two memory readings of the hook."""
LONGEST_S = 180
"""Maximum duration of one training in seconds."""
REPEATS, AT_ONCE = 3, 5
KEPT_BYTES = 100_000
"""Bytes that a growing list keeps for each sample or iteration, on purpose."""
RESULT_BYTES = 8 * 2**20
"""Bytes that a metric keeps, on purpose, for each of 40 validation batches."""
SHM_BYTES, SHM_SHAPE, SHM_AHEAD = 64 * 2**20, (3, 200, 201), 16
"""Bytes of ``/dev/shm``, with sample shape and prefetch factor that nearly fill it."""
GROUP_ITERATIONS = 30_000
"""Number of iterations until the fake control group's memory is full."""
SHEAR = np.array([[1, 0.05, 3], [0.02, 1, 4]])
ABOUT = r'MG4\d\d|MG115|MG116'
MIB = 2**20


@dataclass(frozen=True)
class Case:
    """Training whose memory grows or fills up for one known reason.

    Attributes:
        plant: What the training does.
        code: The rule that must find it; ``None`` is a twin.
        words: What the finding must say.
        mib_per_1000: Growth per 1000 iterations that was planted.
        workers: Of the loader.
        threads: That OpenCV may use.
        group: Version of the control group that is planted.
    """

    plant: str
    code: str | None = None
    words: str = ''
    mib_per_1000: float | None = None
    workers: int = 2
    threads: int = 0
    group: int | None = None

    @property
    def is_alone(self) -> bool:
        """True if the case needs all cores, so that no other case may run beside it."""
        return self.plant == 'warp'


_EACH = 1000 * KEPT_BYTES / MIB
CASES = {
    'a list that grows in the training process': Case(
        'main', 'MG401', 'training process', _EACH
    ),
    'a list that grows in the workers': Case(
        'worker', 'MG401', 'workers grow', 4 * _EACH
    ),
    "the same, near a control group's limit (v1)": Case(
        'worker', 'MG401', 'control group', 4 * _EACH, group=1
    ),
    "the same, near a control group's limit (v2)": Case(
        'worker', 'MG401', 'control group', 4 * _EACH, group=2
    ),
    'a dataset that keeps 200,000 dicts': Case('dicts', 'MG402', 'data_list', None, 4),
    'twin: the same, serialised': Case('serialised', workers=4),
    'results that validation keeps': Case('results', 'MG407', 'keep'),
    'twin: results that are small': Case('validates'),
    '/dev/shm of 64 MiB': Case('shm', 'MG403'),
    'twin: nothing': Case('nothing'),
    '8 OpenCV threads in each of 4 workers': Case(
        'warp', 'MG115', 'opencv uses 8', None, 4, 8
    ),
    'twin: one in each': Case('warp', workers=4),
    'one worker of one thread, and idle cores': Case('warp', 'MG116', '', None, 1),
}


class Group:
    """Fake control group: a folder that the hook reads in place of ``/sys/fs/cgroup``.

    Args:
        root: Empty folder.
        version: Of the hierarchy.
        growth_bytes: Of an iteration.
    """

    def __init__(self, root: Path, version: int, growth_bytes: float) -> None:
        self.proc, self.sys = root / 'proc', root / 'sys'
        controller, name, limit = '', 'current', 'max'
        if version == 1:
            controller, name, limit = 'memory', 'usage_in_bytes', 'limit_in_bytes'
        folder = self.sys / 'fs/cgroup' / controller / 'job'
        folder.mkdir(parents=True)
        own = self.proc / 'self'
        own.mkdir(parents=True)
        (own / 'cgroup').write_text(f'1:{controller}:/job\n')
        (folder / 'memory.stat').write_text('inactive_file 0\n')
        room = GROUP_ITERATIONS * growth_bytes
        (folder / f'memory.{limit}').write_text(str(int(2**30 + room)))
        self._used, self._growth = folder / f'memory.{name}', growth_bytes
        self.fill(0)

    def fill(self, iterations: int) -> None:
        """Writes the fake control group's memory usage after a number of iterations."""
        self._used.write_text(str(int(2**30 + iterations * self._growth)))


def train(case: Case, folder: str) -> None:
    """Trains a benchmark case in this process until its planned duration is over."""
    import cv2
    import torch
    from mmengine.evaluator import BaseMetric, Evaluator
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from torch.utils.data import Dataset

    from benchmarks.toy import HOOK, build_runner
    from mmgpu_hooks.measure import cgroup, memory

    warnings.simplefilter('ignore')  # PyTorch's, about more workers than cores
    plant, group = case.plant, None
    memory.PERIOD_S = PERIOD_S
    if case.group:
        growth = (case.mib_per_1000 or 0.0) * MIB / 1000
        group = Group(Path(folder, 'group'), case.group, growth)
        groups = cgroup.find_memory_groups(group.proc, group.sys)
        patch = mock.patch.object(memory, 'find_memory_groups', return_value=groups)
        patch.start()
    records = [{'id': n, 'box': [n + 0.1, n + 0.2, n + 0.3]} for n in range(200_000)]

    class Samples(Dataset[torch.Tensor]):
        def __init__(self, count: int = len(records)) -> None:
            self.metainfo: dict[str, str] = {}
            self.count = count
            self.kept: list[object] = []
            self.data_list = records if plant == 'dicts' else []
            self.data_bytes = np.zeros(60 * MIB * (plant == 'serialised'), np.uint8)

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> torch.Tensor:
            if plant == 'worker':
                self.kept.append(np.ones(KEPT_BYTES // 8))
            elif plant == 'dicts':
                self.data_list[index]['id']
            elif plant == 'warp':
                image = np.full((1000, 1600, 3), index % 255, np.uint8)
                for _ in range(2):
                    cv2.warpAffine(image, SHEAR, (1333, 800))
            return torch.ones(SHM_SHAPE if plant == 'shm' else 8)

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.kept: list[object] = []

        def forward(self, inputs: torch.Tensor, mode: str = '') -> Any:
            if plant == 'main':
                self.kept.append(np.ones(KEPT_BYTES // 8))
            if mode == 'predict':
                return [inputs]
            time.sleep(0.01)
            return {'loss': self.layer(inputs.reshape(-1, 8)[:8]).mean()}

    class Keep(BaseMetric):
        default_prefix = 'keep'

        def process(self, data_batch: Any, data_samples: Any) -> None:
            size = RESULT_BYTES if plant == 'results' else 8
            self.results.append(np.ones(size // 8))

        def compute_metrics(self, results: list[Any]) -> dict[str, int]:
            return {'count': len(results)}

    class Stop(Hook):
        until_s = time.monotonic() + (CORES_S if case.is_alone else MEMORY_S)
        least = CORES_ITERATIONS if case.is_alone else MEMORY_ITERATIONS

        def after_train_iter(self, runner: Any, *_: object, **__: object) -> None:
            if group is not None:
                group.fill(runner.iter)
            if time.monotonic() > self.until_s and runner.iter >= self.least:
                runner.train_loop._max_iters = runner.iter + 1

    collate = lambda batch: {'inputs': torch.stack(batch)}  # noqa: E731
    loader = {'batch_size': 4, 'collate_fn': collate}
    validation: dict[str, Any] = {}
    if plant in ('results', 'validates'):
        sampler = {'type': 'DefaultSampler', 'shuffle': False}
        validation = {
            'val_dataloader': {**loader, 'dataset': Samples(160), 'sampler': sampler},
            'val_cfg': {},
            'val_evaluator': Evaluator([Keep()]),
        }
    runner = build_runner(
        Model(),
        Samples(),
        folder,
        loader={
            **loader,
            'num_workers': case.workers,
            'persistent_workers': True,
            'prefetch_factor': SHM_AHEAD if plant == 'shm' else 2,
            'sampler': {'type': 'InfiniteSampler'},
        },
        hooks={'gpu_efficiency': HOOK},
        train_cfg=dict(type='IterBasedTrainLoop', max_iters=100_000, val_interval=200),
        custom_hooks=[Stop()],
        env_cfg={'mp_cfg': {'opencv_num_threads': case.threads}},
        **validation,
    )
    runner.train()
    end_workers(runner.train_dataloader._iterator)


def play(name: str, folder: Path) -> None:
    """Trains a benchmark case in a child process, with a small ``/dev/shm`` if needed.

    Raises:
        subprocess.SubprocessError: If it does not train, or does not end.
    """
    words = [sys.executable, '-m', 'benchmarks.memory_causes', name, str(folder)]
    if CASES[name].plant == 'shm':
        mount = f'mount -t tmpfs -o size={SHM_BYTES} tmpfs /dev/shm && exec "$@"'
        words = ['unshare', '-m', 'sh', '-c', mount, 'sh', *words]
    folder.mkdir()
    subprocess.run(words, check=True, timeout=LONGEST_S, stdout=subprocess.DEVNULL)


def play_all(turns: list[str], root: Path) -> list[Path]:
    """Trains all benchmark cases, those that need all cores last; returns folders."""
    folders = [root / str(number) for number in range(len(turns))]
    for is_alone, most in ((False, AT_ONCE), (True, 1)):
        some = [p for p in zip(turns, folders) if CASES[p[0]].is_alone is is_alone]
        with ThreadPoolExecutor(most) as pool:
            for _ in pool.map(play, *zip(*some)):
                pass
    return folders


class FoundMemory(NamedTuple):
    """Findings of ``mmgpu recommend`` on one training's memory and CPU cores."""

    sentences: dict[str, str]
    """Sentence of each finding, by rule code."""
    mib_per_1000: float | None = None
    """Reported memory growth in MiB per 1000 iterations; ``None`` if not reported."""
    full_at: int | None = None
    """Predicted iteration at which memory is full; ``None`` if not predicted."""


def find(name: str, folder: Path) -> FoundMemory:
    """Asks ``mmgpu recommend`` for its findings on a training's memory and cores."""
    answer = recommend(find_evidence(folder))
    found = {
        finding['code']: finding['detail']
        for finding in answer['findings']
        if re.fullmatch(ABOUT, finding['code']) and finding['severity'] != 'unknown'
    }
    say(f'{name}: {found}')
    said, units = found.get('MG401', ''), {'MiB': 1, 'GiB': 1024}
    grown = re.search(r'by ([\d.]+) (MiB|GiB) per 1000', said)
    full = re.search(r'Full in (\d+) iterations', said)
    return FoundMemory(
        found,
        float(grown[1]) * units[grown[2]] if grown else None,
        int(full[1]) + answer['evidence']['iterations'] if full else None,
    )


def measure_error_pct(found: float | None, planted: float) -> float:
    """Returns a reported value's error in per cent; infinite if it is missing."""
    return math.inf if found is None else 100 * abs(found / planted - 1)


class Series(NamedTuple):
    """Simulated series of memory readings."""

    iterations: np.ndarray[Any, Any]
    sizes: np.ndarray[Any, Any]
    """Used memory in bytes at each reading."""


class GrowingSeries(NamedTuple):
    """Simulated series of memory readings with steady growth."""

    series: Series
    bytes_per_1000: float
    """True memory growth in bytes per 1000 iterations."""


class _Blank(NamedTuple):
    """Simulated series of memory readings before growth and jumps are added."""

    rng: np.random.Generator
    at: np.ndarray[Any, Any]
    """Time of each reading relative to the series' length, from 0 to 1."""
    iterations: np.ndarray[Any, Any]
    start_bytes: float


def _draw_blank(seed: int) -> _Blank:
    rng = np.random.default_rng(seed)
    at = np.linspace(0, 1, int(rng.integers(24, 400)))
    iterations = np.arange(1, len(at) + 1) * int(rng.integers(1, 200))
    return _Blank(rng, at, iterations, rng.uniform(300, 20_000) * MIB)


def _draw_noise(rng: np.random.Generator, count: int) -> Any:
    """Draws autocorrelated noise with standard deviation 1."""
    alike, values = rng.choice([0.0, 0.5, 0.9]), rng.normal(size=count)
    for n in range(1, count):
        values[n] = alike * values[n - 1] + np.sqrt(1 - alike**2) * values[n]
    return values


def _warm_up(rng: np.random.Generator, at: Any) -> Any:
    return rng.uniform(0, 0.4) * (1 - np.exp(-at / rng.uniform(0.005, 0.12)))


def draw_healthy(seed: int) -> Series:
    """Simulates memory without a leak: filling caches, jumps, pools or sawtooths."""
    blank = _draw_blank(seed)
    rng, at = blank.rng, blank.at
    sizes = 1 + _warm_up(rng, at)
    sizes += 10 ** rng.uniform(-4, -1.5) * _draw_noise(rng, len(at))
    kind = seed % 5
    if kind == 1:
        for _ in range(rng.integers(1, 4)):
            sizes += rng.uniform(0, 0.1) * (at > rng.uniform())
    elif kind == 2:
        drawn = np.maximum.accumulate(rng.exponential(size=len(at)))
        sizes += rng.uniform(0.004, 0.06) * drawn
    elif kind == 3:
        drawn = np.maximum.accumulate(rng.uniform(size=len(at)))
        sizes += rng.uniform(0.02, 0.3) * drawn
    elif kind == 4:
        epochs = at * rng.integers(2, 12) + rng.uniform()
        sizes += rng.uniform(0.01, 0.2) * (epochs % 1)
    return Series(blank.iterations, blank.start_bytes * sizes)


def draw_growing(seed: int) -> GrowingSeries:
    """Simulates steadily growing memory, with noise and caches that fill up."""
    blank = _draw_blank(seed)
    rng, at = blank.rng, blank.at
    grown = rng.uniform(0.05, 1.5)
    sizes = 1 + _warm_up(rng, at) + grown * at
    sizes += grown * 10 ** rng.uniform(-4, -1.7) * _draw_noise(rng, len(at))
    done = blank.iterations[-1] - blank.iterations[0]
    series = Series(blank.iterations, blank.start_bytes * sizes)
    return GrowingSeries(series, 1000 * blank.start_bytes * grown / done)


def judge_series() -> Iterator[Figure]:
    """Returns figures on simulated memory: false alarms, and errors of found growth."""
    from mmgpu_hooks.model.stats import find_growth

    alarms = sum(find_growth(*draw_healthy(seed)) is not None for seed in range(1000))
    yield at_most('simulated: false alarms', alarms, 10, 'of 1000')
    growth, forecast = [], []
    for seed in range(300):
        planted = draw_growing(seed)
        found, truth = find_growth(*planted.series), planted.bytes_per_1000
        growth.append(100 * abs(found.value / truth - 1) if found else np.inf)
        forecast.append(100 * abs(truth / found.value - 1) if found else np.inf)
    yield at_most('simulated: growth off, p95', quantile(growth, 0.95), 15, '%')
    yield at_most('simulated: forecast off, p95', quantile(forecast, 0.95), 20, '%')


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark: trains and judges all cases, and prints the table."""
    bench = Benchmark('memory_causes', __doc__ or '', argv)
    mount = ['unshare', '-m', 'mount', '-t', 'tmpfs', 'tmpfs', '/mnt']
    can_mount = not subprocess.run(mount, capture_output=True, check=False).returncode
    names = [name for name in CASES if can_mount or CASES[name].plant != 'shm']
    turns = names * (1 if bench.is_quick else REPEATS)
    with tempfile.TemporaryDirectory(prefix='mmgpu-memory-') as root:
        folders = play_all(turns, Path(root))
        played = [(name, find(name, at)) for name, at in zip(turns, folders)]
    right, false, errors_pct, forecasts_pct = [], 0, [], []
    for name, found in played:
        case = CASES[name]
        false += len(found.sentences.keys() - {case.code})
        if case.code:
            said = found.sentences.get(case.code)
            right.append(said is not None and case.words in said.lower())
        if case.mib_per_1000:
            off_pct = measure_error_pct(found.mib_per_1000, case.mib_per_1000)
            errors_pct.append(off_pct)
        if case.group:
            off_pct = measure_error_pct(found.full_at, GROUP_ITERATIONS)
            forecasts_pct.append(off_pct)
    bench.add(
        at_least('right cause', 100 * sum(right) / len(right), 95, '%'),
        exactly('false alarms', false, 0, note=f'in {len(played)} trainings'),
        at_most('growth, furthest off what was planted', max(errors_pct), 15, '%'),
        at_most('forecast, furthest off', max(forecasts_pct), 20, '%'),
        *judge_series(),
    )
    rows = []
    for name, case in CASES.items():
        each = [
            ' '.join(sorted(found.sentences)) or '-'
            for which, found in played
            if which == name
        ]
        rows.append([name, str(case.code), ', '.join(each)])
    return bench.finish(render_table(['planted', 'rule', 'found, each time'], rows))


if __name__ == '__main__':
    os.environ.setdefault('OMP_NUM_THREADS', '1')
    if sys.argv[1:] and sys.argv[1] in CASES:  # started by `play`
        train(CASES[sys.argv[1]], sys.argv[2])
    else:
        sys.exit(main())
