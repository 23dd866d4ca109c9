"""Benchmark: naming the process or object that fills the host's memory.

Each case trains a toy model on MMEngine's own Runner, with the hook on, in a process of
its own, in a control group with a memory limit. One thing in it takes memory, until the
kernel kills a process. What `mmgpu why` and `mmgpu recommend` say is
held against what was planted, less what a twin holds in which nothing was. Where they
say that another number of workers would have held, the training is repeated with it
under the same limit, and must end by itself. Where no control group can be made,
nothing is judged. About 5 minutes.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness import (
    Benchmark,
    Figure,
    ask,
    at_most,
    end_workers,
    exactly,
    find_evidence,
    read_records,
    recommend,
    say,
)

MIB = 2**20
GROUPS = (Path('/sys/fs/cgroup/memory'), Path('/sys/fs/cgroup'))
"""Mount points of the memory controller of cgroup versions 1 and 2."""
LONGEST_S = 150
"""Maximum duration of one training in seconds."""
STEP_S = 0.02
BATCHES, EPOCHS, SIZE = 400, 4, 2
SHM_MIB, RESULT_MIB, PARSED_MIB, BALLAST_MIB = 500, 20, 400, 160
LEAK_BYTES, LIST_BYTES = 200_000, 1_000_000
"""Bytes leaked per sample in a worker, and per iteration in the training process."""
HOLDERS = {
    'worker': r'\d+ workers? ([\d.]+)',
    'process': r'training process(?:es)? ([\d.]+)',
    'shm': r'shared memory \(/dev/shm and any other tmpfs\) ([\d.]+)',
    'results': r'results of \w+ ([\d.]+)',
    'parsed': r'([\d.]+) of it the data set',
}
UNIT = re.compile(r'[Oo]f [\d.]+ (GiB|MiB)')
WOULD_HOLD = re.compile(r'with (\d+) workers?( and persistent_workers=False)? it would')


@dataclass(frozen=True)
class Case:
    """Training in which one known process or object holds most of the memory.

    Attributes:
        plant: Who takes memory: a key of `HOLDERS`.
        limit_mib: Of the control group.
        workers: Of the loader.
        ranks: Processes that train.
        leaks: Whether samples leave it in the workers, and not a cache that fills.
        burst: Iterations in which the training process takes 4 MiB as well.
        is_killed: Whether the limit is passed, and not only nearly reached.
    """

    plant: str
    limit_mib: int
    workers: int = 0
    ranks: int = 1
    leaks: bool = False
    burst: range = range(0)
    is_killed: bool = True


CASES = {
    'workers that leak': Case('worker', 800, workers=4, leaks=True),
    'large workers': Case('worker', 1210, workers=5, is_killed=False),
    'a growing training process': Case('process', 900),
    'a full /dev/shm': Case('shm', 960, burst=range(300, 1600)),
    'a metric that keeps results': Case('results', 1000),
    'a data set parsed by each of two ranks': Case(
        'parsed', 1600, ranks=2, burst=range(300, 1600)
    ),
}
QUICK = 'large workers', 'a full /dev/shm'


class Limit:
    """Context with a control group (cgroup) that limits the memory of a training.

    Args:
        mib: The limit.
    """

    def __init__(self, mib: int) -> None:
        self._bytes = mib * MIB

    def __enter__(self) -> Path:
        top = next(folder for folder in GROUPS if _has_memory(folder))
        self._folder = top / f'mmgpu_bench_{os.getpid()}_{time.monotonic_ns()}'
        self._folder.mkdir()
        version_1 = top / 'memory.limit_in_bytes'
        name = 'memory.limit_in_bytes' if version_1.exists() else 'memory.max'
        (self._folder / name).write_text(str(self._bytes))
        with contextlib.suppress(OSError):  # swap would hide that memory is full
            (self._folder / 'memory.swap.max').write_text('0')
        return self._folder

    def __exit__(self, *_: object) -> None:
        for _attempt in range(100):
            with contextlib.suppress(OSError):
                self._folder.rmdir()
                return
            time.sleep(0.1)


def _has_memory(folder: Path) -> bool:
    names = 'memory.limit_in_bytes', 'cgroup.subtree_control'
    texts = [folder / name for name in names if (folder / name).is_file()]
    if not texts:
        return False
    return texts[0].name == names[0] or 'memory' in texts[0].read_text().split()


def can_limit() -> bool:
    """True if this machine allows creating a control group with a memory limit."""
    try:
        with Limit(1000):
            return True
    except (OSError, StopIteration):
        return False


def train(
    case: Case, folder: str, workers: int, ends_workers: bool, plants: bool
) -> None:
    """Trains a benchmark case in this process, until the end or until it is killed."""
    import torch
    from mmengine.evaluator import BaseMetric, Evaluator
    from mmengine.hooks import Hook
    from mmengine.model import BaseModel
    from mmengine.registry import DATASETS
    from torch.utils.data import Dataset

    from benchmarks.toy import HOOK, build_runner

    warnings.simplefilter('ignore')  # PyTorch's, about more workers than cores
    plant = case.plant if plants else ''

    @DATASETS.register_module()
    class Samples(Dataset[torch.Tensor]):
        metainfo: dict[str, str] = {}  # noqa: RUF012  # MMEngine asks for it

        def __init__(self, count: int = BATCHES * SIZE * case.ranks) -> None:
            self.count = count
            self.kept: list[Any] = []
            if plant == 'parsed':
                self.kept.append(np.ones(PARSED_MIB * MIB // 8))

        def __len__(self) -> int:
            return self.count

        def __getitem__(self, index: int) -> torch.Tensor:
            if plant == 'worker' and case.leaks:
                self.kept.append(np.ones(LEAK_BYTES // 8))
            elif plant == 'worker' and len(self.kept) < BALLAST_MIB // 2:
                # a cache that fills
                self.kept.append(np.ones(2 * MIB // 8))
            return torch.ones(8)

    class Model(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 1)
            self.kept: list[Any] = []
            self.steps = 0

        def forward(self, inputs: torch.Tensor, mode: str = '') -> Any:
            time.sleep(STEP_S)
            if mode == 'predict':
                return [inputs]
            self.steps += 1
            if self.steps in case.burst:
                self.kept.append(np.ones(4 * MIB // 8))
            if plant == 'process':
                self.kept.append(np.ones(LIST_BYTES // 8))
            return {'loss': self.layer(inputs.reshape(-1, 8)[:8]).mean()}

    class Keep(BaseMetric):
        default_prefix = 'keep'

        def process(self, data_batch: Any, data_samples: Any) -> None:
            if plant == 'results':
                time.sleep(0.3)
                self.results.append(np.ones(RESULT_MIB * MIB // 8))
                Path(folder, 'kept').write_text(str(len(self.results)))

        def compute_metrics(self, results: list[Any]) -> dict[str, int]:
            return {'count': len(results)}

    class FillSharedMemory(Hook):
        """Hook that fills ``/dev/shm`` with a file that is deleted with the process."""

        def before_train_iter(self, runner: Any, batch_idx: int, **_: Any) -> None:
            if runner.iter == 100 and plant == 'shm':
                fd = os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)
                os.posix_fallocate(fd, 0, SHM_MIB * MIB)

    collate = lambda batch: {'inputs': torch.stack(batch)}  # noqa: E731
    validation: dict[str, Any] = {}
    if case.plant == 'results':
        validation = {
            'val_dataloader': {
                'dataset': Samples(60),
                'batch_size': 1,
                'num_workers': 0,
                'collate_fn': collate,
                'sampler': {'type': 'DefaultSampler', 'shuffle': False},
            },
            'val_cfg': {},
            'val_evaluator': Evaluator([Keep()]),
        }
    ranks: dict[str, Any] = {}
    if case.ranks > 1:
        # MMEngine's own start of a group asks for a GPU, and its wrapper for one each
        torch.distributed.init_process_group('gloo')
        wrapper = {'type': 'MMDistributedDataParallel', 'device_ids': None}
        ranks = {'launcher': 'pytorch', 'cfg': {'model_wrapper_cfg': wrapper}}
    runner = build_runner(
        Model(),
        {'type': 'Samples'},
        folder,
        loader={
            'batch_size': SIZE,
            'collate_fn': collate,
            'num_workers': workers,
            'persistent_workers': workers > 0 and not ends_workers,
            'sampler': {'type': 'DefaultSampler', 'shuffle': False},
        },
        hooks={'gpu_efficiency': HOOK},
        train_cfg={'by_epoch': True, 'max_epochs': EPOCHS, 'val_interval': 1},
        custom_hooks=[FillSharedMemory()],
        **ranks,
        **validation,
    )
    runner.train()
    end_workers(getattr(runner.train_dataloader, '_iterator', None))
    Path(folder, 'done').touch()


def play(
    name: str,
    folder: Path,
    workers: int | None = None,
    *,
    ends_workers: bool = False,
    plants: bool = True,
) -> bool:
    """Trains a benchmark case under a memory limit; returns True if it completed.

    Args:
        name: Of the case.
        folder: For the run; the console is in ``console.txt``.
        workers: By default the case's.
        ends_workers: Whether they end with each epoch.
        plants: False for the twin.
    """
    case = CASES[name]
    count = case.workers if workers is None else workers
    words = [name, str(folder), str(count), str(int(ends_workers)), str(int(plants))]
    python = [sys.executable]
    if case.ranks > 1:
        python += ['-m', 'torch.distributed.run', f'--nproc_per_node={case.ranks}']
        python += ['--master_port=29517']
    folder.mkdir()
    enter = 'echo $$ > "$LIMIT/cgroup.procs" && exec "$@"'
    environ = {**os.environ, 'OMP_NUM_THREADS': '1'}
    with Limit(case.limit_mib) as group, (folder / 'console.txt').open('w') as console:
        process = subprocess.Popen(
            ['sh', '-c', enter, 'sh', *python, '-m', 'benchmarks.holders', *words],
            stdout=console,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**environ, 'LIMIT': str(group)},
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LONGEST_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pid in (group / 'cgroup.procs').read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
    return (folder / 'done').exists()


@dataclass(frozen=True)
class BothAnswers:
    """Answers of ``mmgpu recommend`` and ``mmgpu why`` about one training.

    Attributes:
        sentence: Who holds memory.
        planted_mib: At that time; ``None`` for the twin.
        named_mib: Of the planted holder.
        cause: By ``mmgpu why``.
        settings: Recommended, by key.
    """

    sentence: str
    planted_mib: float
    named_mib: float
    cause: str | None
    settings: dict[str, Any]


def find(name: str, folder: Path) -> BothAnswers:
    """Asks ``mmgpu recommend`` and ``mmgpu why`` about a finished training."""
    case, evidence = CASES[name], find_evidence(folder)
    records = read_records(evidence, 'memory')
    low = [record for record in records if record.get('is_low')]
    worst = max(low or records, key=lambda record: record['used_bytes'])
    console = folder / 'console.txt'
    shown = ['--log', str(console)] if console.stat().st_size else []
    why = ask('why', str(folder), *shown)
    answer = recommend(evidence)
    said = [f['detail'] for f in answer['findings'] if f['code'] == 'MG409']
    said += [proof['text'] for proof in why['proof'] if UNIT.match(proof['text'])]
    sentence = said[0] if said else ''
    settings = {change['key']: change['new'] for change in answer['changes']}
    named = _read_named(case, sentence)
    say(f'{name}: {why["cause"]}; {sentence} {settings}')
    planted_mib = _planted_mib(case, worst, folder)
    return BothAnswers(sentence, planted_mib, named, why['cause'], settings)


def _read_named(case: Case, sentence: str) -> float:
    unit, found = UNIT.match(sentence), re.search(HOLDERS[case.plant], sentence)
    if unit is None or found is None:
        return 0.0
    return float(found[1]) * (1024 if unit[1] == 'GiB' else 1)


def _planted_mib(case: Case, record: dict[str, Any], folder: Path) -> float:
    """Returns the MiB that a training held on purpose when it wrote a memory record."""
    done = record.get('iteration', 0)
    if case.plant == 'worker' and case.leaks:
        made = SIZE * (done + 2 * case.workers)
        return float(made * LEAK_BYTES / MIB)
    if case.plant == 'worker':
        return float(BALLAST_MIB * case.workers)
    if case.plant == 'process':
        return float(done * LIST_BYTES / MIB)
    if case.plant == 'results':
        # until it was killed, half a second after the last record
        return float(RESULT_MIB * int((folder / 'kept').read_text()))
    return float({'shm': SHM_MIB, 'parsed': PARSED_MIB}[case.plant])


def judge(name: str, root: Path) -> Iterator[Figure]:
    """Trains a benchmark case, and judges if the right memory holder is named."""
    case, folder = CASES[name], root / 'planted'
    root.mkdir()
    ended = play(name, folder)
    found = find(name, folder)
    base = 0.0
    if case.plant in ('worker', 'process'):
        play(name, root / 'twin', plants=False)
        last = read_records(find_evidence(root / 'twin'), 'memory')[-1]
        base = last.get(f'{case.plant}_bytes', 0) / MIB
    off = abs(found.named_mib - base - found.planted_mib) / found.planted_mib
    note = f'{found.named_mib - base:.0f} MiB of {found.planted_mib:.0f}'
    yield at_most(f'{name}: share off', 100 * off, 10, '%', note)
    is_right = ended
    if case.is_killed:
        is_right = found.cause == 'oom_cgroup' and not ended
    yield exactly(f'{name}: cause right', int(is_right), 1, note=str(found.cause))
    if case.plant == 'worker':
        said = WOULD_HOLD.search(found.sentence)
        workers = found.settings.get('train_dataloader.num_workers', case.workers)
        is_taken = said is not None and workers <= int(said[1])
        yield exactly(f'{name}: recommend takes the number', int(is_taken), 1)
        holds, note = False, 'no number was said'
        if said is not None:
            ends, note = said[2] is not None, said[0]
            holds = play(name, root / 'cured', int(said[1]), ends_workers=ends)
        yield exactly(f'{name}: that number holds', int(holds), 1, note=note)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark: trains and judges all cases, and prints the table."""
    bench = Benchmark('holders', __doc__ or '', argv, is_timed=False)
    if not can_limit():
        bench.add(Figure('control groups', None, note='none can be made here'))
        return bench.finish()
    names = QUICK if bench.is_quick else tuple(CASES)
    with tempfile.TemporaryDirectory(prefix='mmgpu-holders-') as root:
        for number, name in enumerate(names):
            bench.add(*judge(name, Path(root, str(number))))
    return bench.finish()


if __name__ == '__main__':
    if sys.argv[1:] and sys.argv[1] in CASES:  # started by `play`
        plays, at, count, ends, planted = sys.argv[1:6]
        train(CASES[plays], at, int(count), ends == '1', planted == '1')
    else:
        sys.exit(main())
